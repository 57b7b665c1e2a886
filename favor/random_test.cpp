// SPDX-License-Identifier: Apache-2.0
#include "favor/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "favor/check.h"
#include "favor/testing_errors.h"

namespace favor {
namespace {

using Block = std::array<uint32_t, 4>;

// Known answers published with the Random123 library.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, IsTheCounterWalk) {
  const uint64_t seed = 0x299f31d0'a4093822ull;
  const uint64_t stream = 0x03707344'13198a2eull;
  RandomStream rng(seed, stream, 7);
  for (uint32_t block = 0; block < 3; ++block) {
    const Block expected = philox({block, 7, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
    for (uint32_t word : expected) EXPECT_EQ(rng.bits(), word);
  }
}

TEST(RandomStream, DiffersInSeedStreamAndSubstream) {
  const uint32_t first = RandomStream(1, 2, 3).bits();
  EXPECT_NE(first, RandomStream(2, 2, 3).bits());
  EXPECT_NE(first, RandomStream(1 + (uint64_t{1} << 32), 2, 3).bits());
  EXPECT_NE(first, RandomStream(1, 3, 3).bits());
  EXPECT_NE(first, RandomStream(1, 2 + (uint64_t{1} << 32), 3).bits());
  EXPECT_NE(first, RandomStream(1, 2, 4).bits());
  EXPECT_EQ(first, RandomStream(1, 2, 3).bits());
}

TEST(RandomStream, SeekContinuesFromAnyPosition) {
  RandomStream rng(11, 22);
  for (int skip = 0; skip < 9; ++skip) {
    // An odd number of normals leaves a spare one behind.
    for (int i = 0; i < skip; ++i) rng.normal();
    rng.bits();
    const RandomStream::Position position = rng.position();
    std::vector<double> expected;
    for (int i = 0; i < 5; ++i) expected.push_back(rng.normal());
    expected.push_back(rng.bits());

    RandomStream other(11, 22);
    other.seek(position);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(other.normal(), expected[i]) << "skip " << skip;
    EXPECT_EQ(other.bits(), expected[5]);
  }
}

TEST(RandomStream, RefusesToWrapAround) {
  RandomStream rng(1, 2);
  RandomStream::Position position;
  position.block = 0xffffffffull;
  position.used = 3;
  rng.seek(position);
  EXPECT_EQ(rng.bits(), philox({0xffffffff, 0, 2, 0}, {1, 0})[3]);
  const std::string error = test::error_of([&] { rng.bits(); });
  EXPECT_NE(error.find("RandomStream: 2^34 words"), std::string::npos) << error;
}

TEST(RandomStream, SeekNamesAWrongPosition) {
  RandomStream rng(1, 2);
  RandomStream::Position position;
  position.used = 4;
  EXPECT_EQ(test::error_of([&] { rng.seek(position); }),
            "RandomStream::seek: used is 4, expected 0 to 3");
  position.used = 0;
  position.block = (uint64_t{1} << 32) + 1;
  EXPECT_THROW(rng.seek(position), Error);
}

TEST(RandomStream, UniformFillsTheUnitInterval) {
  RandomStream rng(3, 0);
  const int n = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const double u = rng.uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  // Five standard errors: sqrt(1/12/n) and sqrt(4/45/n).
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / n));
}

TEST(RandomStream, BelowIsUniform) {
  RandomStream rng(4, 0);
  const uint64_t bound = 7;
  const int n = 70000;
  std::vector<int> counts(bound);
  for (int i = 0; i < n; ++i) {
    const uint64_t x = rng.below(bound);
    ASSERT_LT(x, bound);
    ++counts[x];
  }
  double chi2 = 0;
  for (int c : counts) chi2 += (c - n / 7.0) * (c - n / 7.0) / (n / 7.0);
  EXPECT_LT(chi2, 22.5);  // 6 degrees of freedom: exceeded with probability 0.001
  EXPECT_EQ(rng.below(1), 0u);
  EXPECT_THROW(rng.below(0), Error);
}

// A bound just above 2^63 rejects almost half of all words; a plain modulo would hit the lower part
// of the range twice as often as the upper.
TEST(RandomStream, BelowHasNoModuloBias) {
  RandomStream rng(5, 0);
  const uint64_t bound = (uint64_t{1} << 63) + (uint64_t{1} << 62);
  const int n = 30000;
  int low = 0;
  for (int i = 0; i < n; ++i) low += rng.below(bound) < (uint64_t{1} << 62);
  EXPECT_NEAR(low, n / 3.0, 5 * std::sqrt(n * 2.0 / 9));
}

TEST(RandomStream, NormalHasTheMomentsOfANormal) {
  RandomStream rng(6, 0);
  const int n = 200000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
  int beyond2 = 0;
  for (int i = 0; i < n; ++i) {
    const double x = rng.normal();
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
    beyond2 += std::abs(x) > 2;
  }
  // Five standard errors; Var(x^2) = 2, Var(x^3) = 15, Var(x^4) = 96.
  EXPECT_NEAR(m1 / n, 0, 5 * std::sqrt(1.0 / n));
  EXPECT_NEAR(m2 / n, 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(m3 / n, 0, 5 * std::sqrt(15.0 / n));
  EXPECT_NEAR(m4 / n, 3, 5 * std::sqrt(96.0 / n));
  EXPECT_NEAR(static_cast<double>(beyond2) / n, 0.0455, 5 * std::sqrt(0.0455 / n));
}

TEST(PortableLog, IsWithinTheStatedError) {
  RandomStream rng(7, 0);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double scale = std::ldexp(1.0, static_cast<int>(rng.below(600)) - 300);
    const double x = i % 2 == 0 ? 1 - rng.uniform() : (0.5 + rng.uniform()) * scale;
    const long double truth = std::log(static_cast<long double>(x));
    if (truth == 0) continue;
    worst = std::max(worst, static_cast<double>(std::abs((portable_log(x) - truth) / truth)));
  }
  EXPECT_LE(worst, 4e-16);
  EXPECT_GT(worst, 0);
  EXPECT_EQ(portable_log(1), 0);
  EXPECT_NEAR(portable_log(std::numeric_limits<double>::min()), -708.3964185322641, 1e-12);
}

// Pinned bits: these values may not change with platform, compiler or release.
TEST(RandomStream, NormalBitsArePinned) {
  RandomStream rng(42, 1);
  const double expected[] = {-0x1.6dd6cafba275fp+0, -0x1.326444e83b4bbp-2, -0x1.6b6eb425d42a4p-2,
                             -0x1.10d663b4d04bbp-2, -0x1.57a9c8103fcfbp+0, 0x1.0924698250d72p+0};
  for (double value : expected) EXPECT_EQ(rng.normal(), value);
}

}  // namespace
}  // namespace favor
