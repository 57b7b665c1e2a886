// SPDX-License-Identifier: Apache-2.0
// Attention on bfloat16 and float16: what conversion, range and long sums must keep. Parity with
// the reference stands in attention_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "favor/expect_parity.h"
#include "favor/random_case.h"
#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::Passes;
using test::Problem;
using test::Results;

constexpr ElementType kHalves[] = {ElementType::kBfloat16, ElementType::kFloat16};

template <class T>
std::vector<float> finite_values() {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    T value;
    value.bits = static_cast<uint16_t>(bits);
    const float x = static_cast<float>(value);
    // Kernels may take a denormal float for 0.
    if (std::isfinite(x) && (x == 0 || std::isnormal(x))) values.push_back(x);
  }
  return values;
}

// Four equal keys: the output is the mean of their values, which float holds exactly, so the result
// is that of one rounding. `shares[i]` counts the keys whose value is that i places further on.
template <class T>
void expect_mean_of_neighbours(ElementType element, int first_count) {
  const std::vector<float> values = finite_values<T>();
  Case c;
  c.element = element;
  c.D = c.M = 1;
  c.E = 97;
  c.H = static_cast<int64_t>(values.size()) / c.E;
  c.L = 1;
  c.S = 4;
  Problem p = test::make_problem(c);
  std::fill(p.q.begin(), p.q.end(), 1.0f);
  std::fill(p.k.begin(), p.k.end(), 1.0f);
  std::vector<float> expected;
  for (int64_t h = 0; h < c.H; ++h) {
    for (int64_t j = 0; j < 4; ++j) {
      for (int64_t e = 0; e < c.E; ++e) {
        const int64_t i = h * c.E + e + (j < first_count ? 0 : 1);
        p.v[(h * 4 + j) * c.E + e] = values[std::min<size_t>(i, values.size() - 1)];
      }
    }
    for (int64_t e = 0; e < c.E; ++e) {
      double mean = 0;
      for (int64_t j = 0; j < 4; ++j) mean += p.v[(h * 4 + j) * c.E + e] / 4.0;
      expected.push_back(static_cast<float>(T(static_cast<float>(mean))));
    }
  }
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    const std::vector<float> out = test::run_kernel(p, Passes::kForward).out;
    for (size_t i = 0; i < expected.size(); ++i) {
      // The sum of four may overflow, or its quarter be denormal, where the mean does not.
      if (std::abs(expected[i]) > 0x1p125f || std::abs(expected[i]) < 0x1p-120f) continue;
      ASSERT_EQ(out[i], expected[i]) << "element " << i;
    }
  });
}

TEST(HalfAttention, EveryValuePassesUnchanged) {
  expect_mean_of_neighbours<bfloat16>(ElementType::kBfloat16, 4);
  expect_mean_of_neighbours<float16>(ElementType::kFloat16, 4);
}

// Between neighbours: in the middle, where the even one wins, and a quarter to either side.
TEST(HalfAttention, ResultsAreRoundedToTheNearest) {
  for (const int first_count : {1, 2, 3}) {
    expect_mean_of_neighbours<bfloat16>(ElementType::kBfloat16, first_count);
    expect_mean_of_neighbours<float16>(ElementType::kFloat16, first_count);
  }
}

TEST(HalfAttention, OutputsStayInTheHullOfTheValues) {
  for (const ElementType element : kHalves) {
    for (const bool causal : {false, true}) {
      for (const double norm : {0.1, 1.0, 8.0, 1000.0}) {
        Case c;
        c.element = element;
        c.causal = causal;
        c.norm = norm;
        c.L = c.S = 130;
        c.D = c.E = 16;
        c.M = 40;
        SCOPED_TRACE(c.name());
        const Problem p = test::make_problem(c);
        test::for_each_isa([&](const char* isa) {
          SCOPED_TRACE(isa);
          const std::vector<float> out = test::run_kernel(p, Passes::kForward).out;
          for (int64_t h = 0; h < c.H; ++h) {
            for (int64_t e = 0; e < c.E; ++e) {
              float low = std::numeric_limits<float>::infinity(), high = -low;
              for (int64_t t = 0; t < c.L; ++t) {
                const int64_t at = (h * c.L + t) * c.E + e;
                for (int64_t j = causal ? t : 0; j <= (causal ? t : c.S - 1); ++j) {
                  const float value = p.v[(h * c.S + j) * c.E + e];
                  low = std::min(low, value);
                  high = std::max(high, value);
                }
                ASSERT_GE(out[at], low) << "row " << t;
                ASSERT_LE(out[at], high) << "row " << t;
              }
            }
          }
        });
      }
    }
  }
}

TEST(HalfAttention, TheLargestValuesDoNotOverflow) {
  for (const bool causal : {false, true}) {
    Case c;
    c.element = ElementType::kFloat16;
    c.causal = causal;
    c.L = c.S = 70;
    c.norm = 12000;
    Problem p = test::make_problem(c);
    for (float& x : p.q) x = std::clamp(x, -65504.0f, 65504.0f);
    for (float& x : p.k) x = std::clamp(x, -65504.0f, 65504.0f);
    std::fill(p.v.begin(), p.v.end(), 65504.0f);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      const std::vector<float> out = test::run_kernel(p, Passes::kForward).out;
      EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float x) { return x == 65504; }));
    });
  }
}

// 70 queries share one key: its gradient is the sum of theirs, 70 * 60000.
TEST(HalfAttention, GradientsBeyondTheRangeAreInfinite) {
  for (const bool causal : {false, true}) {
    Case c;
    c.element = ElementType::kFloat16;
    c.causal = causal;
    c.L = c.S = 70;
    Problem p = test::make_problem(c);
    p.mask.assign(c.S, 1);
    p.mask[0] = 0;
    std::fill(p.dout.begin(), p.dout.end(), 60000.0f);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      const Results<float> r = test::run_kernel(p);
      for (int64_t e = 0; e < c.E; ++e) {
        EXPECT_EQ(r.dv[e], std::numeric_limits<float>::infinity());
      }
      const auto is_nan = [](float x) { return std::isnan(x); };
      EXPECT_FALSE(std::any_of(r.dq.begin(), r.dq.end(), is_nan));
      EXPECT_FALSE(std::any_of(r.dk.begin(), r.dk.end(), is_nan));
    });
  }
}

// All keys equal, values 1 in the first half and 0 after. A 16-bit sum would stop growing.
void expect_average(ElementType element, bool causal, int64_t length, double tolerance) {
  Case c;
  c.element = element;
  c.causal = causal;
  c.H = c.E = 1;
  c.L = c.S = length;
  c.M = 16;
  Problem p = test::make_problem(c);
  for (int64_t t = 0; t < length; ++t) {
    std::copy_n(p.k.begin(), c.D, p.k.begin() + t * c.D);
    p.v[t] = t < length / 2 ? 1 : 0;
  }
  const std::vector<float> out = test::run_kernel(p, Passes::kForward).out;
  for (int64_t t = 0; t < length; ++t) {
    const double seen = causal ? static_cast<double>(t + 1) : static_cast<double>(length);
    const double expected = std::min(seen, static_cast<double>(length / 2)) / seen;
    ASSERT_NEAR(out[t], expected, tolerance) << "row " << t;
  }
}

// On the instruction set in use alone, for time.
TEST(HalfAttention, LongSumsDoNotStall) {
  for (const bool causal : {false, true}) {
    for (const int64_t length : {65'536, 1'000'000}) {
      // The spacing of bfloat16 numbers below 1.
      expect_average(ElementType::kBfloat16, causal, length, 0x1p-8);
      expect_average(ElementType::kFloat16, causal, length, 1e-3);
    }
  }
}

// The CPU's own products of bfloat16 numbers serve the positive map where there are any, the
// backward pass where features fill whole vectors; the grid of attention_test.cpp meets it rarely.
TEST(HalfAttention, ProductsOfBfloat16MatchTheReference) {
  for (uint64_t index = 0; index < 120; ++index) {
    for (const bool causal : {false, true}) {
      RandomStream rng(1000 + index, causal);
      Case c = test::random_case(rng, causal);
      if (c.L * c.M * c.D * c.E > 4'000'000 && index % 16 != 0) continue;
      c.seed = index;
      c.element = ElementType::kBfloat16;
      c.feature_map = FeatureMapKind::kPositive;
      c.feature_eps.reset();
      c.compatibility = Compatibility::kNone;
      c.renormalize = true;
      if (index % 2 == 1) c.M = (c.M + 31) / 32 * 32;
      if (c.projection == test::ProjectionUse::kNone) c.projection = test::ProjectionUse::kShared;
      test::expect_parity(c);
    }
  }
}

// Several blocks of keys, whose states merge, and rows that no chunk divides.
TEST(HalfAttention, ProductsOfBfloat16MatchTheReferenceAtLength) {
  for (const bool causal : {false, true}) {
    for (const int64_t M : {37, 64}) {
      Case c;
      c.element = ElementType::kBfloat16;
      c.causal = causal;
      c.L = c.S = 3100;
      c.D = 20;
      c.E = 40;
      c.M = M;
      c.mask = test::MaskKind::kRandom;
      test::expect_parity(c);
      c.H = 4;
      c.group = 2;
      c.cu_seqlens_q = {0, 3, 3, 1500, 3100};
      c.cu_seqlens_k = {0, 0, 1000, 3090, 3100};
      c.layout = test::Layout::kTransposed;
      test::expect_parity(c);
    }
  }
}

// Storing a gradient as bfloat16 alone costs 0.17 % of it.
TEST(HalfAttention, GradientsByProductsOfBfloat16AreNearTheTruth) {
  for (const double norm : {0.1, 0.5, 1.0, 2.0}) {
    Case c;
    c.element = ElementType::kBfloat16;
    c.H = 1;
    c.L = c.S = 300;
    c.D = 40;
    c.E = 33;
    c.M = 128;
    c.norm = norm;
    const Problem p = test::make_problem(c);
    const auto truth = test::run_reference<double>(p);
    const auto relative = [](const std::vector<float>& x, const std::vector<double>& exact) {
      const std::vector<float> zeros(x.size());
      return test::error_size(x, exact, false).rms / test::error_size(zeros, exact, false).rms;
    };
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(message("norm ", norm, " ", isa));
      const auto r = test::run_kernel(p);
      EXPECT_LT(relative(r.out, truth.out), 0.005);
      EXPECT_LT(relative(r.dq, truth.dq), 0.01);
      EXPECT_LT(relative(r.dk, truth.dk), 0.01);
      EXPECT_LT(relative(r.dv, truth.dv), 0.005);
    });
  }
}

// Steps on 16-bit tokens give the rows of the whole causal pass, both from float states.
template <class T>
void expect_steps_equal_rows(ElementType element) {
  Case c;
  c.element = element;
  c.causal = true;
  c.L = c.S = 20;
  c.E = 17;
  c.mask = test::MaskKind::kLeft;
  const Problem p = test::make_problem(c);
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    const std::vector<float> whole = test::run_kernel(p, Passes::kForward).out;
    DecodeState state(c.B, c.H, c.M, c.E);
    for (int64_t t = 0; t < c.L; ++t) {
      const auto token = [&](const std::vector<float>& x, int64_t width) {
        test::Buffer<T> buffer({c.B, c.H, 1, width}, test::Layout::kMisaligned);
        std::vector<float> values;
        for (int64_t h = 0; h < c.H; ++h) {
          values.insert(values.end(), x.begin() + (h * c.L + t) * width,
                        x.begin() + (h * c.L + t + 1) * width);
        }
        buffer.set(values);
        return buffer;
      };
      AttentionParams<float> params = test::make_params(p, p.projection);
      const uint8_t masked = p.mask[static_cast<size_t>(t)];
      params.key_padding_mask = &masked;
      const auto q = token(p.q, c.D), k = token(p.k, c.D), v = token(p.v, c.E);
      test::Buffer<T> out({c.B, c.H, 1, c.E}, test::Layout::kMisaligned);
      decode_step(params, q.view(), k.view(), v.view(), state, out.view());
      EXPECT_TRUE(out.guards_intact());
      const std::vector<float> row = out.get();
      for (int64_t h = 0; h < c.H; ++h) {
        for (int64_t e = 0; e < c.E; ++e) {
          const float expected = whole[(h * c.L + t) * c.E + e];
          // Float results that differ in their last digits may round to neighbours.
          ASSERT_NEAR(row[h * c.E + e], expected,
                      2 * test::rounding_unit(element) * std::abs(expected) + 1e-6);
        }
      }
    }
  });
}

TEST(HalfAttention, DecodeStepsEqualCausalRows) {
  expect_steps_equal_rows<bfloat16>(ElementType::kBfloat16);
  expect_steps_equal_rows<float16>(ElementType::kFloat16);
}

}  // namespace
}  // namespace favor
