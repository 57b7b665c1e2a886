// SPDX-License-Identifier: Apache-2.0
// Features of the positive map computed in the course of the projection: exponentials take few of
// the multipliers' turns, so they cost little when they are woven into a product and much when they
// run alone. Results may be of no use; the caller then goes panel by panel.

// clang-format off
#if defined(FAVOR_WOVEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_WOVEN_INL_H_
#undef FAVOR_WOVEN_INL_H_
#else
#define FAVOR_WOVEN_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>
#include <limits>

#include "favor/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Walks over the rows of a chunk, panel after panel, as their logits come to lie in memory.
struct RowWalk {
  float* at;       ///< the row, [2 N] logits
  int64_t n, gap;  ///< rows of a panel, and floats from the last one's end to the next panel
  int64_t row = 0;
  int64_t ready = 0;  ///< rows not yet taken

  RowWalk(const Panels& features, int64_t num_rows)
      : at(features.data), n(num_rows), gap((features.rows - num_rows) * panel_width()) {}

  /// Moves to the next row; returns whether that is the first of another panel.
  HWY_INLINE bool next() {
    --ready;
    at += panel_width();
    if (++row < n) {
      return false;
    }
    row = 0;
    at += gap;
    return true;
  }
};

/// Replaces logits u by 2^(u - offset - c), with their column sums and their largest exponents.
struct KeyFeatureJob {
  static constexpr bool kIsEmpty = false;
  RowWalk walk;
  const float* offset;  ///< [n]
  const float* c;       ///< [M] padded
  float* sums;          ///< [M] padded
  float* largest;       ///< [panels, N]

  HWY_INLINE void tile_done(int64_t rows) { walk.ready += rows; }

  HWY_INLINE void step() {
    if (walk.ready == 0) {
      return;
    }
    const FloatTag d;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d));
    float* at = walk.at;
    const Vector minus = hn::Set(d, offset[walk.row]);
    const Vector t0 = hn::Sub(hn::Sub(hn::LoadU(d, at), minus), hn::LoadU(d, c));
    const Vector t1 = hn::Sub(hn::Sub(hn::LoadU(d, at + N), minus), hn::LoadU(d, c + N));
    hn::StoreU(hn::Max(hn::LoadU(d, largest), hn::Max(t0, t1)), d, largest);
    const Vector e0 = exp2(t0);
    const Vector e1 = exp2(t1);
    hn::StoreU(hn::Add(hn::LoadU(d, sums), e0), d, sums);
    hn::StoreU(hn::Add(hn::LoadU(d, sums + N), e1), d, sums + N);
    hn::StoreU(e0, d, at);
    hn::StoreU(e1, d, at + N);
    if (walk.next()) {
      c += 2 * N;
      sums += 2 * N;
      largest += N;
    }
  }
};

/// Replaces logits u by 2^(u + shift - top), with the rows' largest exponents and products with z.
struct QueryFeatureJob {
  static constexpr bool kIsEmpty = false;
  RowWalk walk;
  const float* top;    ///< [n]
  const float* shift;  ///< [M] padded
  const float* z;      ///< [M] padded
  float* largest;      ///< [n, N]
  float* lanes;        ///< [n, N]

  HWY_INLINE void tile_done(int64_t rows) { walk.ready += rows; }

  HWY_INLINE void step() {
    if (walk.ready == 0) {
      return;
    }
    const FloatTag d;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d));
    float* at = walk.at;
    const Vector minus = hn::Set(d, top[walk.row]);
    const Vector t0 = hn::Sub(hn::Add(hn::LoadU(d, at), hn::LoadU(d, shift)), minus);
    const Vector t1 = hn::Sub(hn::Add(hn::LoadU(d, at + N), hn::LoadU(d, shift + N)), minus);
    float* most = largest + walk.row * N;
    hn::StoreU(hn::Max(hn::LoadU(d, most), hn::Max(t0, t1)), d, most);
    const Vector e0 = exp2(t0);
    const Vector e1 = exp2(t1);
    hn::StoreU(e0, d, at);
    hn::StoreU(e1, d, at + N);
    float* products = lanes + walk.row * N;
    const Vector sum = hn::MulAdd(e0, hn::LoadU(d, z), hn::LoadU(d, products));
    hn::StoreU(hn::MulAdd(e1, hn::LoadU(d, z + N), sum), d, products);
    if (walk.next()) {
      shift += 2 * N;
      z += 2 * N;
    }
  }
};

/// Replaces logits u by 2^(u + shift - norm). Rows are ready when the caller says so.
struct NormalizedQueryJob {
  static constexpr bool kIsEmpty = false;
  RowWalk walk;
  const float* norm;   ///< [n]
  const float* shift;  ///< [M] padded

  HWY_INLINE void tile_done(int64_t) {}

  HWY_INLINE void step() {
    if (walk.ready == 0) {
      return;
    }
    const FloatTag d;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d));
    float* at = walk.at;
    const Vector minus = hn::Set(d, norm[walk.row]);
    const Vector t0 = hn::Sub(hn::Add(hn::LoadU(d, at), hn::LoadU(d, shift)), minus);
    const Vector t1 = hn::Sub(hn::Add(hn::LoadU(d, at + N), hn::LoadU(d, shift + N)), minus);
    hn::StoreU(exp2(t0), d, at);
    hn::StoreU(exp2(t1), d, at + N);
    if (walk.next()) {
      shift += 2 * N;
    }
  }
};

template <class Job>
HWY_NOINLINE void finish_job(Job& job) {
  while (job.walk.ready != 0) {
    job.step();
  }
}

/// Logits of one panel, where `out` has it, and the work of `job` on the way.
template <class Job>
inline void project_panel(const Panels& columns, const Panels& tokens, int64_t num_k, int64_t n,
                          int64_t panel, const Panels& out, Job& job) {
  multiply<false>(tokens, Panels{columns.at(0, panel), columns.rows},
                  Panels{out.at(0, panel), out.rows}, 0, n, 0, 1, num_k, job);
}

/// Panels of features up to which keys are woven.
inline constexpr int64_t kMaxWovenPanels = 64;

/// features = 2^(tokens columns - offset - c) of n keys on all panels, and their column sums, under
/// stabilisers c as they are. largest[panel] receives the
/// largest exponent: if it is above what the caller allows, nothing of the panel is of use.
inline HWY_NOINLINE void woven_keys(const Panels& columns, const Panels& tokens, int64_t num_k,
                                    int64_t n, int64_t panels, const float* offset, const float* c,
                                    const Panels& features, float* sums, float* largest) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float maxima[kMaxWovenPanels * 32];
  std::fill_n(maxima, panels * N, -std::numeric_limits<float>::infinity());
  std::fill_n(sums, panels * 2 * N, 0.0f);
  KeyFeatureJob job{RowWalk(features, n), offset, c, sums, maxima};
  for (int64_t panel = 0; panel < panels; ++panel) {
    project_panel(columns, tokens, num_k, n, panel, features, job);
  }
  finish_job(job);
  for (int64_t panel = 0; panel < panels; ++panel) {
    largest[panel] = hn::GetLane(hn::MaxOfLanes(d, hn::LoadU(d, maxima + panel * N)));
  }
}

/// Largest exponent of a woven query feature: products with a state stay far below overflow.
inline constexpr float kLargestQueryExponent = 40.0f;

/// features = 2^(tokens columns + shift - top) of n queries on all panels, where top[r] is the
/// largest exponent of row r on the first panel only; denominator = features . z, and excess[r] =
/// 2^(largest exponent of the row - top[r]). Lanes of `shift` beyond M must hold 2 kNoKey. `lanes`
/// [n, N] is scratch. False if an exponent above kLargestQueryExponent leaves nothing of use.
inline HWY_NOINLINE bool woven_queries(const Panels& columns, const Panels& tokens, int64_t num_k,
                                       int64_t n, int64_t panels, const float* shift,
                                       const float* z, const Panels& features, float* top,
                                       float* denominator, float* excess, float* largest,
                                       float* lanes) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  NoJob no_job;
  project_panel(columns, tokens, num_k, n, 0, features, no_job);
  const Vector shift0 = hn::LoadU(d, shift);
  const Vector shift1 = hn::LoadU(d, shift + N);
  for (int64_t r = 0; r < n; ++r) {
    const float* u = features.at(r, 0);
    const Vector t0 = hn::Add(hn::LoadU(d, u), shift0);
    const Vector t1 = hn::Add(hn::LoadU(d, u + N), shift1);
    top[r] = hn::GetLane(hn::MaxOfLanes(d, hn::Max(t0, t1)));
  }
  std::fill_n(largest, n * N, 0.0f);
  std::fill_n(lanes, n * N, 0.0f);
  QueryFeatureJob job{RowWalk(features, n), top, shift, z, largest, lanes};
  job.tile_done(n);
  for (int64_t panel = 1; panel < panels; ++panel) {
    project_panel(columns, tokens, num_k, n, panel, features, job);
  }
  finish_job(job);
  bool usable = true;
  for (int64_t r = 0; r < n; ++r) {
    excess[r] = hn::GetLane(hn::MaxOfLanes(d, hn::LoadU(d, largest + r * N)));
    denominator[r] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, lanes + r * N)));
    usable = usable && !(excess[r] > kLargestQueryExponent);  // NaN stays within its row
  }
  for (int64_t r = 0; r < n; r += N) {
    hn::StoreU(exp2(hn::LoadU(d, excess + r)), d, excess + r);
  }
  return usable;
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_WOVEN_INL_H_
