// SPDX-License-Identifier: Apache-2.0
// Words and properties of the feature maps, and what fitted maps promise: estimates without bias,
// and the smallest variance of their family.
#include "favor/feature_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "favor/attention.h"
#include "favor/eigen.h"
#include "favor/fitted_map.h"
#include "favor/parallel.h"
#include "favor/random.h"
#include "favor/testing.h"

namespace favor {
namespace {

std::vector<FeatureMapKind> all_kinds() {
  std::vector<FeatureMapKind> kinds;
  for (int i = 0; i <= static_cast<int>(FeatureMapKind::kIdentity); ++i) {
    kinds.push_back(static_cast<FeatureMapKind>(i));
  }
  return kinds;
}

TEST(FeatureMapKind, WordsRoundTrip) {
  for (const FeatureMapKind kind : all_kinds()) {
    EXPECT_EQ(feature_map_from_string(to_string(kind)), kind);
    EXPECT_EQ(num_state_features(kind, num_projection_rows(kind, 12)), 12);
  }
}

TEST(FeatureMapKind, AnUnknownWordListsTheKnownOnes) {
  EXPECT_EQ(test::error_of([] { feature_map_from_string("Relu"); }),
            "feature_map_from_string: feature_map is 'Relu', expected positive | hyperbolic | "
            "optimal_positive | favor_sharp_diagonal | favor_sharp | trig | relu | relu2 | "
            "elu1 | exp | sigmoid | softplus | gelu | abs | tanh | cos | sin | identity");
}

// A symmetric matrix with known moments: A^T A of Gaussian rows.
std::vector<double> random_moment(int64_t n, uint64_t seed) {
  RandomStream rng(seed, 0);
  std::vector<double> rows(n * n), moment(n * n, 0.0);
  for (double& x : rows) x = rng.normal();
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) moment[i * n + j] += rows[r * n + i] * rows[r * n + j];
    }
  }
  return moment;
}

TEST(EigenSymmetric, RebuildsTheMatrix) {
  for (const int64_t n : {1, 2, 3, 17, 64}) {
    const std::vector<double> matrix = random_moment(n, 7 + n);
    const Eigen eigen = eigen_symmetric(matrix, n);
    double scale = 0;
    for (const double x : matrix) scale = std::max(scale, std::abs(x));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double rebuilt = 0, overlap = 0;
        for (int64_t l = 0; l < n; ++l) {
          rebuilt += eigen.vectors[l * n + i] * eigen.values[l] * eigen.vectors[l * n + j];
          overlap += eigen.vectors[i * n + l] * eigen.vectors[j * n + l];
        }
        EXPECT_NEAR(rebuilt, matrix[i * n + j], 1e-12 * scale);
        EXPECT_NEAR(overlap, i == j, 1e-12);
      }
    }
  }
}

TEST(EigenSymmetric, OrdersValuesAndFixesSigns) {
  const int64_t n = 17;
  const std::vector<double> matrix = random_moment(n, 3);
  const Eigen eigen = eigen_symmetric(matrix, n);
  EXPECT_TRUE(std::is_sorted(eigen.values.begin(), eigen.values.end()));
  RandomStream rng(4, 0);
  std::vector<double> nearby = matrix;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      nearby[i * n + j] = nearby[j * n + i] = matrix[i * n + j] * (1 + 1e-9 * rng.normal());
    }
  }
  const Eigen other = eigen_symmetric(nearby, n);
  for (int64_t i = 0; i < n * n; ++i) EXPECT_NEAR(other.vectors[i], eigen.vectors[i], 1e-6);
}

TEST(EigenSymmetric, TakesMatricesWithoutAWayToReduceThem) {
  const int64_t n = 5;
  std::vector<double> diagonal(n * n, 0.0), ones(n * n, 1.0), huge(n * n, 1e300);
  for (int64_t i = 0; i < n; ++i) diagonal[i * n + i] = static_cast<double>(n - i);
  EXPECT_EQ(eigen_symmetric(diagonal, n).values, (std::vector<double>{1, 2, 3, 4, 5}));
  const std::vector<double> values = eigen_symmetric(ones, n).values;
  EXPECT_NEAR(values[0], 0, 1e-14);
  EXPECT_NEAR(values[n - 1], n, 1e-14);
  EXPECT_NEAR(eigen_symmetric(huge, n).values[n - 1] / 1e300, n, 1e-14);
  EXPECT_EQ(eigen_symmetric(std::vector<double>(n * n, 0.0), n).values,
            std::vector<double>(n, 0.0));
  const std::vector<double> wrong(n * n, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(eigen_symmetric(wrong, n).vectors[0], 1);
}

// q and k of unequal and differing spread.
struct Tokens {
  static constexpr int64_t D = 3, kCount = 40;
  std::vector<double> q, k;

  explicit Tokens(double norm) {
    RandomStream rng(11, 3);
    const double spread[D] = {0.3, 1.0, 2.0};
    for (int64_t i = 0; i < kCount * D; ++i) {
      q.push_back(norm * (spread[i % D] * rng.normal() + 0.2));
      k.push_back(norm * (spread[(i + 1) % D] * rng.normal() - 0.1));
    }
  }

  std::vector<double> fit(FeatureMapKind kind) const {
    Moments moments(D, kind == FeatureMapKind::kFavorSharp);
    for (int64_t i = 0; i < kCount; ++i) {
      moments.add_query(&q[i * D], 1.0);
      moments.add_key(&k[i * D], 1.0);
    }
    return moments.fit(kind);
  }
};

// log(phi(q).phi(k)) of one Gaussian row w.
double log_estimate(const LogLinearMap& map, const double* q, const double* k) {
  double sum = map.query_constant[0];
  for (int64_t i = 0; i < map.D; ++i) {
    sum += map.query_rows[i] * q[i] + map.key_rows[i] * k[i] - map.query_norm[i] * q[i] * q[i] / 2 -
           map.key_norm[i] * k[i] * k[i] / 2;
  }
  return sum;
}

constexpr FeatureMapKind kSoftmaxMaps[] = {
    FeatureMapKind::kPositive, FeatureMapKind::kOptimalPositive,
    FeatureMapKind::kFavorSharpDiagonal, FeatureMapKind::kFavorSharp};

TEST(FittedMaps, EstimateWithoutBias) {
  const Tokens tokens(0.5);
  for (const FeatureMapKind kind : kSoftmaxMaps) {
    const std::vector<double> fitted = is_fitted(kind) ? tokens.fit(kind) : std::vector<double>();
    for (int64_t pair = 0; pair < 4; ++pair) {
      const double* q = &tokens.q[pair * Tokens::D];
      const double* k = &tokens.k[pair * Tokens::D];
      double exact = 0;
      for (int64_t i = 0; i < Tokens::D; ++i) exact += q[i] * k[i];
      RandomStream rng(5, pair);
      constexpr int kDraws = 20000;
      double sum = 0, squares = 0;
      for (int draw = 0; draw < kDraws; ++draw) {
        double w[Tokens::D];
        for (double& x : w) x = rng.normal();
        const LogLinearMap map = make_log_linear_map(kind, w, 1, Tokens::D, fitted);
        const double ratio = std::exp(log_estimate(map, q, k) - exact);
        sum += ratio;
        squares += ratio * ratio;
      }
      const double mean = sum / kDraws;
      const double error = std::sqrt((squares / kDraws - mean * mean) / kDraws);
      EXPECT_NEAR(mean, 1, 4.5 * error) << to_string(kind) << " pair " << pair;
    }
  }
}

// The mean over pairs of log(E[estimate^2] / SM^2) in closed form, as the maps minimise it.
double mean_log_second_moment(const Tokens& tokens, FeatureMapKind kind) {
  constexpr int64_t D = Tokens::D;
  const std::vector<double> fitted = is_fitted(kind) ? tokens.fit(kind) : std::vector<double>();
  double total = 0;
  for (int64_t i = 0; i < Tokens::kCount; ++i) {
    for (int64_t j = 0; j < Tokens::kCount; ++j) {
      double x[D], y[D], z[D], square = 0, constant = 0, dot = 0;
      for (int64_t l = 0; l < D; ++l) {
        const double psi = kind == FeatureMapKind::kFavorSharpDiagonal ? fitted[1 + l] : 1;
        x[l] = tokens.q[i * D + l] * psi;
        y[l] = tokens.k[j * D + l] / psi;
        square += x[l] * x[l] + y[l] * y[l];
        dot += x[l] * y[l];
      }
      double exponent = 0;
      for (int64_t l = 0; l < D; ++l) {
        const bool full = kind == FeatureMapKind::kFavorSharp;
        const double a = fitted.empty() ? 0 : fitted[full ? l : 0];
        z[l] = full ? 0 : x[l] + y[l];
        for (int64_t n = 0; full && n < D; ++n) z[l] += fitted[D + l * D + n] * (x[n] + y[n]);
        exponent += 2 * (1 - 4 * a) * z[l] * z[l] / (1 - 8 * a);
        constant += std::log(1 - 4 * a) - std::log(1 - 8 * a) / 2;
      }
      total += constant + exponent - square - 2 * dot;
    }
  }
  return total / (Tokens::kCount * Tokens::kCount);
}

TEST(FittedMaps, LowerTheVarianceInTurn) {
  const Tokens tokens(1.0);
  const double positive = mean_log_second_moment(tokens, FeatureMapKind::kPositive);
  const double optimal = mean_log_second_moment(tokens, FeatureMapKind::kOptimalPositive);
  EXPECT_LT(optimal, positive - 0.1);
  EXPECT_LT(mean_log_second_moment(tokens, FeatureMapKind::kFavorSharpDiagonal), optimal - 0.1);
  EXPECT_LT(mean_log_second_moment(tokens, FeatureMapKind::kFavorSharp), optimal - 0.1);
}

TEST(FittedMaps, ParametersAreThoseOfTheAllowedTokens) {
  // NaN under the mask reaches no statistic, and L = S leaves the masked position's query out.
  const Tokens tokens(1.0);
  constexpr int64_t D = Tokens::D, L = Tokens::kCount;
  std::vector<double> q = tokens.q, k = tokens.k;
  std::vector<uint8_t> mask(L + 1, 0);
  mask[L] = 1;
  q.insert(q.end(), D, std::nan(""));
  k.insert(k.end(), D, std::nan(""));
  std::vector<double> w(2 * D, 1.0);
  for (const auto kind : {FeatureMapKind::kOptimalPositive, FeatureMapKind::kFavorSharpDiagonal,
                          FeatureMapKind::kFavorSharp}) {
    AttentionParams<double> params;
    params.feature_map = kind;
    params.scale = 1;
    params.projection = w.data();
    params.num_features = 2;
    params.key_padding_mask = mask.data();
    EXPECT_EQ(
        fit_feature_map<double>(params, contiguous_view<const double>(q.data(), 1, 1, L + 1, D),
                                contiguous_view<const double>(k.data(), 1, 1, L + 1, D)),
        tokens.fit(kind));
  }
}

TEST(FittedMaps, KernelsSumTheMomentsOfLongSequences) {
  // Two parts of keys and queries, grouped heads, and a mask over NaN.
  constexpr int64_t B = 2, H = 2, L = 8200, D = 5;
  RandomStream rng(9, 0);
  std::vector<float> q(B * H * L * D), k(B * L * D), w(2 * D, 1.0f);
  for (std::vector<float>* x : {&q, &k}) {
    for (size_t i = 0; i < x->size(); ++i) {
      (*x)[i] = static_cast<float>(0.3 * static_cast<double>(i % D + 1) * rng.normal() + 0.1);
    }
  }
  std::vector<uint8_t> mask(B * L, 0);
  for (size_t j = 0; j < mask.size(); j += 7) {
    mask[j] = 1;
    std::fill_n(k.begin() + static_cast<int64_t>(j) * D, D, std::nanf(""));
  }
  const std::vector<double> wide_q(q.begin(), q.end()), wide_k(k.begin(), k.end());
  const std::vector<double> wide_w(w.begin(), w.end());
  const auto set = [&](auto& params, const auto& rows, FeatureMapKind kind) {
    params.feature_map = kind;
    params.projection = rows.data();
    params.num_features = 2;
    params.key_padding_mask = mask.data();
  };
  for (const auto kind : {FeatureMapKind::kOptimalPositive, FeatureMapKind::kFavorSharpDiagonal,
                          FeatureMapKind::kFavorSharp}) {
    AttentionParams<double> wide;
    set(wide, wide_w, kind);
    const std::vector<double> truth =
        fit_feature_map<double>(wide, contiguous_view(wide_q.data(), B, H, L, D),
                                contiguous_view(wide_k.data(), B, 1, L, D));
    AttentionParams<float> params;
    set(params, w, kind);
    test::for_each_isa([&](const char* isa) {
      std::vector<float> first;
      for (const int threads : {1, 2, 3}) {
        set_num_threads(threads);
        const std::vector<float> fitted =
            fit_feature_map<float>(params, contiguous_view<const float>(q.data(), B, H, L, D),
                                   contiguous_view<const float>(k.data(), B, 1, L, D));
        if (threads == 1) first = fitted;
        EXPECT_EQ(fitted, first) << isa;
        ASSERT_EQ(fitted.size(), truth.size());
        for (size_t i = 0; i < truth.size(); ++i) {
          EXPECT_NEAR(fitted[i], truth[i], 1e-6) << isa << " " << to_string(kind);
        }
      }
    });
  }
}

}  // namespace
}  // namespace favor
