// SPDX-License-Identifier: Apache-2.0
// Inputs at the edges: nothing to attend to, no tokens at all, very long and very small.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "favor/parallel.h"
#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::Judge;
using test::MaskKind;
using test::Passes;
using test::Problem;
using test::ProjectionUse;
using test::Results;

std::vector<FeatureMapKind> all_maps() {
  std::vector<FeatureMapKind> maps(std::begin(test::kPositiveMaps), std::end(test::kPositiveMaps));
  maps.insert(maps.end(), std::begin(test::kSignedMaps), std::end(test::kSignedMaps));
  return maps;
}

TEST(Extremes, ARowWithNothingToAttendToIsZero) {
  const auto expect_zeros = [](const Case& c) {
    SCOPED_TRACE(c.name());
    const Problem p = test::make_problem(c);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      const Results<float> r = test::run_kernel(p);
      for (const std::vector<float>* x : {&r.out, &r.dq, &r.dk, &r.dv}) {
        const auto middle = x->begin() + static_cast<int64_t>(x->size()) / 2;
        EXPECT_TRUE(std::all_of(x->begin(), middle, [](float value) { return value == 0; }));
        EXPECT_FALSE(std::all_of(middle, x->end(), [](float value) { return value == 0; }));
      }
    });
  };
  for (const bool causal : {false, true}) {
    Case c;
    c.causal = causal;
    c.B = 2;
    c.L = c.S = 5;
    c.mask = MaskKind::kItem;
    for (const auto map : all_maps()) {
      c.feature_map = map;
      expect_zeros(c);
    }
    c.feature_map = FeatureMapKind::kPositive;
    c.element = ElementType::kBfloat16;
    c.M = 64;
    expect_zeros(c);
  }
}

TEST(Extremes, CausalRowsBeforeTheFirstKeyAreZero) {
  Case c;
  c.causal = true;
  c.H = 1;
  c.L = c.S = 70;
  c.D = c.E = 3;
  Problem p = test::make_problem(c);
  p.mask.assign(c.S, 0);
  for (int64_t t = 0; t < 66; ++t) {
    p.mask[t] = 1;
    std::fill_n(p.k.begin() + t * c.D, c.D, 1e30f);
    std::fill_n(p.v.begin() + t * c.E, c.E, std::nanf(""));
  }
  const Judge judge(p);
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    const Results<float> r = test::run_kernel(p);
    EXPECT_EQ(judge.verdict(r), "");
    for (int64_t i = 0; i < 66 * c.E; ++i) ASSERT_EQ(r.out[i], 0);
    for (int64_t e = 0; e < c.E; ++e) EXPECT_NEAR(r.out[66 * c.E + e], p.v[66 * c.E + e], 1e-6);
  });
}

TEST(Extremes, ReluWithoutActiveFeaturesIsZero) {
  for (const bool causal : {false, true}) {
    Case c;
    c.causal = causal;
    c.feature_map = FeatureMapKind::kRelu;
    c.projection = ProjectionUse::kNone;
    c.feature_eps = 0;
    c.L = c.S = 9;
    Problem p = test::make_problem(c);
    for (float& value : p.q) value = -std::abs(value);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      const Results<float> r = test::run_kernel(p);
      for (const std::vector<float>* x : {&r.out, &r.dq, &r.dk, &r.dv}) {
        EXPECT_TRUE(std::all_of(x->begin(), x->end(), [](float value) { return value == 0; }));
      }
    });
  }
}

TEST(Extremes, QueriesMayMatchAnyFeatures) {
  // Exponents of tens on the last features, below 1 on the first, and the other way round.
  for (const bool causal : {false, true}) {
    for (const bool last : {false, true}) {
      Case c;
      c.causal = causal;
      c.H = 1;
      c.L = c.S = 70;
      c.D = 8;
      c.M = 150;
      SCOPED_TRACE(c.name());
      Problem p = test::make_problem(c);
      for (int64_t f = 0; f < c.M; ++f) {
        p.projection[f * c.D] = (f >= 70) == last ? 11.0f : 0.01f;
      }
      for (int64_t t = 0; t < c.L; t += 3) p.q[t * c.D] = 10.0f;
      const Judge judge(p);
      test::for_each_isa([&](const char* isa) {
        SCOPED_TRACE(isa);
        EXPECT_EQ(judge.verdict(test::run_kernel(p)), "");
      });
    }
  }
}

TEST(Extremes, LengthsOfZeroAreLegal) {
  struct Sizes {
    int64_t B, H, L, S;
  };
  for (const bool causal : {false, true}) {
    for (const auto map : all_maps()) {
      for (const Sizes s : {Sizes{0, 2, 4, 4}, Sizes{1, 0, 4, 4}, Sizes{2, 2, 0, 4},
                            Sizes{2, 2, 4, 0}, Sizes{1, 1, 0, 0}}) {
        if (causal && is_fitted(map) && s.H == 0) continue;  // no head to have parameters
        Case c;
        c.causal = causal;
        c.feature_map = map;
        c.B = s.B;
        c.H = s.H;
        c.L = s.L;
        c.S = s.S;
        SCOPED_TRACE(c.name());
        const Problem p = test::make_problem(c);
        test::for_each_isa([&](const char* isa) {
          SCOPED_TRACE(isa);
          const Results<float> r = test::run_kernel(p);
          EXPECT_EQ(r.out.size(), static_cast<size_t>(s.B * s.H * s.L * c.E));
          for (const std::vector<float>* x : {&r.out, &r.dq, &r.dk, &r.dv}) {
            EXPECT_TRUE(std::all_of(x->begin(), x->end(), [](float value) { return value == 0; }));
          }
          EXPECT_TRUE(r.guards_intact);
        });
      }
    }
  }
}

TEST(Extremes, EqualKeysAverageTheValues) {
  // Zeros of either sign, the smallest denormals, and one common key.
  for (const float value : {0.0f, -0.0f, std::numeric_limits<float>::denorm_min(), 3.0f}) {
    for (const bool causal : {false, true}) {
      Case c;
      c.causal = causal;
      c.H = 1;
      c.L = c.S = 67;
      Problem p = test::make_problem(c);
      std::fill(p.k.begin(), p.k.end(), value);
      test::for_each_isa([&](const char* isa) {
        SCOPED_TRACE(isa);
        const Results<float> r = test::run_kernel(p);
        std::vector<double> sum(c.E);
        for (int64_t t = 0; t < c.L; ++t) {
          for (int64_t e = 0; e < c.E; ++e) sum[e] += p.v[t * c.E + e];
          if (!causal && t + 1 < c.L) continue;
          for (int64_t e = 0; e < c.E; ++e) {
            // A mean of 67 values of size 1, summed in float.
            ASSERT_NEAR(r.out[t * c.E + e], sum[e] / static_cast<double>(t + 1), 1e-5);
          }
        }
        EXPECT_TRUE(test::all_finite(r.dq) && test::all_finite(r.dk) && test::all_finite(r.dv));
      });
    }
  }
}

TEST(Extremes, NormsUpToAThousandStayFinite) {
  for (const bool causal : {false, true}) {
    for (const double norm : {100.0, 300.0, 1000.0}) {
      const auto check = [&](FeatureMapKind map, bool structured) {
        Case c;
        c.causal = causal;
        c.feature_map = map;
        c.structured = structured;
        c.norm = norm;
        c.L = c.S = 100;
        c.D = c.E = 64;
        c.M = 256;
        c.H = 1;
        SCOPED_TRACE(c.name());
        const Problem p = test::make_problem(c);
        test::for_each_isa([&](const char* isa) {
          SCOPED_TRACE(isa);
          const Results<float> r = test::run_kernel(p);
          EXPECT_TRUE(test::all_finite(r.out));
          EXPECT_TRUE(test::all_finite(r.dq));
          EXPECT_TRUE(test::all_finite(r.dk));
          EXPECT_TRUE(test::all_finite(r.dv));
        });
      };
      for (const auto map : {FeatureMapKind::kPositive, FeatureMapKind::kHyperbolic,
                             FeatureMapKind::kOptimalPositive, FeatureMapKind::kFavorSharpDiagonal,
                             FeatureMapKind::kFavorSharp, FeatureMapKind::kExp}) {
        check(map, false);
      }
      check(FeatureMapKind::kPositive, true);
    }
  }
}

// All keys equal, values 1 in the first half and 0 after: a float sum over tokens that loses small
// terms would drift from the exact average.
Problem constant_problem(bool causal, int64_t length) {
  Case c;
  c.causal = causal;
  c.H = 1;
  c.L = c.S = length;
  c.D = 8;
  c.E = 1;
  c.M = 16;
  Problem p = test::make_problem(c);
  for (int64_t t = 0; t < length; ++t) {
    std::copy_n(p.k.begin(), c.D, p.k.begin() + t * c.D);
    p.v[t] = t < length / 2 ? 1 : 0;
  }
  return p;
}

void expect_exact_average(const Problem& p, bool causal, int64_t length) {
  const Results<float> r = test::run_kernel(p, Passes::kForward);
  for (int64_t t = 0; t < length; ++t) {
    const double expected =
        causal ? static_cast<double>(std::min(t + 1, length / 2)) / static_cast<double>(t + 1)
               : 0.5;
    ASSERT_NEAR(r.out[t], expected, 1e-3) << "row " << t;
  }
}

TEST(Extremes, LongConstantSequencesKeepTheirAverage) {
  constexpr int64_t kLength = 65536;
  for (const bool causal : {false, true}) {
    const Problem p = constant_problem(causal, kLength);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      for (const int threads : {1, 2}) {
        set_num_threads(threads);
        expect_exact_average(p, causal, kLength);
      }
      set_num_threads(1);
    });
  }
}

// At large norms exp(w.x - |x|^2/2) is 0 and eps is all of every feature: outputs are sums of M
// equal terms, whose rounding depends on the values alone. With this seed that of the naive code is
// far below what both codes leave on average.
TEST(Extremes, WhereEpsilonIsAllOfEveryFeatureKeysCountByTheirWeights) {
  Case c;
  c.H = 1;
  c.L = c.S = 2;
  c.D = 80;
  c.E = 2;
  c.M = 100;
  c.norm = 30;
  c.layout = test::Layout::kMisaligned;
  c.weights = test::WeightKind::kShared;
  c.feature_eps = 0.2;
  c.seed = 6002;
  const Problem p = test::make_problem(c);
  const Judge judge(p);
  const double first = std::exp(p.key_log_weight[0]), second = std::exp(p.key_log_weight[1]);
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    const Results<float> results = test::run_kernel(p);
    EXPECT_EQ(judge.verdict(results), "");
    for (int64_t i = 0; i < c.L * c.E; ++i) {
      const double sum = first * p.v[i % c.E] + second * p.v[c.E + i % c.E];
      EXPECT_NEAR(results.out[i], sum / (first + second), 1e-5);
    }
  });
}

// Longer, and not a multiple of any block; on the instruction set in use alone, for time.
TEST(Extremes, TwoHundredThousandConstantTokensKeepTheirAverage) {
  constexpr int64_t kLength = 200'001;
  for (const bool causal : {false, true}) {
    SCOPED_TRACE(causal ? "causal" : "bidirectional");
    expect_exact_average(constant_problem(causal, kLength), causal, kLength);
  }
}

}  // namespace
}  // namespace favor
