// SPDX-License-Identifier: Apache-2.0
// Products with structured matrices, whose blocks are scales times (H D1)(H D2)(H D3): tokens to
// logits and gradients of logits to tokens, in additions. A row of a block stays in registers
// through all three rounds.

// clang-format off
#if defined(FAVOR_STRUCTURED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_STRUCTURED_INL_H_
#undef FAVOR_STRUCTURED_INL_H_
#else
#define FAVOR_STRUCTURED_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>

#include "favor/hadamard-inl.h"
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

#define FAVOR_TRANSFORM(kVectors, width)                                                          \
  transform<kVectors>(width, signs1, signs2, signs4, signs8, signs16, v0, v1, v2, v3, v4, v5, v6, \
                      v7, v8, v9, v10, v11, v12, v13, v14, v15)
#define FAVOR_DECLARE(i) Vector v##i = hn::Zero(d);
#define FAVOR_DECLARE_VECTORS FAVOR_FOR_EACH_OF_16(FAVOR_DECLARE)
#define FAVOR_TURN_0(i) \
  if constexpr (kTransformed > i) v##i = hn::Xor(v##i, hn::LoadU(d, turns0 + i % kVectors * N));
#define FAVOR_TURN_1(i) \
  if constexpr (kTransformed > i) v##i = hn::Xor(v##i, hn::LoadU(d, turns1 + i % kVectors * N));
#define FAVOR_TURN_2(i) \
  if constexpr (kTransformed > i) v##i = hn::Xor(v##i, hn::LoadU(d, turns2 + i % kVectors * N));

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
  FAVOR_DECLARE_VECTORS
  for (int64_t r = 0; r < n; r += kTransformed / kVectors) {
#define FAVOR_LOAD(i)                                                                       \
  if constexpr (kTransformed > i) {                                                         \
    const float* row = tokens + std::min(r + i / kVectors, n - 1) * 2 * N;                  \
    v##i = i % kVectors < filled ? hn::LoadU(d, vector_at(row, token_stride, i % kVectors)) \
                                 : hn::Zero(d);                                             \
    if (kVectors == 1) v##i = fold_lanes(v##i, width);                                      \
  }
    FAVOR_FOR_EACH_OF_16(FAVOR_LOAD)
#undef FAVOR_LOAD
    FAVOR_FOR_EACH_OF_16(FAVOR_TURN_0)
    FAVOR_TRANSFORM(kVectors, width);
    FAVOR_FOR_EACH_OF_16(FAVOR_TURN_1)
    FAVOR_TRANSFORM(kVectors, width);
    FAVOR_FOR_EACH_OF_16(FAVOR_TURN_2)
    FAVOR_TRANSFORM(kVectors, width);
#define FAVOR_STORE(i)                                                    \
  if constexpr (kTransformed > i) {                                       \
    float* row = out + std::min(r + i / kVectors, n - 1) * 2 * N;         \
    hn::StoreU(hn::Mul(v##i, hn::LoadU(d, scales + i % kVectors * N)), d, \
               vector_at(row, out_stride, i % kVectors));                 \
  }
    FAVOR_FOR_EACH_OF_16(FAVOR_STORE)
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
  FAVOR_DECLARE_VECTORS
  for (int64_t r = 0; r < n; r += kTransformed / kVectors) {
#define FAVOR_LOAD(i)                                                                         \
  if constexpr (kTransformed > i) {                                                           \
    const float* row = dlogits + std::min(r + i / kVectors, n - 1) * 2 * N;                   \
    v##i = i % kVectors < given ? hn::Mul(hn::LoadU(d, vector_at(row, stride, i % kVectors)), \
                                          hn::LoadU(d, scales + i % kVectors * N))            \
                                : hn::Zero(d);                                                \
  }
    FAVOR_FOR_EACH_OF_16(FAVOR_LOAD)
#undef FAVOR_LOAD
    FAVOR_TRANSFORM(kVectors, width);
    FAVOR_FOR_EACH_OF_16(FAVOR_TURN_2)
    FAVOR_TRANSFORM(kVectors, width);
    FAVOR_FOR_EACH_OF_16(FAVOR_TURN_1)
    FAVOR_TRANSFORM(kVectors, width);
    FAVOR_FOR_EACH_OF_16(FAVOR_TURN_0)
    // The last row may be there more than once: all sums before the first store.
#define FAVOR_ADD(i)                                                                \
  if constexpr (kTransformed > i) {                                                 \
    const float* row = out + std::min(r + i / kVectors, n - 1) * 2 * N;             \
    if (kVectors == 1) v##i = fold_lanes(v##i, width);                              \
    if (!starts && i % kVectors < filled) {                                         \
      v##i = hn::Add(v##i, hn::LoadU(d, vector_at(row, out_stride, i % kVectors))); \
    }                                                                               \
  }
    FAVOR_FOR_EACH_OF_16(FAVOR_ADD)
#undef FAVOR_ADD
#define FAVOR_STORE(i)                                             \
  if (kTransformed > i && i % kVectors < filled) {                 \
    float* row = out + std::min(r + i / kVectors, n - 1) * 2 * N;  \
    hn::StoreU(v##i, d, vector_at(row, out_stride, i % kVectors)); \
  }
    FAVOR_FOR_EACH_OF_16(FAVOR_STORE)
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
  FAVOR_DECLARE_VECTORS
  for (int64_t c = 0; c < size; c += kTransformed * N) {
#define FAVOR_LOAD(i)                                                              \
  if constexpr (kTransformed > i) {                                                \
    v##i = hn::LoadU(d, row + c + i * N);                                          \
    if (before != nullptr) v##i = hn::Xor(v##i, hn::LoadU(d, before + c + i * N)); \
  }
    FAVOR_FOR_EACH_OF_16(FAVOR_LOAD)
#undef FAVOR_LOAD
    FAVOR_TRANSFORM(8, N);
#define FAVOR_STORE(i) \
  if constexpr (kTransformed > i) hn::StoreU(v##i, d, row + c + i * N);
    FAVOR_FOR_EACH_OF_16(FAVOR_STORE)
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

#undef FAVOR_FOR_EACH_OF_8
#undef FAVOR_FOR_EACH_OF_16
#undef FAVOR_DECLARE
#undef FAVOR_DECLARE_VECTORS
#undef FAVOR_LANE_SIGNS
#undef FAVOR_TRANSFORM
#undef FAVOR_TURN_0
#undef FAVOR_TURN_1
#undef FAVOR_TURN_2

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_STRUCTURED_INL_H_
