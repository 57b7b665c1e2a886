// SPDX-License-Identifier: Apache-2.0
// Numbers that are not finite: where they may take part they are seen in the result, where they may
// not they reach nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::Problem;
using test::ProjectionUse;
using test::Results;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<Case> all_kinds() {
  std::vector<Case> cases;
  for (const bool causal : {false, true}) {
    const auto add = [&](FeatureMapKind map, ProjectionUse projection, bool structured) {
      Case c;
      c.causal = causal;
      c.feature_map = map;
      c.projection = projection;
      c.structured = structured;
      c.H = 1;
      c.L = c.S = 90;
      c.D = 17;
      c.E = 9;
      c.M = num_state_features(map, 2) == 2 ? 37 : 38;
      cases.push_back(c);
    };
    for (const auto map : test::kPositiveMaps) add(map, ProjectionUse::kShared, false);
    for (const auto map : test::kSignedMaps) add(map, ProjectionUse::kShared, false);
    add(FeatureMapKind::kRelu, ProjectionUse::kNone, false);
    add(FeatureMapKind::kPositive, ProjectionUse::kShared, true);
    // Products of bfloat16 numbers, where the CPU has them.
    add(FeatureMapKind::kPositive, ProjectionUse::kShared, false);
    cases.back().element = ElementType::kBfloat16;
    cases.back().M = 64;
  }
  return cases;
}

// A map that is fitted to the call's tokens would see the one that is not a number.
Problem make_given_problem(const Case& c) {
  Problem p = test::make_problem(c);
  if (is_fitted(c.feature_map)) test::give_map_parameters(p);
  return p;
}

bool all_nan(const float* values, int64_t n) {
  return std::all_of(values, values + n, [](float x) { return std::isnan(x); });
}

TEST(NotANumber, InAQueryIsSeenInItsRowAndInNoOther) {
  for (const Case& c : all_kinds()) {
    Problem p = make_given_problem(c);
    p.q[70 * c.D + 3] = kNan;
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(c.name() + " " + isa);
      const Results<float> r = test::run_kernel(p, test::Passes::kForward);
      for (int64_t i = 0; i < c.L; ++i) {
        const float* row = r.out.data() + i * c.E;
        if (i == 70) {
          EXPECT_TRUE(all_nan(row, c.E));
        } else {
          EXPECT_TRUE(std::all_of(row, row + c.E, [](float x) { return std::isfinite(x); })) << i;
        }
      }
    });
  }
}

TEST(NotANumber, InAKeyIsSeenInEveryRowThatSeesTheKey) {
  for (const Case& c : all_kinds()) {
    Problem p = make_given_problem(c);
    p.k[70 * c.D + 3] = kNan;
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(c.name() + " " + isa);
      const Results<float> r = test::run_kernel(p);
      for (int64_t i = 70; i < c.L; ++i) EXPECT_TRUE(all_nan(r.out.data() + i * c.E, c.E)) << i;
      EXPECT_FALSE(test::all_finite(r.dq));
      EXPECT_FALSE(test::all_finite(r.dk));
    });
  }
}

TEST(NotANumber, InAQueryWithoutKeysGivesZeros) {
  for (Case c : all_kinds()) {
    c.mask = test::MaskKind::kItem;
    Problem p = test::make_problem(c);
    std::fill(p.q.begin(), p.q.end(), kNan);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(c.name() + " " + isa);
      const Results<float> r = test::run_kernel(p);
      for (const auto* x : {&r.out, &r.dq, &r.dk, &r.dv}) {
        EXPECT_TRUE(std::all_of(x->begin(), x->end(), [](float v) { return v == 0; }));
      }
    });
  }
}

TEST(NotANumber, InAStepIsSeenInItsOutput) {
  for (const auto map : {FeatureMapKind::kPositive, FeatureMapKind::kRelu}) {
    const int64_t D = 5, E = 3, M = 7;
    const std::vector<float> w = test::random_normal(1, 1, M * D);
    AttentionParams<float> params;
    params.feature_map = map;
    params.projection = w.data();
    params.num_features = M;
    for (const bool in_key : {false, true}) {
      std::vector<float> q = test::random_normal(1, 2, D), k = test::random_normal(1, 3, D),
                         v = test::random_normal(1, 4, E), out(E);
      const auto view = [](std::vector<float>& x) {
        return contiguous_view(x.data(), 1, 1, 1, static_cast<int64_t>(x.size()));
      };
      test::for_each_isa([&](const char* isa) {
        SCOPED_TRACE(isa);
        DecodeState state(1, 1, M, E);
        decode_step(params, view(q), view(k), view(v), state, view(out));
        EXPECT_TRUE(test::all_finite(out));
        std::vector<float> bad = in_key ? k : q;
        bad[2] = kNan;
        decode_step(params, view(in_key ? q : bad), view(in_key ? bad : k), view(v), state,
                    view(out));
        EXPECT_TRUE(all_nan(out.data(), E));
      });
    }
  }
}

// A feature of a small positive logit rounds to eps; its gradient must not be lost with it.
TEST(Relu, KeepsGradientsOfLogitsFarBelowEps) {
  for (const bool causal : {false, true}) {
    Case c;
    c.causal = causal;
    c.feature_map = FeatureMapKind::kRelu;
    c.feature_eps = 5;
    c.norm = 1e-8;
    c.D = c.M = 16;
    const Problem p = test::make_problem(c);
    const test::Judge judge(p);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      EXPECT_EQ(judge.verdict(test::run_kernel(p)), "");
    });
  }
}

TEST(Relu, StaysFiniteWhereDenominatorsAreDenormal) {
  Case c;
  c.feature_map = FeatureMapKind::kRelu;
  c.feature_eps = 0;
  c.norm = 1e-21;
  const Problem p = test::make_problem(c);
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    EXPECT_TRUE(test::all_finite(test::run_kernel(p, test::Passes::kForward).out));
  });
}

}  // namespace
}  // namespace favor
