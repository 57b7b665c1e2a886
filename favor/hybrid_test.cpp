// SPDX-License-Identifier: Apache-2.0
// Hybrid attention: exact within a window and at sinks, features beyond, one normaliser.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "favor/expect_gradients.h"
#include "favor/expect_parity.h"
#include "favor/random_case.h"
#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::Problem;
using test::Results;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Case hybrid_case(bool causal, int64_t window, int64_t sinks) {
  Case c;
  c.causal = causal;
  c.window = window;
  c.sinks = sinks;
  return c;
}

Case random_hybrid_case(uint64_t index, bool causal) {
  RandomStream rng(index, 20 + causal);
  Case c = test::random_case(rng, causal);
  c.feature_map = FeatureMapKind::kPositive;
  c.feature_eps = {};
  c.compatibility = Compatibility::kNone;
  c.renormalize = true;
  if (c.projection == test::ProjectionUse::kNone) c.projection = test::ProjectionUse::kShared;
  c.seed = index;
  constexpr int64_t kWindows[] = {1, 3, 7, 16, 30, 64, 100, 1000};
  constexpr int64_t kSinks[] = {0, 0, 1, 4, 20, 200};
  c.window = test::pick(rng, kWindows);
  c.sinks = test::pick(rng, kSinks);
  // Rounding at the end hides most errors of a kernel, so float is the rule.
  constexpr ElementType kHalves[] = {ElementType::kBfloat16, ElementType::kFloat16};
  if (rng.below(4) == 0) c.element = test::pick(rng, kHalves);
  return c;
}

TEST(Hybrid, MatchesTheReferenceOnTheGrid) {
  int far = 0;
  for (uint64_t index = 0; index < 100; ++index) {
    for (const bool causal : {false, true}) {
      const Case c = random_hybrid_case(index, causal);
      if (c.L * c.M * c.D * c.E > 4'000'000 && index % 8 != 0) continue;
      far += std::min(c.L, c.S) > 2 * c.window;
      test::expect_parity(c);
    }
  }
  EXPECT_GE(far, 50) << "too few cases have far keys";
}

TEST(Hybrid, MatchesTheReferenceAtLength) {
  for (const bool causal : {false, true}) {
    Case c = hybrid_case(causal, 64, 4);
    c.H = 1;
    c.L = c.S = 300;
    c.D = c.E = 16;
    c.M = 40;
    test::expect_parity(c);
    c.B = 2;
    c.H = 8;
    c.group = 2;
    c.L = c.S = 150;
    c.D = 17;
    c.E = 9;
    c.M = 37;
    c.window = 33;
    c.mask = test::MaskKind::kRandom;
    c.weights = test::WeightKind::kPerHead;
    test::expect_parity(c);
  }
}

// What the reference says of any map that has a window.
TEST(Hybrid, OtherMapsRunOnThePlainCode) {
  for (const auto map : {FeatureMapKind::kHyperbolic, FeatureMapKind::kOptimalPositive,
                         FeatureMapKind::kFavorSharpDiagonal, FeatureMapKind::kFavorSharp}) {
    for (const bool causal : {false, true}) {
      Case c = hybrid_case(causal, 8, 2);
      c.feature_map = map;
      test::expect_parity(c);
    }
  }
}

std::vector<float> outputs(const Problem& p) {
  return test::run_kernel(p, test::Passes::kForward).out;
}

void expect_close(const std::vector<float>& a, const std::vector<float>& b, float bound) {
  ASSERT_EQ(a.size(), b.size());
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  EXPECT_LE(largest, bound);
}

TEST(Hybrid, AWindowAsLongAsTheSequenceIsExactAttention) {
  for (const bool causal : {false, true}) {
    Case c = hybrid_case(causal, 90, 3);
    c.L = c.S = 90;
    const Problem hybrid = test::make_problem(c);
    Problem exact = hybrid;
    exact.spec.exact = true;
    exact.spec.window = exact.spec.sinks = 0;
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(c.name() + " " + isa);
      const Results<float> a = test::run_kernel(hybrid);
      const Results<float> b = test::run_kernel(exact);
      expect_close(a.out, b.out, 1e-5f);
      expect_close(a.dq, b.dq, 1e-5f);
      expect_close(a.dk, b.dk, 1e-5f);
      expect_close(a.dv, b.dv, 1e-5f);
    });
  }
}

// With a window of one token, queries from the third on meet far keys; where the near keys and the
// sinks are masked, nothing but features is left.
TEST(Hybrid, WithoutNearKeysItIsFeaturesAlone) {
  Case c = hybrid_case(false, 30, 0);
  c.B = 1;
  c.H = 1;
  c.L = 30;
  c.S = 200;
  Problem hybrid = test::make_problem(c);
  hybrid.mask.assign(c.S, 0);
  std::fill_n(hybrid.mask.begin(), 60, uint8_t{1});
  Problem pure = hybrid;
  pure.spec.window = 0;
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    const Results<float> a = test::run_kernel(hybrid);
    const Results<float> b = test::run_kernel(pure);
    expect_close(a.out, b.out, 1e-5f);
    expect_close(a.dq, b.dq, 1e-5f);
    expect_close(a.dk, b.dk, 1e-5f);
    expect_close(a.dv, b.dv, 1e-5f);
  });
}

TEST(Hybrid, OutputsStayInTheHullOfTheValuesAtAnyNorm) {
  for (const double norm : {0.1, 1.0, 30.0, 1000.0}) {
    for (const bool causal : {false, true}) {
      Case c = hybrid_case(causal, 16, 2);
      c.L = c.S = 150;
      c.norm = norm;
      Problem p = test::make_problem(c);
      for (float& v : p.v) v = std::clamp(v, -1.0f, 1.0f);
      test::for_each_isa([&](const char* isa) {
        SCOPED_TRACE(c.name() + " " + isa);
        const Results<float> r = test::run_kernel(p);
        for (const float x : r.out) EXPECT_LE(std::abs(x), 1 + 1e-5f);
        EXPECT_TRUE(test::all_finite(r.dq) && test::all_finite(r.dk) && test::all_finite(r.dv));
      });
    }
  }
}

TEST(Hybrid, LaterKeysDoNotChangeEarlierOutputs) {
  for (const int64_t window : {1, 7, 20, 64}) {
    Case c = hybrid_case(true, window, 2);
    c.H = 1;
    c.L = c.S = 200;
    const Problem p = test::make_problem(c);
    for (const int64_t changed : {1, 40, 63, 130, 199}) {
      Problem other = p;
      for (int64_t j = changed; j < c.S; ++j) {
        // A key equal to a row of the matrix is the one that raises a stabiliser most.
        for (int64_t d = 0; d < c.D; ++d) other.k[j * c.D + d] = 5 * p.projection[d];
        for (int64_t e = 0; e < c.E; ++e) other.v[j * c.E + e] = 1e30f;
      }
      test::for_each_isa([&](const char* isa) {
        SCOPED_TRACE(c.name() + " " + isa);
        std::vector<float> before = outputs(p), after = outputs(other);
        before.resize(changed * c.E);
        after.resize(changed * c.E);
        EXPECT_TRUE(test::same_bits(before, after)) << "from key " << changed;
      });
    }
  }
}

// A gradient of an output reaches no later key, and one of a far key no stranger's query.
TEST(Hybrid, GradientsReachTheKeysThatTheRowSawOnly) {
  for (const int64_t window : {1, 20}) {
    Case c = hybrid_case(true, window, 1);
    c.H = 1;
    c.L = c.S = 120;
    Problem p = test::make_problem(c);
    const int64_t row = 90;
    for (int64_t i = 0; i < c.L; ++i) {
      if (i != row) std::fill_n(p.dout.begin() + i * c.E, c.E, 0.0f);
    }
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      const Results<float> r = test::run_kernel(p);
      const auto zero = [](const std::vector<float>& x, int64_t begin, int64_t end) {
        return std::all_of(x.begin() + begin, x.begin() + end, [](float y) { return y == 0; });
      };
      EXPECT_TRUE(zero(r.dk, (row + 1) * c.D, c.S * c.D));
      EXPECT_TRUE(zero(r.dv, (row + 1) * c.E, c.S * c.E));
      EXPECT_FALSE(zero(r.dv, 0, c.E));
      EXPECT_FALSE(zero(r.dv, 30 * c.E, 31 * c.E));
      EXPECT_TRUE(zero(r.dq, 0, row * c.D) && zero(r.dq, (row + 1) * c.D, c.L * c.D));
    });
  }
}

TEST(Hybrid, RowsWithoutGradientOrKeysTakeNoPart) {
  for (const bool causal : {false, true}) {
    Case c = hybrid_case(causal, 10, 1);
    c.B = 2;
    c.H = 1;
    c.L = c.S = 90;
    c.mask = test::MaskKind::kItem;
    Problem p = test::make_problem(c);
    const int64_t row = c.L + 70;  // of item 1
    std::fill_n(p.dout.begin() + row * c.E, c.E, 0.0f);
    Problem garbage = p;
    std::fill_n(garbage.q.begin(), c.L * c.D, kNan);
    std::fill_n(garbage.q.begin() + row * c.D, c.D, kNan);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      const Results<float> a = test::run_kernel(p);
      const Results<float> b = test::run_kernel(garbage);
      EXPECT_TRUE(test::same_bits(a.dq, b.dq));
      EXPECT_TRUE(test::same_bits(a.dk, b.dk));
      EXPECT_TRUE(test::same_bits(a.dv, b.dv));
      for (int64_t i = 0; i < c.L * c.E; ++i) EXPECT_EQ(b.out[i], 0.0f);
      EXPECT_TRUE(std::isnan(b.out[row * c.E]));
    });
  }
}

// The gradients of the plain code, by central differences of its output.
TEST(ReferenceHybrid, GradientsAreThoseOfTheOutput) {
  for (const auto map : {FeatureMapKind::kPositive, FeatureMapKind::kHyperbolic}) {
    for (const bool causal : {false, true}) {
      Case c = hybrid_case(causal, 2, 1);
      c.feature_map = map;
      c.group = 2;
      c.L = 9;
      c.S = 8;
      c.D = 3;
      c.E = 2;
      c.M = 4;
      c.norm = 0.7;
      c.weights = test::WeightKind::kPerHead;
      test::expect_gradients_of_output(test::make_problem(c), 2e-5);
    }
  }
}

// Averaged over random matrices the weights of far keys are the exact ones, constants included.
TEST(ReferenceHybrid, FarScoresEstimateTheKernel) {
  for (const auto map : {FeatureMapKind::kPositive, FeatureMapKind::kHyperbolic}) {
    constexpr int kDraws = 400;
    Case c = hybrid_case(false, 4, 0);
    c.feature_map = map;
    c.H = 1;
    c.L = c.S = 40;
    c.D = 4;
    c.M = 64;
    c.norm = 0.5;
    Problem p = test::make_problem(c);
    std::vector<double> mean(c.L);
    for (int draw = 0; draw < kDraws; ++draw) {
      ProjectionSpec matrix;
      matrix.num_features = c.R();
      matrix.head_dim = c.D;
      matrix.seed = 1000 + draw;
      p.projection = draw_projection(matrix);
      const std::vector<double> w(p.projection.begin(), p.projection.end());
      AttentionParams<double> params = test::make_params(p, w);
      std::vector<double> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end());
      const auto read = [&](const std::vector<double>& x) {
        return contiguous_view<const double>(x.data(), 1, 1, c.L, c.D);
      };
      reference::for_each_piece(
          params, read(q), read(k), [&](const reference::Piece<double>& piece) {
            reference::HybridScores<double> scores(params, false, read(k), piece);
            const std::vector<double> row = scores.row(q.data(), 0);
            for (int64_t j = 0; j < c.L; ++j) {
              double exact = 0;
              for (int64_t d = 0; d < c.D; ++d) exact += q[d] * k[j * c.D + d] / 2;
              mean[j] += std::exp(row[j] - exact) / kDraws;
            }
          });
    }
    for (int64_t j = 0; j < c.L; ++j) {
      // Near keys are exact. The others' ratio has a variance below e^(|q + k|^2 / 2) / M per draw:
      // 0.3 here, so that the mean of 400 errs by 0.03.
      EXPECT_NEAR(mean[j], 1, j < 8 ? 1e-12 : 0.12) << j;
    }
  }
}

}  // namespace
}  // namespace favor
