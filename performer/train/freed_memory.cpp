// SPDX-License-Identifier: Apache-2.0
#include "performer/train/freed_memory.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <climits>

#include "performer/train/metrics.h"

namespace performer {

void keep_freed_memory() {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, INT_MAX);
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

void give_back_freed_memory(const MemoryOptions& memory, const ModelConfig& model) {
  const bool saves = memory.resolve(model) != ActivationPolicy::kStore || memory.ff_chunk > 0 ||
                     memory.loss_chunk > 0 || memory.slice_tokens > 0;
#ifdef __GLIBC__
  if (saves) {
    ::mallopt(M_MMAP_THRESHOLD, 4 << 20);
    ::mallopt(M_TRIM_THRESHOLD, 32 << 20);
  }
#else
  (void)saves;
#endif
}

void HoleTrimmer::step() {
  const int64_t resident = resident_bytes();
  if (first_) {
    held_ = std::max(held_, resident);
    first_ = false;
  } else if (resident > held_ + held_ / 4) {
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
    first_ = true;
  }
}

}  // namespace performer
