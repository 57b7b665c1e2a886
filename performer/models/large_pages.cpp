// SPDX-License-Identifier: Apache-2.0
#include "performer/models/large_pages.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
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

// Each of the module's tensors that can be moved alone, once.
std::vector<Tensor> movable_tensors(const torch::nn::Module& module) {
  std::vector<Tensor> tensors;
  std::map<const void*, int> uses;  // by storage
  for (const auto& all : {module.parameters(), module.buffers()}) {
    for (const Tensor& tensor : all) {
      const auto is_same = [&](const Tensor& other) { return other.is_same(tensor); };
      if (!can_move(tensor) || std::any_of(tensors.begin(), tensors.end(), is_same)) continue;
      tensors.push_back(tensor);
      ++uses[tensor.storage().data()];
    }
  }
  std::erase_if(tensors, [&](const Tensor& tensor) { return uses[tensor.storage().data()] > 1; });
  return tensors;
}

}  // namespace

void move_to_large_pages(torch::nn::Module& module) {
  std::vector<Tensor> tensors = movable_tensors(module);
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
