// SPDX-License-Identifier: Apache-2.0
#include "favor/fitted_map.h"

#include <algorithm>
#include <cmath>

#include "favor/eigen.h"

namespace favor {
namespace {

/// The A that minimises the variance of one direction whose (q + k)^2 is `square` on average.
double optimal_a(double square) {
  const double s = 2 * square + 1;
  return (1 - 2 * square - std::sqrt(s * s + 8 * square)) / 16;
}

}  // namespace

Moments::Moments(int64_t D, bool full) : D_(D), full_(full), row_(D) {
  for (TokenSums* side : {&queries_, &keys_}) {
    side->sum.assign(D, 0.0);
    side->square.assign(full ? D * D : D, 0.0);
  }
}

void Moments::add_scaled(TokenSums& side) {
  ++side.count;
  for (int64_t i = 0; i < D_; ++i) {
    side.sum[i] += row_[i];
    if (!full_) {
      side.square[i] += row_[i] * row_[i];
      continue;
    }
    double* to = side.square.data() + i * D_;
    for (int64_t j = 0; j <= i; ++j) to[j] += row_[i] * row_[j];
  }
}

void Moments::add(const TokenSums& sums, double root_scale, TokenSums& side) {
  side.count += sums.count;
  const auto add_multiple = [](double factor, const std::vector<double>& from,
                               std::vector<double>& to) {
    std::transform(to.begin(), to.end(), from.begin(), to.begin(),
                   [factor](double x, double y) { return x + factor * y; });
  };
  add_multiple(root_scale, sums.sum, side.sum);
  add_multiple(root_scale * root_scale, sums.square, side.square);
}

void Moments::merge(const Moments& other) {
  add_queries(other.queries_, 1.0);
  add_keys(other.keys_, 1.0);
}

std::vector<double> Moments::fit(FeatureMapKind kind) const {
  const auto nq = static_cast<double>(queries_.count);
  const auto nk = static_cast<double>(keys_.count);
  const bool known = queries_.count > 0 && keys_.count > 0;
  if (kind == FeatureMapKind::kFavorSharp) {
    std::vector<double> parameters(D_ + D_ * D_, 0.0);
    if (!known) {
      for (int64_t i = 0; i < D_; ++i) parameters[D_ + i * D_ + i] = 1;
      return parameters;
    }
    std::vector<double> moment(D_ * D_);
    for (int64_t i = 0; i < D_; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        const double cross =
            (queries_.sum[i] * keys_.sum[j] + keys_.sum[i] * queries_.sum[j]) / (nq * nk);
        const double value =
            queries_.square[i * D_ + j] / nq + keys_.square[i * D_ + j] / nk + cross;
        moment[i * D_ + j] = moment[j * D_ + i] = value;
      }
    }
    const Eigen eigen = eigen_symmetric(std::move(moment), D_);
    for (int64_t i = 0; i < D_; ++i) parameters[i] = optimal_a(std::max(eigen.values[i], 0.0));
    std::copy(eigen.vectors.begin(), eigen.vectors.end(), parameters.begin() + D_);
    return parameters;
  }

  std::vector<double> parameters(num_map_parameters(kind, D_), 0.0);
  const bool diagonal = kind == FeatureMapKind::kFavorSharpDiagonal;
  double total = 0;
  for (int64_t i = 0; i < D_; ++i) {
    double psi = 1;
    if (known) {
      const double q = square(queries_, i) / nq;
      const double k = square(keys_, i) / nk;
      if (diagonal && q > 0 && k > 0) psi = std::pow(k / q, 0.25);
      total += psi * psi * q + k / (psi * psi) + 2 * queries_.sum[i] / nq * keys_.sum[i] / nk;
    }
    if (diagonal) parameters[1 + i] = psi;
  }
  parameters[0] = known ? optimal_a(std::max(total, 0.0) / static_cast<double>(D_)) : 0;
  return parameters;
}

template <class T>
LogLinearMap make_log_linear_map(FeatureMapKind kind, const T* rows, int64_t M, int64_t D,
                                 std::span<const double> parameters) {
  const bool exp = kind == FeatureMapKind::kExp;
  const bool full = kind == FeatureMapKind::kFavorSharp;
  const bool diagonal = kind == FeatureMapKind::kFavorSharpDiagonal;
  const int64_t R = num_projection_rows(kind, M);
  LogLinearMap map;
  map.M = M;
  map.D = D;
  map.query_rows.assign(M * D, 0.0);
  map.query_norm.assign(D, exp ? 0.0 : 1.0);
  map.key_norm = map.query_norm;

  // A and B = sqrt(1 - 4A) of each direction of the rows.
  std::vector<double> a(D, 0.0), b(D, 1.0);
  double constant = exp ? 0 : -std::log(static_cast<double>(M));
  for (int64_t l = 0; l < D && !parameters.empty(); ++l) {
    a[l] = parameters[full ? l : 0];
    b[l] = std::sqrt(1 - 4 * a[l]);
    constant += std::log(b[l]);
  }
  map.query_constant.assign(M, constant);
  for (int64_t f = 0; f < M; ++f) {
    double* to = map.query_rows.data() + f * D;
    if (rows == nullptr) {
      to[f] = 1;
      continue;
    }
    const T* w = rows + f % R * D;
    const double sign = f < R ? 1 : -1;
    for (int64_t l = 0; l < D; ++l) {
      const double value = sign * static_cast<double>(w[l]);
      map.query_constant[f] += 2 * a[l] * value * value;
      to[l] = b[l] * value;
    }
  }
  if (full) {
    const std::vector<double> directions(parameters.begin() + D, parameters.end());
    map.query_rows = multiply_square(map.query_rows, directions, M, D);
  }
  map.key_rows = map.query_rows;
  for (int64_t l = 0; diagonal && l < D; ++l) {
    const double psi = parameters[1 + l];
    map.query_norm[l] *= psi * psi;
    map.key_norm[l] /= psi * psi;
    for (int64_t f = 0; f < M; ++f) {
      map.query_rows[f * D + l] *= psi;
      map.key_rows[f * D + l] /= psi;
    }
  }
  return map;
}

template LogLinearMap make_log_linear_map<float>(FeatureMapKind, const float*, int64_t, int64_t,
                                                 std::span<const double>);
template LogLinearMap make_log_linear_map<double>(FeatureMapKind, const double*, int64_t, int64_t,
                                                  std::span<const double>);

}  // namespace favor
