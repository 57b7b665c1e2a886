// SPDX-License-Identifier: Apache-2.0
// The register-tiled product of bfloat16 pairs, and numbers rounded to them. Empty for instruction
// sets without such products.

// clang-format off
#if defined(FAVOR_PAIR_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_PAIR_PRODUCTS_INL_H_
#undef FAVOR_PAIR_PRODUCTS_INL_H_
#else
#define FAVOR_PAIR_PRODUCTS_INL_H_
#endif
// clang-format on

#include <cstdint>

#include "favor/tokens-inl.h"

// The dot product of x86 adds each pair into the lane where it stands.
#undef FAVOR_HAS_PAIRS
#if HWY_ARCH_X86 && defined(HWY_NATIVE_DOT_BF16)
#define FAVOR_HAS_PAIRS HWY_NATIVE_DOT_BF16
#else
#define FAVOR_HAS_PAIRS 0
#endif

#if FAVOR_HAS_PAIRS
HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

using PairTag = hn::Repartition<hwy::bfloat16_t, FloatTag>;
using Words = hn::Vec<WordTag>;

/// Rows of a register tile.
inline constexpr int64_t kPairRows = 8;

/// Words of a row within a panel: a panel has 2 N columns, two of them to a word.
HWY_INLINE int64_t row_words() {
  return static_cast<int64_t>(hn::Lanes(FloatTag()));
}

/// As kLazyRaise: features stay below 2^8.
inline constexpr float kPairRaise = 8.0f;

/// The nearest bfloat16 number as a float whose lower half is 0. Infinities and the NaNs that
/// arithmetic makes stay.
HWY_INLINE Words rounded_words(Vector value) {
  const WordTag du;
  const Words word = hn::BitCast(du, value);
  const Words odd = hn::And(hn::ShiftRight<16>(word), hn::Set(du, 1u));
  return hn::And(hn::Add(word, hn::Add(odd, hn::Set(du, 0x7fffu))), hn::Set(du, 0xffff0000u));
}

/// Pairs of two such vectors: `first` in the lower halves.
HWY_INLINE Words pair_words(Words first, Words second) {
  return hn::Or(hn::ShiftRight<16>(first), second);
}

/// Pairs of neighbours: `first` in the first half of the words, each number rounded.
HWY_INLINE Words neighbours(Vector first, Vector second) {
  return hn::BitCast(WordTag(), hn::OrderedDemote2To(PairTag(), first, second));
}

/// As exp2, with relative error below 1.1e-4, a thirtieth of what rounding to bfloat16 may cost.
HWY_INLINE Vector coarse_exp2(Vector x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto below = hn::Lt(x, hn::Set(d, -126.0f));
  const Vector magic = hn::Set(d, 12582912.0f);
  const Vector shifted = hn::Add(x, magic);
  const Vector f = hn::Sub(x, hn::Sub(shifted, magic));
  Vector p = hn::Set(d, 0x1.c2a218p-5f);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.f00c5p-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62f5fap-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::IfThenZeroElse(below, hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent)));
}

#define FAVOR_FOR_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

/// A column of tiles of kPairRows rows: out[r, 0..2 N) = initial[r, 0..2 N) + sum_k left(r, k)
/// right(k, 0..2 N), where k counts words, that is pairs, and a null `initial` stands for zeros.
///
/// left(r, k) is left[r * N + k] within panels of `left_panel` words and N columns, or when
/// transposed left[k * 2 N + r]. A split right side has a second row of 2 N words for each k, the
/// lower halves of its numbers.
template <bool kTransposed, bool kSplit>
HWY_NOINLINE void multiply_pairs(const uint32_t* HWY_RESTRICT left, int64_t left_panel,
                                 const uint32_t* HWY_RESTRICT right, const float* initial,
                                 float* out, int64_t num_k, int64_t tiles) {
  const FloatTag d;
  const WordTag du;
  const PairTag dp;
  const int64_t N = row_words();
  const int64_t row_stride = kTransposed ? 1 : N;
  const int64_t k_stride = kTransposed ? 2 * N : 1;
  const int64_t run = kTransposed ? num_k : N;
  Vector none = hn::Zero(d);
  for (; tiles > 0; --tiles) {
#define FAVOR_DECLARE_ROW(r) Vector a##r = hn::Zero(d), b##r = hn::Zero(d);
    FAVOR_FOR_EACH_ROW(FAVOR_DECLARE_ROW)
#undef FAVOR_DECLARE_ROW
    const uint32_t* HWY_RESTRICT right_row = right;
    const uint32_t* HWY_RESTRICT left_run = left;
    for (int64_t k0 = 0; k0 < num_k; k0 += run) {
      const uint32_t* HWY_RESTRICT element = left_run;
      const int64_t k_end = std::min(run, num_k - k0);
      for (int64_t k = 0; k < k_end; ++k) {
        const auto x = hn::BitCast(dp, hn::LoadU(du, right_row));
        const auto y = hn::BitCast(dp, hn::LoadU(du, right_row + N));
        const auto x_low = kSplit ? hn::BitCast(dp, hn::LoadU(du, right_row + 2 * N)) : x;
        const auto y_low = kSplit ? hn::BitCast(dp, hn::LoadU(du, right_row + 3 * N)) : y;
#define FAVOR_ACCUMULATE_ROW(r)                                                   \
  {                                                                               \
    const auto broadcast = hn::BitCast(dp, hn::Set(du, element[r * row_stride])); \
    a##r = hn::ReorderWidenMulAccumulate(d, broadcast, x, a##r, none);            \
    b##r = hn::ReorderWidenMulAccumulate(d, broadcast, y, b##r, none);            \
    if constexpr (kSplit) {                                                       \
      a##r = hn::ReorderWidenMulAccumulate(d, broadcast, x_low, a##r, none);      \
      b##r = hn::ReorderWidenMulAccumulate(d, broadcast, y_low, b##r, none);      \
    }                                                                             \
  }
        FAVOR_FOR_EACH_ROW(FAVOR_ACCUMULATE_ROW)
#undef FAVOR_ACCUMULATE_ROW
        element += k_stride;
        right_row += kSplit ? 4 * N : 2 * N;
      }
      left_run += left_panel;
    }
    if (initial != nullptr) {
#define FAVOR_ADD_ROW(r)                                   \
  a##r = hn::Add(a##r, hn::LoadU(d, initial + r * 2 * N)); \
  b##r = hn::Add(b##r, hn::LoadU(d, initial + r * 2 * N + N));
      FAVOR_FOR_EACH_ROW(FAVOR_ADD_ROW)
#undef FAVOR_ADD_ROW
      initial += kPairRows * 2 * N;
    }
#define FAVOR_STORE_ROW(r)              \
  hn::StoreU(a##r, d, out + r * 2 * N); \
  hn::StoreU(b##r, d, out + r * 2 * N + N);
    FAVOR_FOR_EACH_ROW(FAVOR_STORE_ROW)
#undef FAVOR_STORE_ROW
    left += kPairRows * row_stride;
    out += kPairRows * 2 * N;
  }
}
#undef FAVOR_FOR_EACH_ROW

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();
#endif  // FAVOR_HAS_PAIRS

#endif  // FAVOR_PAIR_PRODUCTS_INL_H_
