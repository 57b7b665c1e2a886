// SPDX-License-Identifier: Apache-2.0
// The reference itself against definitions that share no code with it: a quadratic evaluation in
// log space for the forward pass, central differences in double for the backward pass.
#include "favor/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "favor/testing.h"
#include "favor/testing_definition.h"

namespace favor {
namespace {

using test::brute_force;
using test::Case;
using test::Head;
using test::inner;
using test::log_sum_exp;
using test::MaskKind;
using test::Problem;
using test::ProjectionUse;
using test::Results;

std::vector<Case> small_cases() {
  std::vector<Case> cases;
  for (const bool causal : {false, true}) {
    for (const double norm : {1.0, 4.0, 8.0}) {
      Case base;
      base.B = 2;
      base.H = 2;
      base.L = base.S = 9;
      base.D = 4;
      base.E = 3;
      base.M = 7;
      base.causal = causal;
      base.norm = norm;
      cases.push_back(base);
      Case c = base;
      c.projection = ProjectionUse::kPerHead;
      c.mask = MaskKind::kRandom;
      c.scale = 0.3;
      cases.push_back(c);
      c = base;
      c.mask = MaskKind::kLeft;
      c.S = 6;
      cases.push_back(c);
      c = base;
      c.mask = MaskKind::kItem;
      c.L = 5;
      cases.push_back(c);
      c = base;
      c.cu_seqlens_q = {0, 0, 4, 5, 5, 9};
      c.cu_seqlens_k = {0, 2, 5, 5, 5, 9};
      c.mask = MaskKind::kRandom;
      cases.push_back(c);
      c.group = 2;
      c.weights = test::WeightKind::kShared;
      cases.push_back(c);
      c = base;
      c.H = 4;
      c.group = 2;
      c.projection = ProjectionUse::kPerHead;
      c.weights = test::WeightKind::kPerHead;
      cases.push_back(c);
      c = base;
      c.feature_map = FeatureMapKind::kRelu;
      c.mask = MaskKind::kRandom;
      cases.push_back(c);
      c.projection = ProjectionUse::kNone;
      c.feature_eps = 0.1;
      cases.push_back(c);
    }
  }
  return cases;
}

// Every map, alone and with what changes its features.
std::vector<Case> map_cases() {
  std::vector<Case> cases;
  for (int kind = 0; kind <= static_cast<int>(FeatureMapKind::kIdentity); ++kind) {
    for (const bool causal : {false, true}) {
      Case c;
      c.feature_map = static_cast<FeatureMapKind>(kind);
      c.causal = causal;
      c.B = 1;
      c.H = c.group = 2;
      c.L = c.S = 7;
      c.D = 4;
      c.E = 3;
      c.M = 6;
      c.norm = 0.8;
      if (is_fitted(c.feature_map) && !causal) continue;
      cases.push_back(c);
      c.weights = test::WeightKind::kShared;
      c.mask = MaskKind::kRandom;
      cases.push_back(c);
      c.renormalize = false;
      cases.push_back(c);
      const bool takes_eps = !is_fitted(c.feature_map) && c.feature_map != FeatureMapKind::kTrig;
      if (takes_eps) {
        c.feature_eps = 0.05;
        cases.push_back(c);
        c.renormalize = true;
        cases.push_back(c);
      }
      if (!estimates_softmax(c.feature_map)) {
        c.projection = ProjectionUse::kNone;
        cases.push_back(c);
      }
      if (c.feature_map == FeatureMapKind::kPositive && !causal) {
        c.compatibility = Compatibility::kOfficial;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = small_cases();
  const std::vector<Case> maps = map_cases();
  cases.insert(cases.end(), maps.begin(), maps.end());
  return cases;
}

TEST(Reference, ForwardIsTheQuadraticForm) {
  for (const Case& spec : all_cases()) {
    SCOPED_TRACE(spec.name());
    const Problem p = test::make_problem(spec);
    const std::vector<double> expected = brute_force(p);
    const Results<double> actual = test::run_reference<double>(p);
    ASSERT_EQ(expected.size(), actual.out.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      // Exponents reach a few hundred at norm 8, and carry that many rounding errors of 1e-16.
      ASSERT_NEAR(actual.out[i], expected[i], 1e-12 * (1 + std::abs(expected[i])))
          << "element " << i;
    }
  }
}

// A double problem whose inputs can be moved one by one.
struct Differences {
  Problem p;
  std::vector<double> q, k, v;

  explicit Differences(const Problem& problem)
      : p(problem),
        q(p.q.begin(), p.q.end()),
        k(p.k.begin(), p.k.end()),
        v(p.v.begin(), p.v.end()) {}

  // sum(dout * out)
  double loss() {
    const Case& c = p.spec;
    std::vector<double> out(p.dout.size());
    const test::Params<double> owned(p);
    const AttentionParams<double>& params = owned.value;
    const View4<const double> qv = contiguous_view<const double>(q.data(), c.B, c.H, c.L, c.D);
    const View4<const double> kv = contiguous_view<const double>(k.data(), c.B, c.G(), c.S, c.D);
    const View4<const double> vv = contiguous_view<const double>(v.data(), c.B, c.G(), c.S, c.E);
    const View4<double> ov = contiguous_view(out.data(), c.B, c.H, c.L, c.E);
    if (c.causal) {
      reference::causal_forward(params, qv, kv, vv, ov);
    } else {
      reference::bidirectional_forward(params, qv, kv, vv, ov);
    }
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * p.dout[i];
    return sum;
  }

  double slope(double& x) {
    const double step = 1e-5, middle = x;
    x = middle + step;
    const double up = loss();
    x = middle - step;
    const double down = loss();
    x = middle;
    return (up - down) / (2 * step);
  }
};

TEST(Reference, BackwardIsTheDerivative) {
  for (const Case& spec : all_cases()) {
    // The official code's maximum carries no gradient here, but moves its output.
    if (spec.compatibility == Compatibility::kOfficial) continue;
    SCOPED_TRACE(spec.name());
    const Problem p = test::make_problem(spec);
    const Results<double> r = test::run_reference<double>(p);
    Differences d(p);
    const auto compare = [&](const char* name, std::vector<double>& x,
                             const std::vector<double>& gradient, int64_t width, bool is_key) {
      for (size_t i = 0; i < x.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) / width;
        if (is_key && !p.mask.empty()) {
          const int64_t b = row / spec.S / spec.G();
          if (p.mask[b * spec.S + row % spec.S] != 0) {
            ASSERT_EQ(gradient[i], 0) << name << " of a masked key, element " << i;
            continue;
          }
        }
        const double expected = d.slope(x[i]);
        // Maps of both signs can have a denominator near 0, where differences fail.
        if (std::abs(expected) > 1000) continue;
        // Differences err by step^2 times the third derivative, which grows as norm^3 with the
        // keys, and by rounding of the loss over the step, 1e-15 / 1e-5 times exponents of a few
        // hundred.
        ASSERT_NEAR(gradient[i], expected, 1e-6 * (1 + std::abs(expected)))
            << name << " element " << i;
      }
    };
    compare("dq", d.q, r.dq, spec.D, false);
    compare("dk", d.k, r.dk, spec.D, true);
    compare("dv", d.v, r.dv, spec.E, true);
  }
}

TEST(Reference, RowsWithoutGradientTakeNoPart) {
  for (const bool causal : {false, true}) {
    Case spec;
    spec.causal = causal;
    spec.L = spec.S = 6;
    Problem p = test::make_problem(spec);
    for (int64_t i = 0; i < spec.E; ++i) p.dout[3 * spec.E + i] = 0;
    const Results<double> expected = test::run_reference<double>(p);
    for (int64_t i = 0; i < spec.D; ++i) p.q[3 * spec.D + i] = std::nanf("");
    const Results<double> actual = test::run_reference<double>(p);
    EXPECT_TRUE(std::isnan(actual.out[3 * spec.E]));
    EXPECT_EQ(actual.dq, expected.dq);
    EXPECT_EQ(actual.dk, expected.dk);
    EXPECT_EQ(actual.dv, expected.dv);
    for (int64_t i = 0; i < spec.D; ++i) EXPECT_EQ(actual.dq[3 * spec.D + i], 0);
  }
}

TEST(Reference, NormalizerIsTheDenominator) {
  for (const auto map : {FeatureMapKind::kPositive, FeatureMapKind::kRelu}) {
    Case spec;
    spec.H = 1;
    spec.L = spec.S = 5;
    spec.feature_map = map;
    const Problem p = test::make_problem(spec);
    std::vector<double> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end()),
        v(p.v.begin(), p.v.end()), w(p.projection.begin(), p.projection.end());
    std::vector<double> out(p.dout.size()), normalizer(5);
    Saved<double> saved;
    saved.normalizer = normalizer.data();
    reference::bidirectional_forward(test::make_params(p, w),
                                     contiguous_view<const double>(q.data(), 1, 1, 5, 8),
                                     contiguous_view<const double>(k.data(), 1, 1, 5, 8),
                                     contiguous_view<const double>(v.data(), 1, 1, 5, 8),
                                     contiguous_view(out.data(), 1, 1, 5, 8), &saved);
    for (int64_t i = 0; i < 5; ++i) {
      std::vector<double> scores;
      double half_square = 0;
      for (int64_t d = 0; d < 8; ++d) half_square += q[i * 8 + d] * q[i * 8 + d] / std::sqrt(8) / 2;
      const Head head(p, 0);
      for (int64_t j = 0; j < 5; ++j) {
        scores.push_back(
            std::log(inner(head.features(&q[i * 8], true), head.features(&k[j * 8], false))));
      }
      const double log_sum = log_sum_exp(scores);
      if (map == FeatureMapKind::kPositive) {
        EXPECT_NEAR(normalizer[i], log_sum + half_square, 1e-12);
      } else {
        EXPECT_NEAR(normalizer[i], std::exp(log_sum), 1e-12 * std::exp(log_sum));
      }
    }
  }
}

TEST(Reference, DecodeStepsAreTheCausalPass) {
  for (const auto map : {FeatureMapKind::kPositive, FeatureMapKind::kRelu}) {
    Case spec;
    spec.causal = true;
    spec.feature_map = map;
    spec.B = 2;
    spec.L = spec.S = 12;
    spec.E = 5;
    spec.mask = MaskKind::kLeft;
    const Problem p = test::make_problem(spec);
    const Results<double> expected = test::run_reference<double>(p);
    std::vector<double> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end()),
        v(p.v.begin(), p.v.end()), w(p.projection.begin(), p.projection.end());
    auto params = test::make_params(p, w);
    reference::BasicDecodeState<double> state(spec.B, spec.H, spec.M, spec.E);
    for (int64_t t = 0; t < spec.L; ++t) {
      // Views of one token: the strides stay those of the whole.
      const auto token = [&](std::vector<double>& x, int64_t width) {
        View4<const double> view =
            contiguous_view<const double>(x.data() + t * width, spec.B, spec.H, spec.L, width);
        view.sizes[2] = 1;
        return view;
      };
      std::vector<uint8_t> mask(spec.B);
      for (int64_t b = 0; b < spec.B; ++b) mask[b] = p.mask[b * spec.S + t];
      params.key_padding_mask = mask.data();
      std::vector<double> out(spec.B * spec.H * spec.E);
      reference::decode_step(params, token(q, spec.D), token(k, spec.D), token(v, spec.E), state,
                             contiguous_view(out.data(), spec.B, spec.H, 1, spec.E));
      for (int64_t head = 0; head < spec.B * spec.H; ++head) {
        for (int64_t e = 0; e < spec.E; ++e) {
          EXPECT_NEAR(out[head * spec.E + e], expected.out[(head * spec.L + t) * spec.E + e],
                      1e-13);
        }
      }
    }
    EXPECT_EQ(state.position, spec.L);
  }
}

}  // namespace
}  // namespace favor
