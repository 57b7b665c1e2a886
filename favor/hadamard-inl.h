// SPDX-License-Identifier: Apache-2.0
// The Walsh-Hadamard transform of rows that lie in eight or sixteen vectors. Stages that pair
// elements of one vector are a shuffle and an addition each, the others additions alone. The macros
// are undefined at the end of structured-inl.h, the one file that includes this.

// clang-format off
#if defined(FAVOR_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_HADAMARD_INL_H_
#undef FAVOR_HADAMARD_INL_H_
#else
#define FAVOR_HADAMARD_INL_H_
#endif
// clang-format on

#include <cstdint>

#include "favor/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

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

/// Vectors that are transformed together, half of the registers: the more of them, the better the
/// latencies of shuffles and additions overlap.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM || HWY_ARCH_RVV
inline constexpr int kTransformed = 16;
#else
inline constexpr int kTransformed = 8;
#endif

#define FAVOR_FOR_EACH_OF_8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define FAVOR_FOR_EACH_OF_16(X) FAVOR_FOR_EACH_OF_8(X) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

HWY_INLINE void butterfly(Vector& a, Vector& b) {
  const Vector sum = hn::Add(a, b);
  b = hn::Sub(a, b);
  a = sum;
}

/// One stage of the transform within each vector.
template <int kStride>
HWY_INLINE void lane_stage(Vector signs, Vector& v0, Vector& v1, Vector& v2, Vector& v3, Vector& v4,
                           Vector& v5, Vector& v6, Vector& v7, Vector& v8, Vector& v9, Vector& v10,
                           Vector& v11, Vector& v12, Vector& v13, Vector& v14, Vector& v15) {
#define FAVOR_STAGE(i) \
  if constexpr (kTransformed > i) v##i = hn::MulAdd(signs, v##i, swap_lanes<kStride>(v##i));
  FAVOR_FOR_EACH_OF_16(FAVOR_STAGE)
#undef FAVOR_STAGE
}

/// Signs of lane_stage, one vector for each stride below the widest vector's lanes.
#define FAVOR_LANE_SIGNS                                                               \
  const Vector signs1 = lane_signs(1), signs2 = lane_signs(2), signs4 = lane_signs(4), \
               signs8 = lane_signs(8), signs16 = lane_signs(16);

/// Multiplies kTransformed / kVectors rows of kVectors vectors each by the Hadamard matrix.
template <int kVectors>
HWY_INLINE void transform(int64_t width, Vector signs1, Vector signs2, Vector signs4, Vector signs8,
                          Vector signs16, Vector& v0, Vector& v1, Vector& v2, Vector& v3,
                          Vector& v4, Vector& v5, Vector& v6, Vector& v7, Vector& v8, Vector& v9,
                          Vector& v10, Vector& v11, Vector& v12, Vector& v13, Vector& v14,
                          Vector& v15) {
  if (width > 1)
    lane_stage<1>(signs1, v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15);
  if (width > 2)
    lane_stage<2>(signs2, v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15);
  if (width > 4)
    lane_stage<4>(signs4, v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15);
  if (width > 8)
    lane_stage<8>(signs8, v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15);
  if (width > 16)
    lane_stage<16>(signs16, v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15);
  if constexpr (kVectors >= 2) {
    butterfly(v0, v1);
    butterfly(v2, v3);
    butterfly(v4, v5);
    butterfly(v6, v7);
  }
  if constexpr (kVectors >= 2 && kTransformed == 16) {
    butterfly(v8, v9);
    butterfly(v10, v11);
    butterfly(v12, v13);
    butterfly(v14, v15);
  }
  if constexpr (kVectors >= 4) {
    butterfly(v0, v2);
    butterfly(v1, v3);
    butterfly(v4, v6);
    butterfly(v5, v7);
  }
  if constexpr (kVectors >= 4 && kTransformed == 16) {
    butterfly(v8, v10);
    butterfly(v9, v11);
    butterfly(v12, v14);
    butterfly(v13, v15);
  }
  if constexpr (kVectors >= 8) {
    butterfly(v0, v4);
    butterfly(v1, v5);
    butterfly(v2, v6);
    butterfly(v3, v7);
  }
  if constexpr (kVectors >= 8 && kTransformed == 16) {
    butterfly(v8, v12);
    butterfly(v9, v13);
    butterfly(v10, v14);
    butterfly(v11, v15);
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

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_HADAMARD_INL_H_
