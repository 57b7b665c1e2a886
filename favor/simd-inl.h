// SPDX-License-Identifier: Apache-2.0
// The vector building blocks of the kernels, compiled once per target: exp2, the panel layout of
// scratch matrices, and the one register-tiled product that every pass is made of.
//
// Panel layout. A matrix [rows, cols] is cut into panels of kPanel() columns, each stored row by
// row: element (r, c) lies at (c / NR) * rows * NR + r * NR + c % NR. A panel serves as the right
// operand of a product as it stands (its rows are loaded as vectors) and as the left operand,
// transposed or not (its elements are broadcast), so no product needs another copy.

// clang-format off
#if defined(FAVOR_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_SIMD_INL_H_
#undef FAVOR_SIMD_INL_H_
#else
#define FAVOR_SIMD_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
// At most 32 lanes, so that a panel is never wider than a chunk of tokens.
using FloatTag = hn::CappedTag<float, 32>;
using Vector = hn::Vec<FloatTag>;

/// Columns of a panel: two vectors.
HWY_INLINE int64_t panel_width() {
  return 2 * static_cast<int64_t>(hn::Lanes(FloatTag()));
}

/// Panels that hold `cols` columns.
HWY_INLINE int64_t num_panels(int64_t cols) {
  return (cols + panel_width() - 1) / panel_width();
}

/// Floats of a matrix [rows, cols] in panel layout.
HWY_INLINE int64_t panel_floats(int64_t rows, int64_t cols) {
  return num_panels(cols) * rows * panel_width();
}

/// Rows of a register tile: two accumulators per row, two operand vectors and a broadcast must fit
/// the register file, which has 32 registers on AVX-512 and Arm and 16 elsewhere on x86.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM || HWY_ARCH_RVV
inline constexpr int kTileRows = 8;
#else
inline constexpr int kTileRows = 6;
#endif

/// 2^(f + n) with relative error below 3e-7 for f in [-1/2, 1/2] and an integer n, where 1.5 * 2^23
/// + n is given, whose low bits are those of n; f + n in [-126, 127]. The polynomial is a minimax
/// fit of 2^f with value 1 at 0.
HWY_INLINE Vector exp2_from_parts(Vector f, Vector shifted_n) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  Vector p = hn::Set(d, 0x1.5bba14p-10f);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.3cea88p-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b752p-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9bcp-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted_n));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
}

/// Adding 1.5 * 2^23 rounds to an integer.
inline constexpr float kRoundingShift = 12582912.0f;

/// 2^x with relative error below 3e-7 for x in [-126, 127]; 0 for smaller x, -inf included; NaN for
/// NaN.
HWY_INLINE Vector exp2(Vector x) {
  const FloatTag d;
  const auto below = hn::Lt(x, hn::Set(d, -126.0f));
  const Vector magic = hn::Set(d, kRoundingShift);
  const Vector shifted = hn::Add(x, magic);
  const Vector f = hn::Sub(x, hn::Sub(shifted, magic));
  return hn::IfThenZeroElse(below, exp2_from_parts(f, shifted));
}

#define FAVOR_FOR_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

/// A column of `tiles` register tiles: out[r, 0..NR) = initial[r, 0..NR) + sum_k left(r, k)
/// right[k, 0..NR) for tiles * kRows rows. A null `initial` stands for zeros; it may be `out`. It
/// is added last, so that a long sum is rounded once a call and not once a term.
///
/// left(r, k) is broadcast from left[r * NR + k] when not transposed, walking over panels of
/// `left_panel` floats; from left[k * NR + r] when transposed. A half tile has the panel's first
/// vector only and leaves the rest of `out` as it is. Named accumulators, because g++ 12 keeps
/// arrays of vectors in memory.
template <int kRows, bool kTransposed, bool kHalf = false>
HWY_NOINLINE void multiply_tiles(const float* HWY_RESTRICT left, int64_t left_panel,
                                 const float* HWY_RESTRICT right, const float* initial, float* out,
                                 int64_t num_k, int64_t tiles) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const int64_t row_stride = kTransposed ? 1 : NR;
  const int64_t k_stride = kTransposed ? NR : 1;
  // Transposed operands run down one panel; the others cross a panel border every NR elements.
  const int64_t run = kTransposed ? num_k : NR;
  for (; tiles > 0; --tiles) {
#define FAVOR_DECLARE_ROW(r) Vector a##r = hn::Zero(d), b##r = hn::Zero(d);
    FAVOR_FOR_EACH_ROW(FAVOR_DECLARE_ROW)
#undef FAVOR_DECLARE_ROW
    const float* HWY_RESTRICT right_row = right;
    const float* HWY_RESTRICT left_run = left;
    for (int64_t k0 = 0; k0 < num_k; k0 += run) {
      const float* HWY_RESTRICT element = left_run;
      const int64_t k_end = std::min(run, num_k - k0);
      for (int64_t k = 0; k < k_end; ++k) {
        const Vector x = hn::LoadU(d, right_row);
        const Vector y = hn::LoadU(d, right_row + N);
#define FAVOR_ACCUMULATE_ROW(r)                                   \
  if constexpr (kRows > r) {                                      \
    const Vector broadcast = hn::Set(d, element[r * row_stride]); \
    a##r = hn::MulAdd(broadcast, x, a##r);                        \
    if constexpr (!kHalf) b##r = hn::MulAdd(broadcast, y, b##r);  \
  }
        FAVOR_FOR_EACH_ROW(FAVOR_ACCUMULATE_ROW)
#undef FAVOR_ACCUMULATE_ROW
        element += k_stride;
        right_row += NR;
      }
      left_run += left_panel;
    }
    if (initial != nullptr) {
#define FAVOR_ADD_ROW(r)                                                            \
  if constexpr (kRows > r) {                                                        \
    a##r = hn::Add(a##r, hn::LoadU(d, initial + r * NR));                           \
    if constexpr (!kHalf) b##r = hn::Add(b##r, hn::LoadU(d, initial + r * NR + N)); \
  }
      FAVOR_FOR_EACH_ROW(FAVOR_ADD_ROW)
#undef FAVOR_ADD_ROW
      initial += kRows * NR;
    }
#define FAVOR_STORE_ROW(r)                                       \
  if constexpr (kRows > r) {                                     \
    hn::StoreU(a##r, d, out + r * NR);                           \
    if constexpr (!kHalf) hn::StoreU(b##r, d, out + r * NR + N); \
  }
    FAVOR_FOR_EACH_ROW(FAVOR_STORE_ROW)
#undef FAVOR_STORE_ROW
    left += kRows * row_stride;
    out += kRows * NR;
  }
}

/// A matrix in panel layout, seen as operand or result of a product.
struct Panels {
  float* data;
  int64_t rows;  ///< rows of each panel in memory

  float* at(int64_t row, int64_t panel) const {
    return data + (panel * rows + row) * panel_width();
  }
  int64_t stride() const { return rows * panel_width(); }
};

/// multiply_tiles for a number of rows known at run time.
template <bool kTransposed>
inline void multiply_rows(int64_t rows, const float* left, int64_t left_panel, const float* right,
                          const float* initial, float* out, int64_t num_k) {
  static_assert(kTileRows <= 8);
  const int64_t NR = panel_width();
  const int64_t tiles = rows / kTileRows;
  multiply_tiles<kTileRows, kTransposed>(left, left_panel, right, initial, out, num_k, tiles);
  const int64_t done = tiles * kTileRows;
  left += done * (kTransposed ? 1 : NR);
  initial = initial == nullptr ? nullptr : initial + done * NR;
  out += done * NR;
  switch (rows - done) {
#define FAVOR_CASE(r)                                                                      \
  case r + 1:                                                                              \
    if constexpr (r + 1 < kTileRows) {                                                     \
      multiply_tiles<r + 1, kTransposed>(left, left_panel, right, initial, out, num_k, 1); \
    }                                                                                      \
    break;
    FAVOR_FOR_EACH_ROW(FAVOR_CASE)
#undef FAVOR_CASE
    default:
      break;
  }
}
#undef FAVOR_FOR_EACH_ROW

/// out[m, n] (+)= sum_k left[m, k] right[k, n] for m in [m_begin, m_end), the columns of panels
/// [panel_begin, panel_end) and k in [0, num_k).
template <bool kAccumulate>
inline void multiply(const Panels& left, const Panels& right, const Panels& out, int64_t m_begin,
                     int64_t m_end, int64_t panel_begin, int64_t panel_end, int64_t num_k) {
  for (int64_t panel = panel_begin; panel < panel_end && m_begin < m_end; ++panel) {
    float* at = out.at(m_begin, panel);
    multiply_rows<false>(m_end - m_begin, left.at(m_begin, 0), left.stride(), right.at(0, panel),
                         kAccumulate ? at : nullptr, at, num_k);
  }
}

/// out[m, n] = initial[m, n] + sum_k left[k, m] right[k, n] for m in [0, rows), the columns of
/// panels [0, panels) and k in [0, num_k). `initial` may be `out`.
inline void multiply_transposed(const Panels& left, const Panels& right, const Panels& initial,
                                const Panels& out, int64_t rows, int64_t panels, int64_t num_k) {
  const int64_t NR = panel_width();
  for (int64_t panel = 0; panel < panels; ++panel) {
    for (int64_t m = 0; m < rows; m += NR) {
      multiply_rows<true>(std::min(NR, rows - m), left.at(0, m / NR), 0, right.at(0, panel),
                          initial.at(m, panel), out.at(m, panel), num_k);
    }
  }
}

// Products with a lower triangular matrix T [queries, keys], T(t, s) = 0 for s > t. Only tiles that
// touch the triangle are computed or read; make_lower clears what such tiles hold above the
// diagonal.

/// First row of the tiles that touch the triangle in a panel.
inline int64_t first_lower_row(int64_t panel) {
  return panel * panel_width() / kTileRows * kTileRows;
}

/// out = left right on and below the diagonal: left [queries, num_k], right [num_k, keys].
inline void multiply_to_lower(const Panels& left, const Panels& right, const Panels& out,
                              int64_t queries, int64_t keys, int64_t num_k) {
  const int64_t N = panel_width() / 2;
  for (int64_t panel = 0; panel < num_panels(keys); ++panel) {
    int64_t m = first_lower_row(panel);
    for (; m + kTileRows <= std::min(panel * 2 * N + N, queries); m += kTileRows) {
      // The diagonal leaves these rows within the panel's first vector.
      multiply_tiles<kTileRows, false, true>(left.at(m, 0), left.stride(), right.at(0, panel),
                                             nullptr, out.at(m, panel), num_k, 1);
    }
    multiply<false>(left, right, out, m, queries, panel, panel + 1, num_k);
  }
}

/// Subtracts offset[t] (null: nothing) from row t on and below the diagonal and clears what lies
/// above it; `row_sums` (null: none) receives the sum of each row.
inline HWY_NOINLINE void make_lower(const Panels& lower, int64_t queries, int64_t keys,
                                    const float* HWY_RESTRICT offset,
                                    float* HWY_RESTRICT row_sums) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  for (int64_t t = 0; t < queries; ++t) {
    const Vector minus = hn::Set(d, offset == nullptr ? 0.0f : offset[t]);
    Vector sum = hn::Zero(d);
    for (int64_t panel = 0; panel < num_panels(keys) && first_lower_row(panel) <= t; ++panel) {
      float* row = lower.at(t, panel);
      for (int64_t half = 0; half < NR; half += N) {
        const int64_t kept = std::min(t + 1, keys) - panel * NR - half;
        const auto valid = hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(kept, 0, N)));
        const Vector value = hn::IfThenElseZero(valid, hn::Sub(hn::LoadU(d, row + half), minus));
        sum = hn::Add(sum, value);
        hn::StoreU(value, d, row + half);
      }
    }
    if (row_sums != nullptr) {
      row_sums[t] = hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

/// out[t, n] = sum_s lower[t, s] right[s, n].
inline void multiply_lower(const Panels& lower, const Panels& right, const Panels& out,
                           int64_t queries, int64_t keys, int64_t panels) {
  for (int64_t panel = 0; panel < panels; ++panel) {
    for (int64_t m = 0; m < queries; m += kTileRows) {
      const int64_t m_end = std::min<int64_t>(m + kTileRows, queries);
      multiply<false>(lower, right, out, m, m_end, panel, panel + 1, std::min(m_end, keys));
    }
  }
}

/// out[s, n] (+)= sum_t lower[t, s] right[t, n].
inline void multiply_lower_transposed(const Panels& lower, const Panels& right, const Panels& out,
                                      int64_t queries, int64_t keys, int64_t panels,
                                      bool accumulate) {
  const int64_t NR = panel_width();
  for (int64_t panel = 0; panel < panels; ++panel) {
    for (int64_t m = 0; m < keys;) {
      const int64_t rows = std::min({static_cast<int64_t>(kTileRows), keys - m, NR - m % NR});
      const int64_t first = std::min(m, queries);
      multiply_rows<true>(rows, lower.at(first, m / NR) + m % NR, 0, right.at(first, panel),
                          accumulate ? out.at(m, panel) : nullptr, out.at(m, panel),
                          queries - first);
      m += rows;
    }
  }
}

#if HWY_TARGET == HWY_SCALAR
/// Rows and columns of the blocks that transpose_block handles.
HWY_INLINE int64_t transpose_size() {
  return 1;
}

HWY_INLINE void transpose_block(const float* HWY_RESTRICT from, float* HWY_RESTRICT to) {
  to[0] = from[0];
}
#else
/// Rows and columns of the blocks that transpose_block handles: a vector's lanes, at most 16.
HWY_INLINE int64_t transpose_size() {
  return std::min<int64_t>(16, static_cast<int64_t>(hn::Lanes(FloatTag())));
}

/// Loads four rows and interleaves them, so that each 128-bit block b of column[i] holds the four
/// rows' elements of column 4 b + i.
template <class D>
HWY_INLINE void interleave_rows(D d, const float* HWY_RESTRICT from, hn::Vec<D>& column0,
                                hn::Vec<D>& column1, hn::Vec<D>& column2, hn::Vec<D>& column3) {
  const int64_t NR = panel_width();
  const auto row0 = hn::LoadU(d, from);
  const auto row1 = hn::LoadU(d, from + NR);
  const auto row2 = hn::LoadU(d, from + 2 * NR);
  const auto row3 = hn::LoadU(d, from + 3 * NR);
  const auto lower02 = hn::InterleaveLower(d, row0, row2);
  const auto lower13 = hn::InterleaveLower(d, row1, row3);
  const auto upper02 = hn::InterleaveUpper(d, row0, row2);
  const auto upper13 = hn::InterleaveUpper(d, row1, row3);
  column0 = hn::InterleaveLower(d, lower02, lower13);
  column1 = hn::InterleaveUpper(d, lower02, lower13);
  column2 = hn::InterleaveLower(d, upper02, upper13);
  column3 = hn::InterleaveUpper(d, upper02, upper13);
}

/// Transposes a square block of transpose_size() rows within a panel into another panel.
HWY_INLINE void transpose_block(const float* HWY_RESTRICT from, float* HWY_RESTRICT to) {
  const hn::CappedTag<float, 16> d;
  using Block = hn::Vec<decltype(d)>;
  const int64_t NR = panel_width();
  Block a0, a1, a2, a3;
  interleave_rows(d, from, a0, a1, a2, a3);
#if HWY_MAX_BYTES == 16
  hn::StoreU(a0, d, to);
  hn::StoreU(a1, d, to + NR);
  hn::StoreU(a2, d, to + 2 * NR);
  hn::StoreU(a3, d, to + 3 * NR);
#elif HWY_MAX_BYTES == 32
  Block b0, b1, b2, b3;
  interleave_rows(d, from + 4 * NR, b0, b1, b2, b3);
  const auto store = [&](Block rows0, Block rows1, int64_t column) HWY_ATTR {
    hn::StoreU(hn::ConcatLowerLower(d, rows1, rows0), d, to + column * NR);
    hn::StoreU(hn::ConcatUpperUpper(d, rows1, rows0), d, to + (column + 4) * NR);
  };
  store(a0, b0, 0);
  store(a1, b1, 1);
  store(a2, b2, 2);
  store(a3, b3, 3);
#else
  Block b0, b1, b2, b3, c0, c1, c2, c3, e0, e1, e2, e3;
  interleave_rows(d, from + 4 * NR, b0, b1, b2, b3);
  interleave_rows(d, from + 8 * NR, c0, c1, c2, c3);
  interleave_rows(d, from + 12 * NR, e0, e1, e2, e3);
  // Transposes the 4 x 4 matrix of 128-bit blocks whose rows are the arguments.
  const auto store = [&](Block rows0, Block rows1, Block rows2, Block rows3,
                         int64_t column) HWY_ATTR {
    const auto even01 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(rows1), rows0);
    const auto odd01 = hn::OddEvenBlocks(rows1, hn::SwapAdjacentBlocks(rows0));
    const auto even23 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(rows3), rows2);
    const auto odd23 = hn::OddEvenBlocks(rows3, hn::SwapAdjacentBlocks(rows2));
    hn::StoreU(hn::ConcatLowerLower(d, even23, even01), d, to + column * NR);
    hn::StoreU(hn::ConcatLowerLower(d, odd23, odd01), d, to + (column + 4) * NR);
    hn::StoreU(hn::ConcatUpperUpper(d, even23, even01), d, to + (column + 8) * NR);
    hn::StoreU(hn::ConcatUpperUpper(d, odd23, odd01), d, to + (column + 12) * NR);
  };
  store(a0, b0, c0, e0, 0);
  store(a1, b1, c1, e1, 1);
  store(a2, b2, c2, e2, 2);
  store(a3, b3, c3, e3, 3);
#endif
}
#endif

/// Writes the transpose of a matrix of `rows` rows and `cols` columns, both in panel layout.
/// Columns of `to` beyond `rows` are left as they are. Blocks of a panel's width in both directions
/// keep source and target in the first-level cache.
inline HWY_NOINLINE void transpose(const Panels& from, int64_t rows, int64_t cols,
                                   const Panels& to) {
  const int64_t NR = panel_width();
  const int64_t size = transpose_size();
  for (int64_t row_block = 0; row_block < rows; row_block += NR) {
    const int64_t row_end = std::min(row_block + NR, rows);
    for (int64_t col_block = 0; col_block < cols; col_block += NR) {
      const int64_t col_end = std::min(col_block + NR, cols);
      for (int64_t c = col_block; c < col_end; c += size) {
        for (int64_t r = row_block; r < row_end; r += size) {
          const float* source = from.at(r, col_block / NR) + (c - col_block);
          float* target = to.at(c, row_block / NR) + (r - row_block);
          if (r + size <= row_end && c + size <= col_end) {
            transpose_block(source, target);
            continue;
          }
          for (int64_t i = 0; i < std::min(size, row_end - r); ++i) {
            for (int64_t j = 0; j < std::min(size, col_end - c); ++j) {
              target[j * NR + i] = source[i * NR + j];
            }
          }
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_SIMD_INL_H_
