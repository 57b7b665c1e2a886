// SPDX-License-Identifier: Apache-2.0
// Tests only: how much of a denominator cancels. Features of either sign make it a sum of terms
// that may be far larger than itself, and what float code loses there depends on the order of the
// sum, so that the plain code's error allows too little.
#ifndef FAVOR_CANCELLATION_H_
#define FAVOR_CANCELLATION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "favor/reference_pieces.h"

namespace favor::test {

/// The largest ratio over all rows of sum_jf |phi_f(q_i) phi_f(k_j)| to |sum_jf phi_f(q_i)
/// phi_f(k_j)|; at least 1.
inline double largest_cancellation(const AttentionParams<double>& params, View4<const double> q,
                                   View4<const double> k, bool causal) {
  double largest = 1;
  reference::for_each_piece(params, q, k, [&](const reference::Piece<double>& p) {
    const int64_t M = p.map.M, S = k.sizes[2];
    std::vector<reference::Features<double>> keys;
    std::vector<int64_t> positions;
    for (int64_t j = p.k0; j < p.k1; ++j) {
      if (!reference::allowed(params, p.b, p.g, S, j)) continue;
      keys.emplace_back(M);
      positions.push_back(j - p.k0);
      p.map.apply(k.row(p.b, p.g, j), reference::Side::kKey, key_log_weight(params, p.b, p.g, S, j),
                  keys.back());
    }
    reference::Features<double> query(M);
    for (int64_t h = p.first_head; h < p.last_head; ++h) {
      for (int64_t i = p.q0; i < p.q1; ++i) {
        p.map.apply(q.row(p.b, h, i), reference::Side::kQuery, 0.0, query);
        double top = -std::numeric_limits<double>::infinity(), sum = 0, terms = 0;
        const auto is_seen = [&](size_t n) { return !causal || positions[n] <= i - p.q0; };
        for (size_t n = 0; n < keys.size() && is_seen(n); ++n) {
          top = std::max(top, keys[n].log[0]);
        }
        for (size_t n = 0; n < keys.size() && is_seen(n); ++n) {
          for (int64_t f = 0; f < M; ++f) {
            const double term = query.value[f] * keys[n].value[f] * std::exp(keys[n].log[0] - top);
            sum += term;
            terms += std::abs(term);
          }
        }
        if (sum != 0) largest = std::max(largest, terms / std::abs(sum));
      }
    }
  });
  return largest;
}

}  // namespace favor::test

#endif  // FAVOR_CANCELLATION_H_
