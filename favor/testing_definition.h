// SPDX-License-Identifier: Apache-2.0
// Attention as it is defined, pair by pair in log space and map by map as in textbooks, without a
// line of the reference's code.
#ifndef FAVOR_TESTING_DEFINITION_H_
#define FAVOR_TESTING_DEFINITION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "favor/testing_problem.h"

namespace favor::test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline double log_sum_exp(const std::vector<double>& x) {
  double largest = -kInfinity;
  for (double value : x) largest = std::max(largest, value);
  if (largest == -kInfinity) return -kInfinity;
  double sum = 0;
  for (double value : x) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

// g(u) of the generalised maps as written in textbooks.
inline double generalised(FeatureMapKind kind, double u) {
  switch (kind) {
    case FeatureMapKind::kRelu:
      return u > 0 ? u : 0;
    case FeatureMapKind::kRelu2:
      return u > 0 ? u * u : 0;
    case FeatureMapKind::kElu1:
      return u > 0 ? 1 + u : std::exp(u);
    case FeatureMapKind::kExp:
      return std::exp(u);
    case FeatureMapKind::kSigmoid:
      return std::exp(u) / (std::exp(u) + 1);
    case FeatureMapKind::kSoftplus:
      return std::log(1 + std::exp(u));
    case FeatureMapKind::kGelu:
      return u * (1 + std::erf(u * std::sqrt(0.5))) / 2;
    case FeatureMapKind::kAbs:
      return u < 0 ? -u : u;
    case FeatureMapKind::kTanh:
      return (std::exp(u) - std::exp(-u)) / (std::exp(u) + std::exp(-u));
    case FeatureMapKind::kCos:
      return std::cos(u);
    case FeatureMapKind::kSin:
      return std::sin(u);
    default:
      return u;
  }
}

// What the keys and queries of a head share: its rows and fitted parameters.
struct Head {
  const Case& c;
  std::vector<double> rows, fitted;  // [R, D] or empty; num_map_parameters

  Head(const Problem& p, int64_t g) : c(p.spec) {
    const int64_t R = c.R();
    const int64_t head = c.projection == ProjectionUse::kPerHead ? g : 0;
    if (c.projection != ProjectionUse::kNone) {
      const auto begin = p.projection.begin() + head * R * c.D;
      rows.assign(begin, begin + R * c.D);
    }
    const int64_t numbers = num_map_parameters(c.feature_map, c.D);
    if (!p.map_parameters.empty()) {
      const auto begin = p.map_parameters.begin() + g * numbers;
      fitted.assign(begin, begin + numbers);
    }
  }

  double row(int64_t r, int64_t i) const { return rows.empty() ? r == i : rows[r * c.D + i]; }

  // phi(x) of the definition, without a stabiliser. `top` is subtracted by the official code.
  std::vector<double> features(const double* token, bool is_query, double top = 0) const {
    const int64_t D = c.D, R = rows.empty() ? D : c.R();
    const bool softmax = estimates_softmax(c.feature_map);
    const double scale = c.scale.value_or(softmax ? 1 / std::sqrt(D) : 1);
    const bool official = c.compatibility == Compatibility::kOfficial;
    const bool relu = c.feature_map == FeatureMapKind::kRelu;
    const double eps = c.feature_eps.value_or(official ? 1e-6 : relu ? 1e-3 : 0);
    std::vector<double> x(D), a(D, 0.0), turned(D);
    for (int64_t i = 0; i < D; ++i) x[i] = std::sqrt(scale) * token[i];
    if (c.feature_map == FeatureMapKind::kFavorSharpDiagonal) {
      for (int64_t i = 0; i < D; ++i) x[i] *= is_query ? fitted[1 + i] : 1 / fitted[1 + i];
    }
    turned = x;
    if (c.feature_map == FeatureMapKind::kFavorSharp) {
      for (int64_t l = 0; l < D; ++l) {
        a[l] = fitted[l];
        turned[l] = 0;
        for (int64_t i = 0; i < D; ++i) turned[l] += fitted[D + l * D + i] * x[i];
      }
    } else if (is_fitted(c.feature_map)) {
      a.assign(D, fitted[0]);
    }
    double half_square = 0, constant = 1;
    for (int64_t l = 0; l < D; ++l) {
      half_square += x[l] * x[l] / 2;
      constant *= std::pow(1 - 4 * a[l], 0.25);
    }
    std::vector<double> phi, second;
    for (int64_t r = 0; r < R; ++r) {
      double u = 0, square = 0;
      for (int64_t l = 0; l < D; ++l) {
        u += std::sqrt(1 - 4 * a[l]) * row(r, l) * turned[l];
        square += a[l] * row(r, l) * row(r, l);
      }
      if (c.feature_map == FeatureMapKind::kTrig) {
        phi.push_back(std::exp(half_square) * std::sin(u) / std::sqrt(R));
        second.push_back(std::exp(half_square) * std::cos(u) / std::sqrt(R));
      } else if (softmax) {
        const double factor = constant / std::sqrt(c.M);
        phi.push_back(factor * (std::exp(square + u - half_square - top) + eps));
        if (c.feature_map == FeatureMapKind::kHyperbolic) {
          second.push_back(factor * (std::exp(-u - half_square - top) + eps));
        }
      } else {
        phi.push_back(generalised(c.feature_map, u) + eps);
      }
    }
    phi.insert(phi.end(), second.begin(), second.end());
    return phi;
  }

  // The largest w.x of a token.
  double top(const double* token) const {
    const double scale = c.scale.value_or(1 / std::sqrt(c.D));
    double largest = -kInfinity;
    for (int64_t r = 0; r < c.R(); ++r) {
      double u = 0;
      for (int64_t i = 0; i < c.D; ++i) u += row(r, i) * std::sqrt(scale) * token[i];
      largest = std::max(largest, u);
    }
    return largest;
  }
};

inline double inner(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline double log_weight(const Problem& p, int64_t b, int64_t g, int64_t j) {
  const int64_t W = p.spec.weights == test::WeightKind::kPerHead ? p.spec.G() : 1;
  if (p.key_log_weight.empty()) return 0;
  return p.key_log_weight[(b * W + (W == 1 ? 0 : g)) * p.spec.S + j];
}

inline bool sees(const Problem& p, int64_t b, int64_t g, int64_t i, int64_t j) {
  const Case& c = p.spec;
  if (!p.mask.empty() && p.mask[b * c.S + j] != 0) return false;
  if (log_weight(p, b, g, j) == -kInfinity) return false;
  if (c.cu_seqlens_q.empty()) return !c.causal || j <= i;
  for (size_t n = 0; n + 1 < c.cu_seqlens_q.size(); ++n) {
    const int64_t q0 = c.cu_seqlens_q[n], k0 = c.cu_seqlens_k[n];
    if (i < q0 || i >= c.cu_seqlens_q[n + 1] || j < k0 || j >= c.cu_seqlens_k[n + 1]) continue;
    return !c.causal || j - k0 <= i - q0;
  }
  return false;
}

// The output by its definition, pair by pair.
inline std::vector<double> brute_force(const Problem& p) {
  const Case& c = p.spec;
  const std::vector<double> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end());
  std::vector<double> out;
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t h = 0; h < c.H; ++h) {
      const int64_t g = h / c.group, bg = b * c.G() + g;
      const Head head(p, g);
      for (int64_t i = 0; i < c.L; ++i) {
        const double* token = &q[((b * c.H + h) * c.L + i) * c.D];
        std::vector<int64_t> keys;
        double top = 0, query_top = 0;
        for (int64_t j = 0; j < c.S; ++j) {
          if (sees(p, b, g, i, j)) keys.push_back(j);
        }
        if (c.compatibility == Compatibility::kOfficial) {
          query_top = head.top(token);
          top = -kInfinity;
          for (const int64_t j : keys) top = std::max(top, head.top(&k[(bg * c.S + j) * c.D]));
        }
        const std::vector<double> phi = head.features(token, true, query_top);
        double total = 0;
        std::vector<double> sums(c.E);
        for (const int64_t j : keys) {
          const double weight = std::exp(log_weight(p, b, g, j)) *
                                inner(phi, head.features(&k[(bg * c.S + j) * c.D], false, top));
          total += weight;
          for (int64_t e = 0; e < c.E; ++e) sums[e] += weight * p.v[(bg * c.S + j) * c.E + e];
        }
        for (const double sum : sums) {
          out.push_back(!c.renormalize || total == 0 ? sum : sum / total);
        }
      }
    }
  }
  return out;
}

}  // namespace favor::test

#endif  // FAVOR_TESTING_DEFINITION_H_
