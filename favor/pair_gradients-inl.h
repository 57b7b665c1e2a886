// SPDX-License-Identifier: Apache-2.0
// The sweeps of the bidirectional backward pass by products of bfloat16 pairs, for bfloat16 tensors
// and the positive map. Empty for instruction sets without such products.
//
// As in the forward pass operands of products are rounded and sums are not: features, gradients of
// logits, the state, the sums over queries, and the random matrix where gradients of logits become
// those of tokens. For logits the matrix is split into two numbers per entry. Gradients of outputs
// and values are bfloat16 as they come.

// clang-format off
#if defined(FAVOR_PAIR_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_PAIR_GRADIENTS_INL_H_
#undef FAVOR_PAIR_GRADIENTS_INL_H_
#else
#define FAVOR_PAIR_GRADIENTS_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>
#include <limits>

#include "favor/bidirectional-inl.h"
#include "favor/pairs-inl.h"

#if FAVOR_HAS_PAIRS
HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Whether these sweeps serve a call that the forward pass serves by pairs. Panels of states have
/// one row per feature, and tiles are written whole.
inline bool pair_gradients_serve(const Plan<float>& plan) {
  return pairs_serve(plan) && plan.q.elements.type == ElementType::kBfloat16 &&
         plan.M % panel_width() == 0;
}

/// Words of a chunk of tokens with `cols` columns, as pairs of neighbours.
inline int64_t chunk_words(int64_t cols) {
  return num_panels(cols) * kChunk * row_words();
}

/// Sums [M, E] as pairs of neighbouring columns, transposed: m_panels of [E / 2, 2 N].
struct PairColumns {
  uint32_t* words;
  uint32_t* upright;  ///< [M, E / 2] in panel layout, before it is transposed

  void place(ScratchLayout& layout, const HeadPlan& head) {
    words = take_words(layout, panel_floats(num_pairs(head.E), head.M));
    upright = take_words(layout, panel_floats(head.M, num_panels(head.E) * row_words()));
  }

  HWY_NOINLINE void load(const HeadPlan& head, const Panels& sums) const {
    const FloatTag d;
    const int64_t N = row_words();
    // Words are moved as floats are.
    const Panels from{reinterpret_cast<float*>(upright), head.M};
    for (int64_t panel = 0; panel < num_panels(head.E); ++panel) {
      for (int64_t f = 0; f < head.M; ++f) {
        const float* row = sums.at(f, panel);
        hn::StoreU(hn::BitCast(d, neighbours(hn::LoadU(d, row), hn::LoadU(d, row + N))), d,
                   from.at(f, panel / 2) + panel % 2 * N);
      }
    }
    const int64_t pairs = num_pairs(head.E);
    transpose(from, head.M, pairs, Panels{reinterpret_cast<float*>(words), pairs});
  }

  const uint32_t* panel(const HeadPlan& head, int64_t panel) const {
    return words + panel * num_pairs(head.E) * panel_width();
  }
};

/// Features 2^(u + c - norm) of a chunk of queries on one panel, as pairs of queries [C / 2, 2 N],
/// and the gradients of their logits, features * (dfeatures - delta z), as pairs of neighbours
/// [C, N]. dz loses the column sums of features * delta.
inline HWY_NOINLINE void pair_query_gradients(
    const float* HWY_RESTRICT u, const float* HWY_RESTRICT dfeatures,
    const float* HWY_RESTRICT norm, const float* HWY_RESTRICT delta, const float* HWY_RESTRICT c,
    const float* HWY_RESTRICT z, float* HWY_RESTRICT dz, uint32_t* HWY_RESTRICT features,
    uint32_t* HWY_RESTRICT dlogits) {
  const FloatTag d;
  const WordTag du;
  const int64_t N = row_words();
  const int64_t NR = 2 * N;
  const Vector c0 = hn::LoadU(d, c), c1 = hn::LoadU(d, c + N);
  const Vector z0 = hn::LoadU(d, z), z1 = hn::LoadU(d, z + N);
  Vector down0 = hn::LoadU(d, dz), down1 = hn::LoadU(d, dz + N);
  for (int64_t r = 0; r < kChunk; r += 2) {
    Words words0[2], words1[2];
    for (int64_t side = 0; side < 2; ++side) {
      const int64_t at = (r + side) * NR;
      const Vector minus = hn::Set(d, norm[r + side]);
      const Vector weight = hn::Set(d, delta[r + side]);
      words0[side] = rounded_words(coarse_exp2(hn::Add(hn::LoadU(d, u + at), hn::Sub(c0, minus))));
      words1[side] =
          rounded_words(coarse_exp2(hn::Add(hn::LoadU(d, u + at + N), hn::Sub(c1, minus))));
      const Vector phi0 = hn::BitCast(d, words0[side]), phi1 = hn::BitCast(d, words1[side]);
      down0 = hn::NegMulAdd(weight, phi0, down0);
      down1 = hn::NegMulAdd(weight, phi1, down1);
      const Vector g0 = hn::NegMulAdd(weight, z0, hn::LoadU(d, dfeatures + at));
      const Vector g1 = hn::NegMulAdd(weight, z1, hn::LoadU(d, dfeatures + at + N));
      hn::StoreU(neighbours(hn::Mul(phi0, g0), hn::Mul(phi1, g1)), du, dlogits + (r + side) * N);
    }
    hn::StoreU(pair_words(words0[0], words0[1]), du, features + r * N);
    hn::StoreU(pair_words(words1[0], words1[1]), du, features + r * N + N);
  }
  hn::StoreU(down0, d, dz);
  hn::StoreU(down1, d, dz + N);
}

/// Features 2^(u - offset - c) of a chunk of keys on one panel and the gradients of their logits,
/// features * (dfeatures + dz), both as pairs of neighbours [C, N]. row_sums [C, N] gains the sums
/// of the gradients.
inline HWY_NOINLINE void pair_key_gradients(
    const float* HWY_RESTRICT u, const float* HWY_RESTRICT dfeatures,
    const float* HWY_RESTRICT offset, const float* HWY_RESTRICT c, const float* HWY_RESTRICT dz,
    uint32_t* HWY_RESTRICT features, uint32_t* HWY_RESTRICT dlogits, float* HWY_RESTRICT row_sums) {
  const FloatTag d;
  const WordTag du;
  const int64_t N = row_words();
  const int64_t NR = 2 * N;
  const Vector c0 = hn::LoadU(d, c), c1 = hn::LoadU(d, c + N);
  const Vector dz0 = hn::LoadU(d, dz), dz1 = hn::LoadU(d, dz + N);
  for (int64_t r = 0; r < kChunk; ++r) {
    const int64_t at = r * NR;
    const Vector minus = hn::Set(d, offset[r]);
    const Vector phi0 = coarse_exp2(hn::Sub(hn::Sub(hn::LoadU(d, u + at), minus), c0));
    const Vector phi1 = coarse_exp2(hn::Sub(hn::Sub(hn::LoadU(d, u + at + N), minus), c1));
    const Vector g0 = hn::Mul(phi0, hn::Add(hn::LoadU(d, dfeatures + at), dz0));
    const Vector g1 = hn::Mul(phi1, hn::Add(hn::LoadU(d, dfeatures + at + N), dz1));
    hn::StoreU(neighbours(phi0, phi1), du, features + r * N);
    hn::StoreU(neighbours(g0, g1), du, dlogits + r * N);
    hn::StoreU(hn::Add(hn::LoadU(d, row_sums + r * N), hn::Add(g0, g1)), d, row_sums + r * N);
  }
}

/// product = left right for a chunk of rows: left as pairs of M neighbours, right panels of
/// [M / 2, 2 N] with `cols` columns.
inline void multiply_chunk(const HeadPlan& head, const uint32_t* left, const uint32_t* right,
                           int64_t cols, const Panels& product) {
  for (int64_t panel = 0; panel < num_panels(cols); ++panel) {
    multiply_pairs<false, false>(left, kChunk * row_words(),
                                 right + panel * head.M / 2 * panel_width(), nullptr,
                                 product.at(0, panel), head.M / 2, kChunk / kPairRows);
  }
}

/// As QueryGradientSweep.
struct PairQueryGradientSweep {
  const PairMatrices* matrices = nullptr;
  PairColumns S;
  uint32_t* tokens;           ///< d_panels of [C, N]
  uint32_t* dout_words;       ///< e_panels of [C, N]
  uint32_t* dout_pairs;       ///< e_panels of [C / 2, 2 N], pairs of queries
  uint32_t* features;         ///< [C / 2, 2 N], pairs of queries
  uint32_t* dlogits;          ///< m_panels of [C, N]
  Panels product;             ///< [C, D]
  float *logits, *dfeatures;  ///< [C, 2 N]
  float *delta, *norm;        ///< [C]

  void place(ScratchLayout& layout, const HeadPlan& head) {
    S.place(layout, head);
    tokens = take_words(layout, chunk_words(head.D));
    dout_words = take_words(layout, chunk_words(head.E));
    dout_pairs = take_words(layout, chunk_words(head.E));
    features = take_words(layout, kChunk * row_words());
    dlogits = take_words(layout, chunk_words(head.M));
    product = {layout.take(panel_floats(kChunk, head.D)), kChunk};
    logits = layout.take(panel_floats(kChunk, 1));
    dfeatures = layout.take(panel_floats(kChunk, 1));
    delta = layout.take(kChunk);
    norm = layout.take(kChunk);
  }

  void run(const Plan<float>& plan, const HeadPlan& head, const Item& item, int64_t h,
           const Block& block, const KeyState& state, const InputRows& out, const InputRows& dout,
           const float* normalizer, const OutputRows& dq, const KeyState& sums) const {
    const int64_t N = row_words(), NR = 2 * N;
    const int64_t panels = num_panels(head.M);
    const PairSizes s(plan);
    if (block.begin == block.end) return;
    S.load(head, state.S);
    float ones[kChunk];
    std::fill_n(ones, kChunk, 1.0f);
    for (int64_t i = block.begin; i < block.end; i += kChunk) {
      const int64_t n = std::min(kChunk, block.end - i);
      const NextRows next(i + n, block.end, kChunk);
      load(plan, head, item.b, h, i, n, out, dout, normalizer);
      for (int64_t panel = 0; panel < panels; ++panel) {
        const int64_t f = panel * NR;
        prefetch_rows(plan.q, item.b, h, next.first, next.last, panel, panels);
        prefetch_rows(dout, item.b, h, next.first, next.last, panel, panels);
        prefetch_rows(out, item.b, h, next.first, next.last, panel, panels);
        prefetch_rows(dq, item.b, h, i, i + n, panel, panels);
        multiply_pairs<false, true>(tokens, kChunk * N, matrices->columns(s, item.g, panel),
                                    nullptr, logits, s.d_words, kChunk / kPairRows);
        multiply_pairs<false, false>(dout_words, kChunk * N, S.panel(head, panel), nullptr,
                                     dfeatures, num_pairs(head.E), kChunk / kPairRows);
        pair_query_gradients(logits, dfeatures, norm, delta, state.c + f, state.z + f, sums.z + f,
                             features, dlogits + panel * kChunk * N);
        for (int64_t e_panel = 0; e_panel < num_panels(head.E); ++e_panel) {
          float* sum = sums.S.at(f, e_panel);
          multiply_pairs<true, false>(features, 0, dout_pairs + e_panel * kChunk * N, sum, sum,
                                      kChunk / 2, NR / kPairRows);
        }
      }
      multiply_chunk(head, dlogits, matrices->rows(item.g), head.D, product);
      unpack_rows(product, n, head.D, ones, dq.row(item.b, h, i), dq.strides[2]);
    }
  }

 private:
  /// As QueryGradients::load.
  void load(const Plan<float>& plan, const HeadPlan& head, int64_t b, int64_t h, int64_t i,
            int64_t n, const InputRows& out, const InputRows& gradient,
            const float* normalizer) const {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    uint8_t skip[kChunk];
    for (int64_t r = 0; r < kChunk; ++r) {
      skip[r] = r >= n || normalizer[i + r] == -kInfinity ||
                is_zero_row(gradient.row(b, h, i + r), head.E);
      delta[r] = skip[r] ? 0.0f : dot(gradient.row(b, h, i + r), out.row(b, h, i + r), head.E);
      norm[r] = skip[r] ? kInfinity : normalizer[i + r];
    }
    const bfloat16* rows = bfloat16_row(gradient, b, h, i);
    pack_tokens(bfloat16_row(plan.q, b, h, i), plan.q.strides[2], head.D, skip, tokens);
    pack_tokens(rows, gradient.strides[2], head.E, skip, dout_words);
    pack_token_pairs<false>(rows, gradient.strides[2], head.E, skip, nullptr, nullptr, dout_pairs);
  }
};

/// As KeyGradientSweep.
struct PairKeyGradientSweep {
  const PairMatrices* matrices = nullptr;
  PairColumns R;              ///< the sums transposed
  uint32_t* sum_rows;         ///< e_panels of [M / 2, 2 N]: the sums as pairs of features
  uint32_t* tokens;           ///< d_panels of [C, N]
  uint32_t* values;           ///< e_panels of [C, N]
  uint32_t* features;         ///< m_panels of [C, N]
  uint32_t* dlogits;          ///< m_panels of [C, N]
  Panels product;             ///< [C, D] or [C, E]
  float *logits, *dfeatures;  ///< [C, 2 N]
  float* offset;              ///< [C]
  float* row_sums;            ///< [C, N]

  void place(ScratchLayout& layout, const HeadPlan& head) {
    R.place(layout, head);
    sum_rows = take_words(layout, num_panels(head.E) * head.M / 2 * panel_width());
    tokens = take_words(layout, chunk_words(head.D));
    values = take_words(layout, chunk_words(head.E));
    features = take_words(layout, chunk_words(head.M));
    dlogits = take_words(layout, chunk_words(head.M));
    product = {layout.take(panel_floats(kChunk, std::max(head.D, head.E))), kChunk};
    logits = layout.take(panel_floats(kChunk, 1));
    dfeatures = layout.take(panel_floats(kChunk, 1));
    offset = layout.take(kChunk);
    row_sums = layout.take(kChunk * row_words());
  }

  void run(const Plan<float>& plan, const HeadPlan& head, const Item& item, const Block& block,
           const KeyState& state, const KeyState& sums, const OutputRows& dk,
           const OutputRows& dv) const {
    const int64_t N = row_words(), NR = 2 * N;
    const int64_t panels = num_panels(head.M);
    const PairSizes s(plan);
    if (block.begin == block.end) return;
    R.load(head, sums.S);
    for (int64_t panel = 0; panel < num_panels(head.E); ++panel) {
      pair_rows(sums.S.at(0, panel), head.M, sum_rows + panel * head.M / 2 * NR);
    }
    float ones[kChunk];
    std::fill_n(ones, kChunk, 1.0f);
    for (int64_t j = block.begin; j < block.end; j += kChunk) {
      const int64_t n = std::min(kChunk, block.end - j);
      const NextRows next(j + n, block.end, kChunk);
      uint8_t skip[kChunk];
      load_pair_keys(plan, item, j, n, skip, offset);
      const bfloat16* k = bfloat16_row(plan.k, item.b, item.g, j);
      pack_tokens(k, plan.k.strides[2], head.D, skip, tokens);
      pack_tokens(bfloat16_row(plan.v, item.b, item.g, j), plan.v.strides[2], head.E, skip, values);
      std::fill_n(row_sums, kChunk * N, 0.0f);
      for (int64_t panel = 0; panel < panels; ++panel) {
        const int64_t f = panel * NR;
        prefetch_rows(plan.k, item.b, item.g, next.first, next.last, panel, panels);
        prefetch_rows(plan.v, item.b, item.g, next.first, next.last, panel, panels);
        prefetch_rows(dv, item.b, item.g, j, j + n, panel, panels);
        prefetch_rows(dk, item.b, item.g, j, j + n, panel, panels);
        multiply_pairs<false, true>(tokens, kChunk * N, matrices->columns(s, item.g, panel),
                                    nullptr, logits, s.d_words, kChunk / kPairRows);
        multiply_pairs<false, false>(values, kChunk * N, R.panel(head, panel), nullptr, dfeatures,
                                     num_pairs(head.E), kChunk / kPairRows);
        pair_key_gradients(logits, dfeatures, offset, state.c + f, sums.z + f,
                           features + panel * kChunk * N, dlogits + panel * kChunk * N, row_sums);
      }
      multiply_chunk(head, features, sum_rows, head.E, product);
      unpack_rows(product, n, head.E, ones, dv.row(item.b, item.g, j), dv.strides[2]);
      multiply_chunk(head, dlogits, matrices->rows(item.g), head.D, product);
      subtract_norms(head, k, plan.k.strides[2], n, skip);
      unpack_rows(product, n, head.D, ones, dk.row(item.b, item.g, j), dk.strides[2]);
    }
  }

 private:
  /// Takes from the gradients of n keys what goes through their norms.
  HWY_NOINLINE void subtract_norms(const HeadPlan& head, const bfloat16* k, int64_t stride,
                                   int64_t n, const uint8_t* skip) const {
    const FloatTag d;
    const int64_t N = row_words(), NR = 2 * N;
    for (int64_t r = 0; r < n; ++r) {
      if (skip[r] != 0) continue;
      const Vector total = hn::SumOfLanes(d, hn::LoadU(d, row_sums + r * N));
      const Vector weight = hn::Mul(hn::Set(d, head.norm_gradient), total);
      for (int64_t panel = 0; panel < num_panels(head.D); ++panel) {
        Vector low, high;
        load_pair(k + r * stride + panel * NR, std::min(NR, head.D - panel * NR), low, high);
        float* at = product.at(r, panel);
        hn::StoreU(hn::NegMulAdd(weight, low, hn::LoadU(d, at)), d, at);
        hn::StoreU(hn::NegMulAdd(weight, high, hn::LoadU(d, at + N)), d, at + N);
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();
#endif  // FAVOR_HAS_PAIRS

#endif  // FAVOR_PAIR_GRADIENTS_INL_H_
