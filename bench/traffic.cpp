// SPDX-License-Identifier: Apache-2.0
// Reads and writes of memory with next to no arithmetic, compiled once per instruction set.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/traffic.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "bench/traffic.h"

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace favor::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Sums `matrix` and adds the sum, times 0, to every element of `state`. Whole groups of four
/// vectors.
float run_traffic(const float* HWY_RESTRICT matrix, int64_t matrix_floats,
                  float* HWY_RESTRICT state, int64_t state_floats) {
  const hn::ScalableTag<float> d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (int64_t i = 0; i + 4 * N <= matrix_floats; i += 4 * N) {
    a = hn::Add(a, hn::LoadU(d, matrix + i));
    b = hn::Add(b, hn::LoadU(d, matrix + i + N));
    c = hn::Add(c, hn::LoadU(d, matrix + i + 2 * N));
    e = hn::Add(e, hn::LoadU(d, matrix + i + 3 * N));
  }
  a = hn::Add(hn::Add(a, b), hn::Add(c, e));
  const auto zero = hn::Mul(a, hn::Zero(d));
  for (int64_t i = 0; i + 4 * N <= state_floats; i += 4 * N) {
    for (int64_t k = i; k < i + 4 * N; k += N) {
      hn::StoreU(hn::Add(hn::LoadU(d, state + k), zero), d, state + k);
    }
  }
  return hn::GetLane(a);
}

}  // namespace HWY_NAMESPACE
}  // namespace favor::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "bench/peak.h"

namespace favor::bench {

HWY_EXPORT(run_traffic);

Traffic::Traffic(int64_t matrix_floats, int64_t state_floats, int64_t heads)
    : matrix_floats_(matrix_floats),
      state_floats_(state_floats),
      heads_(heads),
      // A map without a matrix reads none, but no memory cannot be asked for.
      matrix_(
          hwy::AllocateAligned<float>(static_cast<size_t>(std::max<int64_t>(matrix_floats, 1)))),
      states_(hwy::AllocateAligned<float>(static_cast<size_t>(state_floats * heads))) {
  std::fill_n(matrix_.get(), matrix_floats, 1.0f);
  std::fill_n(states_.get(), state_floats * heads, 1.0f);
}

double Traffic::sample(int64_t steps) {
  volatile float observed = 0;
  const double start = now_s(1);
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t head = 0; head < heads_; ++head) {
      observed = HWY_DYNAMIC_DISPATCH(run_traffic)(
          matrix_.get(), matrix_floats_, states_.get() + head * state_floats_, state_floats_);
    }
  }
  static_cast<void>(observed);
  return (now_s(1) - start) / static_cast<double>(steps);
}

}  // namespace favor::bench
#endif  // HWY_ONCE
