// SPDX-License-Identifier: Apache-2.0
// What the kinds of random matrix do for the softmax kernel: no bias, and the variance that theory
// gives them; and the compact form of structured matrices.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "favor/check.h"
#include "favor/projection.h"
#include "favor/random.h"
#include "favor/testing_errors.h"

namespace favor {
namespace {

constexpr ProjectionKind kKinds[] = {ProjectionKind::kIid, ProjectionKind::kOrthogonal,
                                     ProjectionKind::kHadamard, ProjectionKind::kGivens,
                                     ProjectionKind::kSimplex};

ProjectionSpec make_spec(int64_t M, int64_t D, ProjectionKind kind, uint64_t seed) {
  ProjectionSpec spec;
  spec.kind = kind;
  spec.num_features = M;
  spec.head_dim = D;
  spec.seed = seed;
  return spec;
}

/// sum_n (u/2)^(2n) Gamma(D/2) / (n! Gamma(n + D/2)): the mean of exp(u x) over a coordinate x of a
/// uniform direction.
double mean_exponential(double u, int64_t D) {
  double term = 1, sum = 1;
  for (int n = 1; term > 1e-17 * sum; ++n) {
    term *= u * u / 4 / (n * (n - 1 + static_cast<double>(D) / 2));
    sum += term;
  }
  return sum;
}

/// E[exp((w_1 + w_2).z)] for two rows of chi norms whose directions are uniform with this cosine.
double pair_moment(double zz, double cosine, int64_t D) {
  // The trapezoid rule over the two norms; their density vanishes at both ends of the range.
  const int steps = 150;
  const double end = std::sqrt(static_cast<double>(D)) + 8;
  std::vector<double> weight;
  double total = 0;
  for (int i = 0; i <= steps; ++i) {
    const double r = end * i / steps;
    weight.push_back(std::pow(r, static_cast<double>(D - 1)) * std::exp(-r * r / 2));
    total += weight.back();
  }
  double sum = 0;
  for (int i = 0; i <= steps; ++i) {
    for (int j = 0; j <= steps; ++j) {
      const double a = end * i / steps, b = end * j / steps;
      const double t = std::sqrt(a * a + b * b + 2 * a * b * cosine);
      sum += weight[i] / total * weight[j] / total * mean_exponential(t * std::sqrt(zz), D);
    }
  }
  return sum;
}

/// Variance of (1/M) sum_f exp(w_f.z) over matrices of blocks of D rows with this cosine between
/// the rows of a block.
double closed_form_variance(ProjectionKind kind, int64_t M, int64_t D, double zz) {
  const double m = static_cast<double>(M);
  const double iid = (std::exp(2 * zz) - std::exp(zz)) / m;
  const int64_t rest = M % D;
  const int64_t pairs = M / D * D * (D - 1) + rest * (rest - 1);
  if (kind == ProjectionKind::kIid || pairs == 0) return iid;
  const double cosine = kind == ProjectionKind::kSimplex ? -1 / static_cast<double>(D - 1) : 0.0;
  return iid + static_cast<double>(pairs) / (m * m) * (pair_moment(zz, cosine, D) - std::exp(zz));
}

std::vector<double> random_vector(RandomStream& rng, int64_t D, double norm) {
  std::vector<double> row(D);
  double square = 0;
  for (double& value : row) {
    value = rng.normal();
    square += value * value;
  }
  for (double& value : row) value *= norm / std::sqrt(square);
  return row;
}

struct Moments {
  double mean, variance;
  double variance_error;  ///< standard error of the variance
};

/// Of (1/M) sum_f exp(w_f.z) over `draws` matrices.
Moments estimate(ProjectionKind kind, int64_t M, int64_t D, const std::vector<double>& z,
                 int draws) {
  std::vector<double> values;
  double mean = 0;
  for (int draw = 0; draw < draws; ++draw) {
    ProjectionSpec spec = make_spec(M, D, kind, 9);
    spec.redraw = draw;
    const auto w = draw_projection(spec);
    double sum = 0;
    for (int64_t f = 0; f < M; ++f) {
      double u = 0;
      for (int64_t i = 0; i < D; ++i) u += w[f * D + i] * z[i];
      sum += std::exp(u);
    }
    values.push_back(sum / static_cast<double>(M));
    mean += values.back() / draws;
  }
  double second = 0, fourth = 0;
  for (const double value : values) {
    const double square = (value - mean) * (value - mean);
    second += square / draws;
    fourth += square * square / draws;
  }
  return {mean, second, std::sqrt((fourth - second * second) / draws)};
}

TEST(ProjectionKinds, EstimateTheSoftmaxKernelWithoutBias) {
  RandomStream rng(8, 0);
  struct Size {
    int64_t M, D;
  };
  for (const Size size :
       {Size{1, 1}, Size{4, 16}, Size{16, 16}, Size{64, 16}, Size{40, 16}, Size{40, 12}}) {
    // phi(x).phi(y) is exp(-|x|^2/2 - |y|^2/2) times the estimate at z = x + y, exp(x.y) the same
    // factor times exp(|z|^2/2).
    const auto x = random_vector(rng, size.D, 0.9);
    const auto y = random_vector(rng, size.D, 0.7);
    std::vector<double> z(size.D);
    double zz = 0;
    for (int64_t i = 0; i < size.D; ++i) {
      z[i] = x[i] + y[i];
      zz += z[i] * z[i];
    }
    const int draws = 2000;
    for (const ProjectionKind kind : kKinds) {
      const double variance = closed_form_variance(kind, size.M, size.D, zz);
      EXPECT_NEAR(estimate(kind, size.M, size.D, z, draws).mean, std::exp(zz / 2),
                  4 * std::sqrt(variance / draws))
          << to_string(kind) << " " << size.M << " x " << size.D;
    }
  }
}

// At this norm the tails are light enough for a measured variance to tell the kinds apart.
TEST(ProjectionKinds, HaveTheVarianceOfTheirCoupling) {
  RandomStream rng(10, 0);
  const int64_t M = 16, D = 16;
  const auto z = random_vector(rng, D, 0.5);
  for (const ProjectionKind kind : kKinds) {
    const double expected = closed_form_variance(kind, M, D, 0.25);
    const Moments measured = estimate(kind, M, D, z, 4000);
    EXPECT_NEAR(measured.variance, expected, 5 * measured.variance_error) << to_string(kind);
    EXPECT_LT(5 * measured.variance_error, 0.2 * expected) << "the test is too weak";
  }
}

TEST(ProjectionKinds, CouplingReducesTheVariance) {
  for (const double norm : {0.25, 0.5, 1.0, 2.0, 3.0}) {
    for (const int64_t M : {5, 16, 40}) {
      const double zz = norm * norm;
      const double iid = closed_form_variance(ProjectionKind::kIid, M, 16, zz);
      const double orthogonal = closed_form_variance(ProjectionKind::kOrthogonal, M, 16, zz);
      const double simplex = closed_form_variance(ProjectionKind::kSimplex, M, 16, zz);
      EXPECT_LT(orthogonal, iid) << norm;
      EXPECT_LT(simplex, orthogonal) << norm;
      EXPECT_GT(simplex, 0) << norm;
    }
  }
}

TEST(StructuredProjection, ExpandsToTheMatrixOfItsSpec) {
  for (const RowNorm norm : {RowNorm::kChi, RowNorm::kSqrtD}) {
    for (const int64_t D : {1, 2, 3, 8, 17, 64}) {
      for (const int64_t M : {1, 5, 37, 130}) {
        ProjectionSpec spec = make_spec(M, D, ProjectionKind::kHadamard, 4);
        spec.row_norm = norm;
        const StructuredProjection matrix = draw_structured_projection(spec);
        const auto dense = draw_projection(spec);
        EXPECT_EQ(matrix.to_dense(), dense) << M << " x " << D;
        ASSERT_EQ(matrix.block_rows, static_cast<int64_t>(std::bit_ceil(uint64_t(D))));
        ASSERT_EQ(matrix.row_scales.size(), static_cast<size_t>(M));
        // By the definition, one element at a time: H_ij is -1 to the number of common bits.
        const auto H = [](int64_t i, int64_t j) {
          return std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? 1.0 : -1.0;
        };
        const auto sign = [&](int64_t block, int64_t round, int64_t i) {
          return matrix.is_negative(block, round, i) ? -1.0 : 1.0;
        };
        const int64_t n = matrix.block_rows;
        for (const int64_t f : {int64_t{0}, M / 2, M - 1}) {
          const int64_t block = f / n, i = f % n;
          for (const int64_t j : {int64_t{0}, D - 1}) {
            double sum = 0;
            for (int64_t a = 0; a < n; ++a) {
              for (int64_t b = 0; b < n; ++b) {
                sum += H(i, a) * sign(block, 2, a) * H(a, b) * sign(block, 1, b) * H(b, j);
              }
            }
            const double expected = matrix.row_scales[f] * sum * sign(block, 0, j);
            EXPECT_EQ(dense[f * D + j], static_cast<float>(expected)) << f << " " << j;
          }
        }
      }
    }
  }
}

TEST(StructuredProjection, ErrorsNameArgumentAndValue) {
  const auto error_of = [](const ProjectionSpec& spec) {
    return test::error_of([&] { draw_structured_projection(spec); });
  };
  EXPECT_EQ(error_of(make_spec(4, 4, ProjectionKind::kGivens, 1)),
            "draw_structured_projection: kind is givens, expected hadamard");
  EXPECT_EQ(error_of(make_spec(0, 4, ProjectionKind::kHadamard, 1)),
            "draw_structured_projection: num_features is 0, expected at least 1");
  EXPECT_EQ(error_of(make_spec(4, 0, ProjectionKind::kHadamard, 1)),
            "draw_structured_projection: head_dim is 0, expected at least 1");
}

}  // namespace
}  // namespace favor
