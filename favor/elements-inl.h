// SPDX-License-Identifier: Apache-2.0
// Vectors from and to the caller's elements, whatever their type: conversion to float on loading,
// rounding to the nearest on storing, and the small loops over single rows.

// clang-format off
#if defined(FAVOR_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_ELEMENTS_INL_H_
#undef FAVOR_ELEMENTS_INL_H_
#else
#define FAVOR_ELEMENTS_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "favor/rows.h"
#include "favor/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Calls body(const T* or T*) with the type of the elements.
template <class Byte, class Body>
HWY_INLINE void with_type(const Elements<Byte>& elements, const Body& body) {
  constexpr bool kConst = std::is_const_v<Byte>;
  switch (elements.type) {
    case ElementType::kBfloat16:
      body(reinterpret_cast<std::conditional_t<kConst, const bfloat16, bfloat16>*>(elements.data));
      break;
    case ElementType::kFloat16:
      body(reinterpret_cast<std::conditional_t<kConst, const float16, float16>*>(elements.data));
      break;
    default:  // double never reaches a kernel
      body(reinterpret_cast<std::conditional_t<kConst, const float, float>*>(elements.data));
      break;
  }
}

using WordTag = hn::Rebind<uint32_t, FloatTag>;
using HalfWordTag = hn::Rebind<uint16_t, FloatTag>;

HWY_INLINE Vector load(const float* from) {
  return hn::LoadU(FloatTag(), from);
}

HWY_INLINE Vector load(const bfloat16* from) {
  const auto words =
      hn::PromoteTo(WordTag(), hn::LoadU(HalfWordTag(), reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(words));
}

HWY_INLINE void store(Vector value, float* to) {
  hn::StoreU(value, FloatTag(), to);
}

/// Words below 2^16 to 16 bits each.
HWY_INLINE void store_words(hn::Vec<WordTag> words, uint16_t* to) {
  const hn::RebindToSigned<FloatTag> di;
  hn::StoreU(hn::DemoteTo(HalfWordTag(), hn::BitCast(di, words)), HalfWordTag(), to);
}

HWY_INLINE void store(Vector value, bfloat16* to) {
  const WordTag du;
  const auto word = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(word), hn::Set(du, 1u));
  const auto rounded = hn::Add(word, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(word, hn::Set(du, 0x400000u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  store_words(hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded)),
              reinterpret_cast<uint16_t*>(to));
}

// What the CPU converts itself; otherwise the integer arithmetic of favor/half.h.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
using Float16Tag = hn::Rebind<hwy::float16_t, FloatTag>;

HWY_INLINE Vector load(const float16* from) {
  const auto* at = reinterpret_cast<const hwy::float16_t*>(from);
  return hn::PromoteTo(FloatTag(), hn::LoadU(Float16Tag(), at));
}

HWY_INLINE void store(Vector value, float16* to) {
  auto* at = reinterpret_cast<hwy::float16_t*>(to);
  hn::StoreU(hn::DemoteTo(Float16Tag(), value), Float16Tag(), at);
}
#else
HWY_INLINE Vector load(const float16* from) {
  const FloatTag d;
  const WordTag du;
  const hn::RebindToSigned<FloatTag> di;
  const auto word =
      hn::PromoteTo(du, hn::LoadU(HalfWordTag(), reinterpret_cast<const uint16_t*>(from)));
  const auto sign = hn::ShiftLeft<16>(hn::And(word, hn::Set(du, 0x8000u)));
  const auto exponent = hn::And(word, hn::Set(du, 0x7c00u));
  const auto mantissa = hn::And(word, hn::Set(du, 0x3ffu));
  const auto shifted = hn::ShiftLeft<13>(hn::And(word, hn::Set(du, 0x7fffu)));
  const auto beyond = hn::Eq(exponent, hn::Set(du, 0x7c00u));
  const auto bias = hn::IfThenElse(beyond, hn::Set(du, 0x70000000u), hn::Set(du, 0x38000000u));
  const auto tiny =
      hn::BitCast(du, hn::Mul(hn::ConvertTo(d, hn::BitCast(di, mantissa)), hn::Set(d, 0x1p-24f)));
  const auto magnitude =
      hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), tiny, hn::Add(shifted, bias));
  return hn::BitCast(d, hn::Or(sign, magnitude));
}

HWY_INLINE void store(Vector value, float16* to) {
  const FloatTag d;
  const WordTag du;
  const auto word = hn::BitCast(du, value);
  const auto sign = hn::And(hn::ShiftRight<16>(word), hn::Set(du, 0x8000u));
  const auto magnitude = hn::And(word, hn::Set(du, 0x7fffffffu));
  const Vector size = hn::BitCast(d, magnitude);
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  // Subtracts the difference of the exponent biases and rounds.
  const auto normal =
      hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, odd), hn::Set(du, 0xfffu - 0x38000000u)));
  const auto tiny =
      hn::Sub(hn::BitCast(du, hn::Add(size, hn::Set(d, 0.5f))), hn::Set(du, 0x3f000000u));
  const auto is_tiny = hn::RebindMask(du, hn::Lt(size, hn::Set(d, 0x1p-14f)));
  const auto is_large = hn::RebindMask(du, hn::Ge(size, hn::Set(d, 0x1p16f)));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  auto result = hn::IfThenElse(is_tiny, tiny, normal);
  result = hn::IfThenElse(is_large, hn::Set(du, 0x7c00u), result);
  result = hn::IfThenElse(is_nan, hn::Set(du, 0x7e00u), result);
  store_words(hn::Or(sign, result), reinterpret_cast<uint16_t*>(to));
}
#endif

/// The first `count` of 2 N elements, then zeros.
template <class T>
HWY_INLINE void load_pair(const T* from, int64_t count, Vector& low, Vector& high) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(FloatTag()));
  HWY_ALIGN T buffer[64];
  if (count < 2 * N) {
    std::memset(static_cast<void*>(buffer), 0, static_cast<size_t>(2 * N) * sizeof(T));
    std::memcpy(static_cast<void*>(buffer), from, static_cast<size_t>(count) * sizeof(T));
    from = buffer;
  }
  low = load(from);
  high = load(from + N);
}

/// Stores the first `count` of 2 N lanes.
template <class T>
HWY_INLINE void store_pair(Vector low, Vector high, T* to, int64_t count) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(FloatTag()));
  HWY_ALIGN T buffer[64];
  T* at = count < 2 * N ? buffer : to;
  store(low, at);
  store(high, at + N);
  if (count < 2 * N) {
    std::memcpy(static_cast<void*>(to), buffer, static_cast<size_t>(count) * sizeof(T));
  }
}

/// Sum of a[i] b[i].
template <class T>
HWY_NOINLINE float dot(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, int64_t n) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  Vector sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + N <= n; i += N) {
    sum = hn::MulAdd(load(a + i), load(b + i), sum);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) {
    total += static_cast<float>(a[i]) * static_cast<float>(b[i]);
  }
  return total;
}

/// The same for two rows of one type.
HWY_INLINE float dot(const InputElements& a, const InputElements& b, int64_t n) {
  float result = 0.0f;
  with_type(a, [&](const auto* x)
                   HWY_ATTR { result = dot(x, reinterpret_cast<decltype(x)>(b.data), n); });
  return result;
}

/// n elements as floats.
inline HWY_NOINLINE void copy_row(const InputElements& from, int64_t n, float* HWY_RESTRICT to) {
  with_type(from, [&](const auto* elements) HWY_ATTR {
    for (int64_t i = 0; i < n; ++i) {
      to[i] = static_cast<float>(elements[i]);
    }
  });
}

/// n floats as elements.
inline HWY_NOINLINE void copy_row(const float* HWY_RESTRICT from, int64_t n,
                                  const OutputElements& to) {
  with_type(to, [&](auto* elements) HWY_ATTR {
    for (int64_t i = 0; i < n; ++i) {
      elements[i] = static_cast<std::remove_reference_t<decltype(*elements)>>(from[i]);
    }
  });
}

/// Whether all of n elements are 0 or -0.
inline HWY_NOINLINE bool is_zero_row(const InputElements& row, int64_t n) {
  bool result = true;
  with_type(row, [&](const auto* elements) HWY_ATTR {
    result =
        std::all_of(elements, elements + n, [](auto x) { return static_cast<float>(x) == 0.0f; });
  });
  return result;
}

inline void zero_row(const OutputElements& row, int64_t n) {
  std::memset(row.data, 0, static_cast<size_t>(n * element_bytes(row.type)));
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_ELEMENTS_INL_H_
