// SPDX-License-Identifier: Apache-2.0
// The state of a head, S, z and stabilisers c, while keys are absorbed: scaling, merging, and its
// form in the caller's memory.

// clang-format off
#if defined(FAVOR_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_STATE_INL_H_
#undef FAVOR_STATE_INL_H_
#else
#define FAVOR_STATE_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "favor/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

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
    std::fill_n(c, head.M, kNoKey);
    std::fill_n(c + head.M, num_panels(head.M) * panel_width() - head.M, -kNoKey);
  }
};

/// Adds `other` into `into`, which describes later or earlier tokens alike.
inline HWY_NOINLINE void merge(const HeadPlan& head, const KeyState& other, const KeyState& into) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const float* other_c = other.c;
  for (int64_t f = 0; f < head.M; ++f) {
    const float top = std::max(into.c[f], other_c[f]);
    const float mine = std::exp2(into.c[f] - top);
    const float theirs = std::exp2(other_c[f] - top);
    into.c[f] = top;
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

/// sum += term, exact but for what `rest` keeps of it (Kahan).
HWY_INLINE void add_exactly(Vector term, float* sum, float* rest) {
  const FloatTag d;
  const Vector old = hn::LoadU(d, sum);
  const Vector corrected = hn::Add(term, hn::LoadU(d, rest));
  const Vector total = hn::Add(old, corrected);
  hn::StoreU(hn::Sub(corrected, hn::Sub(total, old)), d, rest);
  hn::StoreU(total, d, sum);
}

/// Sums over any number of tokens: S += left^T right and z += added, with what rounding leaves out
/// of them kept in rests.
struct LongSums {
  Panels S_rest;  ///< [M, E]
  float* z_rest;  ///< [M], padded to the panel width
  Panels block;   ///< [NR, NR]

  void place(ScratchLayout& layout, const HeadPlan& head) {
    S_rest = {layout.take(panel_floats(head.M, head.E)), head.M};
    z_rest = layout.take(num_panels(head.M) * panel_width());
    block = {layout.take(panel_width() * panel_width()), panel_width()};
  }

  void clear(const HeadPlan& head) const {
    std::fill_n(S_rest.data, panel_floats(head.M, head.E), 0.0f);
    std::fill_n(z_rest, num_panels(head.M) * panel_width(), 0.0f);
  }

  template <class Job>
  HWY_NOINLINE void add_products(const HeadPlan& head, const Panels& left, const Panels& right,
                                 int64_t num_k, const Panels& S, Job& job) const {
    const int64_t NR = panel_width();
    for (int64_t panel = 0; panel < num_panels(head.E); ++panel) {
      for (int64_t m = 0; m < head.M; m += NR) {
        const int64_t rows = std::min(NR, head.M - m);
        multiply_rows<true>(rows, left.at(0, m / NR), 0, right.at(0, panel), nullptr, block.data,
                            num_k, job);
        const float* HWY_RESTRICT terms = block.data;
        float* HWY_RESTRICT sums = S.at(m, panel);
        float* HWY_RESTRICT rests = S_rest.at(m, panel);
        for (int64_t i = 0; i < rows * NR; i += NR / 2) {
          add_exactly(hn::LoadU(FloatTag(), terms + i), sums + i, rests + i);
        }
      }
    }
  }

  void add_sums(const HeadPlan& head, const float* added, float* z) const {
    for (int64_t f = 0; f < num_panels(head.M) * panel_width(); f += panel_width() / 2) {
      add_exactly(hn::LoadU(FloatTag(), added + f), z + f, z_rest + f);
    }
  }
};

/// Multiplies the rows of a state and its rests by factor[0 .. M), but for z.
inline void scale_sums(const HeadPlan& head, const KeyState& state, const LongSums& rests,
                       const float* factor) {
  scale_rows(state.S, head.E, 0, head.M, factor);
  scale_rows(rests.S_rest, head.E, 0, head.M, factor);
  for (int64_t f = 0; f < head.M; ++f) {
    rests.z_rest[f] *= factor[f];
  }
}

/// Copies a state and its rests, but for z.
inline HWY_NOINLINE void copy_sums(const HeadPlan& head, const KeyState& from,
                                   const LongSums& from_rests, const KeyState& to,
                                   const LongSums& to_rests) {
  std::copy_n(from.S.data, panel_floats(head.M, head.E), to.S.data);
  std::copy_n(from.c, num_panels(head.M) * panel_width(), to.c);
  std::copy_n(from_rests.S_rest.data, panel_floats(head.M, head.E), to_rests.S_rest.data);
  std::copy_n(from_rests.z_rest, head.M, to_rests.z_rest);
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

/// Writes a state as c [M], z [M], S [M, E] without padding, and reads it back. The state may be
/// that of the features from `first` on, of M in all.
inline HWY_NOINLINE void export_state(const HeadPlan& head, const KeyState& state, float* to,
                                      int64_t first, int64_t M) {
  std::copy_n(state.c, head.M, to + first);
  std::copy_n(state.z, head.M, to + M + first);
  float* S = to + 2 * M + first * head.E;
  float ones[kChunk];
  std::fill_n(ones, kChunk, 1.0f);
  for (int64_t f = 0; f < head.M; f += kChunk) {
    unpack_rows(Panels{state.S.at(f, 0), state.S.rows}, std::min(kChunk, head.M - f), head.E, ones,
                S + f * head.E, head.E);
  }
}

inline HWY_NOINLINE void import_state(const HeadPlan& head, const float* from, int64_t first,
                                      int64_t M, const KeyState& state) {
  state.clear(head);
  std::copy_n(from + first, head.M, state.c);
  std::copy_n(from + M + first, head.M, state.z);
  pack_rows(from + 2 * M + first * head.E, head.E, head.M, head.E, 1.0f, nullptr, state.S);
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_STATE_INL_H_
