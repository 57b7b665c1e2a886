// SPDX-License-Identifier: Apache-2.0
// Products with structured matrices, whose blocks are scales times (H D1)(H D2)(H D3): tokens to
// logits and gradients of logits to tokens, in additions. A row of a block stays in registers
// through all three rounds: stages of the transform that pair elements of one vector are a shuffle
// and an addition, the others additions alone.

// clang-format off
#if defined(FAVOR_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_HADAMARD_INL_H_
#undef FAVOR_HADAMARD_INL_H_
#else
#define FAVOR_HADAMARD_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>

#include "favor/plan.h"
#include "favor/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// A structured matrix as the kernels read it.
struct HadamardMatrix {
  int64_t size = 0;         ///< rows of a block, a power of two; 0: the matrix is dense
  int64_t features = 0;     ///< M, padded to whole units
  float* signs = nullptr;   ///< [rounds, features] -0.0 where the sign turns, else 0.0
  float* scales = nullptr;  ///< [features] 0 beyond M

  /// Panels whose logits are computed together: those of a block, or one that holds many blocks.
  int64_t unit_panels() const { return std::max<int64_t>(1, size / panel_width()); }
  const float* signs_at(int64_t round, int64_t feature) const {
    return signs + round * features + feature;
  }

  static int64_t padded_features(const StructuredProjection& matrix) {
    const int64_t unit = std::max(panel_width(), matrix.block_rows);
    return (matrix.num_features + unit - 1) / unit * unit;
  }
  static int64_t floats(const StructuredProjection& matrix) {
    return (StructuredProjection::kRounds + 1) * padded_features(matrix);
  }
};

/// The matrix times `factor` in `memory`, HadamardMatrix::floats(matrix) long.
inline HWY_NOINLINE HadamardMatrix pack_hadamard(const StructuredProjection& matrix, float factor,
                                                 float* memory) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  HadamardMatrix packed;
  packed.size = matrix.block_rows;
  packed.features = HadamardMatrix::padded_features(matrix);
  packed.signs = memory;
  packed.scales = memory + StructuredProjection::kRounds * packed.features;
  std::fill_n(memory, HadamardMatrix::floats(matrix), 0.0f);
  const auto bits = hn::Shl(hn::Set(di, 1), hn::Iota(di, 0));
  for (int64_t block = 0; block < matrix.num_blocks(); ++block) {
    for (int64_t round = 0; round < StructuredProjection::kRounds; ++round) {
      float* at = packed.signs + round * packed.features + block * packed.size;
      if (packed.size < N) {
        for (int64_t i = 0; i < packed.size; ++i) {
          at[i] = matrix.is_negative(block, round, i) ? -0.0f : 0.0f;
        }
        continue;
      }
      for (int64_t i = 0; i < packed.size; i += N) {
        const uint32_t word = matrix.word(block, round, i) >> i % 32;
        const auto is_set = hn::TestBit(hn::Set(di, static_cast<int32_t>(word)), bits);
        hn::StoreU(hn::IfThenElseZero(hn::RebindMask(d, is_set), hn::Set(d, -0.0f)), d, at + i);
      }
    }
  }
  for (int64_t f = 0; f < matrix.num_features; ++f) {
    packed.scales[f] = factor * matrix.row_scales[static_cast<size_t>(f)];
  }
  return packed;
}

/// -1 in the lanes whose index has the bit `stride`, 1 in the others.
HWY_INLINE Vector lane_signs(int32_t stride) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto bit = hn::And(hn::Iota(di, 0), hn::Set(di, stride));
  const auto is_set = hn::RebindMask(d, hn::Gt(bit, hn::Zero(di)));
  return hn::IfThenElse(is_set, hn::Set(d, -1.0f), hn::Set(d, 1.0f));
}

/// The vector whose lane i is lane i ^ kStride of v.
template <int kStride>
HWY_INLINE Vector swap_lanes(Vector v) {
#if HWY_TARGET == HWY_SCALAR
  return v;
#else
  if constexpr (kStride == 1) {
    return hn::Shuffle2301(v);
  } else if constexpr (kStride == 2) {
    return hn::Shuffle1032(v);
  } else {
#if HWY_HAVE_SCALABLE
    const hn::RebindToSigned<FloatTag> di;
    const auto lanes = hn::Xor(hn::Iota(di, 0), hn::Set(di, kStride));
    return hn::TableLookupLanes(v, hn::IndicesFromVec(FloatTag(), lanes));
#elif HWY_MAX_BYTES == 64
    return kStride == 4 ? hn::SwapAdjacentBlocks(v) : hn::ConcatLowerUpper(FloatTag(), v, v);
#elif HWY_MAX_BYTES == 32
    return hn::SwapAdjacentBlocks(v);
#else
    return v;
#endif
  }
#endif
}

#define FAVOR_FOR_EACH_VECTOR(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

HWY_INLINE void butterfly(Vector& a, Vector& b) {
  const Vector sum = hn::Add(a, b);
  b = hn::Sub(a, b);
  a = sum;
}

/// One stage of the transform within each vector.
template <int kStride>
HWY_INLINE void lane_stage(Vector signs, Vector& v0, Vector& v1, Vector& v2, Vector& v3, Vector& v4,
                           Vector& v5, Vector& v6, Vector& v7) {
#define FAVOR_STAGE(i) v##i = hn::MulAdd(signs, v##i, swap_lanes<kStride>(v##i));
  FAVOR_FOR_EACH_VECTOR(FAVOR_STAGE)
#undef FAVOR_STAGE
}

/// Signs of lane_stage, one vector for each stride below the widest vector's lanes.
#define FAVOR_LANE_SIGNS                                                               \
  const Vector signs1 = lane_signs(1), signs2 = lane_signs(2), signs4 = lane_signs(4), \
               signs8 = lane_signs(8), signs16 = lane_signs(16);

/// Multiplies 8 / kVectors rows of kVectors vectors each by the Hadamard matrix.
template <int kVectors>
HWY_INLINE void transform(int64_t width, Vector signs1, Vector signs2, Vector signs4, Vector signs8,
                          Vector signs16, Vector& v0, Vector& v1, Vector& v2, Vector& v3,
                          Vector& v4, Vector& v5, Vector& v6, Vector& v7) {
  if (width > 1) lane_stage<1>(signs1, v0, v1, v2, v3, v4, v5, v6, v7);
  if (width > 2) lane_stage<2>(signs2, v0, v1, v2, v3, v4, v5, v6, v7);
  if (width > 4) lane_stage<4>(signs4, v0, v1, v2, v3, v4, v5, v6, v7);
  if (width > 8) lane_stage<8>(signs8, v0, v1, v2, v3, v4, v5, v6, v7);
  if (width > 16) lane_stage<16>(signs16, v0, v1, v2, v3, v4, v5, v6, v7);
  if constexpr (kVectors >= 2) {
    butterfly(v0, v1);
    butterfly(v2, v3);
    butterfly(v4, v5);
    butterfly(v6, v7);
  }
  if constexpr (kVectors >= 4) {
    butterfly(v0, v2);
    butterfly(v1, v3);
    butterfly(v4, v6);
    butterfly(v5, v7);
  }
  if constexpr (kVectors >= 8) {
    butterfly(v0, v4);
    butterfly(v1, v5);
    butterfly(v2, v6);
    butterfly(v3, v7);
  }
}

/// Sums of the lanes i, i ^ size, ... in lane i: what is left of a vector that holds several
/// blocks.
HWY_INLINE Vector fold_lanes(Vector v, int64_t size) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(FloatTag()));
  if (N > 1 && size <= 1) v = hn::Add(v, swap_lanes<1>(v));
  if (N > 2 && size <= 2) v = hn::Add(v, swap_lanes<2>(v));
  if (N > 4 && size <= 4) v = hn::Add(v, swap_lanes<4>(v));
  if (N > 8 && size <= 8) v = hn::Add(v, swap_lanes<8>(v));
  if (N > 16 && size <= 16) v = hn::Add(v, swap_lanes<16>(v));
  return v;
}

/// Vector `index` of a row in panel layout whose panels are `stride` floats apart.
template <class T>
HWY_INLINE T* vector_at(T* row, int64_t stride, int64_t index) {
  return row + index / 2 * stride + index % 2 * (panel_width() / 2);
}

#define FAVOR_TRANSFORM(kVectors, width)                                                          \
  transform<kVectors>(width, signs1, signs2, signs4, signs8, signs16, v0, v1, v2, v3, v4, v5, v6, \
                      v7)
#define FAVOR_TURN_0(i) v##i = hn::Xor(v##i, hn::LoadU(d, turns0 + i % kVectors * N));
#define FAVOR_TURN_1(i) v##i = hn::Xor(v##i, hn::LoadU(d, turns1 + i % kVectors * N));
#define FAVOR_TURN_2(i) v##i = hn::Xor(v##i, hn::LoadU(d, turns2 + i % kVectors * N));

/// Logits of the kVectors vectors of features from `first` on, which are one block, or one or more
/// if kVectors is 1, for n rows of tokens; `filled` vectors of these are read, the rest are zeros.
template <int kVectors>
HWY_NOINLINE void block_logits(const HadamardMatrix& matrix, int64_t first,
                               const float* HWY_RESTRICT tokens, int64_t token_stride,
                               int64_t filled, int64_t n, float* HWY_RESTRICT out,
                               int64_t out_stride) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = kVectors > 1 ? N : matrix.size;
  const float* HWY_RESTRICT turns0 = matrix.signs_at(0, first);
  const float* HWY_RESTRICT turns1 = matrix.signs_at(1, first);
  const float* HWY_RESTRICT turns2 = matrix.signs_at(2, first);
  const float* HWY_RESTRICT scales = matrix.scales + first;
  FAVOR_LANE_SIGNS
  Vector v0, v1, v2, v3, v4, v5, v6, v7;
  for (int64_t r = 0; r < n; r += 8 / kVectors) {
#define FAVOR_LOAD(i)                                                                       \
  {                                                                                         \
    const float* row = tokens + std::min(r + i / kVectors, n - 1) * 2 * N;                  \
    v##i = i % kVectors < filled ? hn::LoadU(d, vector_at(row, token_stride, i % kVectors)) \
                                 : hn::Zero(d);                                             \
    if (kVectors == 1) v##i = fold_lanes(v##i, width);                                      \
  }
    FAVOR_FOR_EACH_VECTOR(FAVOR_LOAD)
#undef FAVOR_LOAD
    FAVOR_FOR_EACH_VECTOR(FAVOR_TURN_0)
    FAVOR_TRANSFORM(kVectors, width);
    FAVOR_FOR_EACH_VECTOR(FAVOR_TURN_1)
    FAVOR_TRANSFORM(kVectors, width);
    FAVOR_FOR_EACH_VECTOR(FAVOR_TURN_2)
    FAVOR_TRANSFORM(kVectors, width);
#define FAVOR_STORE(i)                                                    \
  {                                                                       \
    float* row = out + std::min(r + i / kVectors, n - 1) * 2 * N;         \
    hn::StoreU(hn::Mul(v##i, hn::LoadU(d, scales + i % kVectors * N)), d, \
               vector_at(row, out_stride, i % kVectors));                 \
  }
    FAVOR_FOR_EACH_VECTOR(FAVOR_STORE)
#undef FAVOR_STORE
  }
}

/// The transposed product with the features of block_logits: adds to `out`, or writes if `starts`,
/// `filled` vectors of n rows. Of the logits' gradients, `given` vectors are read, the rest are 0.
template <int kVectors>
HWY_NOINLINE void block_gradients(const HadamardMatrix& matrix, int64_t first,
                                  const float* HWY_RESTRICT dlogits, int64_t stride, int64_t given,
                                  int64_t n, bool starts, float* HWY_RESTRICT out,
                                  int64_t out_stride, int64_t filled) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = kVectors > 1 ? N : matrix.size;
  const float* HWY_RESTRICT turns0 = matrix.signs_at(0, first);
  const float* HWY_RESTRICT turns1 = matrix.signs_at(1, first);
  const float* HWY_RESTRICT turns2 = matrix.signs_at(2, first);
  const float* HWY_RESTRICT scales = matrix.scales + first;
  FAVOR_LANE_SIGNS
  Vector v0, v1, v2, v3, v4, v5, v6, v7;
  for (int64_t r = 0; r < n; r += 8 / kVectors) {
#define FAVOR_LOAD(i)                                                                         \
  {                                                                                           \
    const float* row = dlogits + std::min(r + i / kVectors, n - 1) * 2 * N;                   \
    v##i = i % kVectors < given ? hn::Mul(hn::LoadU(d, vector_at(row, stride, i % kVectors)), \
                                          hn::LoadU(d, scales + i % kVectors * N))            \
                                : hn::Zero(d);                                                \
  }
    FAVOR_FOR_EACH_VECTOR(FAVOR_LOAD)
#undef FAVOR_LOAD
    FAVOR_TRANSFORM(kVectors, width);
    FAVOR_FOR_EACH_VECTOR(FAVOR_TURN_2)
    FAVOR_TRANSFORM(kVectors, width);
    FAVOR_FOR_EACH_VECTOR(FAVOR_TURN_1)
    FAVOR_TRANSFORM(kVectors, width);
    FAVOR_FOR_EACH_VECTOR(FAVOR_TURN_0)
    // The last row may be there more than once: all sums before the first store.
#define FAVOR_ADD(i)                                                                \
  {                                                                                 \
    const float* row = out + std::min(r + i / kVectors, n - 1) * 2 * N;             \
    if (kVectors == 1) v##i = fold_lanes(v##i, width);                              \
    if (!starts && i % kVectors < filled) {                                         \
      v##i = hn::Add(v##i, hn::LoadU(d, vector_at(row, out_stride, i % kVectors))); \
    }                                                                               \
  }
    FAVOR_FOR_EACH_VECTOR(FAVOR_ADD)
#undef FAVOR_ADD
#define FAVOR_STORE(i)                                             \
  if (i % kVectors < filled) {                                     \
    float* row = out + std::min(r + i / kVectors, n - 1) * 2 * N;  \
    hn::StoreU(v##i, d, vector_at(row, out_stride, i % kVectors)); \
  }
    FAVOR_FOR_EACH_VECTOR(FAVOR_STORE)
#undef FAVOR_STORE
  }
}

/// Multiplies a row of `size` floats, more than eight vectors, by the Hadamard matrix, the signs
/// `before` (null: none) turned before it and `after` after it.
inline HWY_NOINLINE void transform_row(float* HWY_RESTRICT row, int64_t size,
                                       const float* HWY_RESTRICT before,
                                       const float* HWY_RESTRICT after) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  FAVOR_LANE_SIGNS
  Vector v0, v1, v2, v3, v4, v5, v6, v7;
  for (int64_t c = 0; c < size; c += 8 * N) {
#define FAVOR_LOAD(i)                   \
  v##i = hn::LoadU(d, row + c + i * N); \
  if (before != nullptr) v##i = hn::Xor(v##i, hn::LoadU(d, before + c + i * N));
    FAVOR_FOR_EACH_VECTOR(FAVOR_LOAD)
#undef FAVOR_LOAD
    FAVOR_TRANSFORM(8, N);
#define FAVOR_STORE(i) hn::StoreU(v##i, d, row + c + i * N);
    FAVOR_FOR_EACH_VECTOR(FAVOR_STORE)
#undef FAVOR_STORE
  }
  for (int64_t stride = 8 * N; stride < size; stride *= 2) {
    for (int64_t c = 0; c < size; c += 2 * stride) {
      for (float* at = row + c; at < row + c + stride; at += N) {
        Vector a = hn::LoadU(d, at);
        Vector b = hn::LoadU(d, at + stride);
        butterfly(a, b);
        hn::StoreU(a, d, at);
        hn::StoreU(b, d, at + stride);
      }
    }
  }
  for (int64_t c = 0; after != nullptr && c < size; c += N) {
    hn::StoreU(hn::Xor(hn::LoadU(d, row + c), hn::LoadU(d, after + c)), d, row + c);
  }
}

/// block_logits for blocks of more than eight vectors.
inline HWY_NOINLINE void wide_logits(const HadamardMatrix& matrix, int64_t first,
                                     const float* tokens, int64_t token_stride, int64_t filled,
                                     int64_t n, float* out, int64_t out_stride) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float row[kLargestFastBlock];
  for (int64_t r = 0; r < n; ++r, tokens += 2 * N, out += 2 * N) {
    for (int64_t i = 0; i < matrix.size / N; ++i) {
      hn::StoreU(i < filled ? hn::LoadU(d, vector_at(tokens, token_stride, i)) : hn::Zero(d), d,
                 row + i * N);
    }
    for (int64_t round = 0; round < StructuredProjection::kRounds; ++round) {
      transform_row(row, matrix.size, matrix.signs_at(round, first), nullptr);
    }
    for (int64_t i = 0; i < matrix.size / N; ++i) {
      hn::StoreU(hn::Mul(hn::LoadU(d, row + i * N), hn::LoadU(d, matrix.scales + first + i * N)), d,
                 vector_at(out, out_stride, i));
    }
  }
}

/// block_gradients for blocks of more than eight vectors.
inline HWY_NOINLINE void wide_gradients(const HadamardMatrix& matrix, int64_t first,
                                        const float* dlogits, int64_t stride, int64_t given,
                                        int64_t n, bool starts, float* out, int64_t out_stride,
                                        int64_t filled) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float row[kLargestFastBlock];
  for (int64_t r = 0; r < n; ++r, dlogits += 2 * N, out += 2 * N) {
    for (int64_t i = 0; i < matrix.size / N; ++i) {
      hn::StoreU(i < given ? hn::Mul(hn::LoadU(d, vector_at(dlogits, stride, i)),
                                     hn::LoadU(d, matrix.scales + first + i * N))
                           : hn::Zero(d),
                 d, row + i * N);
    }
    for (int64_t round = StructuredProjection::kRounds - 1; round >= 0; --round) {
      transform_row(row, matrix.size, nullptr, matrix.signs_at(round, first));
    }
    for (int64_t i = 0; i < std::min(matrix.size / N, filled); ++i) {
      const Vector value = hn::LoadU(d, row + i * N);
      float* at = vector_at(out, out_stride, i);
      hn::StoreU(starts ? value : hn::Add(value, hn::LoadU(d, at)), d, at);
    }
  }
}

/// Logits of n packed tokens [n, D] for the features of unit `unit`, in panel layout from `out` on,
/// panels `out_stride` floats apart.
inline void hadamard_logits(const HadamardMatrix& matrix, const Panels& tokens, int64_t D,
                            int64_t n, int64_t unit, float* out, int64_t out_stride) {
  const int64_t N = panel_width() / 2;
  const int64_t filled = 2 * num_panels(D);
  const int64_t first = unit * matrix.unit_panels() * panel_width();
  const auto run = [&](auto&& block, int64_t feature, float* at) HWY_ATTR {
    block(matrix, feature, tokens.data, tokens.stride(), filled, n, at, out_stride);
  };
  switch (n == 0 ? 0 : std::max<int64_t>(matrix.size / N, 1)) {
    case 0:
      break;
    case 1:
      run(block_logits<1>, first, out);
      run(block_logits<1>, first + N, out + N);
      break;
    case 2:
      run(block_logits<2>, first, out);
      break;
    case 4:
      run(block_logits<4>, first, out);
      break;
    case 8:
      run(block_logits<8>, first, out);
      break;
    default:
      run(wide_logits, first, out);
  }
}

/// out [n, D] = dlogits [n, M] times the matrix, both in panel layout. Columns beyond M must hold
/// zeros up to the border of their panel.
inline void hadamard_gradients(const HadamardMatrix& matrix, const Panels& dlogits, int64_t M,
                               int64_t D, int64_t n, const Panels& out) {
  const int64_t N = panel_width() / 2;
  const int64_t filled = 2 * num_panels(D);
  const int64_t block_vectors = std::max<int64_t>(matrix.size / N, 1);
  const int64_t vectors = 2 * num_panels(M);
  for (int64_t vector = 0; vector < vectors && n > 0; vector += block_vectors) {
    const auto run = [&](auto&& block) HWY_ATTR {
      block(matrix, vector * N, vector_at(dlogits.data, dlogits.stride(), vector), dlogits.stride(),
            vectors - vector, n, vector == 0, out.data, out.stride(), filled);
    };
    switch (block_vectors) {
      case 1:
        run(block_gradients<1>);
        break;
      case 2:
        run(block_gradients<2>);
        break;
      case 4:
        run(block_gradients<4>);
        break;
      case 8:
        run(block_gradients<8>);
        break;
      default:
        run(wide_gradients);
    }
  }
}

#undef FAVOR_FOR_EACH_VECTOR
#undef FAVOR_LANE_SIGNS
#undef FAVOR_TRANSFORM
#undef FAVOR_TURN_0
#undef FAVOR_TURN_1
#undef FAVOR_TURN_2

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_HADAMARD_INL_H_
