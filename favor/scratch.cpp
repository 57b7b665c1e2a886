// SPDX-License-Identifier: Apache-2.0
// The memory that kernels work in.
#include <algorithm>
#include <atomic>
#include <limits>
#include <new>

#include "favor/plan.h"
#include "hwy/aligned_allocator.h"

namespace favor {
namespace {

std::atomic<bool> poison_scratch{false};

}  // namespace

void set_poison_scratch(bool poison) {
  poison_scratch = poison;
}

hwy::AlignedFreeUniquePtr<float[]> allocate_floats(int64_t floats) {
  auto memory = hwy::AllocateAligned<float>(static_cast<size_t>(std::max<int64_t>(floats, 1)));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  if (poison_scratch) {
    std::fill_n(memory.get(), floats, std::numeric_limits<float>::quiet_NaN());
  }
  return memory;
}

float* thread_scratch(int64_t floats) {
  thread_local hwy::AlignedFreeUniquePtr<float[]> memory;
  thread_local int64_t capacity = 0;
  if (floats > capacity) {
    memory.reset();
    capacity = 0;
    memory = allocate_floats(floats);
    capacity = floats;
  }
  if (poison_scratch) {
    std::fill_n(memory.get(), floats, std::numeric_limits<float>::quiet_NaN());
  }
  return memory.get();
}

}  // namespace favor
