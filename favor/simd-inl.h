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

// Jobs. A product leaves most issue slots of the core to other work, and other work, alone, leaves
// the multipliers idle. So element-wise work is handed to products in small steps, of which they
// take one after every kJobPeriod turns of a tile's inner loop. tile_done(rows) tells the job that
// `rows` more rows of the product lie in memory.

inline constexpr int64_t kJobPeriod = 8;

/// Whether steps are woven into the inner loop: they take registers beside those of the tile.
inline constexpr bool kWeaveJobs = kTileRows == 8;

/// No work.
struct NoJob {
  static constexpr bool kIsEmpty = true;
  HWY_INLINE void step() {}
  HWY_INLINE void tile_done(int64_t) {}
};

#define FAVOR_FOR_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

/// A column of `tiles` register tiles: out[r, 0..NR) = initial[r, 0..NR) + sum_k left(r, k)
/// right[k, 0..NR) for tiles * kRows rows. A null `initial` stands for zeros; it may be `out`. It
/// is added last, so that a long sum is rounded once a call and not once a term.
///
/// left(r, k) is broadcast from left[r * NR + k] when not transposed, walking over panels of
/// `left_panel` floats; from left[k * NR + r] when transposed. A half tile has the panel's first
/// vector only and leaves the rest of `out` as it is. Named accumulators, because g++ 12 keeps
/// arrays of vectors in memory.
template <int kRows, bool kTransposed, bool kHalf, class Job>
HWY_NOINLINE void multiply_tiles(const float* HWY_RESTRICT left, int64_t left_panel,
                                 const float* HWY_RESTRICT right, const float* initial, float* out,
                                 int64_t num_k, int64_t tiles, Job& shared_job) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const int64_t row_stride = kTransposed ? 1 : NR;
  const int64_t k_stride = kTransposed ? NR : 1;
  // Transposed operands run down one panel; the others cross a panel border every NR elements.
  const int64_t run = kTransposed ? num_k : NR;
  Job job = shared_job;  // a copy, whose members can stay in registers
  for (; tiles > 0; --tiles) {
#define FAVOR_DECLARE_ROW(r) Vector a##r = hn::Zero(d), b##r = hn::Zero(d);
    FAVOR_FOR_EACH_ROW(FAVOR_DECLARE_ROW)
#undef FAVOR_DECLARE_ROW
    const float* HWY_RESTRICT right_row = right;
    const float* HWY_RESTRICT left_run = left;
    for (int64_t k0 = 0; k0 < num_k; k0 += run) {
      const float* HWY_RESTRICT element = left_run;
      const int64_t k_end = std::min(run, num_k - k0);
#define FAVOR_ACCUMULATE_ROW(r)                                   \
  if constexpr (kRows > r) {                                      \
    const Vector broadcast = hn::Set(d, element[r * row_stride]); \
    a##r = hn::MulAdd(broadcast, x, a##r);                        \
    if constexpr (!kHalf) b##r = hn::MulAdd(broadcast, y, b##r);  \
  }
#define FAVOR_ACCUMULATE                          \
  {                                               \
    const Vector x = hn::LoadU(d, right_row);     \
    const Vector y = hn::LoadU(d, right_row + N); \
    FAVOR_FOR_EACH_ROW(FAVOR_ACCUMULATE_ROW)      \
    element += k_stride;                          \
    right_row += NR;                              \
  }
      int64_t k = 0;
      if constexpr (kWeaveJobs && !Job::kIsEmpty) {
        for (; k + kJobPeriod <= k_end; k += kJobPeriod) {
          for (int64_t i = 0; i < kJobPeriod; ++i) FAVOR_ACCUMULATE
          job.step();
        }
      }
      for (; k < k_end; ++k) FAVOR_ACCUMULATE
#undef FAVOR_ACCUMULATE
#undef FAVOR_ACCUMULATE_ROW
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
    job.tile_done(kRows);
    if constexpr (!kWeaveJobs && !Job::kIsEmpty) {
      for (int64_t k = 0; k < num_k; k += kJobPeriod) job.step();
    }
    left += kRows * row_stride;
    out += kRows * NR;
  }
  shared_job = job;
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

/// multiply_tiles for a number of rows known at run time. Rows beyond the last whole tile take no
/// job along.
template <bool kTransposed, class Job>
inline void multiply_rows(int64_t rows, const float* left, int64_t left_panel, const float* right,
                          const float* initial, float* out, int64_t num_k, Job& job) {
  static_assert(kTileRows <= 8);
  const int64_t NR = panel_width();
  const int64_t tiles = rows / kTileRows;
  multiply_tiles<kTileRows, kTransposed, false>(left, left_panel, right, initial, out, num_k, tiles,
                                                job);
  const int64_t done = tiles * kTileRows;
  left += done * (kTransposed ? 1 : NR);
  initial = initial == nullptr ? nullptr : initial + done * NR;
  out += done * NR;
  NoJob no_job;
  switch (rows - done) {
#define FAVOR_CASE(r)                                                                            \
  case r + 1:                                                                                    \
    if constexpr (r + 1 < kTileRows) {                                                           \
      multiply_tiles<r + 1, kTransposed, false>(left, left_panel, right, initial, out, num_k, 1, \
                                                no_job);                                         \
    }                                                                                            \
    break;
    FAVOR_FOR_EACH_ROW(FAVOR_CASE)
#undef FAVOR_CASE
    default:
      return;
  }
  job.tile_done(rows - done);
}
#undef FAVOR_FOR_EACH_ROW

template <bool kTransposed>
inline void multiply_rows(int64_t rows, const float* left, int64_t left_panel, const float* right,
                          const float* initial, float* out, int64_t num_k) {
  NoJob job;
  multiply_rows<kTransposed>(rows, left, left_panel, right, initial, out, num_k, job);
}

/// out[m, n] (+)= sum_k left[m, k] right[k, n] for m in [m_begin, m_end), the columns of panels
/// [panel_begin, panel_end) and k in [0, num_k).
template <bool kAccumulate, class Job>
inline void multiply(const Panels& left, const Panels& right, const Panels& out, int64_t m_begin,
                     int64_t m_end, int64_t panel_begin, int64_t panel_end, int64_t num_k,
                     Job& job) {
  for (int64_t panel = panel_begin; panel < panel_end && m_begin < m_end; ++panel) {
    float* at = out.at(m_begin, panel);
    multiply_rows<false>(m_end - m_begin, left.at(m_begin, 0), left.stride(), right.at(0, panel),
                         kAccumulate ? at : nullptr, at, num_k, job);
  }
}

template <bool kAccumulate>
inline void multiply(const Panels& left, const Panels& right, const Panels& out, int64_t m_begin,
                     int64_t m_end, int64_t panel_begin, int64_t panel_end, int64_t num_k) {
  NoJob job;
  multiply<kAccumulate>(left, right, out, m_begin, m_end, panel_begin, panel_end, num_k, job);
}

/// out[m, n] = initial[m, n] + sum_k left[k, m] right[k, n] for m in [0, rows), the columns of
/// panels [0, panels) and k in [0, num_k). `initial` may be `out`.
template <class Job>
inline void multiply_transposed(const Panels& left, const Panels& right, const Panels& initial,
                                const Panels& out, int64_t rows, int64_t panels, int64_t num_k,
                                Job& job) {
  const int64_t NR = panel_width();
  for (int64_t panel = 0; panel < panels; ++panel) {
    for (int64_t m = 0; m < rows; m += NR) {
      multiply_rows<true>(std::min(NR, rows - m), left.at(0, m / NR), 0, right.at(0, panel),
                          initial.at(m, panel), out.at(m, panel), num_k, job);
    }
  }
}

inline void multiply_transposed(const Panels& left, const Panels& right, const Panels& initial,
                                const Panels& out, int64_t rows, int64_t panels, int64_t num_k) {
  NoJob job;
  multiply_transposed(left, right, initial, out, rows, panels, num_k, job);
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
  NoJob job;
  for (int64_t panel = 0; panel < num_panels(keys); ++panel) {
    int64_t m = first_lower_row(panel);
    for (; m + kTileRows <= std::min(panel * 2 * N + N, queries); m += kTileRows) {
      // The diagonal leaves these rows within the panel's first vector.
      multiply_tiles<kTileRows, false, true>(left.at(m, 0), left.stride(), right.at(0, panel),
                                             nullptr, out.at(m, panel), num_k, 1, job);
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

/// out[n, s] += sum_t right[t, n] lower[t, s] for n in [0, rows): multiply_lower_transposed's
/// result, transposed.
inline void add_transposed_lower(const Panels& right, const Panels& lower, const Panels& out,
                                 int64_t rows, int64_t queries, int64_t keys) {
  const int64_t NR = panel_width();
  for (int64_t panel = 0; panel < num_panels(keys); ++panel) {
    const int64_t first = std::min(first_lower_row(panel), queries);
    for (int64_t m = 0; m < rows; m += NR) {
      multiply_rows<true>(std::min(NR, rows - m), right.at(first, m / NR), 0,
                          lower.at(first, panel), out.at(m, panel), out.at(m, panel),
                          queries - first);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_SIMD_INL_H_
