// SPDX-License-Identifier: Apache-2.0
// A decoding step of a few heads: their tokens' logits, the features made of them, and the answers.

// clang-format off
#if defined(FAVOR_STEP_GROUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_STEP_GROUP_INL_H_
#undef FAVOR_STEP_GROUP_INL_H_
#else
#define FAVOR_STEP_GROUP_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include "favor/features-inl.h"
#include "favor/step_logits-inl.h"
#include "favor/step_rows.h"
#include "favor/step_state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

inline constexpr float kLog2e = std::numbers::log2e_v<float>;

/// 1 / x, 0 for 0 and finite for denormal numbers.
inline float reciprocal(float x) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  return x == 0.0f ? 0.0f : std::copysign(std::min(1.0f / std::abs(x), kLargest), x);
}

/// What all heads of a step share.
struct Step {
  const Plan<float>& plan;
  const StepRows* rows;  ///< of a fitted map, else null
  DecodeState& state;
  OutputRows out;
  float* log_sums;  ///< as decode_step_kernel's
  HeadPlan head;    ///< constants alone
  int64_t num_queries;
  float root_scale;
  float half_scale;  ///< half_scale |x|^2 is subtracted from the logarithms of x's features
  float constant;    ///< added to the logarithms of a query's features
  float log_eps;

  Step(const Plan<float>& checked, const StepRows* fitted, DecodeState& of, OutputRows to,
       float* sums)
      : plan(checked),
        rows(fitted),
        state(of),
        out(to),
        log_sums(sums),
        head(head_constants(checked)),
        num_queries(checked.group()),
        root_scale(static_cast<float>(std::sqrt(checked.scale))),
        constant(fitted == nullptr ? std::numbers::ln2_v<float> * head.query.constant : 0.0f),
        log_eps(head.has_floor ? static_cast<float>(std::log(checked.eps)) : 0.0f) {
    const bool trig = head.map == FeatureMapKind::kTrig;
    const double sign = !estimates_softmax(head.map) ? 0 : trig ? -1 : 1;
    half_scale = static_cast<float>(sign * 0.5 * checked.scale);
  }

  bool share_matrix() const { return rows == nullptr ? plan.P == 1 : rows->sets == 1; }
};

/// One step of heads [first, end) of the state, which share their matrix, and of the queries that
/// share them.
class DecodeGroup {
 public:
  DecodeGroup(const Step& step, int64_t first, int64_t end)
      : step_(step), plan_(step.plan), head_(step.head), first_(first), heads_(end - first) {
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
  }

  void run() const {
    for (int64_t i = 0; i < heads_; ++i) load(i);
    project();
    for (int64_t i = 0; i < heads_; ++i) run_head(i);
  }

 private:
  int64_t batch(int64_t i) const { return (first_ + i) / step_.state.H; }
  int64_t key_head(int64_t i) const { return (first_ + i) % step_.state.H; }
  int64_t query_head(int64_t i, int64_t j) const { return key_head(i) * step_.num_queries + j; }
  /// Query j of head i among the tokens; the keys come first.
  int64_t query_index(int64_t i, int64_t j) const { return heads_ + i * step_.num_queries + j; }
  /// Where the group's rows of a fitted map begin.
  int64_t set() const { return step_.share_matrix() ? 0 : key_head(0); }

  void place(ScratchLayout& layout) {
    const int64_t stride = step_.state.hot_stride();
    c_ = layout.take(stride);
    z_ = layout.take(stride);
    quarters_ = layout.take(head_.map == FeatureMapKind::kTrig ? stride : 0);
    const int64_t n = heads_ * (1 + step_.num_queries);
    tokens_.place(layout, n, plan_.D, plan_.rows, stride, plan_.structured);
    scores_ = layout.take(kHotTokens);
    sums_ = layout.take(plan_.E);
    all_sums_ = layout.take(plan_.E);
  }

  /// Reads the tokens of head i; rows of values and outputs begin their way to the cache.
  void load(int64_t i) const {
    const int64_t b = batch(i), g = key_head(i);
    if (plan_.allows_key(b, g, 0)) {
      copy_row(plan_.k.row(b, g, 0), plan_.D, tokens_.row(i));
      prefetch(plan_.v.row(b, g, 0).data, plan_.E * element_bytes(plan_.v.elements.type));
    } else {
      std::fill_n(tokens_.row(i), plan_.D, 0.0f);
    }
    for (int64_t j = 0; j < step_.num_queries; ++j) {
      const int64_t h = query_head(i, j);
      copy_row(plan_.q.row(b, h, 0), plan_.D, tokens_.row(query_index(i, j)));
      prefetch(step_.out.row(b, h, 0).data, plan_.E * element_bytes(step_.out.elements.type));
    }
  }

  /// Logits of all tokens, in natural logarithm.
  void project() const {
    const int64_t R = plan_.rows, M = plan_.M, n = heads_ * (1 + step_.num_queries);
    if (step_.rows != nullptr) {
      const StepRows& rows = *step_.rows;
      const float* query_rows = rows.query_rows.data() + set() * M * plan_.D;
      const float* key_rows =
          rows.key_rows.empty() ? query_rows : rows.key_rows.data() + set() * M * plan_.D;
      if (key_rows == query_rows) {
        tokens_.multiply(query_rows, step_.root_scale, 0, n);
      } else {
        tokens_.multiply(key_rows, step_.root_scale, 0, heads_);
        tokens_.multiply(query_rows, step_.root_scale, heads_, n);
      }
    } else if (plan_.structured != nullptr) {
      tokens_.multiply(plan_.structured[set()], step_.root_scale);
    } else if (plan_.projection != nullptr) {
      tokens_.multiply(plan_.projection + set() * R * plan_.D, step_.root_scale, 0, n);
    } else {
      tokens_.multiply_identity(step_.root_scale);
    }
    for (int64_t t = 0; R < M && t < n; ++t) {
      // Hyperbolic maps have every row again with the other sign; trig has sines and cosines.
      float* logits = tokens_.logits(t);
      if (head_.map == FeatureMapKind::kTrig) {
        std::copy_n(logits, R, logits + R);
      } else {
        std::transform(logits, logits + R, logits + R, std::negate<float>());
      }
    }
    if (head_.map == FeatureMapKind::kTrig) {
      std::fill_n(quarters_, step_.state.hot_stride(), 1.0f);
      std::fill_n(quarters_, R, 0.0f);
    }
  }

  void run_head(int64_t i) const {
    const HeadOfState state(step_.state, first_ + i);
    const int64_t b = batch(i), g = key_head(i), hot = step_.state.num_hot;
    std::copy_n(state.c, state.M, c_);
    std::copy_n(state.z, state.M, z_);
    std::fill(c_ + state.M, c_ + state.stride, 0.0f);
    std::fill(z_ + state.M, z_ + state.stride, 0.0f);
    if (head_.log_linear && hot == 0) forget_unseen(state);
    float* feature = state.features + hot * state.stride;
    float* value = state.values + hot * state.E;
    if (plan_.allows_key(b, g, 0)) {
      const float* log_weight = plan_.log_weight_row(b, g);
      const float exponent = (log_weight == nullptr ? 0.0f : *log_weight) - half_norm(i, false);
      absorb(state, tokens_.logits(i), exponent, log_weight == nullptr ? 0.0f : *log_weight,
             feature);
      copy_row(plan_.v.row(b, g, 0), state.E, value);
    } else {
      std::fill_n(feature, state.stride, 0.0f);
      std::fill_n(value, state.E, 0.0f);
    }
    for (int64_t j = 0; j < step_.num_queries; ++j) {
      const int64_t h = query_head(i, j);
      const float log_sum = answer(state, query_index(i, j), step_.out.row(b, h, 0));
      if (step_.log_sums != nullptr) step_.log_sums[b * plan_.H + h] = log_sum;
    }
    if (hot + 1 == kHotTokens) state.flush(kHotTokens);
  }

  /// What is subtracted from the logarithms of token t's features.
  float half_norm(int64_t t, bool is_query) const {
    const float* x = tokens_.row(t);
    if (step_.rows == nullptr || step_.rows->key_norms.empty()) {
      return step_.half_scale == 0.0f ? 0.0f : step_.half_scale * dot(x, x, plan_.D);
    }
    const float* norms =
        (is_query ? step_.rows->query_norms : step_.rows->key_norms).data() + set() * plan_.D;
    float sum = 0.0f;
    for (int64_t i = 0; i < plan_.D; ++i) sum += norms[i] * x[i] * x[i];
    return step_.half_scale * sum;
  }

  /// Stabilisers below every logit where no key has been seen.
  void forget_unseen(const HeadOfState& state) const {
    for (int64_t f = 0; f < state.M; ++f) {
      if (z_[f] == 0.0f) c_[f] = state.c[f] = kNoKey;
    }
  }

  /// The features of a key with these logits, with stabilisers raised where it asks for it. All of
  /// its features are multiplied by exp(exponent), and what eps adds to those of log-linear maps by
  /// exp(log_weight).
  void absorb(const HeadOfState& state, float* logits, float exponent, float log_weight,
              float* HWY_RESTRICT feature) const {
    if (!head_.log_linear) {
      absorb_values(state, logits, exponent, feature);
    } else if (head_.has_floor) {
      absorb_exponentials<true>(state, logits, exponent, step_.log_eps + log_weight, feature);
    } else {
      absorb_exponentials<false>(state, logits, exponent, 0.0f, feature);
    }
    std::fill(feature + state.M, feature + state.stride, 0.0f);
  }

  template <bool kFloor>
  void absorb_exponentials(const HeadOfState& state, float* logits, float exponent, float floor,
                           float* HWY_RESTRICT feature) const {
    const FloatTag d;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d));
    const int64_t M = state.M;
    const Vector offset = hn::Set(d, exponent);
    const Vector least = hn::Set(d, floor);
    const Vector log2e = hn::Set(d, kLog2e);
    const Vector lazy = hn::Set(d, kLazyRaise);
    std::fill(logits + M, logits + state.stride, 0.0f);
    for (int64_t f = 0; f < M; f += N) {
      const Vector logit = hn::Add(hn::LoadU(d, logits + f), offset);
      const Vector top = kFloor ? hn::Max(logit, least) : logit;
      Vector c = hn::LoadU(d, c_ + f);
      if (HWY_UNLIKELY(!hn::AllFalse(d, hn::Gt(hn::Mul(log2e, hn::Sub(top, c)), lazy)))) {
        hn::StoreU(top, d, logits + f);
        raise(state, logits, f, std::min(f + N, M));
        c = hn::LoadU(d, c_ + f);
      }
      Vector value = exp2(hn::Mul(log2e, hn::Sub(logit, c)));
      if constexpr (kFloor) value = hn::Add(value, exp2(hn::Mul(log2e, hn::Sub(least, c))));
      hn::StoreU(value, d, feature + f);
    }
  }

  /// Raises stabilisers that features [first, end) exceed by far to the key's logarithms.
  void raise(const HeadOfState& state, const float* logits, int64_t first, int64_t end) const {
    for (int64_t f = first; f < end; ++f) {
      if (!(kLog2e * (logits[f] - c_[f]) > kLazyRaise)) continue;
      const float factor = std::exp2(kLog2e * (c_[f] - logits[f]));
      state.scale(f, step_.state.num_hot, factor);
      z_[f] *= factor;
      c_[f] = state.c[f] = logits[f];
    }
  }

  void absorb_values(const HeadOfState& state, const float* logits, float exponent,
                     float* HWY_RESTRICT feature) const {
    const FloatTag d;
    const int64_t hot = step_.state.num_hot;
    if (exponent > c_[0] || (exponent < c_[0] && state.is_empty(hot))) {
      const float factor = exponent > c_[0] ? std::exp(c_[0] - exponent) : 1.0f;
      for (int64_t f = 0; f < state.M; ++f) {
        state.scale(f, hot, factor);
        z_[f] *= factor;
        c_[f] = state.c[f] = exponent;
      }
    }
    const Vector weight = hn::Set(d, std::exp(exponent - c_[0]));
    for_each_value(state, logits, [&](Vector value, int64_t f) HWY_ATTR {
      hn::StoreU(hn::Mul(weight, value), d, feature + f);
    });
  }

  /// Calls body(g(u) + eps, f) for every vector of features.
  template <class Body>
  HWY_INLINE void for_each_value(const HeadOfState& state, const float* logits,
                                 const Body& body) const {
    with_value_map(head_.map, [&](auto map) HWY_ATTR {
      const FloatTag d;
      const int64_t N = static_cast<int64_t>(hn::Lanes(d));
      const Vector eps = hn::Set(d, head_.eps);
      for (int64_t f = 0; f < state.M; f += N) {
        const Vector quarters =
            head_.map == FeatureMapKind::kTrig ? hn::LoadU(d, quarters_ + f) : hn::Zero(d);
        Vector slope;
        body(hn::Add(map.apply(hn::LoadU(d, logits + f), quarters, slope), eps), f);
      }
    });
  }

  /// Weights of the features: the logarithm that was taken out of them, and their product with z.
  struct Weights {
    float log_factor, denominator;
  };

  /// Turns a query's logits into weights of the features, zeros beyond M.
  template <bool kFloor>
  Weights weigh_exponentials(const HeadOfState& state, float* HWY_RESTRICT weight,
                             float floor) const {
    const FloatTag d;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d));
    const Vector log2e = hn::Set(d, kLog2e), least = hn::Set(d, floor);
    const float* shift =
        step_.rows == nullptr ? nullptr : step_.rows->query_shift.data() + set() * state.M;
    for (int64_t f = 0; shift != nullptr && f < state.M; ++f) weight[f] += shift[f];
    // Elements beyond M count neither in the maximum nor in a sum.
    std::fill(weight + state.M, weight + state.stride, 2 * kNoKey);
    Vector largest = hn::Set(d, 2 * kNoKey);
    for (int64_t f = 0; f < state.stride; f += N) {
      const Vector c = hn::LoadU(d, c_ + f);
      const Vector shifted = hn::Add(hn::LoadU(d, weight + f), c);
      largest = hn::Max(largest, shifted);
      if constexpr (kFloor) {
        const auto valid =
            hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(state.M - f, 0, N)));
        largest = hn::IfThenElse(valid, hn::Max(largest, hn::Add(least, c)), largest);
      }
      hn::StoreU(shifted, d, weight + f);
    }
    const Vector top = hn::MaxOfLanes(d, largest);
    Vector denominators = hn::Zero(d);
    for (int64_t f = 0; f < state.stride; f += N) {
      Vector value = exp2(hn::Mul(log2e, hn::Sub(hn::LoadU(d, weight + f), top)));
      if constexpr (kFloor) {
        const auto valid =
            hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(state.M - f, 0, N)));
        const Vector added = hn::Sub(hn::Add(least, hn::LoadU(d, c_ + f)), top);
        value = hn::IfThenElse(valid, hn::Add(value, exp2(hn::Mul(log2e, added))), value);
      }
      denominators = hn::MulAdd(value, hn::LoadU(d, z_ + f), denominators);
      hn::StoreU(value, d, weight + f);
    }
    return {hn::GetLane(top), hn::GetLane(hn::SumOfLanes(d, denominators))};
  }

  Weights weigh_values(const HeadOfState& state, float* weight) const {
    const FloatTag d;
    Vector denominators = hn::Zero(d);
    for_each_value(state, weight,
                   [&](Vector value, int64_t f) HWY_ATTR { hn::StoreU(value, d, weight + f); });
    std::fill(weight + state.M, weight + state.stride, 0.0f);
    for (int64_t f = 0; f < state.stride; f += static_cast<int64_t>(hn::Lanes(d))) {
      denominators = hn::MulAdd(hn::LoadU(d, weight + f), hn::LoadU(d, z_ + f), denominators);
    }
    return {c_[0], hn::GetLane(hn::SumOfLanes(d, denominators))};
  }

  /// Writes the output of query token t. Returns the logarithm of its denominator, -inf without
  /// keys (log-linear maps).
  float answer(const HeadOfState& state, int64_t t, const OutputElements& out) const {
    const FloatTag d;
    float* weight = tokens_.logits(t);
    const float norm = head_.whole_queries ? half_norm(t, true) : 0.0f;
    const Weights weights = !head_.log_linear ? weigh_values(state, weight)
                            : head_.has_floor
                                ? weigh_exponentials<true>(state, weight, step_.log_eps + norm)
                                : weigh_exponentials<false>(state, weight, 0.0f);
    const int64_t hot = step_.state.num_hot + 1;
    dot_rows<false>(d, state.features, state.stride, hot, state.stride, weight, nullptr, scores_,
                    nullptr);
    float denominator = weights.denominator;
    for (int64_t j = 0; j < hot; ++j) denominator += scores_[j];
    sum_rows(d, state.S, state.M, state.E, weight, nullptr, sums_);
    sum_rows(d, state.values, hot, state.E, scores_, sums_, all_sums_);
    const float log_factor = weights.log_factor - norm + step_.constant;
    const float factor =
        head_.renormalize ? reciprocal(denominator) : std::exp2(kLog2e * log_factor);
    for (int64_t e = 0; e < state.E; ++e) all_sums_[e] *= factor;
    copy_row(all_sums_, state.E, out);
    return denominator == 0.0f ? -std::numeric_limits<float>::infinity()
                               : log_factor + std::log(denominator);
  }

  const Step& step_;
  const Plan<float>& plan_;
  const HeadPlan& head_;
  int64_t first_, heads_;
  StepLogits tokens_;
  float *c_, *z_;            ///< [stride] copies of a head's, zeros beyond M
  float* quarters_;          ///< [stride] trig: 0 for sines, 1 for cosines
  float* scores_;            ///< [kHotTokens] of a query with the hot tokens
  float *sums_, *all_sums_;  ///< [E] numerators without and with the hot tokens
};

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_STEP_GROUP_INL_H_
