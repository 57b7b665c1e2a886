// SPDX-License-Identifier: Apache-2.0
// One token of causal attention against a state of constant size. Reads the random matrix once and
// reads and writes the state once.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/decode.cpp"
#include "hwy/foreach_target.h"
#include "favor/tokens-inl.h"
// clang-format on

#include <numbers>

#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// What happens to feature f of a state: S_f = keep S_f + add v, then out += weight S_f.
struct FeatureStep {
  float* keep;
  float* add;
  float* weight;
};

/// 1 / x, 0 for 0 and finite for denormal numbers.
float reciprocal(float x) {
  return x == 0.0f ? 0.0f : std::min(1.0f / x, std::numeric_limits<float>::max());
}

/// Stabilisers, denominators and weights of one head; returns the reciprocal of the denominator.
float step_features(const Plan<float>& plan, const Item& item, const float* q, const float* k,
                    bool absorbs, float* c, float* z, const FeatureStep& step) {
  const bool positive = plan.feature_map == FeatureMapKind::kPositive;
  const float root = static_cast<float>(std::sqrt(plan.scale));
  const float eps = static_cast<float>(plan.eps);
  const float log2e = std::numbers::log2e_v<float>;
  const float* w = plan.projection == nullptr
                       ? nullptr
                       : plan.projection + (plan.P == 1 ? 0 : item.h) * plan.M * plan.D;
  const float half_norm =
      absorbs && positive ? 0.5f * static_cast<float>(plan.scale) * dot(k, k, plan.D) : 0.0f;
  const auto logit = [&](const float* x, int64_t f) {
    return root * (w == nullptr ? x[f] : dot(w + f * plan.D, x, plan.D));
  };
  if (!positive) {
    float denominator = 0.0f;
    for (int64_t f = 0; f < plan.M; ++f) {
      step.keep[f] = 1.0f;
      step.add[f] = absorbs ? std::max(logit(k, f), 0.0f) + eps : 0.0f;
      step.weight[f] = std::max(logit(q, f), 0.0f) + eps;
      z[f] += step.add[f];
      denominator += step.weight[f] * z[f];
    }
    return reciprocal(denominator);
  }

  // Exponents first, in base 2 and in the arrays of the step; then all exponentials at once.
  float top = -std::numeric_limits<float>::infinity();
  for (int64_t f = 0; f < plan.M; ++f) {
    const float key = absorbs ? logit(k, f) - half_norm : 0.0f;
    const bool empty = z[f] == 0.0f;
    const float raised = !absorbs ? c[f] : !empty && c[f] >= key ? c[f] : key;
    step.keep[f] = empty ? kNoKey : log2e * (c[f] - raised);
    step.add[f] = absorbs ? log2e * (key - raised) : kNoKey;
    step.weight[f] = logit(q, f) + raised;
    top = std::max(top, step.weight[f]);
    c[f] = raised;
  }
  for (int64_t f = 0; f < plan.M; ++f) {
    step.weight[f] = log2e * (step.weight[f] - top);
  }
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  for (float* exponents : {step.keep, step.add, step.weight}) {
    for (int64_t f = 0; f < plan.M; f += N) {
      hn::StoreU(exp2(hn::LoadU(d, exponents + f)), d, exponents + f);
    }
  }
  float denominator = 0.0f;
  for (int64_t f = 0; f < plan.M; ++f) {
    z[f] = step.keep[f] * z[f] + step.add[f];
    denominator += step.weight[f] * z[f];
  }
  return reciprocal(denominator);
}

/// Updates the rows of S and sums them into out.
void step_values(int64_t M, int64_t E, const FeatureStep& step, float inverse, const float* v,
                 float* S, float* out) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  int64_t e = 0;
  for (; e + N <= E; e += N) {
    const Vector value = hn::LoadU(d, v + e);
    Vector sum = hn::Zero(d);
    for (int64_t f = 0; f < M; ++f) {
      float* at = S + f * E + e;
      const Vector row = hn::MulAdd(hn::Set(d, step.keep[f]), hn::LoadU(d, at),
                                    hn::Mul(hn::Set(d, step.add[f]), value));
      sum = hn::MulAdd(hn::Set(d, step.weight[f]), row, sum);
      hn::StoreU(row, d, at);
    }
    hn::StoreU(hn::Mul(hn::Set(d, inverse), sum), d, out + e);
  }
  for (; e < E; ++e) {
    float sum = 0.0f;
    for (int64_t f = 0; f < M; ++f) {
      float& at = S[f * E + e];
      at = step.keep[f] * at + step.add[f] * v[e];
      sum += step.weight[f] * at;
    }
    out[e] = inverse * sum;
  }
}

void run_decode_step(const Plan<float>& plan, DecodeState& state, const OutputRows& out) {
  // A step of few heads takes less time than waking a thread.
  constexpr int64_t kHeadsPerTask = 8;
  const int64_t heads = plan.B * plan.H;
  parallel_for((heads + kHeadsPerTask - 1) / kHeadsPerTask, [&](int64_t task) {
    for (int64_t index = task * kHeadsPerTask; index < std::min((task + 1) * kHeadsPerTask, heads);
         ++index) {
      const Item item(plan, index);
      const uint8_t* mask = plan.mask_row(item.b);
      const bool absorbs = mask == nullptr || mask[0] == 0;
      const int64_t padded = num_panels(plan.M) * panel_width();
      ScratchLayout layout(thread_scratch(3 * padded + 2 * (plan.D + plan.E) + 7 * 32));
      const FeatureStep step{layout.take(padded), layout.take(padded), layout.take(padded)};
      float* q = layout.take(plan.D);
      float* k = layout.take(plan.D);
      float* values = layout.take(plan.E);
      float* answer = layout.take(plan.E);
      copy_row(plan.q.row(item.b, item.h, 0), plan.D, q);
      if (absorbs) {
        copy_row(plan.k.row(item.b, item.h, 0), plan.D, k);
        copy_row(plan.v.row(item.b, item.h, 0), plan.E, values);
      } else {
        std::fill_n(values, plan.E, 0.0f);
      }
      for (float* array : {step.keep, step.add, step.weight}) {
        std::fill_n(array, padded, 0.0f);
      }
      const float inverse =
          step_features(plan, item, q, k, absorbs, state.c.data() + index * plan.M,
                        state.z.data() + index * plan.M, step);
      step_values(plan.M, plan.E, step, inverse, values, state.S.data() + index * plan.M * plan.E,
                  answer);
      copy_row(answer, plan.E, out.row(item.b, item.h, 0));
    }
  });
  state.position += 1;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_decode_step);

void decode_step_kernel(const Plan<float>& plan, DecodeState& state, OutputRows out) {
  HWY_DYNAMIC_DISPATCH(run_decode_step)(plan, state, out);
}

}  // namespace favor
#endif  // HWY_ONCE
