// SPDX-License-Identifier: Apache-2.0
// One token of causal attention against a state of constant size.
//
// A step is bound by memory: it reads the random matrix and S once, and writes neither. The key's
// features and value join the hot part of the state, whose few tokens are scored one by one; when
// it is full, they are added to S at once, which also rounds S once per kHotTokens tokens.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/decode.cpp"
#include "hwy/foreach_target.h"
#include "favor/query_features-inl.h"
#include "favor/row_products-inl.h"
// clang-format on

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

constexpr float kLog2e = std::numbers::log2e_v<float>;

/// One head of a decoding state.
struct HeadOfState {
  int64_t M, E, stride;
  float *c, *z, *z_rest, *S, *S_rest;
  float* features;  ///< [kHotTokens, stride]
  float* values;    ///< [kHotTokens, E]

  HeadOfState(DecodeState& state, int64_t index)
      : M(state.M),
        E(state.E),
        stride(state.hot_stride()),
        c(state.c.data() + index * M),
        z(state.z.data() + index * M),
        z_rest(state.z_rest.data() + index * M),
        S(state.S.data() + index * M * E),
        S_rest(state.S_rest.data() + index * M * E),
        features(state.hot_features.data() + index * kHotTokens * stride),
        values(state.hot_values.data() + index * kHotTokens * E) {}

  /// Adds the first n hot tokens to the sums.
  void flush(int64_t n) const {
    const FloatTag d;
    const hn::CappedTag<float, 1> one;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d));
    add_products(d, features, stride, values, n, M, E, S, S_rest);
    int64_t f = 0;
    for (; f + N <= M; f += N) {
      Vector sum = hn::Zero(d);
      for (int64_t j = 0; j < n; ++j) sum = hn::Add(sum, hn::LoadU(d, features + j * stride + f));
      add_exactly(d, sum, z + f, z_rest + f);
    }
    for (; f < M; ++f) {
      float sum = 0.0f;
      for (int64_t j = 0; j < n; ++j) sum += features[j * stride + f];
      add_exactly(one, hn::Set(one, sum), z + f, z_rest + f);
    }
  }

  /// Multiplies the sums and hot features of feature f.
  void scale(int64_t f, int64_t n, float factor) const {
    z[f] *= factor;
    z_rest[f] *= factor;
    for (int64_t e = f * E; e < (f + 1) * E; ++e) S[e] *= factor;
    for (int64_t e = f * E; e < (f + 1) * E; ++e) S_rest[e] *= factor;
    for (int64_t j = 0; j < n; ++j) features[j * stride + f] *= factor;
  }
};

/// 1 / x, 0 for 0 and finite for denormal numbers.
float reciprocal(float x) {
  return x == 0.0f ? 0.0f : std::min(1.0f / x, std::numeric_limits<float>::max());
}

/// The log weight of the one key, or null.
const float* log_weight_of(const Plan<float>& plan, int64_t b, int64_t g) {
  if (plan.key_log_weight == nullptr) return nullptr;
  const int64_t W = plan.num_key_log_weights;
  return plan.key_log_weight + b * W + (W == 1 ? 0 : g);
}

/// One step of one key head and of the queries that share it.
class DecodeHead {
 public:
  DecodeHead(const Plan<float>& plan, const HeadOfState& state, int64_t num_hot,
             int64_t num_queries)
      : plan_(plan),
        state_(state),
        num_hot_(num_hot),
        num_queries_(num_queries),
        log_linear_(is_log_linear(plan.feature_map)),
        root_scale_(static_cast<float>(std::sqrt(plan.scale))) {
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
  }

  /// Absorbs key g of batch item b unless it is masked; then answers its queries. log_sums: as
  /// decode_step_kernel's.
  void run(int64_t b, int64_t g, bool absorbs, const OutputRows& out, float* log_sums) const {
    const int64_t M = state_.M;
    std::copy_n(state_.c, M, c_);
    std::copy_n(state_.z, M, z_);
    std::fill(c_ + M, c_ + state_.stride, 0.0f);
    std::fill(z_ + M, z_ + state_.stride, 0.0f);
    if (log_linear_ && num_hot_ == 0) forget_unseen();
    project(b, g, absorbs);
    if (absorbs) {
      absorb(log_weight(b, g));
      copy_row(plan_.v.row(b, g, 0), state_.E, hot_value());
    } else {
      std::fill_n(hot_feature(), state_.stride, 0.0f);
      std::fill_n(hot_value(), state_.E, 0.0f);
    }
    for (int64_t i = 0; i < num_queries_; ++i) {
      const int64_t h = g * num_queries_ + i;
      const float log_sum = answer(query_logits_ + i * state_.stride, out.row(b, h, 0));
      if (log_sums != nullptr) log_sums[b * plan_.H + h] = log_sum;
    }
    if (num_hot_ + 1 == kHotTokens) state_.flush(kHotTokens);
  }

 private:
  void place(ScratchLayout& layout) {
    c_ = layout.take(state_.stride);
    z_ = layout.take(state_.stride);
    row_ = layout.take(num_panels(plan_.D) * panel_width());
    if (plan_.structured != nullptr) {
      matrix_memory_ = layout.take(HadamardMatrix::floats(*plan_.structured));
      transformed_ = layout.take(HadamardMatrix::padded_features(*plan_.structured));
    }
    key_ = layout.take(aligned_floats(plan_.D));
    queries_ = layout.take(num_queries_ * aligned_floats(plan_.D));
    key_logits_ = layout.take(state_.stride);
    query_logits_ = layout.take(num_queries_ * state_.stride);
    scores_ = layout.take(kHotTokens);
    sums_ = layout.take(state_.E);
    all_sums_ = layout.take(state_.E);
  }

  /// What is added to the logarithms of the key's features.
  float log_weight(int64_t b, int64_t g) const {
    return plan_.key_log_weight == nullptr ? 0.0f : *log_weight_of(plan_, b, g);
  }

  float* hot_feature() const { return state_.features + num_hot_ * state_.stride; }
  float* hot_value() const { return state_.values + num_hot_ * state_.E; }

  /// Stabilisers below every logit where no key has been seen.
  void forget_unseen() const {
    for (int64_t f = 0; f < state_.M; ++f) {
      if (z_[f] == 0.0f) c_[f] = state_.c[f] = kNoKey;
    }
  }

  /// Logits of the key, if it counts, and of the queries, in natural logarithm.
  void project(int64_t b, int64_t g, bool absorbs) const {
    const FloatTag d;
    const int64_t D = plan_.D, M = state_.M;
    HadamardMatrix structured;
    if (plan_.structured != nullptr) {
      structured =
          pack_hadamard(plan_.structured[plan_.P == 1 ? 0 : g], root_scale_, matrix_memory_);
      std::fill(row_ + D, row_ + num_panels(D) * panel_width(), 0.0f);
    }
    const auto load = [&](const InputElements& x, float* aligned, float* logits) {
      copy_row(x, D, row_);
      if (plan_.structured != nullptr) {
        const int64_t unit = structured.unit_panels() * panel_width();
        for (int64_t f = 0; f < structured.features; f += unit) {
          hadamard_logits(structured, Panels{row_, 1}, D, 1, f / unit, transformed_ + f,
                          panel_width());
        }
        std::copy_n(transformed_, M, logits);
        return;
      }
      if (plan_.projection != nullptr) {
        align_to_rows(d, row_, D, root_scale_, aligned);
        return;
      }
      for (int64_t f = 0; f < M; ++f) logits[f] = root_scale_ * row_[f];
    };
    for (int64_t i = 0; i < num_queries_; ++i) {
      load(plan_.q.row(b, g * num_queries_ + i, 0), queries_ + i * aligned_floats(D),
           query_logits_ + i * state_.stride);
    }
    // Last, because the key's row is needed again.
    if (absorbs) load(plan_.k.row(b, g, 0), key_, key_logits_);
    if (plan_.projection == nullptr) return;
    // Few rows at a time, which stay in the first-level cache for all queries.
    const int64_t R = plan_.rows;
    const float* matrix = plan_.projection + (plan_.P == 1 ? 0 : g) * R * D;
    constexpr int64_t kRows = 32;
    for (int64_t f = 0; f < R; f += kRows) {
      const float* rows = matrix + f * D;
      const int64_t count = std::min(kRows, R - f);
      const auto query = [&](int64_t i) { return queries_ + i * aligned_floats(D); };
      const auto logits = [&](int64_t i) { return query_logits_ + i * state_.stride + f; };
      int64_t i = 0;
      if (absorbs) {
        dot_rows<true>(d, rows, D, count, D, key_, query(0), key_logits_ + f, logits(0));
        i = 1;
      }
      for (; i + 2 <= num_queries_; i += 2) {
        dot_rows<true>(d, rows, D, count, D, query(i), query(i + 1), logits(i), logits(i + 1));
      }
      if (i < num_queries_) {
        dot_rows<false>(d, rows, D, count, D, query(i), nullptr, logits(i), nullptr);
      }
    }
    if (R == M) return;
    // The hyperbolic map: every row again with the other sign.
    const auto mirror = [R](float* logits) {
      std::transform(logits, logits + R, logits + R, std::negate<float>());
    };
    if (absorbs) mirror(key_logits_);
    for (int64_t i = 0; i < num_queries_; ++i) mirror(query_logits_ + i * state_.stride);
  }

  /// The key's features, with stabilisers raised where its logits ask for it.
  void absorb(float log_weight) const {
    const FloatTag d;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d));
    const int64_t M = state_.M;
    float* HWY_RESTRICT feature = hot_feature();
    if (!log_linear_) {
      const Vector eps = hn::Set(d, static_cast<float>(plan_.eps));
      for (int64_t f = 0; f < M; f += N) {
        hn::StoreU(hn::Add(relu(hn::LoadU(d, key_logits_ + f)), eps), d, feature + f);
      }
    } else {
      const float half_norm = 0.5f * static_cast<float>(plan_.scale) * dot(row_, row_, plan_.D);
      const Vector offset = hn::Set(d, half_norm - log_weight);
      const Vector log2e = hn::Set(d, kLog2e);
      const Vector lazy = hn::Set(d, kLazyRaise);
      std::fill(key_logits_ + M, key_logits_ + state_.stride, 0.0f);
      for (int64_t f = 0; f < M; f += N) {
        const Vector logit = hn::Sub(hn::LoadU(d, key_logits_ + f), offset);
        Vector exponent = hn::Mul(log2e, hn::Sub(logit, hn::LoadU(d, c_ + f)));
        if (HWY_UNLIKELY(!hn::AllFalse(d, hn::Gt(exponent, lazy)))) {
          hn::StoreU(logit, d, key_logits_ + f);
          raise(f, std::min(f + N, M));
          exponent = hn::Mul(log2e, hn::Sub(logit, hn::LoadU(d, c_ + f)));
        }
        hn::StoreU(exp2(exponent), d, feature + f);
      }
    }
    std::fill(feature + M, feature + state_.stride, 0.0f);
  }

  /// Raises stabilisers that features [first, end) exceed by far to the key's logits.
  void raise(int64_t first, int64_t end) const {
    for (int64_t f = first; f < end; ++f) {
      const float logit = key_logits_[f];
      if (!(kLog2e * (logit - c_[f]) > kLazyRaise)) continue;
      const float factor = std::exp2(kLog2e * (c_[f] - logit));
      state_.scale(f, num_hot_, factor);
      z_[f] *= factor;
      c_[f] = state_.c[f] = logit;
    }
  }

  /// Turns a query's logits into weights of the features and writes its output. Returns the
  /// logarithm of its denominator, -inf without keys (positive map).
  float answer(float* HWY_RESTRICT weight, const OutputElements& out) const {
    const FloatTag d;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d));
    const int64_t M = state_.M, stride = state_.stride;
    Vector denominators = hn::Zero(d);
    float largest_logit = 0.0f;
    if (!log_linear_) {
      const Vector eps = hn::Set(d, static_cast<float>(plan_.eps));
      std::fill(weight + M, weight + stride, 0.0f);
      for (int64_t f = 0; f < stride; f += N) {
        const Vector value = hn::Add(relu(hn::LoadU(d, weight + f)), eps);
        denominators = hn::MulAdd(value, hn::LoadU(d, z_ + f), denominators);
        hn::StoreU(value, d, weight + f);
      }
    } else {
      const Vector log2e = hn::Set(d, kLog2e);
      // Elements beyond M count neither in the maximum nor in a sum.
      std::fill(weight + M, weight + stride, 2 * kNoKey);
      Vector largest = hn::Set(d, 2 * kNoKey);
      for (int64_t f = 0; f < stride; f += N) {
        const Vector shifted = hn::Add(hn::LoadU(d, weight + f), hn::LoadU(d, c_ + f));
        largest = hn::Max(largest, shifted);
        hn::StoreU(shifted, d, weight + f);
      }
      const Vector top = hn::MaxOfLanes(d, largest);
      largest_logit = hn::GetLane(top);
      for (int64_t f = 0; f < stride; f += N) {
        const Vector value = exp2(hn::Mul(log2e, hn::Sub(hn::LoadU(d, weight + f), top)));
        denominators = hn::MulAdd(value, hn::LoadU(d, z_ + f), denominators);
        hn::StoreU(value, d, weight + f);
      }
    }
    const int64_t hot = num_hot_ + 1;
    dot_rows<false>(d, state_.features, stride, hot, stride, weight, nullptr, scores_, nullptr);
    float denominator = hn::GetLane(hn::SumOfLanes(d, denominators));
    for (int64_t j = 0; j < hot; ++j) denominator += scores_[j];
    sum_rows(d, state_.S, M, state_.E, weight, nullptr, sums_);
    sum_rows(d, state_.values, hot, state_.E, scores_, sums_, all_sums_);
    const float inverse = reciprocal(denominator);
    for (int64_t e = 0; e < state_.E; ++e) all_sums_[e] *= inverse;
    copy_row(all_sums_, state_.E, out);
    return denominator == 0.0f ? -std::numeric_limits<float>::infinity()
                               : largest_logit + std::log(denominator);
  }

  const Plan<float>& plan_;
  const HeadOfState& state_;
  int64_t num_hot_, num_queries_;
  bool log_linear_;
  float root_scale_;
  float* row_;                         ///< [D] the key as it came, padded to whole panels
  float* matrix_memory_ = nullptr;     ///< of a structured matrix
  float* transformed_ = nullptr;       ///< its logits, padded to whole units
  float *c_, *z_;                      ///< [stride] copies of the state's, zeros beyond M
  float *key_, *queries_;              ///< in the order of dot_rows
  float *key_logits_, *query_logits_;  ///< [stride] and [num_queries, stride]
  float* scores_;                      ///< [kHotTokens] of a query with the hot tokens
  float *sums_, *all_sums_;            ///< [E] numerators without and with the hot tokens
};

/// Calls body for every head of the state. Heads go to threads in groups, because a step of few
/// heads takes less time than waking a thread.
template <class Body>
void for_each_head(DecodeState& state, const Body& body) {
  constexpr int64_t kHeadsPerTask = 8;
  const int64_t heads = state.B * state.H;
  parallel_for((heads + kHeadsPerTask - 1) / kHeadsPerTask, [&](int64_t task) {
    const int64_t end = std::min((task + 1) * kHeadsPerTask, heads);
    for (int64_t index = task * kHeadsPerTask; index < end; ++index) {
      body(index, HeadOfState(state, index));
    }
  });
}

void run_decode_step(const Plan<float>& plan, DecodeState& state, const OutputRows& out,
                     float* log_sums) {
  const int64_t num_queries = state.H == 0 ? 1 : plan.H / state.H;
  for_each_head(state, [&](int64_t index, const HeadOfState& head) {
    const int64_t b = index / state.H, g = index % state.H;
    const uint8_t* mask = plan.mask_row(b);
    const float* log_weight = log_weight_of(plan, b, g);
    const bool absorbs =
        (mask == nullptr || mask[0] == 0) &&
        (log_weight == nullptr || *log_weight != -std::numeric_limits<float>::infinity());
    DecodeHead(plan, head, state.num_hot, num_queries).run(b, g, absorbs, out, log_sums);
  });
  state.position += 1;
  state.num_hot = (state.num_hot + 1) % kHotTokens;
}

void run_flush(DecodeState& state) {
  for_each_head(state, [&](int64_t, const HeadOfState& head) { head.flush(state.num_hot); });
  state.num_hot = 0;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_decode_step);
HWY_EXPORT(run_flush);

void decode_step_kernel(const Plan<float>& plan, DecodeState& state, OutputRows out,
                        float* log_sums) {
  HWY_DYNAMIC_DISPATCH(run_decode_step)(plan, state, out, log_sums);
}

void flush_kernel(DecodeState& state) {
  HWY_DYNAMIC_DISPATCH(run_flush)(state);
}

}  // namespace favor
#endif  // HWY_ONCE
