// SPDX-License-Identifier: Apache-2.0
// Tests only: tokens with a logit so near the kink of their map (relu and abs at 0) that rounding
// decides its slope. Float code on either side of it is right, and no tolerance covers both.
#ifndef FAVOR_KINKS_H_
#define FAVOR_KINKS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "favor/reference_pieces.h"

namespace favor::test {

/// Calls visit(map, row, side, index) for all queries and all keys that may be seen, with their
/// indices in [B, H, L] and in [B, G, S].
template <class Visit>
void for_each_token(const AttentionParams<double>& params, View4<const double> q,
                    View4<const double> k, const Visit& visit) {
  const int64_t H = q.sizes[1], L = q.sizes[2], G = k.sizes[1], S = k.sizes[2];
  reference::for_each_piece(params, q, k, [&](const reference::Piece<double>& p) {
    for (int64_t j = p.k0; j < p.k1; ++j) {
      if (!reference::allowed(params, p.b, p.g, S, j)) continue;
      visit(p.map, k.row(p.b, p.g, j), reference::Side::kKey, (p.b * G + p.g) * S + j);
    }
    for (int64_t h = p.first_head; h < p.last_head; ++h) {
      for (int64_t i = p.q0; i < p.q1; ++i) {
        visit(p.map, q.row(p.b, h, i), reference::Side::kQuery, (p.b * H + h) * L + i);
      }
    }
  });
}

/// Rows of [B, H, L] and of [B, G, S].
struct KinkRows {
  std::vector<int64_t> queries, keys;
};

/// The queries and keys with a logit nearer to 0 than products and fast transforms of floats tell
/// apart: their own gradients may take either slope, all others do not depend on it. None for maps
/// without a kink, nor where tokens are the logits, whose sign is exact.
inline KinkRows rows_at_kink(AttentionParams<double> params, View4<const double> q,
                             View4<const double> k) {
  constexpr double kRounding = 5e-7;  // of |x| sqrt(scale), the usual size of a logit
  KinkRows rows;
  const bool has_kink =
      params.feature_map == FeatureMapKind::kRelu || params.feature_map == FeatureMapKind::kAbs;
  if (!has_kink || !has_projection(params)) return rows;
  params.feature_map = FeatureMapKind::kAbs;  // whose features are the sizes of the logits
  params.feature_eps = 0;
  const int64_t D = q.sizes[3];
  const double root_scale = std::sqrt(resolve_scale(params, D));
  for_each_token(params, q, k,
                 [&](const reference::FeatureMap<double>& map, const double* row,
                     reference::Side side, int64_t index) {
                   double square = 0;
                   for (int64_t i = 0; i < D; ++i) square += row[i] * row[i];
                   reference::Features<double> features(map.M);
                   map.apply(row, side, 0.0, features);
                   const double least =
                       *std::min_element(features.value.begin(), features.value.end());
                   if (!(least < kRounding * root_scale * std::sqrt(square))) return;
                   (side == reference::Side::kKey ? rows.keys : rows.queries).push_back(index);
                 });
  return rows;
}

/// The largest ratio over all tokens of sum_f |g'(u_f)| to sum_f phi_f, at least 1: what an error
/// of logits is multiplied by until it is one of weights, for maps that can be near 0 in all
/// features of a token (relu, relu2 and abs).
inline double largest_steepness(const AttentionParams<double>& params, View4<const double> q,
                                View4<const double> k) {
  const FeatureMapKind kind = params.feature_map;
  if (kind != FeatureMapKind::kRelu && kind != FeatureMapKind::kRelu2 &&
      kind != FeatureMapKind::kAbs) {
    return 1;
  }
  const double eps = resolve_feature_eps(params);
  double largest = 1;
  for_each_token(
      params, q, k,
      [&](const reference::FeatureMap<double>& map, const double* row, reference::Side side,
          int64_t) {
        reference::Features<double> features(map.M);
        map.apply(row, side, 0.0, features);
        double slopes = 0, sum = 0;
        for (const double feature : features.value) {
          const double value = feature - eps;
          slopes += value <= 0 ? 0 : kind == FeatureMapKind::kRelu2 ? 2 * std::sqrt(value) : 1;
          sum += feature;
        }
        if (sum > 0) largest = std::max(largest, slopes / sum);
      });
  return largest;
}

}  // namespace favor::test

#endif  // FAVOR_KINKS_H_
