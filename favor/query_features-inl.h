// SPDX-License-Identifier: Apache-2.0
// The features of queries, the rows that are computed from them, and their normalisers. Formulas:
// docs/math.md.

// clang-format off
#if defined(FAVOR_QUERY_FEATURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_QUERY_FEATURES_INL_H_
#undef FAVOR_QUERY_FEATURES_INL_H_
#else
#define FAVOR_QUERY_FEATURES_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "favor/features-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Scratch of the query side: logits, then features, of a chunk.
struct QueryFeatures {
  Panels features;     ///< [C, M]
  float* denominator;  ///< [C]
  float* top;      ///< [C] subtracted from all exponents; the keys' stabiliser for maps known by
                   ///< their values
  float* excess;   ///< [C] 2^(row maximum of the exponents - top)
  float* largest;  ///< [C, N] running maxima
  float* offset;   ///< [C] subtracted from the exponents of w.q
  float* floor;    ///< [C] exponents of what eps adds
  float* lanes;    ///< [C, N] running maxima and sums
  float* shift;    ///< [M] padded

  void place(ScratchLayout& layout, const HeadPlan& head, int64_t rows) {
    features = {layout.take(panel_floats(rows, head.padded_features())), rows};
    denominator = layout.take(kChunk);
    top = layout.take(kChunk);
    excess = layout.take(kChunk);
    largest = layout.take(kChunk * panel_width() / 2);
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

/// g(u) + eps of n packed queries; the denominators become features . z, and c the exponent that z
/// is relative to.
inline HWY_NOINLINE void value_queries(const HeadPlan& head, const Panels& tokens, int64_t n,
                                       float c, const float* HWY_RESTRICT z, float* buffer,
                                       const QueryFeatures& out) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  HWY_ALIGN float ones[kChunk];
  std::fill_n(ones, n, 1.0f);
  std::fill_n(out.lanes, n * N, 0.0f);
  for (int64_t panel = 0; panel < num_panels(head.M); ++panel) {
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
    out.top[r] = c;
    out.excess[r] = 1.0f;
    out.denominator[r] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, out.lanes + r * N)));
  }
}

/// What is added to the exponents of queries' features under stabilisers c: these and the map's
/// constants. Padded so that features beyond M are 0 and count in no maximum.
inline void query_shift(const HeadPlan& head, const float* HWY_RESTRICT c,
                        float* HWY_RESTRICT shift) {
  const float* constants = head.query.shift;
  for (int64_t f = 0; f < head.M; ++f) {
    shift[f] = constants == nullptr ? c[f] : c[f] + constants[f];
  }
  std::fill(shift + head.M, shift + num_panels(head.M) * panel_width(), 2 * kNoKey);
}

/// 2^(u + shift - top) of n packed queries, shift = c and the map's constants; with kFloor
/// 2^(u + shift - offset - top) + 2^(floor + c - top). top is the row's largest exponent, or near
/// it (see woven_queries). The denominators become features . z.
template <bool kFloor>
HWY_NOINLINE void exponential_queries(const HeadPlan& head, const Panels& tokens, int64_t n,
                                      const float* c, const float* HWY_RESTRICT z,
                                      const QueryFeatures& out) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const int64_t panels = num_panels(head.M);
  const float* HWY_RESTRICT shift = out.shift;
  float* HWY_RESTRICT lanes = out.lanes;
  const float* constants = head.query.shift;
  query_shift(head, c, out.shift);
  if (can_weave(head, head.query) &&
      woven_queries(head.query.matrix.columns, tokens, head.D, n, panels, shift, z, out.features,
                    out.top, out.denominator, out.excess, out.largest, lanes)) {
    return;
  }
  std::fill_n(lanes, n * N, 2 * kNoKey);
  // What eps adds has no constant of its own feature: its stabiliser is shift less that constant.
  const auto bare = [&](Vector shifted, int64_t f) HWY_ATTR {
    return constants == nullptr ? shifted : hn::Sub(shifted, hn::LoadU(d, constants + f));
  };
  for (int64_t panel = 0; panel < panels; ++panel) {
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
    out.excess[r] = 1.0f;
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
/// and out.floor are known.
inline void query_features(const HeadPlan& head, const Panels& tokens, int64_t n, const float* c,
                           const float* z, float* buffer, const QueryFeatures& out) {
  if (!head.log_linear) {
    value_queries(head, tokens, n, c[0], z, buffer, out);
  } else if (head.has_floor) {
    exponential_queries<true>(head, tokens, n, c, z, out);
  } else {
    exponential_queries<false>(head, tokens, n, c, z, out);
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

/// Factors that turn n rows of sums into outputs, divided by their denominators or as they are, and
/// the rows' normalisers (null: not wanted): log2 of the denominator (log-linear) or the
/// denominator. The first `without_keys` rows give 0, and so does a denominator of 0. For maps
/// known by their values `own` (null: features.top) has each row's own stabiliser, which its
/// normaliser is relative to. Up to kChunk rows; `factor` has room for as many.
inline HWY_NOINLINE void row_factors(const HeadPlan& head, const QueryFeatures& features, int64_t n,
                                     int64_t without_keys, const float* own,
                                     float* HWY_RESTRICT factor, float* normalizer) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
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
    const float exponent = features.top[r] - offset;
    const bool none = r < without_keys;
    factor[r] = none ? 0.0f : std::exp2(exponent);
    kept[r] = !head.log_linear ? (none ? 0.0f : 1.0f)
              : none           ? -std::numeric_limits<float>::infinity()
                               : 0.0f;
  }
  for (int64_t r = 0; r < n && head.renormalize && !head.log_linear; ++r) {
    const bool rescaled = own != nullptr && r >= without_keys;
    kept[r] = features.denominator[r] * (rescaled ? std::exp2(features.top[r] - own[r]) : 1.0f);
  }
  if (normalizer != nullptr) {
    std::copy_n(kept, n, normalizer);
  }
}

/// Turns n rows of sums into outputs in the caller's rows, and keeps their normalisers; the first
/// `without_keys` rows become 0, whatever the query holds. See row_factors.
inline HWY_NOINLINE void finish_rows(const HeadPlan& head, const QueryFeatures& features,
                                     const Panels& sums, int64_t n, int64_t without_keys,
                                     const float* own, const OutputElements& out, int64_t stride,
                                     float* normalizer) {
  HWY_ALIGN float factor[kChunk];
  row_factors(head, features, n, without_keys, own, factor, normalizer);
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

#endif  // FAVOR_QUERY_FEATURES_INL_H_
