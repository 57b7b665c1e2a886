// SPDX-License-Identifier: Apache-2.0
// The sizes that rounding within sums over features is relative to, where the signs of the random
// matrix would hide them.
#ifndef FAVOR_TESTING_FEATURE_TERMS_H_
#define FAVOR_TESTING_FEATURE_TERMS_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "favor/testing_runs.h"

namespace favor::test {

/// Whether a kernel may round features, sums and gradients of logits to bfloat16.
inline bool rounds_operands(const Case& c) {
  return c.element == ElementType::kBfloat16 && c.feature_map == FeatureMapKind::kPositive &&
         !c.causal && !c.exact && c.window == 0 && c.sinks == 0 && c.renormalize && !c.structured &&
         c.projection != ProjectionUse::kNone && c.M % 32 == 0 && c.feature_eps.value_or(0) == 0 &&
         c.compatibility == Compatibility::kNone;
}

/// Whether features come in pairs of opposite rows, whose terms cancel where logits are small. Of
/// 16 bits, results are rounded by more than such terms are.
inline bool has_opposite_rows(const Case& c) {
  return c.feature_map == FeatureMapKind::kHyperbolic && !c.exact &&
         c.element == ElementType::kFloat32;
}

/// The same problem with D dimensions more, where tokens are 0 and the matrices hold the absolute
/// values of their entries: nothing changes, and the gradients by these dimensions are sums over
/// features in which the signs of the matrix no longer cancel. Opposite rows become rows of their
/// own.
inline Problem with_absolute_matrices(const Problem& p) {
  const auto D = static_cast<size_t>(p.spec.D);
  Problem wide = p;
  wide.spec.D = 2 * p.spec.D;
  wide.spec.scale = p.spec.scale.value_or(1 / std::sqrt(static_cast<double>(D)));
  for (std::vector<float>* x : {&wide.q, &wide.k, &wide.projection}) x->clear();
  const auto widen = [D](const std::vector<float>& from, std::vector<float>& to) {
    for (size_t row = 0; row < from.size(); row += D) {
      for (size_t i = 0; i < D; ++i) to.push_back(from[row + i]);
      to.resize(to.size() + D);
    }
  };
  widen(p.q, wide.q);
  widen(p.k, wide.k);
  const bool opposite = has_opposite_rows(p.spec);
  if (opposite) wide.spec.feature_map = FeatureMapKind::kPositive;
  const size_t matrix = static_cast<size_t>(p.spec.R()) * D;
  for (size_t first = 0; first < p.projection.size(); first += matrix) {
    for (const float sign : {1.0f, -1.0f}) {
      if (sign < 0 && !opposite) continue;
      for (size_t row = first; row < first + matrix; row += D) {
        for (size_t i = 0; i < D; ++i) wide.projection.push_back(sign * p.projection[row + i]);
        for (size_t i = 0; i < D; ++i) wide.projection.push_back(std::abs(p.projection[row + i]));
      }
    }
  }
  return wide;
}

/// Adds to dq and dk of `terms` what sums of M independent errors are relative to: the sum over
/// features of absolute terms, by sqrt(M), which is the root of the sum of their squares where they
/// are alike. Four times that, for the largest of many such sums and for features that are not.
inline void add_feature_terms(const Problem& p, Results<double>& terms) {
  const auto D = static_cast<size_t>(p.spec.D);
  const double share = 4 / std::sqrt(static_cast<double>(p.spec.M));
  const Results<double> wide = run_reference<double>(with_absolute_matrices(p), Passes::kTerms);
  const auto add = [&](const std::vector<double>& from, std::vector<double>& to) {
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] = std::abs(to[i]) + share * std::abs(from[i / D * 2 * D + D + i % D]);
    }
  };
  add(wide.dq, terms.dq);
  add(wide.dk, terms.dk);
}

}  // namespace favor::test

#endif  // FAVOR_TESTING_FEATURE_TERMS_H_
