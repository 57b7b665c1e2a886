// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "performer/train/adamw.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "performer/train/adamw.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "favor/isa.h"
#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace performer {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// What a thread takes at a time: long against waking it.
constexpr int64_t kBlock = 32768;

template <class D>
HWY_INLINE void step_lanes(D d, const AdamWStep& step, const float* gradient, float* parameter,
                           float* mean, float* square) {
  const auto g = hn::Mul(hn::LoadU(d, gradient), hn::Set(d, step.gradient_factor));
  const auto m =
      hn::MulAdd(hn::Set(d, step.beta1), hn::LoadU(d, mean), hn::Mul(hn::Set(d, step.share1), g));
  const auto s = hn::MulAdd(hn::Set(d, step.beta2), hn::LoadU(d, square),
                            hn::Mul(hn::Mul(hn::Set(d, step.share2), g), g));
  hn::StoreU(m, d, mean);
  hn::StoreU(s, d, square);
  const auto root = hn::MulAdd(hn::Sqrt(s), hn::Set(d, step.root_factor), hn::Set(d, step.eps));
  const auto kept = hn::Mul(hn::Set(d, step.kept), hn::LoadU(d, parameter));
  hn::StoreU(hn::Sub(kept, hn::Mul(hn::Set(d, step.step_size), hn::Div(m, root))), d, parameter);
}

HWY_NOINLINE void step_range(const AdamWStep& shared, const float* HWY_RESTRICT gradient,
                             int64_t count, float* HWY_RESTRICT parameter, float* HWY_RESTRICT mean,
                             float* HWY_RESTRICT square) {
  const AdamWStep step = shared;  // which no array can overlap
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + N <= count; i += N) {
    step_lanes(d, step, gradient + i, parameter + i, mean + i, square + i);
  }
  for (; i < count; ++i) {
    step_lanes(one, step, gradient + i, parameter + i, mean + i, square + i);
  }
}

HWY_NOINLINE double sum_range(const float* HWY_RESTRICT values, int64_t count) {
  const hn::ScalableTag<float> d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  // A float lane adds few squares, so that small ones are not lost beside large ones.
  const int64_t run = 64 * N;
  double total = 0;
  for (int64_t first = 0; first < count; first += run) {
    const int64_t end = std::min(first + run, count);
    auto a = hn::Zero(d), b = a;
    int64_t i = first;
    for (; i + 2 * N <= end; i += 2 * N) {
      const auto x = hn::LoadU(d, values + i), y = hn::LoadU(d, values + i + N);
      a = hn::MulAdd(x, x, a);
      b = hn::MulAdd(y, y, b);
    }
    double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
    for (; i < end; ++i) sum += static_cast<double>(values[i]) * values[i];
    total += sum;
  }
  return total;
}

void run_step(const AdamWStep& step, const float* gradient, int64_t count, float* parameter,
              float* mean, float* square) {
  favor::parallel_for((count + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t at = block * kBlock;
    step_range(step, gradient + at, std::min(kBlock, count - at), parameter + at, mean + at,
               square + at);
  });
}

double run_sum(const float* values, int64_t count) {
  std::vector<double> sums(static_cast<size_t>((count + kBlock - 1) / kBlock));
  favor::parallel_for(static_cast<int64_t>(sums.size()), [&](int64_t block) {
    const int64_t at = block * kBlock;
    sums[static_cast<size_t>(block)] = sum_range(values + at, std::min(kBlock, count - at));
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace performer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace performer {

HWY_EXPORT(run_step);
HWY_EXPORT(run_sum);

AdamWStep::AdamWStep(double lr, double beta1_, double beta2_, double eps_, double weight_decay,
                     int64_t t, double factor)
    : gradient_factor(static_cast<float>(factor)),
      kept(static_cast<float>(1 - lr * weight_decay)),
      beta1(static_cast<float>(beta1_)),
      beta2(static_cast<float>(beta2_)),
      share1(static_cast<float>(1 - beta1_)),
      share2(static_cast<float>(1 - beta2_)),
      step_size(static_cast<float>(lr / (1 - std::pow(beta1_, static_cast<double>(t))))),
      root_factor(static_cast<float>(1 / std::sqrt(1 - std::pow(beta2_, static_cast<double>(t))))),
      eps(static_cast<float>(eps_)) {}

void adamw_step(const AdamWStep& step, const float* gradient, int64_t count, float* parameter,
                float* mean, float* square) {
  favor::apply_isa_limit();
  HWY_DYNAMIC_DISPATCH(run_step)(step, gradient, count, parameter, mean, square);
}

double sum_of_squares(const float* values, int64_t count) {
  favor::apply_isa_limit();
  return HWY_DYNAMIC_DISPATCH(run_sum)(values, count);
}

}  // namespace performer
#endif  // HWY_ONCE
