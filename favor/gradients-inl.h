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
#include <cstdint>
#include <limits>

#include "favor/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// A chunk of queries in a backward pass: which rows take part, their gradients and normalisers.
struct QueryGradients {
  Panels tokens;  ///< [C, D]
  Panels dout;    ///< [C, E]
  float* delta;   ///< [C] dout . out
  float* norm;    ///< [C] as normalized_query_features takes it
  uint8_t skip[kChunk];

  void place(ScratchLayout& layout, const HeadPlan& head, int64_t rows) {
    tokens = {layout.take(panel_floats(rows, head.D)), rows};
    dout = {layout.take(panel_floats(rows, head.E)), rows};
    delta = layout.take(rows);
    norm = layout.take(rows);
  }

  /// Reads n rows from query i on. A row without keys or with zero dout takes no part, so that
  /// nothing of it, NaN included, reaches a sum.
  void load(const Plan<float>& plan, const HeadPlan& head, int64_t b, int64_t h, int64_t i,
            int64_t n, const InputRows& out, const InputRows& gradient, const float* normalizer) {
    for (int64_t r = 0; r < n; ++r) {
      const InputElements g = gradient.row(b, h, i + r);
      const bool no_keys = head.positive
                               ? normalizer[i + r] == -std::numeric_limits<float>::infinity()
                               : normalizer[i + r] == 0.0f;
      skip[r] = no_keys || is_zero_row(g, head.E);
      if (skip[r]) {
        delta[r] = 0.0f;
        norm[r] = head.positive ? std::numeric_limits<float>::infinity() : 0.0f;
      } else {
        delta[r] = dot(g, out.row(b, h, i + r), head.E);
        norm[r] = head.positive
                      ? normalizer[i + r]
                      : std::min(1.0f / normalizer[i + r], std::numeric_limits<float>::max());
      }
    }
    pack_rows(plan.q.row(b, h, i), plan.q.strides[2], n, head.D, head.token_scale, skip, tokens);
    pack_rows(gradient.row(b, h, i), gradient.strides[2], n, head.E, 1.0f, skip, dout);
  }
};

/// Gradients of n rows of query logits on one panel: features (dfeatures - delta z) for the
/// positive map; the others take the derivative of max(u, 0). `dfeatures` is replaced; `dz` loses
/// the column sums of features * delta.
inline HWY_NOINLINE void query_logit_gradients(
    const HeadPlan& head, const float* HWY_RESTRICT features, const float* HWY_RESTRICT delta,
    const float* HWY_RESTRICT norm, int64_t n, const float* HWY_RESTRICT z,
    float* HWY_RESTRICT dfeatures, float* HWY_RESTRICT dz) {
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
      if (head.positive) {
        hn::StoreU(hn::Mul(feature, gradient), d, dfeatures + r * NR + half);
      } else {
        const Vector inverse = hn::Set(d, norm[r]);
        const auto inactive = hn::Le(feature, hn::Mul(border, inverse));
        hn::StoreU(hn::IfThenZeroElse(inactive, hn::Mul(inverse, gradient)), d,
                   dfeatures + r * NR + half);
      }
    }
    hn::StoreU(down, d, dz + half);
  }
}

/// Gradients of n rows of key logits on one panel: features (dfeatures + dz), or where the relu is
/// active weight (dfeatures + dz). `dfeatures` is replaced; `row_sums` [n, N] gains its sums.
inline HWY_NOINLINE void key_logit_gradients(const HeadPlan& head,
                                             const float* HWY_RESTRICT features,
                                             const float* HWY_RESTRICT offset, int64_t n,
                                             const float* HWY_RESTRICT dz,
                                             float* HWY_RESTRICT dfeatures,
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
      if (head.positive) {
        result = hn::Mul(feature, gradient);
      } else {
        const Vector weight = hn::Set(d, offset[r]);
        const auto inactive = hn::Le(feature, hn::Mul(border, weight));
        result = hn::IfThenZeroElse(inactive, hn::Mul(weight, gradient));
      }
      total = hn::Add(total, result);
      hn::StoreU(result, d, dfeatures + r * NR + half);
    }
    hn::StoreU(total, d, row_sums + r * N);
  }
}

/// Gradients of n tokens from those of their logits [n, M], without head.out_scale: their product
/// with the matrix, less what the token's own norm takes (row_sums null: nothing). In `product`, or
/// in place if there is no matrix.
inline HWY_NOINLINE Panels token_gradient_panels(const HeadPlan& head, const Panels& dlogits,
                                                 int64_t n, const Panels& tokens,
                                                 const float* row_sums, const Panels& product) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  Panels result = dlogits;
  if (head.hadamard.size != 0) {
    // What lies in the last panel beyond M is not a number of the caller's.
    for (int64_t c = head.M; c < num_panels(head.M) * NR; ++c) {
      for (int64_t r = 0; r < n; ++r) {
        dlogits.at(r, c / NR)[c % NR] = 0.0f;
      }
    }
    hadamard_gradients(head.hadamard, dlogits, head.M, head.D, n, product);
    result = product;
  } else if (!head.identity) {
    multiply<false>(dlogits, head.rows, product, 0, n, 0, num_panels(head.D), head.M);
    result = product;
  }
  if (head.positive && row_sums != nullptr) {
    const float factor = -head.norm_gradient / head.token_scale;
    for (int64_t r = 0; r < n; ++r) {
      const Vector weight =
          hn::Set(d, factor * hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, row_sums + r * N))));
      for (int64_t c = 0; c < num_panels(head.D) * NR; c += N) {
        float* at = result.at(r, c / NR) + c % NR;
        const float* token = tokens.at(r, c / NR) + c % NR;
        hn::StoreU(hn::MulAdd(weight, hn::LoadU(d, token), hn::LoadU(d, at)), d, at);
      }
    }
  }
  return result;
}

/// Writes these gradients to rows of dq or dk.
inline HWY_NOINLINE void token_gradients(const HeadPlan& head, const Panels& dlogits, int64_t n,
                                         const Panels& tokens, const float* row_sums,
                                         const Panels& product, const OutputElements& to,
                                         int64_t stride) {
  const Panels result = token_gradient_panels(head, dlogits, n, tokens, row_sums, product);
  float scales[kChunk];
  std::fill_n(scales, n, head.out_scale);
  unpack_rows(result, n, head.D, scales, to, stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_GRADIENTS_INL_H_
