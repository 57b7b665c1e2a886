// SPDX-License-Identifier: Apache-2.0
// What the passes share: packing of tokens, the projection, and the feature maps on one panel of
// logits. Exponents are in base 2: tokens of the positive map are multiplied by log2(e) on packing.

// clang-format off
#if defined(FAVOR_FEATURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_FEATURES_INL_H_
#undef FAVOR_FEATURES_INL_H_
#else
#define FAVOR_FEATURES_INL_H_
#endif
// clang-format on

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "favor/plan.h"
#include "favor/simd-inl.h"
#include "hwy/aligned_allocator.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Tokens handled at a time. A multiple of every panel width below 65.
inline constexpr int64_t kChunk = 64;

/// Stabiliser of a feature that has seen no key. Finite, so that differences are never NaN, and
/// below every reachable logit.
inline constexpr float kNoKey = -1e30f;

/// A stabiliser is raised only when a logit exceeds it by more than this (base 2), because raising
/// rescales a row of the state; features then stay below 2^8.
inline constexpr float kLazyRaise = 8.0f;

/// Denominators below this, relative to the largest feature product, ask for a smaller chunk:
/// terms that underflow (2^-126) are then still below 2^-86 of the denominator.
inline constexpr float kGuardExponent = -40.0f;

/// One head's constants and its random matrix, packed for the products.
struct HeadPlan {
  bool positive;
  bool identity;        ///< no projection: the logits are the tokens
  float token_scale;    ///< multiplies q and k on packing
  float out_scale;      ///< multiplies gradients of the logits on their way to dq and dk
  float half_norm;      ///< h = half_norm |k|^2, the positive map's -|x|^2/2 in base 2
  float norm_gradient;  ///< dk -= norm_gradient * k * (sum of the key's logit gradients)
  float eps;
  int64_t D, E, M;
  Panels columns;  ///< [D, M] right operand of the projection
  Panels rows;     ///< [M, D] right operand of the gradients, left operand of transposed logits
};

/// Copies n rows of `cols` floats into panel layout, multiplied by `multiplier`; rows whose `skip`
/// is set become zeros without being read. Columns up to the panel border become zeros.
inline HWY_NOINLINE void pack_rows(const float* from, int64_t stride, int64_t n, int64_t cols,
                                   float multiplier, const uint8_t* skip, const Panels& to) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector factor = hn::Set(d, multiplier);
  for (int64_t c = 0; c < cols; c += NR) {
    const float* HWY_RESTRICT source = from + c;
    float* HWY_RESTRICT target = to.at(0, c / NR);
    const int64_t width = std::min(NR, cols - c);
    for (int64_t r = 0; r < n; ++r, source += stride, target += NR) {
      if (skip != nullptr && skip[r] != 0) {
        hn::StoreU(hn::Zero(d), d, target);
        hn::StoreU(hn::Zero(d), d, target + N);
      } else if (width == NR) {
        hn::StoreU(hn::Mul(factor, hn::LoadU(d, source)), d, target);
        hn::StoreU(hn::Mul(factor, hn::LoadU(d, source + N)), d, target + N);
      } else {
        for (int64_t i = 0; i < NR; ++i) {
          target[i] = i < width ? multiplier * source[i] : 0.0f;
        }
      }
    }
  }
}

/// Copies n rows back from panel layout, row r multiplied by factor[r].
inline HWY_NOINLINE void unpack_rows(const Panels& from, int64_t n, int64_t cols,
                                     const float* HWY_RESTRICT factor, float* to, int64_t stride) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  for (int64_t c = 0; c < cols; c += NR) {
    const float* HWY_RESTRICT source = from.at(0, c / NR);
    float* HWY_RESTRICT target = to + c;
    const int64_t width = std::min(NR, cols - c);
    for (int64_t r = 0; r < n; ++r, source += NR, target += stride) {
      if (width == NR) {
        const Vector scale = hn::Set(d, factor[r]);
        hn::StoreU(hn::Mul(scale, hn::LoadU(d, source)), d, target);
        hn::StoreU(hn::Mul(scale, hn::LoadU(d, source + N)), d, target + N);
      } else {
        for (int64_t i = 0; i < width; ++i) {
          target[i] = factor[r] * source[i];
        }
      }
    }
  }
}

/// Asks for `floats` contiguous floats ahead of their use.
template <class T>
HWY_INLINE void prefetch(T* from, int64_t floats) {
  for (int64_t i = 0; i < floats; i += 64 / static_cast<int64_t>(sizeof(T))) {
    __builtin_prefetch(from + i, std::is_const_v<T> ? 0 : 1);
  }
}

/// Asks for part `part` of `parts` of the rows [first, end) ahead of their use, so that their
/// arrival overlaps with arithmetic; rows of mutable memory are asked for to be written. In parts,
/// because a core waits when it asks for too many lines at once.
template <class T>
HWY_INLINE void prefetch_rows(const View4<T>& view, int64_t b, int64_t h, int64_t first,
                              int64_t end, int64_t part, int64_t parts) {
  const int64_t rows = end - first;
  for (int64_t row = first + rows * part / parts; row < first + rows * (part + 1) / parts; ++row) {
    prefetch(view.row(b, h, row), view.sizes[3]);
  }
}

/// A chunk's worth of rows from `first` on, none from `end` on.
struct NextRows {
  int64_t first, last;
  NextRows(int64_t begin, int64_t end)
      : first(begin), last(std::max(begin, std::min(begin + kChunk, end))) {}
};

/// Sum of a[i] b[i].
inline HWY_NOINLINE float dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t n) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  Vector sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + N <= n; i += N) {
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) {
    total += a[i] * b[i];
  }
  return total;
}

/// Per key: h of the positive map (infinite for a skipped key), or the weight 1 (0 if skipped).
inline HWY_NOINLINE void key_offsets(const HeadPlan& head, const float* k, int64_t stride,
                                     int64_t n, const uint8_t* skip, float* HWY_RESTRICT offset) {
  for (int64_t r = 0; r < n; ++r) {
    const bool skipped = skip != nullptr && skip[r] != 0;
    if (!head.positive) {
      offset[r] = skipped ? 0.0f : 1.0f;
    } else if (skipped) {
      offset[r] = std::numeric_limits<float>::infinity();
    } else {
      const float* row = k + r * stride;
      offset[r] = head.half_norm * dot(row, row, head.D);
    }
  }
}

/// Logits of n packed tokens for the features of one panel, [n, NR]: in `buffer`, or where the
/// tokens lie if there is no projection.
inline const float* project(const HeadPlan& head, const Panels& tokens, int64_t n, int64_t panel,
                            float* buffer) {
  if (head.identity) {
    return tokens.at(0, panel);
  }
  const Panels out{buffer, kChunk};
  const Panels right{head.columns.at(0, panel), head.columns.rows};
  multiply<false>(tokens, right, out, 0, n, 0, 1, head.D);
  return buffer;
}

/// features = 2^(u - h - c) of n keys on one panel; `sums` receives their column sums. Returns the
/// largest exponent.
inline HWY_NOINLINE float positive_keys(const float* HWY_RESTRICT u, const float* HWY_RESTRICT h,
                                        int64_t n, const float* HWY_RESTRICT c,
                                        float* HWY_RESTRICT features, float* HWY_RESTRICT sums) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector c0 = hn::LoadU(d, c);
  const Vector c1 = hn::LoadU(d, c + N);
  Vector largest = hn::Set(d, kNoKey);
  Vector sum0 = hn::Zero(d);
  Vector sum1 = hn::Zero(d);
  for (int64_t r = 0; r < n; ++r) {
    const Vector offset = hn::Set(d, h[r]);
    const Vector t0 = hn::Sub(hn::Sub(hn::LoadU(d, u + r * NR), offset), c0);
    const Vector t1 = hn::Sub(hn::Sub(hn::LoadU(d, u + r * NR + N), offset), c1);
    largest = hn::Max(largest, hn::Max(t0, t1));
    const Vector e0 = exp2(t0);
    const Vector e1 = exp2(t1);
    sum0 = hn::Add(sum0, e0);
    sum1 = hn::Add(sum1, e1);
    hn::StoreU(e0, d, features + r * NR);
    hn::StoreU(e1, d, features + r * NR + N);
  }
  hn::StoreU(sum0, d, sums);
  hn::StoreU(sum1, d, sums + N);
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

/// features = weight (max(u, 0) + eps) of n keys on one panel, and their column sums.
inline HWY_NOINLINE void relu_keys(const float* HWY_RESTRICT u, const float* HWY_RESTRICT weight,
                                   int64_t n, float eps, float* HWY_RESTRICT features,
                                   float* HWY_RESTRICT sums) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector floor = hn::Set(d, eps);
  for (int64_t half = 0; half < NR; half += N) {
    Vector sum = hn::Zero(d);
    for (int64_t r = 0; r < n; ++r) {
      const Vector relu = hn::Max(hn::LoadU(d, u + r * NR + half), hn::Zero(d));
      const Vector value = hn::Mul(hn::Set(d, weight[r]), hn::Add(relu, floor));
      sum = hn::Add(sum, value);
      hn::StoreU(value, d, features + r * NR + half);
    }
    hn::StoreU(sum, d, sums + half);
  }
}

/// Stabilisers that hold for n more keys of one panel: raised to the keys' largest logit where that
/// exceeds the old value by more than kLazyRaise, else as they are. `factor` receives 2^(old -
/// new).
inline HWY_NOINLINE void raise_stabilisers(const float* HWY_RESTRICT u, const float* HWY_RESTRICT h,
                                           int64_t n, float* HWY_RESTRICT c,
                                           float* HWY_RESTRICT factor) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  for (int64_t half = 0; half < NR; half += N) {
    const Vector old = hn::LoadU(d, c + half);
    Vector top = hn::Set(d, kNoKey);
    for (int64_t r = 0; r < n; ++r) {
      top = hn::Max(top, hn::Sub(hn::LoadU(d, u + r * NR + half), hn::Set(d, h[r])));
    }
    const auto rises = hn::Gt(hn::Sub(top, old), hn::Set(d, kLazyRaise));
    const Vector raised = hn::IfThenElse(rises, top, old);
    hn::StoreU(exp2(hn::Sub(old, raised)), d, factor + half);
    hn::StoreU(raised, d, c + half);
  }
}

/// Multiplies rows [first, first + rows) of a state, features in rows, by factor[0 .. rows).
inline HWY_NOINLINE void scale_rows(const Panels& matrix, int64_t cols, int64_t first, int64_t rows,
                                    const float* HWY_RESTRICT factor) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < rows; ++r) {
    if (factor[r] == 1.0f) {
      continue;
    }
    const Vector scale = hn::Set(d, factor[r]);
    for (int64_t panel = 0; panel < num_panels(cols); ++panel) {
      float* row = matrix.at(first + r, panel);
      hn::StoreU(hn::Mul(scale, hn::LoadU(d, row)), d, row);
      hn::StoreU(hn::Mul(scale, hn::LoadU(d, row + N)), d, row + N);
    }
  }
}

/// Multiplies the columns of one panel of `matrix` by factor[0 .. NR).
inline HWY_NOINLINE void scale_columns(const Panels& matrix, int64_t rows, int64_t panel,
                                       const float* HWY_RESTRICT factor) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const Vector scale0 = hn::LoadU(d, factor);
  const Vector scale1 = hn::LoadU(d, factor + N);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = matrix.at(r, panel);
    hn::StoreU(hn::Mul(scale0, hn::LoadU(d, row)), d, row);
    hn::StoreU(hn::Mul(scale1, hn::LoadU(d, row + N)), d, row + N);
  }
}

/// The state of one head while keys are absorbed, features in rows.
struct KeyState {
  Panels S;  ///< [M, E]
  float* z;  ///< [M], padded to the panel width
  float* c;  ///< [M], padded with values that no logit exceeds

  void place(ScratchLayout& layout, int64_t M, int64_t E) {
    S = {layout.take(panel_floats(M, E)), M};
    z = layout.take(num_panels(M) * panel_width());
    c = layout.take(num_panels(M) * panel_width());
  }

  void place(ScratchLayout& layout, const HeadPlan& head) { place(layout, head.M, head.E); }

  void clear(const HeadPlan& head) const {
    std::fill_n(S.data, panel_floats(head.M, head.E), 0.0f);
    std::fill_n(z, num_panels(head.M) * panel_width(), 0.0f);
    std::fill_n(c, head.M, head.positive ? kNoKey : 0.0f);
    std::fill_n(c + head.M, num_panels(head.M) * panel_width() - head.M, -kNoKey);
  }
};

/// Adds `other` into `into`, which describes later or earlier tokens alike.
inline HWY_NOINLINE void merge(const HeadPlan& head, const KeyState& other, const KeyState& into) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const float* other_c = other.c;
  for (int64_t f = 0; f < head.M; ++f) {
    float mine = 1.0f;
    float theirs = 1.0f;
    if (head.positive) {
      const float top = std::max(into.c[f], other_c[f]);
      mine = std::exp2(into.c[f] - top);
      theirs = std::exp2(other_c[f] - top);
      into.c[f] = top;
    }
    into.z[f] = into.z[f] * mine + other.z[f] * theirs;
    for (int64_t panel = 0; panel < num_panels(head.E); ++panel) {
      float* row = into.S.at(f, panel);
      const float* source = other.S.at(f, panel);
      for (int64_t half = 0; half < 2 * N; half += N) {
        hn::StoreU(hn::MulAdd(hn::Set(d, theirs), hn::LoadU(d, source + half),
                              hn::Mul(hn::Set(d, mine), hn::LoadU(d, row + half))),
                   d, row + half);
      }
    }
  }
}

/// Adds sums that share their stabilisers.
inline HWY_NOINLINE void add(const HeadPlan& head, const KeyState& other, const KeyState& into) {
  const int64_t floats = panel_floats(head.M, head.E);
  for (int64_t i = 0; i < floats; ++i) {
    into.S.data[i] += other.S.data[i];
  }
  for (int64_t f = 0; f < head.M; ++f) {
    into.z[f] += other.z[f];
  }
}

/// Writes a state as c [M], z [M], S [M, E] without padding, and reads it back.
inline HWY_NOINLINE void export_state(const HeadPlan& head, const KeyState& state, float* to) {
  std::copy_n(state.c, head.M, to);
  std::copy_n(state.z, head.M, to + head.M);
  float* S = to + 2 * head.M;
  for (int64_t f = 0; f < head.M; ++f) {
    for (int64_t e = 0; e < head.E; ++e) {
      S[f * head.E + e] = state.S.at(f, e / panel_width())[e % panel_width()];
    }
  }
}

inline HWY_NOINLINE void import_state(const HeadPlan& head, const float* from,
                                      const KeyState& state) {
  state.clear(head);
  std::copy_n(from, head.M, state.c);
  std::copy_n(from + head.M, head.M, state.z);
  pack_rows(from + 2 * head.M, head.E, head.M, head.E, 1.0f, nullptr, state.S);
}

/// Scratch of the query side: logits, then features, of a chunk.
struct QueryFeatures {
  Panels features;     ///< [C, M]
  float* denominator;  ///< [C]
  float* top;          ///< [C] row maximum of the logits, base 2; 0 for generalised maps
  float* lanes;        ///< [C, N] running maxima and sums
  float* shift;        ///< [M] padded

  void place(ScratchLayout& layout, int64_t M) {
    features = {layout.take(panel_floats(kChunk, M)), kChunk};
    denominator = layout.take(kChunk);
    top = layout.take(kChunk);
    lanes = layout.take(kChunk * panel_width());
    shift = layout.take(num_panels(M) * panel_width());
  }
};

/// max(u, 0) + eps of n packed queries; the denominators become features . z.
template <class PerPanel>
HWY_NOINLINE void relu_queries(const HeadPlan& head, const Panels& tokens, int64_t n,
                               const float* HWY_RESTRICT z, float* buffer, const QueryFeatures& out,
                               const PerPanel& per_panel) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector floor = hn::Set(d, head.eps);
  std::fill_n(out.lanes, n * N, 0.0f);
  for (int64_t panel = 0; panel < num_panels(head.M); ++panel) {
    per_panel(panel);
    const float* HWY_RESTRICT u = project(head, tokens, n, panel, buffer);
    float* HWY_RESTRICT to = out.features.at(0, panel);
    // Lanes beyond M carry z = 0.
    const Vector z0 = hn::LoadU(d, z + panel * NR);
    const Vector z1 = hn::LoadU(d, z + panel * NR + N);
    for (int64_t r = 0; r < n; ++r) {
      const Vector value0 = hn::Add(hn::Max(hn::LoadU(d, u + r * NR), hn::Zero(d)), floor);
      const Vector value1 = hn::Add(hn::Max(hn::LoadU(d, u + r * NR + N), hn::Zero(d)), floor);
      hn::StoreU(value0, d, to + r * NR);
      hn::StoreU(value1, d, to + r * NR + N);
      const Vector sum = hn::MulAdd(value0, z0, hn::LoadU(d, out.lanes + r * N));
      hn::StoreU(hn::MulAdd(value1, z1, sum), d, out.lanes + r * N);
    }
  }
  for (int64_t r = 0; r < n; ++r) {
    out.top[r] = 0.0f;
    out.denominator[r] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, out.lanes + r * N)));
  }
}

/// 2^(u + c - top) of n packed queries under stabilisers c, top the row's maximum; the denominators
/// become features . z.
template <class PerPanel>
HWY_NOINLINE void positive_queries(const HeadPlan& head, const Panels& tokens, int64_t n,
                                   const float* c, const float* HWY_RESTRICT z,
                                   const QueryFeatures& out, const PerPanel& per_panel) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const int64_t panels = num_panels(head.M);
  float* HWY_RESTRICT shift = out.shift;
  float* HWY_RESTRICT lanes = out.lanes;
  // Lanes beyond M must not count in the maximum.
  std::copy_n(c, head.M, shift);
  std::fill(shift + head.M, shift + panels * NR, 2 * kNoKey);
  std::fill_n(lanes, n * N, 2 * kNoKey);
  for (int64_t panel = 0; panel < panels; ++panel) {
    per_panel(panel);
    const float* u = project(head, tokens, n, panel, out.features.at(0, panel));
    const Vector c0 = hn::LoadU(d, shift + panel * NR);
    const Vector c1 = hn::LoadU(d, shift + panel * NR + N);
    for (int64_t r = 0; r < n; ++r) {
      const Vector shifted0 = hn::Add(hn::LoadU(d, u + r * NR), c0);
      const Vector shifted1 = hn::Add(hn::LoadU(d, u + r * NR + N), c1);
      const Vector top = hn::LoadU(d, lanes + r * N);
      hn::StoreU(hn::Max(top, hn::Max(shifted0, shifted1)), d, lanes + r * N);
    }
  }
  for (int64_t r = 0; r < n; ++r) {
    out.top[r] = hn::GetLane(hn::MaxOfLanes(d, hn::LoadU(d, lanes + r * N)));
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
      const Vector e0 = exp2(hn::Sub(hn::Add(hn::LoadU(d, at), c0), top));
      const Vector e1 = exp2(hn::Sub(hn::Add(hn::LoadU(d, at + N), c1), top));
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

/// Features of n packed queries against a state's stabilisers, and their denominators. Calls
/// per_panel(panel) before each panel of features, for the caller's prefetches.
template <class PerPanel>
void query_features(const HeadPlan& head, const Panels& tokens, int64_t n, const float* c,
                    const float* z, float* buffer, const QueryFeatures& out,
                    const PerPanel& per_panel) {
  if (head.positive) {
    positive_queries(head, tokens, n, c, z, out, per_panel);
  } else {
    relu_queries(head, tokens, n, z, buffer, out, per_panel);
  }
}

/// Divides n rows of sums by their denominators, writes them to the caller's rows, and keeps the
/// normaliser: log2 of the denominator (positive) or the denominator. A denominator of 0 gives 0.
inline HWY_NOINLINE void finish_rows(const HeadPlan& head, const QueryFeatures& features,
                                     const Panels& sums, int64_t n, float* out, int64_t stride,
                                     float* normalizer) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float inverse[kChunk];
  HWY_ALIGN float kept[kChunk];
  for (int64_t r = 0; r < n; r += N) {
    const Vector denominator = hn::LoadU(d, features.denominator + r);
    const auto none = hn::Eq(denominator, hn::Zero(d));
    hn::StoreU(hn::IfThenZeroElse(none, hn::Div(hn::Set(d, 1.0f), denominator)), d, inverse + r);
    if (normalizer != nullptr && head.positive) {
      const Vector log = hn::Add(hn::LoadU(d, features.top + r), hn::Log2(d, denominator));
      const Vector minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
      hn::StoreU(hn::IfThenElse(none, minus_infinity, log), d, kept + r);
    }
  }
  if (normalizer != nullptr) {
    std::copy_n(head.positive ? kept : features.denominator, n, normalizer);
  }
  unpack_rows(sums, n, head.E, inverse, out, stride);
}

/// Features of n packed queries on one panel, divided by their denominators. `normalizer` is what
/// subtracts (positive: log2 of the denominator, +inf for a row out of play) or multiplies (others:
/// 1 / denominator, 0 for a row out of play). Columns beyond the `valid_cols` first give 0.
inline HWY_NOINLINE void normalized_query_features(const HeadPlan& head,
                                                   const float* HWY_RESTRICT u,
                                                   const float* HWY_RESTRICT c,
                                                   const float* HWY_RESTRICT normalizer, int64_t n,
                                                   int64_t valid_cols,
                                                   float* HWY_RESTRICT features) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector floor = hn::Set(d, head.eps);
  for (int64_t half = 0; half < NR; half += N) {
    const Vector stabiliser = hn::LoadU(d, c + half);
    const auto valid =
        hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(valid_cols - half, 0, N)));
    for (int64_t r = 0; r < n; ++r) {
      const Vector logit = hn::LoadU(d, u + r * NR + half);
      const Vector norm = hn::Set(d, normalizer[r]);
      const Vector value = head.positive
                               ? exp2(hn::Sub(hn::Add(logit, stabiliser), norm))
                               : hn::Mul(hn::Add(hn::Max(logit, hn::Zero(d)), floor), norm);
      hn::StoreU(hn::IfThenElseZero(valid, value), d, features + r * NR + half);
    }
  }
}

/// A chunk of queries in a backward pass: which rows take part, their gradients and normalisers.
struct QueryGradients {
  Panels tokens;  ///< [C, D]
  Panels dout;    ///< [C, E]
  float* delta;   ///< [C] dout . out
  float* norm;    ///< [C] as normalized_query_features takes it
  uint8_t skip[kChunk];

  void place(ScratchLayout& layout, const HeadPlan& head) {
    tokens = {layout.take(panel_floats(kChunk, head.D)), kChunk};
    dout = {layout.take(panel_floats(kChunk, head.E)), kChunk};
    delta = layout.take(kChunk);
    norm = layout.take(kChunk);
  }

  /// Reads n rows from query i on. A row without keys or with zero dout takes no part, so that
  /// nothing of it, NaN included, reaches a sum.
  void load(const Plan<float>& plan, const HeadPlan& head, int64_t b, int64_t h, int64_t i,
            int64_t n, const View4<const float>& out, const View4<const float>& gradient,
            const float* normalizer) {
    for (int64_t r = 0; r < n; ++r) {
      const float* g = gradient.row(b, h, i + r);
      const bool no_keys = head.positive
                               ? normalizer[i + r] == -std::numeric_limits<float>::infinity()
                               : normalizer[i + r] == 0.0f;
      skip[r] = no_keys || std::all_of(g, g + head.E, [](float x) { return x == 0.0f; });
      if (skip[r]) {
        delta[r] = 0.0f;
        norm[r] = head.positive ? std::numeric_limits<float>::infinity() : 0.0f;
      } else {
        delta[r] = dot(g, out.row(b, h, i + r), head.E);
        norm[r] = head.positive ? normalizer[i + r] : 1.0f / normalizer[i + r];
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
  const Vector floor = hn::Set(d, head.eps);
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
        const auto active = hn::Gt(feature, hn::Mul(floor, inverse));
        hn::StoreU(hn::IfThenElseZero(active, hn::Mul(inverse, gradient)), d,
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
  const Vector floor = hn::Set(d, head.eps);
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
        const auto active = hn::Gt(feature, hn::Mul(floor, weight));
        result = hn::IfThenElseZero(active, hn::Mul(weight, gradient));
      }
      total = hn::Add(total, result);
      hn::StoreU(result, d, dfeatures + r * NR + half);
    }
    hn::StoreU(total, d, row_sums + r * N);
  }
}

/// Turns gradients of the logits [n, M] into rows of dq or dk: their product with the matrix, less
/// what the key's own norm takes (row_sums null: nothing).
inline HWY_NOINLINE void token_gradients(const HeadPlan& head, const Panels& dlogits, int64_t n,
                                         const Panels& tokens, const float* row_sums,
                                         const Panels& product, float* HWY_RESTRICT to,
                                         int64_t stride) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  Panels result = dlogits;
  if (!head.identity) {
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
  float scales[kChunk];
  std::fill_n(scales, n, head.out_scale);
  unpack_rows(result, n, head.D, scales, to, stride);
}

/// The constants and packed matrices of every head of a call.
class HeadPlans {
 public:
  explicit HeadPlans(const Plan<float>& plan) : shared_(plan.P == 1) {
    const double log2e = 1.4426950408889634;
    HeadPlan head;
    head.positive = plan.feature_map == FeatureMapKind::kPositive;
    head.identity = plan.projection == nullptr;
    head.D = plan.D;
    head.E = plan.E;
    head.M = plan.M;
    const double root = std::sqrt(plan.scale);
    head.token_scale = static_cast<float>(head.positive ? log2e : head.identity ? root : 1.0);
    head.out_scale = static_cast<float>(head.identity ? root : 1.0);
    head.half_norm = static_cast<float>(0.5 * plan.scale * log2e);
    head.norm_gradient = static_cast<float>(plan.scale);
    head.eps = static_cast<float>(plan.eps);
    if (head.identity) {
      heads_.push_back(head);
      return;
    }
    const int64_t cols_floats = panel_floats(plan.D, plan.M);
    const int64_t rows_floats = panel_floats(plan.M, plan.D);
    memory_ =
        hwy::AllocateAligned<float>(static_cast<size_t>(plan.P * (cols_floats + rows_floats)));
    for (int64_t p = 0; p < plan.P; ++p) {
      float* base = memory_.get() + p * (cols_floats + rows_floats);
      head.columns = {base, plan.D};
      head.rows = {base + cols_floats, plan.M};
      pack_rows(plan.projection + p * plan.M * plan.D, plan.D, plan.M, plan.D,
                static_cast<float>(root), nullptr, head.rows);
      std::fill_n(head.columns.data, cols_floats, 0.0f);
      transpose(head.rows, plan.M, plan.D, head.columns);
      heads_.push_back(head);
    }
  }

  const HeadPlan& operator[](int64_t h) const {
    return heads_[static_cast<size_t>(shared_ ? 0 : h)];
  }

 private:
  bool shared_;
  hwy::AlignedFreeUniquePtr<float[]> memory_;
  std::vector<HeadPlan> heads_;
};

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_FEATURES_INL_H_
