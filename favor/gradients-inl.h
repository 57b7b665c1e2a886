// SPDX-License-Identifier: Apache-2.0
// What the backward passes share: loading of queries with their gradients, gradients of logits from
// gradients of features, and of tokens from those of logits. Formulas: docs/math.md.

// clang-format off
#if defined(FAVOR_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_GRADIENTS_INL_H_
#undef FAVOR_GRADIENTS_INL_H_
#else
#define FAVOR_GRADIENTS_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "favor/query_features-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// A chunk of queries in a backward pass: which rows take part, their gradients and normalisers.
struct QueryGradients {
  Panels tokens;  ///< [C, D]
  Panels dout;    ///< [C, E]
  float* delta;   ///< [C] dout . out, 0 without renormalisation
  float* norm;    ///< [C] as normalized_query_features takes it
  float* floor;   ///< [C] as in QueryFeatures
  float* offset;  ///< [C] as in QueryFeatures
  uint8_t skip[kChunk];

  void place(ScratchLayout& layout, const HeadPlan& head, int64_t rows) {
    tokens = {layout.take(panel_floats(rows, head.D)), rows};
    dout = {layout.take(panel_floats(rows, head.E)), rows};
    delta = layout.take(rows);
    norm = layout.take(rows);
    floor = layout.take(rows);
    offset = layout.take(rows);
  }

  /// Reads n rows from query i on. A row without keys or with zero dout takes no part, so that
  /// nothing of it, NaN included, reaches a sum. buffer: [C, NR].
  void load(const Plan<float>& plan, const HeadPlan& head, int64_t b, int64_t h, int64_t i,
            int64_t n, const InputRows& out, const InputRows& gradient, const float* normalizer,
            float* buffer) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (int64_t r = 0; r < n; ++r) {
      const InputElements g = gradient.row(b, h, i + r);
      const float kept = normalizer[i + r];
      const bool no_keys = head.log_linear ? kept == -kInfinity : kept == 0.0f;
      skip[r] = no_keys || is_zero_row(g, head.E);
    }
    const InputElements q = plan.q.row(b, h, i);
    pack_rows(q, plan.q.strides[2], n, head.D, head.token_scale, skip, tokens);
    pack_rows(gradient.row(b, h, i), gradient.strides[2], n, head.E, 1.0f, skip, dout);
    query_offsets(head, q, plan.q.strides[2], n, skip, tokens, buffer, offset, floor);
    for (int64_t r = 0; r < n; ++r) {
      const float kept = normalizer[i + r];
      if (skip[r]) {
        delta[r] = 0.0f;
        norm[r] = head.log_linear ? kInfinity : 0.0f;
      } else if (head.renormalize) {
        constexpr float kLargest = std::numeric_limits<float>::max();
        delta[r] = dot(gradient.row(b, h, i + r), out.row(b, h, i + r), head.E);
        norm[r] = !head.log_linear ? std::clamp(1.0f / kept, -kLargest, kLargest)
                  : head.has_floor ? kept
                                   : kept + offset[r];
      } else {
        delta[r] = 0.0f;
        norm[r] = !head.log_linear ? 1.0f : head.has_floor ? 0.0f : offset[r];
      }
    }
  }

  /// For maps known by their values: brings the factors of n rows to the stabiliser c of the sums
  /// that the features will meet. own: the rows' own stabilisers, null where these are c.
  void settle(const HeadPlan& head, int64_t n, float c, const float* own) const {
    for (int64_t r = 0; r < n && !head.log_linear; ++r) {
      if (skip[r] == 0 && !head.renormalize) {
        norm[r] *= std::exp2(c - offset[r]);
      } else if (skip[r] == 0 && own != nullptr) {
        norm[r] *= std::exp2(c - own[r]);
      }
    }
  }
};

/// Where the derivatives of features by their logits come from.
enum class Slope {
  kFeature,  ///< exponentials: the features themselves
  kSign,     ///< relu: told from the features
  kPanel,    ///< kept beside them
};

template <class Body>
HWY_INLINE void with_slope(const HeadPlan& head, const Body& body) {
  if (head.keeps_slopes) {
    body(std::integral_constant<Slope, Slope::kPanel>());
  } else if (head.log_linear) {
    body(std::integral_constant<Slope, Slope::kFeature>());
  } else {
    body(std::integral_constant<Slope, Slope::kSign>());
  }
}

/// Gradients of n rows of query logits on one panel: slopes (dfeatures - delta z). `dfeatures` is
/// replaced; `dz` loses the column sums of features * delta. `row_sums` (null: none) [n, N] gains
/// the sums of the gradients of the exponents.
template <Slope kSlope, bool kRowSums>
HWY_NOINLINE void query_logit_gradients(const HeadPlan& head, const float* HWY_RESTRICT features,
                                        const float* HWY_RESTRICT slopes,
                                        const float* HWY_RESTRICT delta,
                                        const float* HWY_RESTRICT norm, int64_t n,
                                        const float* HWY_RESTRICT z, float* HWY_RESTRICT dfeatures,
                                        float* HWY_RESTRICT dz, float* HWY_RESTRICT row_sums) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector border = hn::Set(d, head.eps_border);
  for (int64_t half = 0; half < NR; half += N) {
    const Vector sums = hn::LoadU(d, z + half);
    Vector down = hn::LoadU(d, dz + half);
    for (int64_t r = 0; r < n; ++r) {
      const Vector minus = hn::Set(d, delta[r]);
      const Vector feature = hn::LoadU(d, features + r * NR + half);
      const Vector gradient = hn::NegMulAdd(minus, sums, hn::LoadU(d, dfeatures + r * NR + half));
      down = hn::NegMulAdd(minus, feature, down);
      Vector result;
      if constexpr (kSlope == Slope::kFeature) {
        result = hn::Mul(feature, gradient);
      } else if constexpr (kSlope == Slope::kSign) {
        const Vector inverse = hn::Set(d, norm[r]);
        const auto inactive = hn::Le(feature, hn::Mul(border, inverse));
        result = hn::IfThenZeroElse(inactive, hn::Mul(inverse, gradient));
      } else {
        result = hn::Mul(hn::LoadU(d, slopes + r * NR + half), gradient);
      }
      hn::StoreU(result, d, dfeatures + r * NR + half);
      if constexpr (kRowSums) {
        const Vector exponent = head.log_linear ? result : hn::Mul(feature, gradient);
        hn::StoreU(hn::Add(hn::LoadU(d, row_sums + r * N), exponent), d, row_sums + r * N);
      }
    }
    hn::StoreU(down, d, dz + half);
  }
}

inline void query_logit_gradients(const HeadPlan& head, const float* features, const float* slopes,
                                  const QueryGradients& rows, int64_t n, const float* z,
                                  float* dfeatures, float* dz, float* row_sums) {
  with_slope(head, [&](auto slope) HWY_ATTR {
    constexpr Slope kSlope = decltype(slope)::value;
    if (row_sums != nullptr) {
      query_logit_gradients<kSlope, true>(head, features, slopes, rows.delta, rows.norm, n, z,
                                          dfeatures, dz, row_sums);
    } else {
      query_logit_gradients<kSlope, false>(head, features, slopes, rows.delta, rows.norm, n, z,
                                           dfeatures, dz, nullptr);
    }
  });
}

/// Gradients of n rows of key logits on one panel: slopes (dfeatures + dz). `dfeatures` is
/// replaced; `row_sums` [n, N] gains the sums of the gradients of the exponents.
template <Slope kSlope>
HWY_NOINLINE void key_logit_gradients(const HeadPlan& head, const float* HWY_RESTRICT features,
                                      const float* HWY_RESTRICT slopes,
                                      const float* HWY_RESTRICT key_weight, int64_t n,
                                      const float* HWY_RESTRICT dz, float* HWY_RESTRICT dfeatures,
                                      float* HWY_RESTRICT row_sums) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector border = hn::Set(d, head.eps_border);
  for (int64_t r = 0; r < n; ++r) {
    Vector total = hn::LoadU(d, row_sums + r * N);
    for (int64_t half = 0; half < NR; half += N) {
      const Vector feature = hn::LoadU(d, features + r * NR + half);
      const Vector gradient =
          hn::Add(hn::LoadU(d, dfeatures + r * NR + half), hn::LoadU(d, dz + half));
      Vector result;
      if constexpr (kSlope == Slope::kFeature) {
        result = hn::Mul(feature, gradient);
        total = hn::Add(total, result);
      } else if constexpr (kSlope == Slope::kSign) {
        const Vector weight = hn::Set(d, key_weight[r]);
        const auto inactive = hn::Le(feature, hn::Mul(border, weight));
        result = hn::IfThenZeroElse(inactive, hn::Mul(weight, gradient));
      } else {
        result = hn::Mul(hn::LoadU(d, slopes + r * NR + half), gradient);
        total = hn::Add(total, head.log_linear ? result : hn::Mul(feature, gradient));
      }
      hn::StoreU(result, d, dfeatures + r * NR + half);
    }
    hn::StoreU(total, d, row_sums + r * N);
  }
}

inline void key_logit_gradients(const HeadPlan& head, const float* features, const float* slopes,
                                const KeyChunk& keys, int64_t n, const float* dz, float* dfeatures,
                                float* row_sums) {
  with_slope(head, [&](auto slope) HWY_ATTR {
    key_logit_gradients<decltype(slope)::value>(head, features, slopes, keys.weight, n, dz,
                                                dfeatures, row_sums);
  });
}

/// Rows of sums that query_logit_gradients adds to, cleared, or null where a query's |q|^2 cancels.
inline float* clear_query_row_sums(const HeadPlan& head, int64_t n, float* row_sums) {
  if (!head.whole_queries || head.norm_gradient == 0.0f) {
    return nullptr;
  }
  std::fill_n(row_sums, n * panel_width() / 2, 0.0f);
  return row_sums;
}

/// Gradients of n tokens of one side from those of their logits [n, M], without head.out_scale:
/// their product with the matrix, less what the token's own norm takes (row_sums null: nothing). In
/// `product`, or in place if there is no matrix.
inline HWY_NOINLINE Panels token_gradient_panels(const HeadPlan& head, const MapSide& side,
                                                 const Panels& dlogits, int64_t n,
                                                 const Panels& tokens, const float* row_sums,
                                                 const Panels& product) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  Panels result = dlogits;
  if (side.matrix.hadamard.size != 0) {
    // What lies in the last panel beyond M is not a number of the caller's.
    for (int64_t c = head.M; c < num_panels(head.M) * NR; ++c) {
      for (int64_t r = 0; r < n; ++r) {
        dlogits.at(r, c / NR)[c % NR] = 0.0f;
      }
    }
    hadamard_gradients(side.matrix.hadamard, dlogits, head.M, head.D, n, product);
    result = product;
  } else if (!head.identity) {
    multiply<false>(dlogits, side.matrix.rows, product, 0, n, 0, num_panels(head.D), head.M);
    result = product;
  }
  if (head.norm_gradient != 0.0f && row_sums != nullptr) {
    const float factor = side.norm == nullptr
                             ? -head.norm_gradient / head.token_scale
                             : -head.norm_gradient / head.half_norm * head.token_scale;
    for (int64_t r = 0; r < n; ++r) {
      const Vector total =
          hn::Set(d, factor * hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, row_sums + r * N))));
      for (int64_t c = 0; c < num_panels(head.D) * NR; c += N) {
        float* at = result.at(r, c / NR) + c % NR;
        const float* token = tokens.at(r, c / NR) + c % NR;
        const Vector weight =
            side.norm == nullptr ? total : hn::Mul(total, hn::LoadU(d, side.norm + c));
        hn::StoreU(hn::MulAdd(weight, hn::LoadU(d, token), hn::LoadU(d, at)), d, at);
      }
    }
  }
  return result;
}

/// Writes these gradients to rows of dq or dk.
inline HWY_NOINLINE void token_gradients(const HeadPlan& head, const MapSide& side,
                                         const Panels& dlogits, int64_t n, const Panels& tokens,
                                         const float* row_sums, const Panels& product,
                                         const OutputElements& to, int64_t stride) {
  const Panels result = token_gradient_panels(head, side, dlogits, n, tokens, row_sums, product);
  float scales[kChunk];
  std::fill_n(scales, n, head.out_scale);
  unpack_rows(result, n, head.D, scales, to, stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_GRADIENTS_INL_H_
