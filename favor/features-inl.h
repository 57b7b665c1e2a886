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
#include <type_traits>

#include "favor/heads-inl.h"
#include "favor/value_maps-inl.h"
#include "hwy/contrib/math/math-inl.h"

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

/// Scratch of the query side: logits, then features, of a chunk.
struct QueryFeatures {
  Panels features;     ///< [C, M]
  float* denominator;  ///< [C]
  float* top;          ///< [C] row maximum of the exponents; 0 for maps known by their values
  float* offset;       ///< [C] subtracted from the exponents of w.q
  float* floor;        ///< [C] exponents of what eps adds
  float* lanes;        ///< [C, N] running maxima and sums
  float* shift;        ///< [M] padded

  void place(ScratchLayout& layout, const HeadPlan& head, int64_t rows) {
    features = {layout.take(panel_floats(rows, head.padded_features())), rows};
    denominator = layout.take(kChunk);
    top = layout.take(kChunk);
    offset = layout.take(kChunk);
    floor = layout.take(kChunk);
    lanes = layout.take(kChunk * panel_width() / 2);
    shift = layout.take(num_panels(head.M) * panel_width());
  }
};

/// What is subtracted from the exponents of n queries' features, and for a log-linear map with an
/// epsilon the exponents of what that adds. Without an epsilon the offset is a factor of the whole
/// row, which cancels in a ratio. buffer: [C, NR].
inline HWY_NOINLINE void query_offsets(const HeadPlan& head, const InputElements& q, int64_t stride,
                                       int64_t n, const uint8_t* skip, const Panels& tokens,
                                       float* buffer, float* offset, float* floor) {
  std::fill_n(offset, n, 0.0f);
  if (!head.whole_queries) {
    return;
  }
  if (head.official) {
    largest_logits(head, head.query, tokens, n, buffer, floor);
  } else {
    std::fill_n(floor, n, 0.0f);
  }
  for (int64_t r = 0; r < n; ++r) {
    if (skip == nullptr || skip[r] == 0) {
      offset[r] = half_norm(head, head.query, q + r * stride, tokens, r);
    }
    floor[r] += head.query.floor;
    if (!head.log_linear) {
      offset[r] -= head.query.constant;
    }
  }
}

/// g(u) + eps of n packed queries; the denominators become features . z.
template <class PerPanel>
HWY_NOINLINE void value_queries(const HeadPlan& head, const Panels& tokens, int64_t n,
                                const float* HWY_RESTRICT z, float* buffer,
                                const QueryFeatures& out, const PerPanel& per_panel) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  HWY_ALIGN float ones[kChunk];
  std::fill_n(ones, n, 1.0f);
  std::fill_n(out.lanes, n * N, 0.0f);
  for (int64_t panel = 0; panel < num_panels(head.M); ++panel) {
    per_panel(panel);
    const float* HWY_RESTRICT u = project(head, head.query, tokens, n, panel, buffer);
    float* HWY_RESTRICT to = out.features.at(0, panel);
    value_features(head, panel * NR, u, ones, n, to, nullptr, nullptr);
    // Lanes beyond M carry z = 0.
    const Vector z0 = hn::LoadU(d, z + panel * NR);
    const Vector z1 = hn::LoadU(d, z + panel * NR + N);
    for (int64_t r = 0; r < n; ++r) {
      const Vector sum = hn::MulAdd(hn::LoadU(d, to + r * NR), z0, hn::LoadU(d, out.lanes + r * N));
      hn::StoreU(hn::MulAdd(hn::LoadU(d, to + r * NR + N), z1, sum), d, out.lanes + r * N);
    }
  }
  for (int64_t r = 0; r < n; ++r) {
    out.top[r] = 0.0f;
    out.denominator[r] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, out.lanes + r * N)));
  }
}

/// 2^(u + shift - top) of n packed queries, shift = c and the map's constants; with kFloor
/// 2^(u + shift - offset - top) + 2^(floor + c - top). top is the row's largest exponent. The
/// denominators become features . z.
template <bool kFloor, class PerPanel>
HWY_NOINLINE void exponential_queries(const HeadPlan& head, const Panels& tokens, int64_t n,
                                      const float* c, const float* HWY_RESTRICT z,
                                      const QueryFeatures& out, const PerPanel& per_panel) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const int64_t panels = num_panels(head.M);
  float* HWY_RESTRICT shift = out.shift;
  float* HWY_RESTRICT lanes = out.lanes;
  const float* constants = head.query.shift;
  for (int64_t f = 0; f < head.M; ++f) {
    shift[f] = constants == nullptr ? c[f] : c[f] + constants[f];
  }
  // Lanes beyond M must not count in the maximum.
  std::fill(shift + head.M, shift + panels * NR, 2 * kNoKey);
  std::fill_n(lanes, n * N, 2 * kNoKey);
  // What eps adds has no constant of its own feature: its stabiliser is shift less that constant.
  const auto bare = [&](Vector shifted, int64_t f) HWY_ATTR {
    return constants == nullptr ? shifted : hn::Sub(shifted, hn::LoadU(d, constants + f));
  };
  for (int64_t panel = 0; panel < panels; ++panel) {
    per_panel(panel);
    float* u = out.features.at(0, panel);
    project_to(head, head.query, tokens, n, panel, u, out.features.stride());
    const Vector c0 = hn::LoadU(d, shift + panel * NR);
    const Vector c1 = hn::LoadU(d, shift + panel * NR + N);
    for (int64_t r = 0; r < n; ++r) {
      Vector shifted0 = hn::Add(hn::LoadU(d, u + r * NR), c0);
      Vector shifted1 = hn::Add(hn::LoadU(d, u + r * NR + N), c1);
      if constexpr (kFloor) {
        shifted0 = hn::Sub(shifted0, hn::Set(d, out.offset[r]));
        shifted1 = hn::Sub(shifted1, hn::Set(d, out.offset[r]));
      }
      Vector top = hn::Max(hn::LoadU(d, lanes + r * N), hn::Max(shifted0, shifted1));
      if constexpr (kFloor) {
        const Vector floor = hn::Set(d, out.floor[r]);
        top = hn::Max(top, hn::Add(floor, hn::Max(bare(c0, panel * NR), bare(c1, panel * NR + N))));
      }
      hn::StoreU(top, d, lanes + r * N);
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
      Vector t0 = hn::Sub(hn::Add(hn::LoadU(d, at), c0), top);
      Vector t1 = hn::Sub(hn::Add(hn::LoadU(d, at + N), c1), top);
      if constexpr (kFloor) {
        t0 = hn::Sub(t0, hn::Set(d, out.offset[r]));
        t1 = hn::Sub(t1, hn::Set(d, out.offset[r]));
      }
      Vector e0 = exp2(t0);
      Vector e1 = exp2(t1);
      if constexpr (kFloor) {
        const Vector floor = hn::Sub(hn::Set(d, out.floor[r]), top);
        e0 = hn::Add(e0, exp2(hn::Add(floor, bare(c0, panel * NR))));
        e1 = hn::Add(e1, exp2(hn::Add(floor, bare(c1, panel * NR + N))));
      }
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

/// Features of n packed queries against a state's stabilisers, and their denominators; out.offset
/// and out.floor are known. Calls per_panel(panel) before each panel of features, for the caller's
/// prefetches.
template <class PerPanel>
void query_features(const HeadPlan& head, const Panels& tokens, int64_t n, const float* c,
                    const float* z, float* buffer, const QueryFeatures& out,
                    const PerPanel& per_panel) {
  if (!head.log_linear) {
    value_queries(head, tokens, n, z, buffer, out, per_panel);
  } else if (head.has_floor) {
    exponential_queries<true>(head, tokens, n, c, z, out, per_panel);
  } else {
    exponential_queries<false>(head, tokens, n, c, z, out, per_panel);
  }
}

/// 1 / x, 0 for 0; finite where x is a denormal number.
HWY_INLINE Vector finite_reciprocal(Vector x) {
  const FloatTag d;
  const Vector largest = hn::Set(d, std::numeric_limits<float>::max());
  const Vector reciprocal = hn::Div(hn::Set(d, 1.0f), x);
  const auto overflows = hn::Gt(hn::Abs(reciprocal), largest);
  const Vector finite = hn::IfThenElse(overflows, hn::CopySign(largest, x), reciprocal);
  return hn::IfThenZeroElse(hn::Eq(x, hn::Zero(d)), finite);
}

/// Turns n rows of sums into outputs, divided by their denominators or as they are, writes them to
/// the caller's rows, and keeps the normaliser: log2 of the denominator (log-linear) or the
/// denominator. The first `without_keys` rows give 0, whatever the query holds, and so does a
/// denominator of 0. For maps known by their values c is the stabiliser of the sums, and `own`
/// (null: c) has each row's own stabiliser, which its normaliser is relative to.
inline HWY_NOINLINE void finish_rows(const HeadPlan& head, const QueryFeatures& features,
                                     const Panels& sums, int64_t n, int64_t without_keys, float c,
                                     const float* own, const OutputElements& out, int64_t stride,
                                     float* normalizer) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float factor[kChunk] = {};
  HWY_ALIGN float kept[kChunk] = {};
  std::fill_n(features.denominator, without_keys, 0.0f);
  for (int64_t r = 0; r < n; r += N) {
    const Vector denominator = hn::LoadU(d, features.denominator + r);
    const auto none = hn::Eq(denominator, hn::Zero(d));
    if (head.renormalize) {
      hn::StoreU(finite_reciprocal(denominator), d, factor + r);
      if (head.log_linear && normalizer != nullptr) {
        const Vector log = hn::Add(hn::LoadU(d, features.top + r), hn::Log2(d, denominator));
        const Vector minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
        hn::StoreU(hn::IfThenElse(none, minus_infinity, log), d, kept + r);
      }
    }
  }
  for (int64_t r = 0; r < n && !head.renormalize; ++r) {
    const float offset = head.has_floor ? 0.0f : features.offset[r];
    const float exponent = (head.log_linear ? features.top[r] : c) - offset;
    const bool none = r < without_keys;
    factor[r] = none ? 0.0f : std::exp2(exponent);
    kept[r] = !head.log_linear ? (none ? 0.0f : 1.0f)
              : none           ? -std::numeric_limits<float>::infinity()
                               : 0.0f;
  }
  for (int64_t r = 0; r < n && head.renormalize && !head.log_linear; ++r) {
    const bool rescaled = own != nullptr && r >= without_keys;
    kept[r] = features.denominator[r] * (rescaled ? std::exp2(c - own[r]) : 1.0f);
  }
  if (normalizer != nullptr) {
    std::copy_n(kept, n, normalizer);
  }
  unpack_rows(sums, n, head.E, factor, out, stride);
  for (int64_t r = 0; r < without_keys; ++r) {
    zero_row(out + r * stride, head.E);
  }
}

/// Features of n packed queries on the panel from feature f on, divided by their denominators, and
/// where the map keeps them their slopes. `normalizer` is what subtracts (log-linear: log2 of the
/// denominator, +inf for a row out of play) or multiplies (others: 1 / denominator, 0 for a row out
/// of play); `offset` and `floor` as in QueryFeatures. Columns beyond M give 0. `slopes` may be u.
template <bool kFloor>
HWY_NOINLINE void normalized_exponentials(const HeadPlan& head, int64_t f, const float* u,
                                          const float* HWY_RESTRICT c,
                                          const float* HWY_RESTRICT normalizer,
                                          const float* HWY_RESTRICT offset,
                                          const float* HWY_RESTRICT floor, int64_t n,
                                          float* HWY_RESTRICT features, float* slopes) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  for (int64_t half = 0; half < NR; half += N) {
    const Vector stabiliser = hn::LoadU(d, c + half);
    const Vector shift = head.query.shift == nullptr
                             ? stabiliser
                             : hn::Add(stabiliser, hn::LoadU(d, head.query.shift + f + half));
    const int64_t width = std::clamp<int64_t>(head.M - f - half, 0, N);
    const auto valid = hn::FirstN(d, static_cast<size_t>(width));
    for (int64_t r = 0; r < n; ++r) {
      const Vector norm = hn::Set(d, normalizer[r]);
      Vector exponent = hn::Add(hn::LoadU(d, u + r * NR + half), shift);
      if constexpr (kFloor) {
        exponent = hn::Sub(exponent, hn::Set(d, offset[r]));
      }
      Vector value = exp2(hn::Sub(exponent, norm));
      if constexpr (kFloor) {
        hn::StoreU(hn::IfThenElseZero(valid, value), d, slopes + r * NR + half);
        value = hn::Add(value, exp2(hn::Sub(hn::Add(hn::Set(d, floor[r]), stabiliser), norm)));
      }
      hn::StoreU(hn::IfThenElseZero(valid, value), d, features + r * NR + half);
    }
  }
}

inline void normalized_query_features(const HeadPlan& head, int64_t f, const float* u,
                                      const float* c, const float* normalizer, const float* offset,
                                      const float* floor, int64_t n, float* features,
                                      float* slopes) {
  if (!head.log_linear) {
    value_features(head, f, u, normalizer, n, features, slopes, nullptr);
  } else if (head.has_floor) {
    normalized_exponentials<true>(head, f, u, c, normalizer, offset, floor, n, features, slopes);
  } else {
    normalized_exponentials<false>(head, f, u, c, normalizer, offset, floor, n, features, slopes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_FEATURES_INL_H_
