// SPDX-License-Identifier: Apache-2.0
// Internal: log-linear feature maps as matrices, and the statistics behind those that are fitted to
// the data. All in double; formulas in docs/math.md, section 2.
#ifndef FAVOR_FITTED_MAP_H_
#define FAVOR_FITTED_MAP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "favor/feature_map.h"

namespace favor {

/// Sums over some tokens: of their elements [D], and of products of two elements, [D] or [D, D] of
/// which the lower triangle is kept.
struct TokenSums {
  int64_t count = 0;
  std::vector<double> sum, square;
};

/// First and second moments of the queries and keys of one key head, already multiplied by
/// sqrt(scale).
class Moments {
 public:
  /// Keeps whole second-moment matrices if `full`, else their diagonals only.
  Moments(int64_t D, bool full);

  template <class T>
  void add_query(const T* row, double root_scale) {
    add(row, root_scale, queries_);
  }
  template <class T>
  void add_key(const T* row, double root_scale) {
    add(row, root_scale, keys_);
  }
  void add_queries(const TokenSums& sums, double root_scale) { add(sums, root_scale, queries_); }
  void add_keys(const TokenSums& sums, double root_scale) { add(sums, root_scale, keys_); }
  /// Adds the tokens of `other`, which keeps the same moments.
  void merge(const Moments& other);

  /// The parameters of `kind` (num_map_parameters) that minimise its variance over these tokens.
  /// Without queries or without keys they describe the unfitted map: A = 0, Psi = 1, Q = identity.
  std::vector<double> fit(FeatureMapKind kind) const;

 private:
  template <class T>
  void add(const T* row, double root_scale, TokenSums& side) {
    for (int64_t i = 0; i < D_; ++i) row_[i] = root_scale * static_cast<double>(row[i]);
    add_scaled(side);
  }
  void add_scaled(TokenSums& side);
  static void add(const TokenSums& sums, double root_scale, TokenSums& side);
  double square(const TokenSums& side, int64_t i) const {
    return side.square[full_ ? i * D_ + i : i];
  }

  int64_t D_;
  bool full_;
  std::vector<double> row_;
  TokenSums queries_, keys_;
};

/// A log-linear map of one head. With q and k multiplied by sqrt(scale), the logarithms of feature
/// f are
///   key    key_rows[f].k - sum_l key_norm[l] k_l^2 / 2
///   query  query_rows[f].q + query_constant[f] - sum_l query_norm[l] q_l^2 / 2
/// where the query's constant holds the constants of both sides, so that their sum over f estimates
/// the kernel itself.
struct LogLinearMap {
  int64_t M, D;
  std::vector<double> query_rows, key_rows;  ///< [M, D]
  std::vector<double> query_constant;        ///< [M]
  std::vector<double> query_norm, key_norm;  ///< [D]
};

/// `rows`: the random matrix [num_projection_rows(kind, M), D], or null for the identity (M = D).
/// `parameters`: num_map_parameters(kind, D) numbers.
template <class T>
LogLinearMap make_log_linear_map(FeatureMapKind kind, const T* rows, int64_t M, int64_t D,
                                 std::span<const double> parameters);

}  // namespace favor

#endif  // FAVOR_FITTED_MAP_H_
