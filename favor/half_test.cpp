// SPDX-License-Identifier: Apache-2.0
#include "favor/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace favor {
namespace {

template <class T>
T from_bits(uint32_t bits) {
  T value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

// The value that bits of a format with this many exponent and mantissa bits stand for.
double decoded(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = bits & ((1u << mantissa_bits) - 1);
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  const double significand = std::ldexp(mantissa, -mantissa_bits) + (exponent == 0 ? 0 : 1);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias);
}

template <class T>
void expect_every_value(int exponent_bits, int mantissa_bits) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = static_cast<float>(from_bits<T>(bits));
    const double expected = decoded(bits, exponent_bits, mantissa_bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(T(value)))) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(T(value).bits, bits);
    }
  }
}

TEST(Half, EveryBitPatternIsDecodedAndRoundTrips) {
  expect_every_value<bfloat16>(8, 7);
  expect_every_value<float16>(5, 10);
}

// Between two neighbours the middle goes to the even one, and a float just off the middle to the
// nearer one. Past the largest value the neighbour is infinity.
template <class T>
void expect_nearest(uint32_t largest) {
  for (uint32_t bits = 0; bits <= largest; ++bits) {
    const float low = static_cast<float>(from_bits<T>(bits));
    const float high = bits == largest ? 2 * low - static_cast<float>(from_bits<T>(bits - 1))
                                       : static_cast<float>(from_bits<T>(bits + 1));
    const double middle = (static_cast<double>(low) + (std::isinf(high) ? 0x1p128 : high)) / 2;
    const float at = static_cast<float>(middle);
    if (at != middle) continue;  // the smallest bfloat16 numbers have no middle in float
    for (const float sign : {1.0f, -1.0f}) {
      const uint32_t sign_bit = sign < 0 ? 0x8000u : 0;
      const float infinity = std::numeric_limits<float>::infinity();
      ASSERT_EQ(T(sign * at).bits, sign_bit | (bits + (bits & 1u))) << bits;
      ASSERT_EQ(T(sign * std::nextafter(at, 0.0f)).bits, sign_bit | bits) << bits;
      ASSERT_EQ(T(sign * std::nextafter(at, infinity)).bits, sign_bit | (bits + 1)) << bits;
    }
  }
}

TEST(Half, RoundsToTheNearestAndTiesToEven) {
  expect_nearest<bfloat16>(0x7f7f);
  expect_nearest<float16>(0x7bff);
}

TEST(Half, WhatIsTooLargeBecomesInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float sign : {1.0f, -1.0f}) {
    EXPECT_EQ(static_cast<float>(float16(sign * 65519.0f)), sign * 65504);
    EXPECT_EQ(static_cast<float>(float16(sign * 65520.0f)), sign * infinity);
    EXPECT_EQ(static_cast<float>(float16(sign * 1e30f)), sign * infinity);
    EXPECT_EQ(static_cast<float>(float16(sign * infinity)), sign * infinity);
    EXPECT_EQ(static_cast<float>(bfloat16(sign * infinity)), sign * infinity);
    EXPECT_EQ(static_cast<float>(bfloat16(sign * std::numeric_limits<float>::max())),
              sign * infinity);
  }
}

}  // namespace
}  // namespace favor
