// SPDX-License-Identifier: Apache-2.0
// Transposes matrices in panel layout.

// clang-format off
#if defined(FAVOR_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_TRANSPOSE_INL_H_
#undef FAVOR_TRANSPOSE_INL_H_
#else
#define FAVOR_TRANSPOSE_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>

#include "favor/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

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

#endif  // FAVOR_TRANSPOSE_INL_H_
