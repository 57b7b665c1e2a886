// SPDX-License-Identifier: Apache-2.0
#include "performer/models/large_pages.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace performer {

#ifdef __linux__
namespace {

using torch::Tensor;

constexpr size_t kLargePage = size_t{2} << 20, kLine = 64;

size_t rounded_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

bool can_move(const Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == torch::kStrided && tensor.is_contiguous() &&
         tensor.nbytes() > 0 && tensor.storage().nbytes() == tensor.nbytes();
}

}  // namespace

void move_to_large_pages(torch::nn::Module& module) {
  std::vector<Tensor> tensors = module.parameters();
  for (const Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  std::erase_if(tensors, [](const Tensor& tensor) { return !can_move(tensor); });
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += rounded_up(tensor.nbytes(), kLine);
  if (bytes < kLargePage) return;
  bytes = rounded_up(bytes, kLargePage);
  void* memory = std::aligned_alloc(kLargePage, bytes);
  if (memory == nullptr) return;
  // Advice: where it is not taken, pages are as they would be anyway.
  static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
  const Tensor block =
      torch::from_blob(memory, {static_cast<int64_t>(bytes)}, std::free, torch::kUInt8);
  const torch::NoGradGuard no_grad;
  size_t at = 0;
  for (Tensor& tensor : tensors) {
    const Tensor place =
        block.narrow(0, static_cast<int64_t>(at), static_cast<int64_t>(tensor.nbytes()))
            .view(tensor.scalar_type())
            .view(tensor.sizes());
    place.copy_(tensor);
    at += rounded_up(tensor.nbytes(), kLine);
    tensor.set_data(place);
  }
}
#else
void move_to_large_pages(torch::nn::Module&) {}
#endif

}  // namespace performer
