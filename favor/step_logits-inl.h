// SPDX-License-Identifier: Apache-2.0
// Products of a random matrix with the few tokens of a decoding step. The matrix is read as the
// caller has it, once for all tokens that share it, because packing it would cost more.

// clang-format off
#if defined(FAVOR_STEP_LOGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_STEP_LOGITS_INL_H_
#undef FAVOR_STEP_LOGITS_INL_H_
#else
#define FAVOR_STEP_LOGITS_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>

#include "favor/row_products-inl.h"
#include "favor/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// tile[r, lane] = rows[r] . token `lane` for kRows rows of `cols` elements and the tokens in the
/// lanes of a vector; row i of `tokens` and of the tile starts at i panel_width().
template <int kRows>
HWY_NOINLINE void multiply_lanes(const float* HWY_RESTRICT rows, int64_t cols,
                                 const float* HWY_RESTRICT tokens, float* HWY_RESTRICT tile) {
  const FloatTag d;
  const int64_t NR = panel_width();
// Every fourth row has a pointer of its own: more would not stay in registers.
#define FAVOR_FOR_EACH_ROW(X) \
  X(0, 0)                     \
  X(0, 1)                     \
  X(0, 2)                     \
  X(0, 3)                     \
  X(1, 0)                     \
  X(1, 1)                     \
  X(1, 2)                     \
  X(1, 3)                     \
  X(2, 0)                     \
  X(2, 1)                     \
  X(2, 2)                     \
  X(2, 3)                     \
  X(3, 0)                     \
  X(3, 1)                     \
  X(3, 2)                     \
  X(3, 3)
#define FAVOR_DECLARE_ROW(p, r) Vector a##p##r = hn::Zero(d);
  FAVOR_FOR_EACH_ROW(FAVOR_DECLARE_ROW)
#undef FAVOR_DECLARE_ROW
  const float* HWY_RESTRICT row0 = rows;
  const float* HWY_RESTRICT row1 = row0 + 4 * cols;
  const float* HWY_RESTRICT row2 = row1 + 4 * cols;
  const float* HWY_RESTRICT row3 = row2 + 4 * cols;
  for (int64_t i = 0; i < cols; ++i) {
    const Vector x = hn::LoadU(d, tokens + i * NR);
#define FAVOR_ACCUMULATE_ROW(p, r)                                      \
  if constexpr (kRows > 4 * p + r) {                                    \
    a##p##r = hn::MulAdd(hn::Set(d, row##p[r * cols + i]), x, a##p##r); \
  }
    FAVOR_FOR_EACH_ROW(FAVOR_ACCUMULATE_ROW)
#undef FAVOR_ACCUMULATE_ROW
  }
#define FAVOR_STORE_ROW(p, r) \
  if constexpr (kRows > 4 * p + r) hn::StoreU(a##p##r, d, tile + (4 * p + r) * NR);
  FAVOR_FOR_EACH_ROW(FAVOR_STORE_ROW)
#undef FAVOR_STORE_ROW
#undef FAVOR_FOR_EACH_ROW
}

/// The tokens of some heads and their logits.
class StepLogits {
 public:
  /// Places what n tokens of D elements and matrices of R rows need. `structured`: the matrix, or
  /// null. Logits of different tokens are `stride` floats apart.
  void place(ScratchLayout& layout, int64_t n, int64_t D, int64_t R, int64_t stride,
             const StructuredProjection* structured) {
    D_ = D;
    R_ = R;
    n_ = n;
    stride_ = stride;
    rows_ = layout.take(n * D);
    logits_ = layout.take(n * stride);
    const int64_t NR = panel_width();
    packed_ = {layout.take(panel_floats(n, D)), n};
    if (structured != nullptr) {
      memory_ = layout.take(HadamardMatrix::floats(*structured));
      const HadamardMatrix matrix{structured->block_rows, 0, nullptr, nullptr};
      unit_ = layout.take(matrix.unit_panels() * n * NR);
      return;
    }
    if (fills_lanes()) {
      columns_ = {layout.take(panel_floats(D, n)), D};
      tile_ = layout.take(NR * NR);
      turned_ = layout.take(NR * NR);
    } else {
      aligned_ = layout.take(n * aligned_floats(D));
    }
  }

  /// Token i as it came, [D].
  float* row(int64_t i) const { return rows_ + i * D_; }
  /// Its logits, [R].
  float* logits(int64_t i) const { return logits_ + i * stride_; }

  /// Logits of tokens that are the features themselves, times `factor`.
  void multiply_identity(float factor) const {
    for (int64_t t = 0; t < n_; ++t) {
      for (int64_t f = 0; f < R_; ++f) logits(t)[f] = factor * row(t)[f];
    }
  }

  /// Logits of tokens [first, end) for the matrix times `factor`.
  HWY_NOINLINE void multiply(const float* matrix, float factor, int64_t first, int64_t end) const {
    if (fills_lanes()) {
      multiply_in_lanes(matrix, factor, first, end);
    } else {
      multiply_by_rows(matrix, factor, first, end);
    }
  }

  HWY_NOINLINE void multiply(const StructuredProjection& structured, float factor) const {
    const FloatTag d;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d)), NR = 2 * N;
    const HadamardMatrix matrix = pack_hadamard(structured, factor, memory_);
    pack_rows(rows_, D_, n_, D_, 1.0f, nullptr, packed_);
    const int64_t unit = matrix.unit_panels() * NR;
    for (int64_t f = 0; f < R_; f += unit) {
      hadamard_logits(matrix, packed_, D_, n_, f / unit, unit_, n_ * NR);
      for (int64_t t = 0; t < n_; ++t) {
        for (int64_t i = 0; i < unit && f + i < stride_; i += N) {
          const float* from = unit_ + (i / NR * n_ + t) * NR + i % NR;
          hn::StoreU(hn::LoadU(d, from), d, logits(t) + f + i);
        }
      }
    }
  }

 private:
  /// Whether tokens are so many that lanes of their own cost less than sums over lanes.
  bool fills_lanes() const { return 8 * n_ > 5 * panel_width() / 2; }

  void multiply_in_lanes(const float* matrix, float factor, int64_t first, int64_t end) const {
    const FloatTag d;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d)), NR = 2 * N;
    const int64_t n = end - first;
    const Panels packed{packed_.data, n};
    pack_rows(row(first), D_, n, D_, factor, nullptr, packed);
    pack_columns(packed, n);
    const Panels tile{tile_, NR}, turned{turned_, NR};
    constexpr int kRows = kTileRows == 8 ? 16 : 8;
    for (int64_t f = 0; f < R_; f += NR) {
      const int64_t count = std::min(NR, R_ - f);
      const float* rows = matrix + f * D_;
      for (int64_t t = 0; t < n; t += NR) {
        const int64_t tokens = std::min(NR, n - t);
        for (int64_t lane = 0; lane < tokens; lane += N) {
          const float* columns = columns_.at(0, t / NR) + lane;
          int64_t r = 0;
          for (; r + kRows <= count; r += kRows) {
            multiply_lanes<kRows>(rows + r * D_, D_, columns, tile_ + r * NR + lane);
          }
          for (; r < count; ++r) {
            multiply_lanes<1>(rows + r * D_, D_, columns, tile_ + r * NR + lane);
          }
        }
        transpose(tile, count, tokens, turned);
        for (int64_t i = 0; i < tokens; ++i) {
          float* to = logits(first + t + i) + f;
          for (int64_t at = 0; at < NR && f + at < stride_; at += N) {
            hn::StoreU(hn::LoadU(d, turned_ + i * NR + at), d, to + at);
          }
        }
      }
    }
  }

  void pack_columns(const Panels& packed, int64_t n) const {
    // Lanes without a token are multiplied too; they must not be slow, as denormals are.
    for (int64_t panel = n / panel_width(); panel < num_panels(n); ++panel) {
      std::fill_n(columns_.at(0, panel), D_ * panel_width(), 0.0f);
    }
    transpose(packed, n, D_, columns_);
  }

  void multiply_by_rows(const float* matrix, float factor, int64_t first, int64_t end) const {
    const FloatTag d;
    const auto token = [&](int64_t t) { return aligned_ + t * aligned_floats(D_); };
    for (int64_t t = first; t < end; ++t) align_to_rows(d, row(t), D_, factor, token(t));
    // Few rows at a time, which stay in the first-level cache for all tokens.
    constexpr int64_t kRows = 32;
    for (int64_t f = 0; f < R_; f += kRows) {
      const float* rows = matrix + f * D_;
      const int64_t count = std::min(kRows, R_ - f);
      int64_t t = first;
      for (; t + 2 <= end; t += 2) {
        dot_rows<true>(d, rows, D_, count, D_, token(t), token(t + 1), logits(t) + f,
                       logits(t + 1) + f);
      }
      if (t < end)
        dot_rows<false>(d, rows, D_, count, D_, token(t), nullptr, logits(t) + f, nullptr);
    }
  }

  int64_t D_ = 0, R_ = 0, n_ = 0, stride_ = 0;
  float* rows_ = nullptr;     ///< [n, D]
  float* logits_ = nullptr;   ///< [n, stride]
  float* memory_ = nullptr;   ///< of a structured matrix
  float* unit_ = nullptr;     ///< logits of one unit of it, [n, unit] in panel layout
  Panels packed_{};           ///< [n, D]
  Panels columns_{};          ///< [D, n]: tokens in lanes
  float* tile_ = nullptr;     ///< [NR, NR] logits, tokens in lanes
  float* turned_ = nullptr;   ///< its transpose
  float* aligned_ = nullptr;  ///< [n] tokens in the order of dot_rows
};

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_STEP_LOGITS_INL_H_
