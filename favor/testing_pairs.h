// SPDX-License-Identifier: Apache-2.0
// What gradients by products of bfloat16 pairs are judged by: the sizes that rounding of operands
// is relative to.
#ifndef FAVOR_TESTING_PAIRS_H_
#define FAVOR_TESTING_PAIRS_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "favor/testing_runs.h"

namespace favor::test {

/// Whether a kernel may round features, sums and gradients of logits to bfloat16.
inline bool rounds_operands(const Case& c) {
  return c.element == ElementType::kBfloat16 && c.feature_map == FeatureMapKind::kPositive &&
         !c.exact && c.window == 0 && c.renormalize && !c.structured &&
         c.projection != ProjectionUse::kNone;
}

/// The same problem with D dimensions more, where tokens are 0 and the matrices hold the absolute
/// values of their entries: nothing changes, and the gradients by these dimensions are sums over
/// features in which the signs of the matrix no longer cancel.
inline Problem with_absolute_matrices(const Problem& p) {
  const int64_t D = p.spec.D;
  Problem wide = p;
  wide.spec.D = 2 * D;
  wide.spec.scale = p.spec.scale.value_or(1 / std::sqrt(static_cast<double>(D)));
  const auto widen = [D](const std::vector<float>& from, bool absolute, std::vector<float>& to) {
    to.clear();
    for (size_t row = 0; row < from.size(); row += static_cast<size_t>(D)) {
      for (int64_t i = 0; i < D; ++i) to.push_back(from[row + static_cast<size_t>(i)]);
      for (int64_t i = 0; i < D; ++i) {
        to.push_back(absolute ? std::abs(from[row + static_cast<size_t>(i)]) : 0.0f);
      }
    }
  };
  widen(p.q, false, wide.q);
  widen(p.k, false, wide.k);
  widen(p.projection, true, wide.projection);
  return wide;
}

/// Adds the absolute terms of the sums over features to the dq and dk of `terms`.
inline void add_feature_terms(const Problem& p, Results<double>& terms) {
  const auto D = static_cast<size_t>(p.spec.D);
  const Results<double> wide = run_reference<double>(with_absolute_matrices(p), Passes::kTerms);
  const auto add = [D](const std::vector<double>& from, std::vector<double>& to) {
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] = std::abs(to[i]) + std::abs(from[i / D * 2 * D + D + i % D]);
    }
  };
  add(wide.dq, terms.dq);
  add(wide.dk, terms.dk);
}

}  // namespace favor::test

#endif  // FAVOR_TESTING_PAIRS_H_
