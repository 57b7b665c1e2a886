// SPDX-License-Identifier: Apache-2.0
// Products of bfloat16 pairs, where the CPU multiplies two numbers a lane and adds both to a float,
// at twice the rate of floats: packed operands, the split random matrix, and the state of a head
// for such products. Empty for other instruction sets.
//
// A word holds two bfloat16 numbers that meet in one product: neighbours along the dimension that
// is summed over, which is D for logits, M or E where tokens meet sums over others, and two tokens
// where those sums absorb them.

// clang-format off
#if defined(FAVOR_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_PAIRS_INL_H_
#undef FAVOR_PAIRS_INL_H_
#else
#define FAVOR_PAIRS_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>

#include "favor/pair_products-inl.h"

#if FAVOR_HAS_PAIRS
HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Pairs that hold n numbers.
inline int64_t num_pairs(int64_t n) {
  return (n + 1) / 2;
}

/// Sizes of a call, and the panels that hold them.
struct PairSizes {
  int64_t D, E, M;
  int64_t d_panels, e_panels, m_panels;
  int64_t d_words;  ///< pairs along D
  explicit PairSizes(const Plan<float>& plan)
      : D(plan.D),
        E(plan.E),
        M(plan.M),
        d_panels(num_panels(D)),
        e_panels(num_panels(E)),
        m_panels(num_panels(M)),
        d_words(num_pairs(D)) {}
};

inline const bfloat16* bfloat16_row(const InputRows& rows, int64_t b, int64_t h, int64_t i) {
  return reinterpret_cast<const bfloat16*>(rows.row(b, h, i).data);
}

/// Rounds rows of one panel, an even number, to pairs of rows: [rows / 2, 2 N] words.
inline HWY_NOINLINE void pair_rows(const float* HWY_RESTRICT from, int64_t rows,
                                   uint32_t* HWY_RESTRICT to) {
  const FloatTag d;
  const int64_t N = row_words();
  for (int64_t r = 0; r < rows; r += 2, from += 4 * N, to += 2 * N) {
    for (int64_t half = 0; half < 2 * N; half += N) {
      hn::StoreU(pair_words(rounded_words(hn::LoadU(d, from + half)),
                            rounded_words(hn::LoadU(d, from + 2 * N + half))),
                 WordTag(), to + half);
    }
  }
}

/// The random matrices as right operands, made once per call.
class PairMatrices {
 public:
  /// `with_rows`: for gradients of tokens too. M is even then.
  PairMatrices(const Plan<float>& plan, const PairSizes& s, bool with_rows)
      : shared_(plan.P == 1),
        row_words_(with_rows ? s.d_panels * s.M / 2 * panel_width() : 0),
        column_words_(s.m_panels * s.d_words * 2 * panel_width()) {
    memory_ = allocate_floats(plan.P * (row_words_ + column_words_));
    const int64_t upright_floats = panel_floats(s.M, s.D), floats = panel_floats(s.D, s.M);
    const auto scratch = allocate_floats(upright_floats + floats);
    const Panels upright{scratch.get(), s.M}, columns{scratch.get() + upright_floats, s.D};
    const auto root = static_cast<float>(std::sqrt(plan.scale));
    for (int64_t p = 0; p < plan.P; ++p) {
      pack_rows(plan.projection + p * s.M * s.D, s.D, s.M, s.D, root, nullptr, upright);
      for (int64_t panel = 0; with_rows && panel < s.d_panels; ++panel) {
        pair_rows(upright.at(0, panel), s.M, words(p) + panel * s.M / 2 * panel_width());
      }
      std::fill_n(columns.data, floats, 0.0f);
      transpose(upright, s.M, s.D, columns);
      split(s, columns, words(p) + row_words_);
    }
  }

  /// One panel of features of key head g: [D / 2, 4 N], for logits in base 2. For each pair of
  /// dimensions 2 N words of upper and 2 N of lower halves.
  const uint32_t* columns(const PairSizes& s, int64_t g, int64_t panel) const {
    return words(shared_ ? 0 : g) + row_words_ + panel * s.d_words * 2 * panel_width();
  }

  /// d_panels of [M / 2, 2 N], rounded.
  const uint32_t* rows(int64_t g) const { return words(shared_ ? 0 : g); }

 private:
  uint32_t* words(int64_t p) const {
    return reinterpret_cast<uint32_t*>(memory_.get()) + p * (row_words_ + column_words_);
  }

  static HWY_NOINLINE void split(const PairSizes& s, const Panels& matrix, uint32_t* to) {
    const FloatTag d;
    const WordTag du;
    const int64_t N = row_words();
    const Vector log2e = hn::Set(d, std::numbers::log2e_v<float>);
    for (int64_t panel = 0; panel < s.m_panels; ++panel) {
      for (int64_t i = 0; i < s.D; i += 2, to += 4 * N) {
        for (int64_t half = 0; half < 2 * N; half += N) {
          const Vector first = hn::Mul(log2e, hn::LoadU(d, matrix.at(i, panel) + half));
          Vector second = hn::Zero(d);
          if (i + 1 < s.D) second = hn::Mul(log2e, hn::LoadU(d, matrix.at(i + 1, panel) + half));
          const Words high0 = rounded_words(first), high1 = rounded_words(second);
          hn::StoreU(pair_words(high0, high1), du, to + half);
          hn::StoreU(pair_words(rounded_words(hn::Sub(first, hn::BitCast(d, high0))),
                                rounded_words(hn::Sub(second, hn::BitCast(d, high1)))),
                     du, to + 2 * N + half);
        }
      }
    }
  }

  bool shared_;
  int64_t row_words_, column_words_;
  hwy::AlignedFreeUniquePtr<float[]> memory_;
};

inline uint32_t* take_words(ScratchLayout& layout, int64_t words) {
  return reinterpret_cast<uint32_t*>(layout.take(words));
}

/// S, z, c of the keys so far, and the range of their values.
struct PairState {
  float* S;             ///< e_panels of [M padded, 2 N]
  float *z, *c;         ///< [M padded]
  float *least, *most;  ///< [E padded]

  void place(ScratchLayout& layout, const PairSizes& s) {
    const int64_t NR = panel_width();
    S = layout.take(s.e_panels * s.m_panels * NR * NR);
    z = layout.take(s.m_panels * NR);
    c = layout.take(s.m_panels * NR);
    least = layout.take(s.e_panels * NR);
    most = layout.take(s.e_panels * NR);
  }

  void clear(const PairSizes& s) const {
    const int64_t NR = panel_width();
    std::fill_n(S, s.e_panels * s.m_panels * NR * NR, 0.0f);
    std::fill_n(z, s.m_panels * NR, 0.0f);
    std::fill_n(c, s.M, kNoKey);
    std::fill(c + s.M, c + s.m_panels * NR, -kNoKey);
    std::fill_n(least, s.e_panels * NR, std::numeric_limits<float>::infinity());
    std::fill_n(most, s.e_panels * NR, -std::numeric_limits<float>::infinity());
  }

  float* row(const PairSizes& s, int64_t f, int64_t e_panel) const {
    return S + (e_panel * s.m_panels * panel_width() + f) * panel_width();
  }

  void scale_row(const PairSizes& s, int64_t f, float factor) const {
    for (int64_t panel = 0; panel < s.e_panels; ++panel) {
      float* at = row(s, f, panel);
      for (int64_t i = 0; i < panel_width(); ++i) {
        at[i] *= factor;
      }
    }
    z[f] *= factor;
  }

  void merge(const PairSizes& s, const PairState& other) const {
    for (int64_t f = 0; f < s.M; ++f) {
      const float top = std::max(c[f], other.c[f]);
      const float theirs = std::exp2(other.c[f] - top);
      scale_row(s, f, std::exp2(c[f] - top));
      c[f] = top;
      z[f] += theirs * other.z[f];
      for (int64_t panel = 0; panel < s.e_panels; ++panel) {
        float* at = row(s, f, panel);
        const float* from = other.row(s, f, panel);
        for (int64_t i = 0; i < panel_width(); ++i) {
          at[i] += theirs * from[i];
        }
      }
    }
    for (int64_t e = 0; e < s.e_panels * panel_width(); ++e) {
      least[e] = std::min(least[e], other.least[e]);
      most[e] = std::max(most[e], other.most[e]);
    }
  }

  /// As import_state reads it.
  void write(const PairSizes& s, float* to) const {
    std::copy_n(c, s.M, to);
    std::copy_n(z, s.M, to + s.M);
    for (int64_t f = 0; f < s.M; ++f) {
      for (int64_t e = 0; e < s.E; ++e) {
        to[2 * s.M + f * s.E + e] = row(s, f, e / panel_width())[e % panel_width()];
      }
    }
  }
};

/// Which rows of a chunk of n keys from key j on take part, and what is subtracted from the
/// exponents of their features, +inf for the others.
inline HWY_NOINLINE void load_pair_keys(const Plan<float>& plan, const Item& item, int64_t j,
                                        int64_t n, uint8_t* skip, float* offset) {
  const auto half_norm = static_cast<float>(0.5 * plan.scale * std::numbers::log2e);
  const float* log_weight = plan.log_weight_row(item.b, item.g);
  for (int64_t r = 0; r < kChunk; ++r) {
    skip[r] = r >= n || !plan.allows_key(item.b, item.g, j + r);
    if (skip[r] != 0) {
      offset[r] = std::numeric_limits<float>::infinity();
      continue;
    }
    const bfloat16* k = bfloat16_row(plan.k, item.b, item.g, j + r);
    offset[r] = half_norm * dot(k, k, plan.D);
    if (log_weight != nullptr) offset[r] -= log_weight[j + r] * std::numbers::log2e_v<float>;
  }
}

/// Copies a chunk of rows of `cols` elements into panels of [C, N] words; rows that are skipped
/// become zeros.
inline HWY_NOINLINE void pack_tokens(const bfloat16* from, int64_t stride, int64_t cols,
                                     const uint8_t* skip, uint32_t* to) {
  const int64_t N = row_words();
  for (int64_t panel = 0; panel < num_panels(cols); ++panel, to += kChunk * N) {
    const int64_t width = std::min(2 * N, cols - panel * 2 * N);
    for (int64_t r = 0; r < kChunk; ++r) {
      uint32_t* row = to + r * N;
      if (skip[r] != 0) {
        std::memset(row, 0, static_cast<size_t>(N) * sizeof(uint32_t));
        continue;
      }
      const bfloat16* source = from + r * stride + panel * 2 * N;
      if (width == 2 * N) {
        std::memcpy(row, source, static_cast<size_t>(N) * sizeof(uint32_t));
      } else {
        std::memset(row, 0, static_cast<size_t>(N) * sizeof(uint32_t));
        std::memcpy(row, source, static_cast<size_t>(width) * sizeof(bfloat16));
      }
    }
  }
}

/// Packs a chunk of rows of `cols` elements as pairs of tokens, panels of [C / 2, 2 N] words; rows
/// that are skipped become zeros. With kRange it widens the range of the elements seen.
template <bool kRange>
HWY_NOINLINE void pack_token_pairs(const bfloat16* from, int64_t stride, int64_t cols,
                                   const uint8_t* skip, float* least, float* most, uint32_t* to) {
  const FloatTag d;
  const WordTag du;
  const int64_t N = row_words();
  const int64_t NR = 2 * N;
  for (int64_t panel = 0; panel < num_panels(cols); ++panel, to += kChunk / 2 * NR) {
    const int64_t width = std::min(NR, cols - panel * NR);
    Vector least0 = hn::Zero(d), least1 = least0, most0 = least0, most1 = least0;
    if constexpr (kRange) {
      least0 = hn::LoadU(d, least + panel * NR);
      least1 = hn::LoadU(d, least + panel * NR + N);
      most0 = hn::LoadU(d, most + panel * NR);
      most1 = hn::LoadU(d, most + panel * NR + N);
    }
    for (int64_t r = 0; r < kChunk; r += 2) {
      Vector low[2] = {hn::Zero(d), hn::Zero(d)};
      Vector high[2] = {hn::Zero(d), hn::Zero(d)};
      for (int64_t side = 0; side < 2; ++side) {
        if (skip[r + side] != 0) continue;
        load_pair(from + (r + side) * stride + panel * NR, width, low[side], high[side]);
        if constexpr (kRange) {
          least0 = hn::Min(least0, low[side]);
          least1 = hn::Min(least1, high[side]);
          most0 = hn::Max(most0, low[side]);
          most1 = hn::Max(most1, high[side]);
        }
      }
      uint32_t* row = to + r / 2 * NR;
      hn::StoreU(pair_words(hn::BitCast(du, low[0]), hn::BitCast(du, low[1])), du, row);
      hn::StoreU(pair_words(hn::BitCast(du, high[0]), hn::BitCast(du, high[1])), du, row + N);
    }
    if constexpr (kRange) {
      hn::StoreU(least0, d, least + panel * NR);
      hn::StoreU(least1, d, least + panel * NR + N);
      hn::StoreU(most0, d, most + panel * NR);
      hn::StoreU(most1, d, most + panel * NR + N);
    }
  }
}

/// Features 2^(u - h - c) of a chunk of keys on one panel as pairs of keys, [C / 2, 2 N] words;
/// `sums` receives the column sums of the rounded features. Returns the largest exponent.
inline HWY_NOINLINE float pair_features(const float* HWY_RESTRICT u, const float* HWY_RESTRICT h,
                                        const float* HWY_RESTRICT c, uint32_t* HWY_RESTRICT to,
                                        float* HWY_RESTRICT sums) {
  const FloatTag d;
  const WordTag du;
  const int64_t N = row_words();
  const int64_t NR = 2 * N;
  Vector largest = hn::Set(d, kNoKey);
  for (int64_t half = 0; half < NR; half += N) {
    const Vector stabiliser = hn::LoadU(d, c + half);
    Vector sum = hn::Zero(d);
    for (int64_t r = 0; r < kChunk; r += 2) {
      const float* row = u + r * NR + half;
      const Vector t0 = hn::Sub(hn::Sub(hn::LoadU(d, row), hn::Set(d, h[r])), stabiliser);
      const Vector t1 = hn::Sub(hn::Sub(hn::LoadU(d, row + NR), hn::Set(d, h[r + 1])), stabiliser);
      largest = hn::Max(largest, hn::Max(t0, t1));
      const Words first = rounded_words(coarse_exp2(t0));
      const Words second = rounded_words(coarse_exp2(t1));
      sum = hn::Add(sum, hn::Add(hn::BitCast(d, first), hn::BitCast(d, second)));
      hn::StoreU(pair_words(first, second), du, to + r / 2 * NR + half);
    }
    hn::StoreU(sum, d, sums + half);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

/// As raise_stabilisers for a chunk of keys.
inline HWY_NOINLINE void raise_pair_stabilisers(const float* HWY_RESTRICT u,
                                                const float* HWY_RESTRICT h, float* HWY_RESTRICT c,
                                                float* HWY_RESTRICT factor) {
  const FloatTag d;
  const int64_t N = row_words();
  for (int64_t half = 0; half < 2 * N; half += N) {
    const Vector old = hn::LoadU(d, c + half);
    Vector top = hn::Set(d, kNoKey);
    for (int64_t r = 0; r < kChunk; ++r) {
      top = hn::Max(top, hn::Sub(hn::LoadU(d, u + r * 2 * N + half), hn::Set(d, h[r])));
    }
    const auto rises = hn::Gt(hn::Sub(top, old), hn::Set(d, kPairRaise));
    const Vector raised = hn::IfThenElse(rises, top, old);
    hn::StoreU(exp2(hn::Sub(old, raised)), d, factor + half);
    hn::StoreU(raised, d, c + half);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();
#endif  // FAVOR_HAS_PAIRS

#endif  // FAVOR_PAIRS_INL_H_
