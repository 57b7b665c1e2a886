// SPDX-License-Identifier: Apache-2.0
#include "bench/variance.h"

#include <algorithm>
#include <cmath>

namespace favor::bench {
namespace {

/// log E[w^n] of a chi(D) distributed w.
double log_chi_moment(int64_t D, int64_t n) {
  const double half = static_cast<double>(D) / 2;
  return static_cast<double>(n) / 2 * std::log(2) + std::lgamma(half + static_cast<double>(n) / 2) -
         std::lgamma(half);
}

/// E[(w1^2 + w2^2 + 2 cosine w1 w2)^n] / n!, w1 and w2 independent and chi(D): the even moments of
/// the length of the sum of two rows.
double pair_moment_over_factorial(int64_t D, int64_t n, double cosine) {
  double total = 0;
  for (int64_t cross = 0; cross <= (cosine == 0 ? 0 : n); ++cross) {
    const double factor = std::pow(2 * cosine, static_cast<double>(cross));
    for (int64_t first = 0; first + cross <= n; ++first) {
      const int64_t second = n - cross - first;
      total += factor * std::exp(log_chi_moment(D, 2 * first + cross) +
                                 log_chi_moment(D, 2 * second + cross) -
                                 std::lgamma(static_cast<double>(first) + 1) -
                                 std::lgamma(static_cast<double>(second) + 1) -
                                 std::lgamma(static_cast<double>(cross) + 1));
    }
  }
  return total;
}

/// E[exp((w1 + w2).z)] for two rows of one block at the given cosine (4.5): a power series in
/// |z|^2.
double pair_expectation(int64_t D, double square, double cosine) {
  const double half = static_cast<double>(D) / 2;
  double total = 0;
  for (int64_t n = 0; n < 400; ++n) {
    const auto order = static_cast<double>(n);
    const double coefficient =
        std::exp(order * std::log(square / 4) + std::lgamma(half) - std::lgamma(order + half));
    const double term = coefficient * pair_moment_over_factorial(D, n, cosine);
    total += term;
    if (n > 4 && std::abs(term) < 1e-14 * total) break;
  }
  return total;
}

}  // namespace

std::optional<double> relative_variance(FeatureMapKind map, ProjectionKind matrix, int64_t M,
                                        std::span<const double> fitted, std::span<const double> q,
                                        std::span<const double> k) {
  const auto D = static_cast<int64_t>(q.size());
  const auto features = static_cast<double>(M);
  double sum = 0, difference = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    sum += (q[i] + k[i]) * (q[i] + k[i]);
    difference += (q[i] - k[i]) * (q[i] - k[i]);
  }
  if (matrix != ProjectionKind::kIid) {
    if (map != FeatureMapKind::kPositive || M % D != 0) return std::nullopt;
    const double cosine =
        matrix == ProjectionKind::kSimplex && D > 1 ? -1 / static_cast<double>(D - 1) : 0;
    const auto rows = static_cast<double>(D);
    const double block = (std::exp(sum) - 1) / rows +
                         (1 - 1 / rows) * (pair_expectation(D, sum, cosine) * std::exp(-sum) - 1);
    return block * rows / features;
  }
  const double rows = static_cast<double>(num_projection_rows(map, M));
  switch (map) {
    case FeatureMapKind::kPositive:
      return (std::exp(sum) - 1) / features;
    case FeatureMapKind::kHyperbolic:
      return (1 - std::exp(-sum)) * (std::exp(sum) - 1) / (2 * rows);
    case FeatureMapKind::kTrig:
      return std::exp(difference) * std::pow(1 - std::exp(-difference), 2) / (2 * rows);
    case FeatureMapKind::kOptimalPositive:
    case FeatureMapKind::kFavorSharpDiagonal:
    case FeatureMapKind::kFavorSharp: {
      const bool full = map == FeatureMapKind::kFavorSharp;
      const bool diagonal = map == FeatureMapKind::kFavorSharpDiagonal;
      double exponent = 0;
      for (int64_t l = 0; l < D; ++l) {
        const double a = fitted[full ? l : 0];
        const double psi = diagonal ? fitted[1 + l] : 1;
        double x = q[l] * psi, y = k[l] / psi;
        for (int64_t i = 0; full && i < D; ++i) {
          const double direction = fitted[D + l * D + i];
          x = (i == 0 ? 0 : x) + direction * q[i];
          y = (i == 0 ? 0 : y) + direction * k[i];
        }
        exponent += std::log(1 - 4 * a) - std::log(1 - 8 * a) / 2 +
                    (2 * (1 - 4 * a) / (1 - 8 * a) - 1) * (x + y) * (x + y);
      }
      return (std::exp(exponent) - 1) / features;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace favor::bench
