// SPDX-License-Identifier: Apache-2.0
// From the caller's rows to logits and back: what a head's map is made of, packing of tokens,
// prefetching, and the projection. Exponents are in base 2: tokens of log-linear maps are
// multiplied by log2(e) on packing.

// clang-format off
#if defined(FAVOR_TOKENS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_TOKENS_INL_H_
#undef FAVOR_TOKENS_INL_H_
#else
#define FAVOR_TOKENS_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <type_traits>

#include "favor/elements-inl.h"
#include "favor/plan.h"
#include "favor/simd-inl.h"
#include "favor/structured-inl.h"
#include "favor/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Tokens handled at a time. A multiple of every panel width below 65.
inline constexpr int64_t kChunk = 64;

/// Tokens of a causal chunk: fewer, because the scores within a chunk cost the more the longer it
/// is.
inline constexpr int64_t kCausalChunk = kChunk / 2;

/// Stabiliser of a feature that has seen no key. Finite, so that differences are never NaN, and
/// below every logit of a key whose norm is below 1e14.
inline constexpr float kNoKey = -1e30f;

/// A random matrix, packed for the products.
struct Matrix {
  Panels columns;  ///< [D, M] right operand of the projection
  Panels rows;     ///< [M, D] right operand of the gradients, left operand of transposed logits
  HadamardMatrix hadamard;  ///< takes the place of both if its size is not 0
};

/// What one side of a head's map is made of. Exponents are in base 2.
struct MapSide {
  Matrix matrix;
  const float* norm;   ///< [D] padded: factors of a packed token's squares in half_norm |x|^2,
                       ///< where the dimensions differ; else null
  const float* shift;  ///< [M] padded: added to the features' exponents; null: nothing
  float constant;      ///< added to the exponents of all features of maps known by their values
  float floor;         ///< exponent of what eps adds to each feature of a log-linear map
};

/// One head's constants and its random matrices.
struct HeadPlan {
  FeatureMapKind map;
  bool log_linear;
  bool identity;  ///< no projection: the logits are the tokens
  bool renormalize;
  bool whole_queries;   ///< |q|^2 and constants of a query matter to the output
  bool has_floor;       ///< log-linear with an epsilon
  bool official;        ///< the floors are relative to the largest logit
  bool keeps_slopes;    ///< derivatives by the logits are kept, not told from the features
  float token_scale;    ///< multiplies q and k on packing
  float out_scale;      ///< multiplies gradients of the logits on their way to dq and dk
  float half_norm;      ///< half_norm |x|^2 is subtracted from the exponents of x's features
  float norm_gradient;  ///< dx -= norm_gradient x (sum of the gradients of x's exponents)
  float eps;
  // Where the backward pass tells relu's active side from the other: features of u <= 0 are eps,
  // those of u > 0 at least eps_active, with eps_border between.
  float eps_border, eps_active;
  int64_t D, E, M;
  const float* quarters;  ///< [M] padded: 0 for trig's sines, 1 for its cosines; null: another map
  MapSide query, key;

  /// Panels of logits that come at a time.
  int64_t unit_panels() const {
    const HadamardMatrix& hadamard = query.matrix.hadamard;
    return hadamard.size == 0 ? 1 : hadamard.unit_panels();
  }
  /// Features, up to the border of the last unit.
  int64_t padded_features() const {
    const HadamardMatrix& hadamard = query.matrix.hadamard;
    return hadamard.size == 0 ? num_panels(M) * panel_width() : hadamard.features;
  }
};

/// Copies n rows of `cols` elements into panel layout, multiplied by `multiplier`; rows whose
/// `skip` is set become zeros without being read. Columns up to the panel border become zeros.
template <class T>
HWY_NOINLINE void pack_rows(const T* from, int64_t stride, int64_t n, int64_t cols,
                            float multiplier, const uint8_t* skip, const Panels& to) {
  if (n == 0) {
    return;
  }
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector factor = hn::Set(d, multiplier);
  for (int64_t c = 0; c < cols; c += NR) {
    const T* HWY_RESTRICT source = from + c;
    float* HWY_RESTRICT target = to.at(0, c / NR);
    const int64_t width = std::min(NR, cols - c);
    for (int64_t r = 0; r < n; ++r, source += stride, target += NR) {
      Vector low = hn::Zero(d);
      Vector high = hn::Zero(d);
      if (skip == nullptr || skip[r] == 0) {
        load_pair(source, width, low, high);
      }
      hn::StoreU(hn::Mul(factor, low), d, target);
      hn::StoreU(hn::Mul(factor, high), d, target + N);
    }
  }
}

inline void pack_rows(const InputElements& from, int64_t stride, int64_t n, int64_t cols,
                      float multiplier, const uint8_t* skip, const Panels& to) {
  with_type(from, [&](const auto* elements)
                      HWY_ATTR { pack_rows(elements, stride, n, cols, multiplier, skip, to); });
}

/// Copies n rows back from panel layout, row r multiplied by factor[r].
template <class T>
HWY_NOINLINE void unpack_rows(const Panels& from, int64_t n, int64_t cols,
                              const float* HWY_RESTRICT factor, T* to, int64_t stride) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  for (int64_t c = 0; c < cols; c += NR) {
    const float* HWY_RESTRICT source = from.at(0, c / NR);
    T* HWY_RESTRICT target = to + c;
    const int64_t width = std::min(NR, cols - c);
    for (int64_t r = 0; r < n; ++r, source += NR, target += stride) {
      const Vector scale = hn::Set(d, factor[r]);
      store_pair(hn::Mul(scale, hn::LoadU(d, source)), hn::Mul(scale, hn::LoadU(d, source + N)),
                 target, width);
    }
  }
}

inline void unpack_rows(const Panels& from, int64_t n, int64_t cols, const float* factor,
                        const OutputElements& to, int64_t stride) {
  with_type(to,
            [&](auto* elements) HWY_ATTR { unpack_rows(from, n, cols, factor, elements, stride); });
}

/// Adds n rows in panel layout, times `factor`, to rows of floats.
inline HWY_NOINLINE void add_rows(const Panels& from, int64_t n, int64_t cols, float factor,
                                  const OutputElements& to, int64_t stride) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector scale = hn::Set(d, factor);
  for (int64_t c = 0; c < cols; c += NR) {
    const float* HWY_RESTRICT source = from.at(0, c / NR);
    float* HWY_RESTRICT target = reinterpret_cast<float*>(to.data) + c;
    const int64_t width = std::min(NR, cols - c);
    for (int64_t r = 0; r < n; ++r, source += NR, target += stride) {
      Vector low, high;
      load_pair(target, width, low, high);
      store_pair(hn::MulAdd(scale, hn::LoadU(d, source), low),
                 hn::MulAdd(scale, hn::LoadU(d, source + N), high), target, width);
    }
  }
}

/// Asks for `count` elements ahead of their use.
template <class T>
HWY_INLINE void prefetch(T* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) {
    __builtin_prefetch(from + i, std::is_const_v<T> ? 0 : 1);
  }
  // Prefetching counts as no effect, so g++ leaves out calls of functions that do nothing else.
  asm volatile("");
}

/// Asks for part `part` of `parts` of the rows [first, end) ahead of their use, so that their
/// arrival overlaps with arithmetic; rows of mutable memory are asked for to be written. In parts,
/// because a core waits when it asks for too many lines at once.
template <class Byte>
HWY_INLINE void prefetch_rows(const Rows<Byte>& rows, int64_t b, int64_t h, int64_t first,
                              int64_t end, int64_t part, int64_t parts) {
  const int64_t count = end - first;
  const int64_t bytes = rows.sizes[3] * element_bytes(rows.elements.type);
  for (int64_t row = first + count * part / parts; row < first + count * (part + 1) / parts;
       ++row) {
    prefetch(rows.row(b, h, row).data, bytes);
  }
}

/// Rows of memory to be asked for, whichever type they have.
struct Lines {
  const char* first;
  int64_t bytes, stride;  ///< of a row, and from one row to the next
  int64_t rows;

  Lines(const float* from, int64_t count)
      : first(reinterpret_cast<const char*>(from)), bytes(count * 4), stride(0), rows(1) {}

  template <class Byte>
  Lines(const Rows<Byte>& from, int64_t b, int64_t h, int64_t begin, int64_t end)
      : first(from.row(b, h, begin).data),
        bytes(from.sizes[3] * element_bytes(from.elements.type)),
        stride(from.strides[2] * element_bytes(from.elements.type)),
        rows(std::max<int64_t>(end - begin, 0)) {}
};

/// Asks for lines ahead of their use in the course of products, because a core waits when it asks
/// for too many at once.
class PrefetchJob {
 public:
  static constexpr bool kIsEmpty = false;

  explicit PrefetchJob(std::span<const Lines> lines, int lines_per_step = 2)
      : next_(lines.data()), end_(lines.data() + lines.size()), lines_per_step_(lines_per_step) {
    find_row();
  }

  HWY_INLINE void tile_done(int64_t) {}

  HWY_INLINE void step() {
    for (int i = 0; i < lines_per_step_ && next_ != end_; ++i) {
      __builtin_prefetch(next_->first + row_ * next_->stride + offset_);
      offset_ += 64;
      if (offset_ >= next_->bytes) {
        offset_ = 0;
        ++row_;
        find_row();
      }
    }
  }

 private:
  HWY_INLINE void find_row() {
    while (next_ != end_ && row_ >= next_->rows) {
      ++next_;
      row_ = 0;
    }
  }

  const Lines* next_;
  const Lines* end_;
  int lines_per_step_;
  int64_t row_ = 0;
  int64_t offset_ = 0;
};

/// A chunk's worth of rows from `first` on, none from `end` on.
struct NextRows {
  int64_t first, last;
  NextRows(int64_t begin, int64_t end, int64_t rows)
      : first(begin), last(std::max(begin, std::min(begin + rows, end))) {}
};

/// sum_l weight_l x_l^2 of a packed row.
inline HWY_NOINLINE float weighted_square(const Panels& tokens, int64_t r, int64_t cols,
                                          const float* HWY_RESTRICT weight) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  Vector sum = hn::Zero(d);
  for (int64_t c = 0; c < num_panels(cols) * NR; c += N) {
    const Vector x = hn::LoadU(d, tokens.at(r, c / NR) + c % NR);
    sum = hn::MulAdd(hn::Mul(hn::LoadU(d, weight + c), x), x, sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// What the norm of row r, packed in `tokens` from x, takes from the exponents of its features.
inline float half_norm(const HeadPlan& head, const MapSide& side, const InputElements& x,
                       const Panels& tokens, int64_t r) {
  if (head.half_norm == 0.0f) {
    return 0.0f;
  }
  if (side.norm == nullptr) {
    return head.half_norm * dot(x, x, head.D);
  }
  return weighted_square(tokens, r, head.D, side.norm);
}

/// A chunk of packed keys and values.
struct KeyChunk {
  Panels tokens;  ///< [C, D]
  Panels values;  ///< [C, E]
  float* offset;  ///< [C] subtracted from the exponents of a key's features; +inf: masked
  float* floor;   ///< [C] exponents of what eps adds to the features; with has_floor only
  float* weight;  ///< [C] factors of the features of maps known by their values

  void place(ScratchLayout& layout, const HeadPlan& head, int64_t rows) {
    tokens = {layout.take(panel_floats(rows, head.D)), rows};
    values = {layout.take(panel_floats(rows, head.E)), rows};
    offset = layout.take(rows);
    floor = layout.take(rows);
    weight = layout.take(rows);
  }

  /// Reads n keys from key j of the item on. Masked ones become zeros without being read.
  HWY_NOINLINE void load(const Plan<float>& plan, const HeadPlan& head, const Item& item, int64_t j,
                         int64_t n) const {
    if (n == 0) {
      return;
    }
    uint8_t skipped[kChunk];
    const uint8_t* skip = plan.mask_row(item.b);
    skip = skip == nullptr ? nullptr : skip + j;
    const float* log_weight = plan.log_weight_row(item.b, item.g);
    if (log_weight != nullptr) {
      for (int64_t r = 0; r < n; ++r) {
        skipped[r] = plan.allows_key(item.b, item.g, j + r) ? 0 : 1;
      }
      skip = skipped;
    }
    const int64_t stride = plan.k.strides[2];
    const InputElements k = plan.k.row(item.b, item.g, j);
    pack_rows(k, stride, n, head.D, head.token_scale, skip, tokens);
    pack_rows(plan.v.row(item.b, item.g, j), plan.v.strides[2], n, head.E, 1.0f, skip, values);
    for (int64_t r = 0; r < n; ++r) {
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      if (skip != nullptr && skip[r] != 0) {
        offset[r] = kInfinity;
        floor[r] = -kInfinity;
        continue;
      }
      const float weight_exponent =
          log_weight == nullptr ? 0.0f : std::numbers::log2e_v<float> * log_weight[j + r];
      offset[r] = half_norm(head, head.key, k + r * stride, tokens, r) - weight_exponent;
      floor[r] = head.key.floor + weight_exponent;
    }
  }
};

/// Floats of the buffer that project() takes.
inline int64_t logit_floats(const HeadPlan& head) {
  return head.unit_panels() * panel_floats(kChunk, 1);
}

/// Writes logits of n packed tokens of one side for the features of one panel, [n, NR], to `to` in
/// a matrix whose panels are `stride` floats apart. With a structured matrix the first panel of a
/// unit brings those of the whole unit, and the others nothing.
inline HWY_NOINLINE void project_to(const HeadPlan& head, const MapSide& side, const Panels& tokens,
                                    int64_t n, int64_t panel, float* to, int64_t stride) {
  const Matrix& matrix = side.matrix;
  if (head.identity) {
    std::copy_n(tokens.at(0, panel), n * panel_width(), to);
  } else if (matrix.hadamard.size == 0) {
    const Panels right{matrix.columns.at(0, panel), matrix.columns.rows};
    multiply<false>(tokens, right, Panels{to, kChunk}, 0, n, 0, 1, head.D);
  } else if (panel % head.unit_panels() == 0) {
    hadamard_logits(matrix.hadamard, tokens, head.D, n, panel / head.unit_panels(), to, stride);
  }
}

/// Logits of n packed tokens of one side for the features of one panel, [n, NR]: in `buffer`,
/// logit_floats long, or where the tokens lie if there is no projection. Panels are to be asked for
/// in turn.
inline const float* project(const HeadPlan& head, const MapSide& side, const Panels& tokens,
                            int64_t n, int64_t panel, float* buffer) {
  if (head.identity) {
    return tokens.at(0, panel);
  }
  const Panels unit{buffer, kChunk};
  float* place = unit.at(0, panel % head.unit_panels());
  project_to(head, side, tokens, n, panel, place, unit.stride());
  return place;
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_TOKENS_INL_H_
