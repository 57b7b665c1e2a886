// SPDX-License-Identifier: Apache-2.0
// Products of row-major matrices with one or two vectors, which read the matrix once and need no
// packing.
//
// Rows end where they end in memory: the last vector of a row is loaded from its end, over elements
// that an earlier one holds already, and a row shorter than a vector is taken in shorter vectors.

// clang-format off
#if defined(FAVOR_ROW_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_ROW_PRODUCTS_INL_H_
#undef FAVOR_ROW_PRODUCTS_INL_H_
#else
#define FAVOR_ROW_PRODUCTS_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>

#include "favor/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// The tag of vectors half as long.
template <class D>
using Shorter = hn::CappedTag<float, (hn::MaxLanes(D()) > 1 ? hn::MaxLanes(D()) / 2 : 1)>;

template <class D>
HWY_INLINE bool fits(D d, int64_t cols) {
  return hn::MaxLanes(d) == 1 || cols >= static_cast<int64_t>(hn::Lanes(d));
}

/// Writes the sums of the lanes of four vectors.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_sums(D d, V a, V b, V c, V e, float* to) {
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
  if constexpr (hn::MaxLanes(D()) >= 4) {
    const V ac = hn::Add(hn::InterleaveLower(d, a, c), hn::InterleaveUpper(d, a, c));
    const V be = hn::Add(hn::InterleaveLower(d, b, e), hn::InterleaveUpper(d, b, e));
    // Every block of 128 bits holds the four sums of its own lanes.
    const V sums = hn::Add(hn::InterleaveLower(d, ac, be), hn::InterleaveUpper(d, ac, be));
    if constexpr (hn::MaxLanes(D()) == 4) {
      hn::StoreU(sums, d, to);
    } else {
      const hn::Half<D> half;
      const auto folded = hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums));
      if constexpr (hn::MaxLanes(D()) == 8) {
        hn::StoreU(folded, half, to);
      } else {
        const hn::Half<decltype(half)> quarter;
        hn::StoreU(hn::Add(hn::LowerHalf(quarter, folded), hn::UpperHalf(quarter, folded)), quarter,
                   to);
      }
    }
    return;
  }
#endif
  to[0] = hn::GetLane(hn::SumOfLanes(d, a));
  to[1] = hn::GetLane(hn::SumOfLanes(d, b));
  to[2] = hn::GetLane(hn::SumOfLanes(d, c));
  to[3] = hn::GetLane(hn::SumOfLanes(d, e));
}

/// Floats that align_to_rows writes for a vector of `cols`.
HWY_INLINE int64_t aligned_floats(int64_t cols) {
  return cols + 32;
}

/// Copies a vector of the rows' length, multiplied by `factor`, into the order in which dot_rows
/// walks over a row; elements that it meets twice are zeros the second time.
template <class D>
inline HWY_NOINLINE void align_to_rows(D d, const float* x, int64_t cols, float factor, float* to) {
  if (!fits(d, cols)) return align_to_rows(Shorter<D>(), x, cols, factor, to);
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < cols; i += N) {
    const int64_t begin = std::min(i, cols - N);
    for (int64_t lane = 0; lane < N; ++lane) {
      to[i + lane] = begin + lane < i ? 0.0f : factor * x[begin + lane];
    }
  }
}

/// out_x[r] = row r . x, and out_y[r] = row r . y if there are two, for vectors written by
/// align_to_rows.
template <bool kTwo, class D>
inline HWY_NOINLINE void dot_rows(D d, const float* HWY_RESTRICT matrix, int64_t stride,
                                  int64_t rows, int64_t cols, const float* HWY_RESTRICT x,
                                  const float* HWY_RESTRICT y, float* HWY_RESTRICT out_x,
                                  float* HWY_RESTRICT out_y) {
  if (!fits(d, cols)) {
    return dot_rows<kTwo>(Shorter<D>(), matrix, stride, rows, cols, x, y, out_x, out_y);
  }
  using V = hn::Vec<D>;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* HWY_RESTRICT row = matrix + r * stride;
    V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (int64_t i = 0; i < cols; i += N) {
      const float* HWY_RESTRICT at = row + std::min(i, cols - N);
      const V w0 = hn::LoadU(d, at), w1 = hn::LoadU(d, at + stride);
      const V w2 = hn::LoadU(d, at + 2 * stride), w3 = hn::LoadU(d, at + 3 * stride);
      const V xs = hn::LoadU(d, x + i);
      a0 = hn::MulAdd(w0, xs, a0);
      a1 = hn::MulAdd(w1, xs, a1);
      a2 = hn::MulAdd(w2, xs, a2);
      a3 = hn::MulAdd(w3, xs, a3);
      if constexpr (kTwo) {
        const V ys = hn::LoadU(d, y + i);
        b0 = hn::MulAdd(w0, ys, b0);
        b1 = hn::MulAdd(w1, ys, b1);
        b2 = hn::MulAdd(w2, ys, b2);
        b3 = hn::MulAdd(w3, ys, b3);
      }
    }
    store_sums(d, a0, a1, a2, a3, out_x + r);
    if constexpr (kTwo) store_sums(d, b0, b1, b2, b3, out_y + r);
  }
  for (; r < rows; ++r) {
    const float* HWY_RESTRICT row = matrix + r * stride;
    V a = hn::Zero(d), b = a;
    for (int64_t i = 0; i < cols; i += N) {
      const V w = hn::LoadU(d, row + std::min(i, cols - N));
      a = hn::MulAdd(w, hn::LoadU(d, x + i), a);
      if constexpr (kTwo) b = hn::MulAdd(w, hn::LoadU(d, y + i), b);
    }
    out_x[r] = hn::GetLane(hn::SumOfLanes(d, a));
    if constexpr (kTwo) out_y[r] = hn::GetLane(hn::SumOfLanes(d, b));
  }
}

/// sum_r weight[r] row r over kVectors vectors of columns. Two sets of sums, because one would wait
/// for the latency of its additions.
template <int kVectors, class D>
HWY_INLINE void sum_columns(D d, const float* HWY_RESTRICT matrix, int64_t stride, int64_t rows,
                            const float* HWY_RESTRICT weight, const float* initial, float* out) {
  using V = hn::Vec<D>;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2) {
    const float* HWY_RESTRICT row = matrix + r * stride;
    const float* HWY_RESTRICT other = row + stride;
    const V w = hn::Set(d, weight[r]);
    const V u = hn::Set(d, weight[r + 1]);
    a0 = hn::MulAdd(w, hn::LoadU(d, row), a0);
    b0 = hn::MulAdd(u, hn::LoadU(d, other), b0);
    if constexpr (kVectors > 1) {
      a1 = hn::MulAdd(w, hn::LoadU(d, row + N), a1);
      b1 = hn::MulAdd(u, hn::LoadU(d, other + N), b1);
    }
    if constexpr (kVectors > 2) {
      a2 = hn::MulAdd(w, hn::LoadU(d, row + 2 * N), a2);
      b2 = hn::MulAdd(u, hn::LoadU(d, other + 2 * N), b2);
      a3 = hn::MulAdd(w, hn::LoadU(d, row + 3 * N), a3);
      b3 = hn::MulAdd(u, hn::LoadU(d, other + 3 * N), b3);
    }
  }
  for (; r < rows; ++r) {
    const float* HWY_RESTRICT row = matrix + r * stride;
    const V w = hn::Set(d, weight[r]);
    a0 = hn::MulAdd(w, hn::LoadU(d, row), a0);
    if constexpr (kVectors > 1) a1 = hn::MulAdd(w, hn::LoadU(d, row + N), a1);
    if constexpr (kVectors > 2) {
      a2 = hn::MulAdd(w, hn::LoadU(d, row + 2 * N), a2);
      a3 = hn::MulAdd(w, hn::LoadU(d, row + 3 * N), a3);
    }
  }
  const auto finish = [&](V a, V b, int64_t at) HWY_ATTR {
    const V sum = hn::Add(a, b);
    hn::StoreU(initial == nullptr ? sum : hn::Add(hn::LoadU(d, initial + at), sum), d, out + at);
  };
  finish(a0, b0, 0);
  if constexpr (kVectors > 1) finish(a1, b1, N);
  if constexpr (kVectors > 2) {
    finish(a2, b2, 2 * N);
    finish(a3, b3, 3 * N);
  }
}

/// out[e] = initial[e] + sum_r weight[r] matrix[r, e]. A null `initial` stands for zeros; it may
/// not be `out`.
template <class D>
inline HWY_NOINLINE void sum_rows(D d, const float* HWY_RESTRICT matrix, int64_t rows, int64_t cols,
                                  const float* HWY_RESTRICT weight, const float* initial,
                                  float* HWY_RESTRICT out) {
  if (!fits(d, cols)) return sum_rows(Shorter<D>(), matrix, rows, cols, weight, initial, out);
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const auto from = [initial](int64_t e) { return initial == nullptr ? nullptr : initial + e; };
  int64_t e = 0;
  for (; e + 4 * N <= cols; e += 4 * N) {
    sum_columns<4>(d, matrix + e, cols, rows, weight, from(e), out + e);
  }
  for (; e + 2 * N <= cols; e += 2 * N) {
    sum_columns<2>(d, matrix + e, cols, rows, weight, from(e), out + e);
  }
  for (; e < cols; e += N) {
    const int64_t begin = std::min(e, cols - N);
    sum_columns<1>(d, matrix + begin, cols, rows, weight, from(begin), out + begin);
  }
}

/// sum += term, exact but for what `rest` keeps of it (Kahan).
template <class D>
HWY_INLINE void add_exactly(D d, hn::Vec<D> term, float* sum, float* rest) {
  const auto old = hn::LoadU(d, sum);
  const auto corrected = hn::Add(term, hn::LoadU(d, rest));
  const auto total = hn::Add(old, corrected);
  hn::StoreU(hn::Sub(corrected, hn::Sub(total, old)), d, rest);
  hn::StoreU(total, d, sum);
}

/// A block of add_products: kRows rows, kVectors vectors of columns, of which the first `shared`
/// are left as they are.
template <int kRows, int kVectors, class D>
HWY_NOINLINE void add_product(D d, const float* HWY_RESTRICT left, int64_t left_stride,
                              const float* HWY_RESTRICT right, int64_t num_k, int64_t cols,
                              int64_t shared, float* HWY_RESTRICT sum, float* HWY_RESTRICT rest) {
  using V = hn::Vec<D>;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
#define FAVOR_FOR_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define FAVOR_DECLARE_ROW(r) V a##r = hn::Zero(d), b##r = a##r;
  FAVOR_FOR_EACH_ROW(FAVOR_DECLARE_ROW)
#undef FAVOR_DECLARE_ROW
  for (int64_t k = 0; k < num_k; ++k) {
    const V x = hn::LoadU(d, right + k * cols);
    const V y = kVectors > 1 ? hn::LoadU(d, right + k * cols + N) : x;
    const float* HWY_RESTRICT feature = left + k * left_stride;
#define FAVOR_ACCUMULATE_ROW(r)                                \
  if constexpr (kRows > r) {                                   \
    const V w = hn::Set(d, feature[r]);                        \
    a##r = hn::MulAdd(w, x, a##r);                             \
    if constexpr (kVectors > 1) b##r = hn::MulAdd(w, y, b##r); \
  }
    FAVOR_FOR_EACH_ROW(FAVOR_ACCUMULATE_ROW)
#undef FAVOR_ACCUMULATE_ROW
  }
#define FAVOR_ADD_ROW(r)                                                                         \
  if constexpr (kRows > r) {                                                                     \
    if (shared > 0) a##r = hn::IfThenZeroElse(hn::FirstN(d, static_cast<size_t>(shared)), a##r); \
    add_exactly(d, a##r, sum + r * cols, rest + r * cols);                                       \
    if constexpr (kVectors > 1) add_exactly(d, b##r, sum + r * cols + N, rest + r * cols + N);   \
  }
  FAVOR_FOR_EACH_ROW(FAVOR_ADD_ROW)
#undef FAVOR_ADD_ROW
#undef FAVOR_FOR_EACH_ROW
}

/// sum[m, e] += sum_k left[k, m] right[k, e] for m in [0, rows) and e in [0, cols), all row-major,
/// with rests as in add_exactly.
template <class D>
inline HWY_NOINLINE void add_products(D d, const float* HWY_RESTRICT left, int64_t left_stride,
                                      const float* HWY_RESTRICT right, int64_t num_k, int64_t rows,
                                      int64_t cols, float* HWY_RESTRICT sum,
                                      float* HWY_RESTRICT rest) {
  if (!fits(d, cols)) {
    return add_products(Shorter<D>(), left, left_stride, right, num_k, rows, cols, sum, rest);
  }
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const auto add = [&](auto&& block, int64_t m, int64_t begin, int64_t shared) HWY_ATTR {
    block(d, left + m, left_stride, right + begin, num_k, cols, shared, sum + m * cols + begin,
          rest + m * cols + begin);
  };
  // Two sums for each row.
  constexpr int kRows = kTileRows == 8 ? 8 : 4;
  int64_t m = 0;
  for (; m + kRows <= rows; m += kRows) {
    int64_t e = 0;
    for (; e + 2 * N <= cols; e += 2 * N) add(add_product<kRows, 2, D>, m, e, 0);
    for (; e < cols; e += N) {
      const int64_t begin = std::min(e, cols - N);
      add(add_product<kRows, 1, D>, m, begin, e - begin);
    }
  }
  for (; m < rows; ++m) {
    for (int64_t e = 0; e < cols; e += N) {
      const int64_t begin = std::min(e, cols - N);
      add(add_product<1, 1, D>, m, begin, e - begin);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_ROW_PRODUCTS_INL_H_
