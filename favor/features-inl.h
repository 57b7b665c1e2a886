// SPDX-License-Identifier: Apache-2.0
// The feature maps on panels of logits, for keys and for queries. Formulas: docs/math.md.

// clang-format off
#if defined(FAVOR_FEATURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_FEATURES_INL_H_
#undef FAVOR_FEATURES_INL_H_
#else
#define FAVOR_FEATURES_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "favor/tokens-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// A stabiliser is raised only when a logit exceeds it by more than this (base 2), because raising
/// rescales a row of the state; features then stay below 2^8.
inline constexpr float kLazyRaise = 8.0f;

/// features = 2^(u - h - c) of n keys on one panel; `sums` receives their column sums. Returns the
/// largest exponent.
inline HWY_NOINLINE float positive_keys(const float* HWY_RESTRICT u, const float* HWY_RESTRICT h,
                                        int64_t n, const float* HWY_RESTRICT c,
                                        float* HWY_RESTRICT features, float* HWY_RESTRICT sums) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector c0 = hn::LoadU(d, c);
  const Vector c1 = hn::LoadU(d, c + N);
  Vector largest = hn::Set(d, kNoKey);
  Vector sum0 = hn::Zero(d);
  Vector sum1 = hn::Zero(d);
  for (int64_t r = 0; r < n; ++r) {
    const Vector offset = hn::Set(d, h[r]);
    const Vector t0 = hn::Sub(hn::Sub(hn::LoadU(d, u + r * NR), offset), c0);
    const Vector t1 = hn::Sub(hn::Sub(hn::LoadU(d, u + r * NR + N), offset), c1);
    largest = hn::Max(largest, hn::Max(t0, t1));
    const Vector e0 = exp2(t0);
    const Vector e1 = exp2(t1);
    sum0 = hn::Add(sum0, e0);
    sum1 = hn::Add(sum1, e1);
    hn::StoreU(e0, d, features + r * NR);
    hn::StoreU(e1, d, features + r * NR + N);
  }
  hn::StoreU(sum0, d, sums);
  hn::StoreU(sum1, d, sums + N);
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

/// max(u, 0), NaN for NaN.
HWY_INLINE Vector relu(Vector u) {
  const Vector zero = hn::Zero(FloatTag());
  return hn::IfThenZeroElse(hn::Lt(u, zero), u);
}

/// max(u, 0) + eps, from which the backward pass can tell the sign of u.
HWY_INLINE Vector signed_relu(Vector u, Vector eps, Vector eps_active) {
  const auto active = hn::Gt(u, hn::Zero(FloatTag()));
  const Vector value = hn::Add(relu(u), eps);
  return hn::IfThenElse(active, hn::Max(value, eps_active), value);
}

/// features = weight (max(u, 0) + eps) of n keys on one panel, and their column sums.
inline HWY_NOINLINE void relu_keys(const HeadPlan& head, const float* HWY_RESTRICT u,
                                   const float* HWY_RESTRICT weight, int64_t n,
                                   float* HWY_RESTRICT features, float* HWY_RESTRICT sums) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector eps = hn::Set(d, head.eps);
  const Vector eps_active = hn::Set(d, head.eps_active);
  for (int64_t half = 0; half < NR; half += N) {
    Vector sum = hn::Zero(d);
    for (int64_t r = 0; r < n; ++r) {
      const Vector value = hn::Mul(hn::Set(d, weight[r]),
                                   signed_relu(hn::LoadU(d, u + r * NR + half), eps, eps_active));
      sum = hn::Add(sum, value);
      hn::StoreU(value, d, features + r * NR + half);
    }
    hn::StoreU(sum, d, sums + half);
  }
}

/// Stabilisers that hold for n more keys of one panel: raised to the keys' largest logit where that
/// exceeds the old value by more than kLazyRaise, else as they are. `factor` receives 2^(old -
/// new).
inline HWY_NOINLINE void raise_stabilisers(const float* HWY_RESTRICT u, const float* HWY_RESTRICT h,
                                           int64_t n, float* HWY_RESTRICT c,
                                           float* HWY_RESTRICT factor) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  for (int64_t half = 0; half < NR; half += N) {
    const Vector old = hn::LoadU(d, c + half);
    Vector top = hn::Set(d, kNoKey);
    for (int64_t r = 0; r < n; ++r) {
      top = hn::Max(top, hn::Sub(hn::LoadU(d, u + r * NR + half), hn::Set(d, h[r])));
    }
    const auto rises = hn::Gt(hn::Sub(top, old), hn::Set(d, kLazyRaise));
    const Vector raised = hn::IfThenElse(rises, top, old);
    hn::StoreU(exp2(hn::Sub(old, raised)), d, factor + half);
    hn::StoreU(raised, d, c + half);
  }
}

/// Features of n keys on one panel, under stabilisers c that are raised where the keys ask for it;
/// rescale(factor) is then called before the features are computed, for what c already scales.
/// `sums` receives the features' column sums.
template <class Rescale>
HWY_INLINE void key_features(const HeadPlan& head, const float* u, const float* offset, int64_t n,
                             float* c, float* features, float* sums, const Rescale& rescale) {
  if (!head.positive) {
    relu_keys(head, u, offset, n, features, sums);
  } else if (!(positive_keys(u, offset, n, c, features, sums) <= kLazyRaise)) {
    HWY_ALIGN float factor[kChunk];
    raise_stabilisers(u, offset, n, c, factor);
    rescale(static_cast<const float*>(factor));
    positive_keys(u, offset, n, c, features, sums);
  }
}

/// Scratch of the query side: logits, then features, of a chunk.
struct QueryFeatures {
  Panels features;     ///< [C, M]
  float* denominator;  ///< [C]
  float* top;          ///< [C] row maximum of the logits, base 2; 0 for generalised maps
  float* lanes;        ///< [C, N] running maxima and sums
  float* shift;        ///< [M] padded

  void place(ScratchLayout& layout, const HeadPlan& head, int64_t rows) {
    features = {layout.take(panel_floats(rows, head.padded_features())), rows};
    denominator = layout.take(kChunk);
    top = layout.take(kChunk);
    lanes = layout.take(kChunk * panel_width() / 2);
    shift = layout.take(num_panels(head.M) * panel_width());
  }
};

/// max(u, 0) + eps of n packed queries; the denominators become features . z.
template <class PerPanel>
HWY_NOINLINE void relu_queries(const HeadPlan& head, const Panels& tokens, int64_t n,
                               const float* HWY_RESTRICT z, float* buffer, const QueryFeatures& out,
                               const PerPanel& per_panel) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector eps = hn::Set(d, head.eps);
  std::fill_n(out.lanes, n * N, 0.0f);
  for (int64_t panel = 0; panel < num_panels(head.M); ++panel) {
    per_panel(panel);
    const float* HWY_RESTRICT u = project(head, tokens, n, panel, buffer);
    float* HWY_RESTRICT to = out.features.at(0, panel);
    // Lanes beyond M carry z = 0.
    const Vector z0 = hn::LoadU(d, z + panel * NR);
    const Vector z1 = hn::LoadU(d, z + panel * NR + N);
    for (int64_t r = 0; r < n; ++r) {
      const Vector value0 = hn::Add(relu(hn::LoadU(d, u + r * NR)), eps);
      const Vector value1 = hn::Add(relu(hn::LoadU(d, u + r * NR + N)), eps);
      hn::StoreU(value0, d, to + r * NR);
      hn::StoreU(value1, d, to + r * NR + N);
      const Vector sum = hn::MulAdd(value0, z0, hn::LoadU(d, out.lanes + r * N));
      hn::StoreU(hn::MulAdd(value1, z1, sum), d, out.lanes + r * N);
    }
  }
  for (int64_t r = 0; r < n; ++r) {
    out.top[r] = 0.0f;
    out.denominator[r] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, out.lanes + r * N)));
  }
}

/// 2^(u + c - top) of n packed queries under stabilisers c, top the row's maximum; the denominators
/// become features . z.
template <class PerPanel>
HWY_NOINLINE void positive_queries(const HeadPlan& head, const Panels& tokens, int64_t n,
                                   const float* c, const float* HWY_RESTRICT z,
                                   const QueryFeatures& out, const PerPanel& per_panel) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const int64_t panels = num_panels(head.M);
  float* HWY_RESTRICT shift = out.shift;
  float* HWY_RESTRICT lanes = out.lanes;
  // Lanes beyond M must not count in the maximum.
  std::copy_n(c, head.M, shift);
  std::fill(shift + head.M, shift + panels * NR, 2 * kNoKey);
  std::fill_n(lanes, n * N, 2 * kNoKey);
  for (int64_t panel = 0; panel < panels; ++panel) {
    per_panel(panel);
    float* u = out.features.at(0, panel);
    project_to(head, tokens, n, panel, u, out.features.stride());
    const Vector c0 = hn::LoadU(d, shift + panel * NR);
    const Vector c1 = hn::LoadU(d, shift + panel * NR + N);
    for (int64_t r = 0; r < n; ++r) {
      const Vector shifted0 = hn::Add(hn::LoadU(d, u + r * NR), c0);
      const Vector shifted1 = hn::Add(hn::LoadU(d, u + r * NR + N), c1);
      const Vector top = hn::LoadU(d, lanes + r * N);
      hn::StoreU(hn::Max(top, hn::Max(shifted0, shifted1)), d, lanes + r * N);
    }
  }
  for (int64_t r = 0; r < n; ++r) {
    out.top[r] = hn::GetLane(hn::MaxOfLanes(d, hn::LoadU(d, lanes + r * N)));
  }
  std::fill_n(lanes, n * N, 0.0f);
  for (int64_t panel = 0; panel < panels; ++panel) {
    float* at = out.features.at(0, panel);
    const Vector c0 = hn::LoadU(d, shift + panel * NR);
    const Vector c1 = hn::LoadU(d, shift + panel * NR + N);
    const Vector z0 = hn::LoadU(d, z + panel * NR);
    const Vector z1 = hn::LoadU(d, z + panel * NR + N);
    for (int64_t r = 0; r < n; ++r, at += NR) {
      const Vector top = hn::Set(d, out.top[r]);
      const Vector e0 = exp2(hn::Sub(hn::Add(hn::LoadU(d, at), c0), top));
      const Vector e1 = exp2(hn::Sub(hn::Add(hn::LoadU(d, at + N), c1), top));
      hn::StoreU(e0, d, at);
      hn::StoreU(e1, d, at + N);
      const Vector sum = hn::MulAdd(e0, z0, hn::LoadU(d, lanes + r * N));
      hn::StoreU(hn::MulAdd(e1, z1, sum), d, lanes + r * N);
    }
  }
  for (int64_t r = 0; r < n; ++r) {
    out.denominator[r] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, lanes + r * N)));
  }
}

/// Features of n packed queries against a state's stabilisers, and their denominators. Calls
/// per_panel(panel) before each panel of features, for the caller's prefetches.
template <class PerPanel>
void query_features(const HeadPlan& head, const Panels& tokens, int64_t n, const float* c,
                    const float* z, float* buffer, const QueryFeatures& out,
                    const PerPanel& per_panel) {
  if (head.positive) {
    positive_queries(head, tokens, n, c, z, out, per_panel);
  } else {
    relu_queries(head, tokens, n, z, buffer, out, per_panel);
  }
}

/// Divides n rows of sums by their denominators, writes them to the caller's rows, and keeps the
/// normaliser: log2 of the denominator (positive) or the denominator. The first `without_keys` rows
/// give 0, whatever the query holds, and so does a denominator of 0.
inline HWY_NOINLINE void finish_rows(const HeadPlan& head, const QueryFeatures& features,
                                     const Panels& sums, int64_t n, int64_t without_keys,
                                     const OutputElements& out, int64_t stride, float* normalizer) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float inverse[kChunk] = {};
  HWY_ALIGN float kept[kChunk] = {};
  std::fill_n(features.denominator, without_keys, 0.0f);
  for (int64_t r = 0; r < n; r += N) {
    const Vector denominator = hn::LoadU(d, features.denominator + r);
    const auto none = hn::Eq(denominator, hn::Zero(d));
    // The reciprocal of a denormal number overflows; the result must stay finite.
    const Vector largest = hn::Set(d, std::numeric_limits<float>::max());
    const Vector reciprocal = hn::Min(largest, hn::Div(hn::Set(d, 1.0f), denominator));
    hn::StoreU(hn::IfThenZeroElse(none, reciprocal), d, inverse + r);
    if (normalizer != nullptr && head.positive) {
      const Vector log = hn::Add(hn::LoadU(d, features.top + r), hn::Log2(d, denominator));
      const Vector minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
      hn::StoreU(hn::IfThenElse(none, minus_infinity, log), d, kept + r);
    }
  }
  if (normalizer != nullptr) {
    std::copy_n(head.positive ? kept : features.denominator, n, normalizer);
  }
  unpack_rows(sums, n, head.E, inverse, out, stride);
  for (int64_t r = 0; r < without_keys; ++r) {
    zero_row(out + r * stride, head.E);
  }
}

/// Features of n packed queries on one panel, divided by their denominators. `normalizer` is what
/// subtracts (positive: log2 of the denominator, +inf for a row out of play) or multiplies (others:
/// 1 / denominator, 0 for a row out of play). Columns beyond the `valid_cols` first give 0.
inline HWY_NOINLINE void normalized_query_features(const HeadPlan& head,
                                                   const float* HWY_RESTRICT u,
                                                   const float* HWY_RESTRICT c,
                                                   const float* HWY_RESTRICT normalizer, int64_t n,
                                                   int64_t valid_cols,
                                                   float* HWY_RESTRICT features) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector eps = hn::Set(d, head.eps);
  const Vector eps_active = hn::Set(d, head.eps_active);
  for (int64_t half = 0; half < NR; half += N) {
    const Vector stabiliser = hn::LoadU(d, c + half);
    const auto valid =
        hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(valid_cols - half, 0, N)));
    for (int64_t r = 0; r < n; ++r) {
      const Vector logit = hn::LoadU(d, u + r * NR + half);
      const Vector norm = hn::Set(d, normalizer[r]);
      const Vector value = head.positive ? exp2(hn::Sub(hn::Add(logit, stabiliser), norm))
                                         : hn::Mul(signed_relu(logit, eps, eps_active), norm);
      hn::StoreU(hn::IfThenElseZero(valid, value), d, features + r * NR + half);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_FEATURES_INL_H_
