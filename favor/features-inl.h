// SPDX-License-Identifier: Apache-2.0
// The feature maps on panels of logits, and the features of keys; those of queries stand in
// query_features-inl.h. Formulas: docs/math.md.

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
#include <type_traits>

#include "favor/heads-inl.h"
#include "favor/value_maps-inl.h"
#include "favor/woven-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// A stabiliser is raised only when a logit exceeds it by more than this (base 2), because raising
/// rescales a row of the state; features then stay below 2^8.
inline constexpr float kLazyRaise = 8.0f;

/// features = 2^(u - offset - c) of n keys on one panel, with kFloor plus 2^(floor - c); `slopes`
/// (with kFloor, or null) receives the first term, `sums` the features' column sums. Returns the
/// largest exponent.
template <bool kFloor>
HWY_NOINLINE float exponential_keys(const float* u, const float* HWY_RESTRICT offset,
                                    const float* HWY_RESTRICT floor, int64_t n,
                                    const float* HWY_RESTRICT c, float* HWY_RESTRICT features,
                                    float* slopes, float* HWY_RESTRICT sums) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector c0 = hn::LoadU(d, c);
  const Vector c1 = hn::LoadU(d, c + N);
  Vector largest = hn::Set(d, kNoKey);
  Vector sum0 = hn::Zero(d);
  Vector sum1 = hn::Zero(d);
  for (int64_t r = 0; r < n; ++r) {
    const Vector minus = hn::Set(d, offset[r]);
    const Vector t0 = hn::Sub(hn::Sub(hn::LoadU(d, u + r * NR), minus), c0);
    const Vector t1 = hn::Sub(hn::Sub(hn::LoadU(d, u + r * NR + N), minus), c1);
    largest = hn::Max(largest, hn::Max(t0, t1));
    Vector e0 = exp2(t0);
    Vector e1 = exp2(t1);
    if constexpr (kFloor) {
      if (slopes != nullptr) {
        hn::StoreU(e0, d, slopes + r * NR);
        hn::StoreU(e1, d, slopes + r * NR + N);
      }
      const Vector f0 = hn::Sub(hn::Set(d, floor[r]), c0);
      const Vector f1 = hn::Sub(hn::Set(d, floor[r]), c1);
      largest = hn::Max(largest, hn::Max(f0, f1));
      e0 = hn::Add(e0, exp2(f0));
      e1 = hn::Add(e1, exp2(f1));
    }
    sum0 = hn::Add(sum0, e0);
    sum1 = hn::Add(sum1, e1);
    hn::StoreU(e0, d, features + r * NR);
    hn::StoreU(e1, d, features + r * NR + N);
  }
  hn::StoreU(sum0, d, sums);
  hn::StoreU(sum1, d, sums + N);
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

inline float exponential_keys(const HeadPlan& head, const float* u, const KeyChunk& keys, int64_t n,
                              const float* c, float* features, float* slopes, float* sums) {
  if (head.has_floor) {
    return exponential_keys<true>(u, keys.offset, keys.floor, n, c, features, slopes, sums);
  }
  return exponential_keys<false>(u, keys.offset, nullptr, n, c, features, nullptr, sums);
}

/// g(u) + eps and, as `slope`, g'(u). For relu a feature from which the backward pass can tell the
/// sign of u.
template <class Map>
HWY_INLINE Vector value_feature(Vector u, Vector quarters, Vector eps, Vector eps_active,
                                Vector& slope) {
  const Vector value = hn::Add(Map::apply(u, quarters, slope), eps);
  if constexpr (std::is_same_v<Map, ReluMap>) {
    const auto active = hn::Gt(u, hn::Zero(FloatTag()));
    return hn::IfThenElse(active, hn::Max(value, eps_active), value);
  }
  return value;
}

/// Features weight[r] (g(u) + eps) of n rows on the panel from feature f on, and their slopes
/// weight[r] g'(u) (null: not kept; they may take the place of u). Columns beyond M become zeros.
/// `sums` (null: none) receives column sums.
template <class Map>
HWY_NOINLINE void value_features(const HeadPlan& head, int64_t f, const float* u,
                                 const float* HWY_RESTRICT weight, int64_t n,
                                 float* HWY_RESTRICT features, float* slopes,
                                 float* HWY_RESTRICT sums) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector eps = hn::Set(d, head.eps);
  const Vector eps_active = hn::Set(d, head.eps_active);
  for (int64_t half = 0; half < NR; half += N) {
    const int64_t width = std::clamp<int64_t>(head.M - f - half, 0, N);
    const auto valid = hn::FirstN(d, static_cast<size_t>(width));
    const Vector quarters =
        head.quarters == nullptr ? hn::Zero(d) : hn::LoadU(d, head.quarters + f + half);
    Vector sum = hn::Zero(d);
    for (int64_t r = 0; r < n; ++r) {
      const Vector factor = hn::IfThenElseZero(valid, hn::Set(d, weight[r]));
      Vector slope;
      Vector value =
          value_feature<Map>(hn::LoadU(d, u + r * NR + half), quarters, eps, eps_active, slope);
      value = hn::Mul(factor, value);
      sum = hn::Add(sum, value);
      hn::StoreU(value, d, features + r * NR + half);
      if (slopes != nullptr) {
        hn::StoreU(hn::Mul(factor, slope), d, slopes + r * NR + half);
      }
    }
    if (sums != nullptr) {
      hn::StoreU(sum, d, sums + half);
    }
  }
}

inline void value_features(const HeadPlan& head, int64_t f, const float* u, const float* weight,
                           int64_t n, float* features, float* slopes, float* sums) {
  slopes = head.keeps_slopes ? slopes : nullptr;
  with_value_map(head.map, [&](auto map) HWY_ATTR {
    value_features<decltype(map)>(head, f, u, weight, n, features, slopes, sums);
  });
}

/// Stabilisers that hold for n more keys of one panel: raised to the keys' largest logit where that
/// exceeds the old value by more than kLazyRaise, else as they are. `factor` receives 2^(old -
/// new).
inline HWY_NOINLINE void raise_stabilisers(const HeadPlan& head, const float* HWY_RESTRICT u,
                                           const KeyChunk& keys, int64_t n, float* HWY_RESTRICT c,
                                           float* HWY_RESTRICT factor) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  for (int64_t half = 0; half < NR; half += N) {
    const Vector old = hn::LoadU(d, c + half);
    Vector top = hn::Set(d, kNoKey);
    for (int64_t r = 0; r < n; ++r) {
      const Vector minus = hn::Set(d, keys.offset[r]);
      top = hn::Max(top, hn::Sub(hn::LoadU(d, u + r * NR + half), minus));
      if (head.has_floor) {
        top = hn::Max(top, hn::Set(d, keys.floor[r]));
      }
    }
    const auto rises = hn::Gt(hn::Sub(top, old), hn::Set(d, kLazyRaise));
    const Vector raised = hn::IfThenElse(rises, top, old);
    hn::StoreU(exp2(hn::Sub(old, raised)), d, factor + half);
    hn::StoreU(raised, d, c + half);
  }
}

/// For maps known by their values, before the features of n keys: raises the one stabiliser, kept
/// in every c[0 .. M), to the keys' largest exponent, and sets their weights relative to it.
/// Returns the factor that what c scales must take, 1 for all other maps.
inline HWY_NOINLINE float weigh_keys(const HeadPlan& head, const KeyChunk& keys, int64_t n,
                                     float* HWY_RESTRICT c) {
  if (head.log_linear) {
    return 1.0f;
  }
  const float old = c[0];
  float top = old;
  for (int64_t r = 0; r < n; ++r) {
    top = std::max(top, -keys.offset[r]);
  }
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < n; r += N) {
    const Vector exponent = hn::Sub(hn::Neg(hn::LoadU(d, keys.offset + r)), hn::Set(d, top));
    hn::StoreU(exp2(exponent), d, keys.weight + r);
  }
  if (top == old) {
    return 1.0f;
  }
  std::fill_n(c, head.M, top);
  return std::exp2(old - top);
}

/// For maps known by their values, in causal order: own[r] becomes the stabiliser of row r itself,
/// the largest exponent of the keys up to it. c: the stabiliser before the chunk.
inline void own_stabilisers(const HeadPlan& head, const KeyChunk& keys, int64_t num_queries,
                            int64_t num_keys, float c, float* own) {
  for (int64_t r = 0; r < num_queries && !head.log_linear; ++r) {
    c = r < num_keys ? std::max(c, -keys.offset[r]) : c;
    own[r] = c;
  }
}

/// Features of n keys on the panel from feature f on, under stabilisers c that are raised where the
/// keys ask for it; rescale(factor) is then called before the features are computed, for what c
/// already scales. `fall` is what weigh_keys returned, `sums` receives the features' column sums,
/// `slopes` (null: not kept) their derivatives.
template <class Rescale>
HWY_INLINE void key_features(const HeadPlan& head, int64_t f, const float* u, const KeyChunk& keys,
                             int64_t n, float fall, float* c, float* features, float* slopes,
                             float* sums, const Rescale& rescale) {
  if (head.log_linear) {
    if (!(exponential_keys(head, u, keys, n, c, features, slopes, sums) <= kLazyRaise)) {
      HWY_ALIGN float factor[kChunk];
      raise_stabilisers(head, u, keys, n, c, factor);
      rescale(static_cast<const float*>(factor));
      exponential_keys(head, u, keys, n, c, features, slopes, sums);
    }
    return;
  }
  if (fall != 1.0f) {
    HWY_ALIGN float factor[kChunk];
    std::fill_n(factor, panel_width(), fall);
    rescale(static_cast<const float*>(factor));
  }
  value_features(head, f, u, keys.weight, n, features, slopes, sums);
}

/// Whether the features of all panels can be woven into the products that give their logits.
inline bool can_weave(const HeadPlan& head, const MapSide& side) {
  return head.log_linear && !head.has_floor && !head.identity && side.matrix.hadamard.size == 0 &&
         num_panels(head.M) <= kMaxWovenPanels;
}

/// Features of n keys on all panels as key_features computes them on one, weigh_keys included;
/// rescale(panel, factor). `buffer` is project()'s; panels of `slopes` are kept if it has any.
template <class Rescale>
HWY_INLINE void chunk_key_features(const HeadPlan& head, const KeyChunk& keys, int64_t n, float* c,
                                   const Panels& features, const Panels& slopes, float* sums,
                                   float* buffer, const Rescale& rescale) {
  const int64_t NR = panel_width();
  const int64_t panels = num_panels(head.M);
  const float fall = weigh_keys(head, keys, n, c);
  // An empty state's stabilisers are about to be raised.
  const bool woven = can_weave(head, head.key) && n > 0 && c[0] != kNoKey;
  float largest[kMaxWovenPanels];
  if (woven) {
    woven_keys(head.key.matrix.columns, keys.tokens, head.D, n, panels, keys.offset, c, features,
               sums, largest);
  }
  for (int64_t panel = 0; panel < panels; ++panel) {
    if (woven && largest[panel] <= kLazyRaise) {
      continue;
    }
    const int64_t f = panel * NR;
    key_features(head, f, project(head, head.key, keys.tokens, n, panel, buffer), keys, n, fall,
                 c + f, features.at(0, panel),
                 slopes.data == nullptr ? nullptr : slopes.at(0, panel), sums + f,
                 [&](const float* factor) { rescale(panel, factor); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_FEATURES_INL_H_
