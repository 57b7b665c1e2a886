// SPDX-License-Identifier: Apache-2.0
// Tests only: whether a logit is so near the kink of its map (relu and abs at 0) that rounding
// decides its slope. Float code on either side of it is right, and no tolerance covers both.
#ifndef FAVOR_KINKS_H_
#define FAVOR_KINKS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "favor/reference_pieces.h"

namespace favor::test {

/// Whether a logit of a query or key is nearer to 0 than products and fast transforms of floats
/// tell apart. False for maps without a kink.
inline bool has_logit_at_kink(AttentionParams<double> params, View4<const double> q,
                              View4<const double> k) {
  constexpr double kRounding = 5e-7;  // of |x| sqrt(scale), the usual size of a logit
  if (params.feature_map != FeatureMapKind::kRelu && params.feature_map != FeatureMapKind::kAbs) {
    return false;
  }
  params.feature_map = FeatureMapKind::kAbs;  // whose features are the sizes of the logits
  params.feature_eps = 0;
  const int64_t D = q.sizes[3];
  const double root_scale = std::sqrt(resolve_scale(params, D));
  bool found = false;
  reference::for_each_piece(params, q, k, [&](const reference::Piece<double>& p) {
    reference::Features<double> features(p.map.M);
    const auto look = [&](const double* row, reference::Side side) {
      double square = 0;
      for (int64_t i = 0; i < D; ++i) square += row[i] * row[i];
      if (square == 0) return;  // its logits are 0 in any arithmetic
      p.map.apply(row, side, 0.0, features);
      const double size = *std::min_element(features.value.begin(), features.value.end());
      found = found || size < kRounding * root_scale * std::sqrt(square);
    };
    for (int64_t j = p.k0; j < p.k1; ++j) look(k.row(p.b, p.g, j), reference::Side::kKey);
    for (int64_t h = p.first_head; h < p.last_head; ++h) {
      for (int64_t i = p.q0; i < p.q1; ++i) look(q.row(p.b, h, i), reference::Side::kQuery);
    }
  });
  return found;
}

}  // namespace favor::test

#endif  // FAVOR_KINKS_H_
