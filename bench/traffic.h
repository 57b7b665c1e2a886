// SPDX-License-Identifier: Apache-2.0
// The yardstick of decoding: what it takes to read a random matrix and to read and write a state
// once per head, from whichever cache holds them.
#ifndef BENCH_TRAFFIC_H_
#define BENCH_TRAFFIC_H_

#include <cstdint>

#include "hwy/aligned_allocator.h"

namespace favor::bench {

/// The memory that one decoding step of all heads touches: one matrix, and a state for each head.
class Traffic {
 public:
  Traffic(int64_t matrix_floats, int64_t state_floats, int64_t heads);

  /// Seconds of one step's traffic, on average over `steps`.
  double sample(int64_t steps);

 private:
  int64_t matrix_floats_, state_floats_, heads_;
  // At whole cache lines: elsewhere every load takes two, and the yardstick is a quarter longer.
  hwy::AlignedFreeUniquePtr<float[]> matrix_, states_;
};

}  // namespace favor::bench

#endif  // BENCH_TRAFFIC_H_
