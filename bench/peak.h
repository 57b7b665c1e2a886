// SPDX-License-Identifier: Apache-2.0
// The yardstick and the clocks: how fast this machine multiplies and adds right now, from registers
// alone, with the instruction set that dispatch has been pinned to.
#ifndef BENCH_PEAK_H_
#define BENCH_PEAK_H_

#include <cstdint>

namespace favor::bench {

/// CPU time of the calling thread for one thread, wall time for more. CPU time leaves out the
/// spells in which a shared machine ran something else.
double now_s(int threads);

/// Does `rounds` rounds of independent multiply-adds on registers in the calling thread; returns
/// the number of floating-point operations done, two per multiply-add and lane.
double multiply_add(int64_t rounds);

/// One sample of about two milliseconds: GFLOP/s of multiply_add in `threads` threads of the pool
/// together.
double sample_peak(int threads);

}  // namespace favor::bench

#endif  // BENCH_PEAK_H_
