// SPDX-License-Identifier: Apache-2.0
// The reference itself against definitions that share no code with it: a quadratic evaluation in
// log space for the forward pass, central differences in double for the backward pass.
#include "favor/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::MaskKind;
using test::Problem;
using test::ProjectionUse;
using test::Results;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double log_sum_exp(const std::vector<double>& x) {
  double largest = -kInfinity;
  for (double value : x) largest = std::max(largest, value);
  if (largest == -kInfinity) return -kInfinity;
  double sum = 0;
  for (double value : x) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

// log(phi(q).phi(k)) of one pair.
double log_kernel(const Problem& p, int64_t h, const double* q, const double* k) {
  const Case& c = p.spec;
  const bool positive = c.feature_map == FeatureMapKind::kPositive;
  const bool has_projection = c.projection != ProjectionUse::kNone;
  const double scale = c.scale.value_or(positive ? 1 / std::sqrt(c.D) : 1);
  const double eps = c.feature_eps.value_or(1e-3);
  const int64_t M = has_projection ? c.M : c.D;
  const int64_t head = c.projection == ProjectionUse::kPerHead ? h : 0;
  std::vector<double> terms;
  double squares = 0;
  for (int64_t i = 0; i < c.D; ++i) squares += scale * (q[i] * q[i] + k[i] * k[i]);
  for (int64_t f = 0; f < M; ++f) {
    double uq = 0, uk = 0;
    for (int64_t i = 0; i < c.D; ++i) {
      const double w = has_projection ? p.projection[(head * M + f) * c.D + i] : i == f;
      uq += std::sqrt(scale) * w * q[i];
      uk += std::sqrt(scale) * w * k[i];
    }
    terms.push_back(positive ? uq + uk - squares / 2
                             : std::log((std::max(uq, 0.0) + eps) * (std::max(uk, 0.0) + eps)));
  }
  return log_sum_exp(terms);
}

bool sees(const Problem& p, int64_t b, int64_t i, int64_t j) {
  const Case& c = p.spec;
  if (!p.mask.empty() && p.mask[b * c.S + j] != 0) return false;
  if (c.cu_seqlens_q.empty()) return !c.causal || j <= i;
  for (size_t n = 0; n + 1 < c.cu_seqlens_q.size(); ++n) {
    const int64_t q0 = c.cu_seqlens_q[n], k0 = c.cu_seqlens_k[n];
    if (i < q0 || i >= c.cu_seqlens_q[n + 1] || j < k0 || j >= c.cu_seqlens_k[n + 1]) continue;
    return !c.causal || j - k0 <= i - q0;
  }
  return false;
}

std::vector<double> brute_force(const Problem& p) {
  const Case& c = p.spec;
  const std::vector<double> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end());
  std::vector<double> out;
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t i = 0; i < c.L; ++i) {
        std::vector<double> scores;
        std::vector<int64_t> keys;
        for (int64_t j = 0; j < c.S; ++j) {
          if (!sees(p, b, i, j)) continue;
          keys.push_back((b * c.H + h) * c.S + j);
          scores.push_back(
              log_kernel(p, h, &q[((b * c.H + h) * c.L + i) * c.D], &k[keys.back() * c.D]));
        }
        const double normalizer = log_sum_exp(scores);
        for (int64_t e = 0; e < c.E; ++e) {
          double sum = 0;
          for (size_t n = 0; n < keys.size(); ++n) {
            sum += std::exp(scores[n] - normalizer) * p.v[keys[n] * c.E + e];
          }
          out.push_back(sum);
        }
      }
    }
  }
  return out;
}

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

TEST(Reference, ForwardIsTheQuadraticForm) {
  for (const Case& spec : small_cases()) {
    SCOPED_TRACE(spec.name());
    const Problem p = test::make_problem(spec);
    const std::vector<double> expected = brute_force(p);
    const Results<double> actual = test::run_reference<double>(p);
    ASSERT_EQ(expected.size(), actual.out.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      // Exponents reach a few hundred at norm 8, and carry that many rounding errors of 1e-16.
      ASSERT_NEAR(actual.out[i], expected[i], 1e-12) << "element " << i;
    }
  }
}

// A double problem whose inputs can be moved one by one.
struct Differences {
  Problem p;
  std::vector<double> q, k, v, w;

  explicit Differences(const Problem& problem)
      : p(problem),
        q(p.q.begin(), p.q.end()),
        k(p.k.begin(), p.k.end()),
        v(p.v.begin(), p.v.end()),
        w(p.projection.begin(), p.projection.end()) {}

  // sum(dout * out)
  double loss() {
    const Case& c = p.spec;
    std::vector<double> out(p.dout.size());
    const auto params = test::make_params(p, w);
    const View4<const double> qv = contiguous_view<const double>(q.data(), c.B, c.H, c.L, c.D);
    const View4<const double> kv = contiguous_view<const double>(k.data(), c.B, c.H, c.S, c.D);
    const View4<const double> vv = contiguous_view<const double>(v.data(), c.B, c.H, c.S, c.E);
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
  for (const Case& spec : small_cases()) {
    SCOPED_TRACE(spec.name());
    const Problem p = test::make_problem(spec);
    const Results<double> r = test::run_reference<double>(p);
    Differences d(p);
    const auto compare = [&](const char* name, std::vector<double>& x,
                             const std::vector<double>& gradient, int64_t width, bool is_key) {
      for (size_t i = 0; i < x.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) / width;
        if (is_key && !p.mask.empty()) {
          const int64_t b = row / spec.S / spec.H;
          if (p.mask[b * spec.S + row % spec.S] != 0) {
            ASSERT_EQ(gradient[i], 0) << name << " of a masked key, element " << i;
            continue;
          }
        }
        const double expected = d.slope(x[i]);
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
      for (int64_t j = 0; j < 5; ++j) scores.push_back(log_kernel(p, 0, &q[i * 8], &k[j * 8]));
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
