// SPDX-License-Identifier: Apache-2.0
// Multiply-adds that never leave the registers, compiled once per instruction set.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/peak.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "bench/peak.h"

HWY_BEFORE_NAMESPACE();
namespace favor::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Named one by one, because g++ 12 keeps arrays of vectors in memory. Twelve cover the latency of
// two units (4 cycles each) and, with the two operands, fit the 16 registers of AVX2.
#define FAVOR_FOR_EACH_SUM(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

// Ties the sums to registers in every round, so that rounds are neither merged nor left out.
// Targets whose vectors are arrays do without.
#if HWY_TARGET == HWY_EMU128
#define FAVOR_KEEP_SUMS
#elif HWY_ARCH_X86
#define FAVOR_KEEP_SUMS                                                                \
  asm volatile(""                                                                      \
               : "+v"(s0.raw), "+v"(s1.raw), "+v"(s2.raw), "+v"(s3.raw), "+v"(s4.raw), \
                 "+v"(s5.raw), "+v"(s6.raw), "+v"(s7.raw), "+v"(s8.raw), "+v"(s9.raw), \
                 "+v"(s10.raw), "+v"(s11.raw));
#elif HWY_TARGET == HWY_NEON
#define FAVOR_KEEP_SUMS                                                                \
  asm volatile(""                                                                      \
               : "+w"(s0.raw), "+w"(s1.raw), "+w"(s2.raw), "+w"(s3.raw), "+w"(s4.raw), \
                 "+w"(s5.raw), "+w"(s6.raw), "+w"(s7.raw), "+w"(s8.raw), "+w"(s9.raw), \
                 "+w"(s10.raw), "+w"(s11.raw));
#else
#define FAVOR_KEEP_SUMS
#endif

double run_multiply_add(int64_t rounds) {
  const hn::ScalableTag<float> d;
  // Sums tend to 1: no overflow, no denormal numbers.
  const auto factor = hn::Set(d, 0.75f);
  const auto addend = hn::Set(d, 0.25f);
#define FAVOR_START(i) auto s##i = hn::Set(d, 1.0f + 0.125f * i);
  FAVOR_FOR_EACH_SUM(FAVOR_START)
#undef FAVOR_START
  for (int64_t round = 0; round < rounds; ++round) {
#define FAVOR_STEP(i) s##i = hn::MulAdd(s##i, factor, addend);
    FAVOR_FOR_EACH_SUM(FAVOR_STEP)
#undef FAVOR_STEP
    FAVOR_KEEP_SUMS
  }
  auto total = hn::Zero(d);
#define FAVOR_TOTAL(i) total = hn::Add(total, s##i);
  FAVOR_FOR_EACH_SUM(FAVOR_TOTAL)
#undef FAVOR_TOTAL
  volatile float observed = hn::GetLane(total);
  static_cast<void>(observed);
  return 2.0 * 12.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

#undef FAVOR_KEEP_SUMS
#undef FAVOR_FOR_EACH_SUM

}  // namespace HWY_NAMESPACE
}  // namespace favor::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <time.h>

#include <algorithm>

#include "favor/parallel.h"

namespace favor::bench {

HWY_EXPORT(run_multiply_add);

double now_s(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double multiply_add(int64_t rounds) {
  return HWY_DYNAMIC_DISPATCH(run_multiply_add)(rounds);
}

double sample_peak(int threads) {
  static const int64_t rounds_of_2ms = [] {
    constexpr int64_t kTrial = 200'000;
    multiply_add(kTrial);
    const double start = now_s(1);
    multiply_add(kTrial);
    return std::max<int64_t>(static_cast<int64_t>(kTrial * 2e-3 / (now_s(1) - start)), 1);
  }();
  if (threads == 1) {
    const double start = now_s(1);
    const double flops = multiply_add(rounds_of_2ms);
    return flops / (now_s(1) - start) * 1e-9;
  }
  // Small shares, so that threads which start late or are interrupted take fewer of them.
  constexpr int64_t kShares = 16;
  const int64_t rounds = std::max<int64_t>(rounds_of_2ms / kShares, 1);
  const double start = now_s(threads);
  parallel_for(threads * kShares, [&](int64_t) { multiply_add(rounds); });
  const double elapsed = now_s(threads) - start;
  const double flops_per_share = multiply_add(1) * static_cast<double>(rounds);
  return static_cast<double>(threads * kShares) * flops_per_share / elapsed * 1e-9;
}

}  // namespace favor::bench
#endif  // HWY_ONCE
