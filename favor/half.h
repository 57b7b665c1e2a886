// SPDX-License-Identifier: Apache-2.0
// The two 16-bit floating-point types as storage: conversion to and from float, no arithmetic.
#ifndef FAVOR_HALF_H_
#define FAVOR_HALF_H_

#include <bit>
#include <cstdint>
#include <type_traits>

namespace favor {

/// The upper half of a float: its range, 8 significant bits.
struct bfloat16 {
  uint16_t bits;

  bfloat16() = default;
  /// The nearest value, ties to even; infinity beyond the range; NaN stays NaN.
  explicit bfloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((word >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

/// IEEE binary16: 11 significant bits, largest value 65504, smallest 2^-24.
struct float16 {
  uint16_t bits;

  float16() = default;
  /// The nearest value, ties to even; infinity from 65520 on; NaN stays NaN.
  explicit float16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (word >> 16) & 0x8000u;
    uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      magnitude = 0x7e00u;
    } else if (magnitude >= 0x47800000u) {  // 2^16
      magnitude = 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // 2^-14: the sum's last bit weighs 2^-24
      magnitude = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    } else {
      magnitude = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    bits = static_cast<uint16_t>(sign | magnitude);
  }
  explicit operator float() const {
    const uint32_t sign = (uint32_t{bits} & 0x8000u) << 16;
    const uint32_t exponent = bits & 0x7c00u;
    const uint32_t mantissa = bits & 0x3ffu;
    uint32_t magnitude = (uint32_t{bits} & 0x7fffu) << 13;
    if (exponent == 0) {
      magnitude = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
    } else {
      magnitude += exponent == 0x7c00u ? 0x70000000u : 0x38000000u;
    }
    return std::bit_cast<float>(sign | magnitude);
  }
};

/// What calls on elements of type T compute in, and keep beside them: float for the 16-bit types.
template <class T>
using Compute = std::conditional_t<sizeof(T) == 2, float, T>;

}  // namespace favor

#endif  // FAVOR_HALF_H_
