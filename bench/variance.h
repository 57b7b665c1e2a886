// SPDX-License-Identifier: Apache-2.0
// Relative variance Var[estimate] / SM(q, k)^2 of the softmax kernel's estimators in closed form
// (docs/math.md, section 4).
#ifndef BENCH_VARIANCE_H_
#define BENCH_VARIANCE_H_

#include <cstdint>
#include <optional>
#include <span>

#include "favor/feature_map.h"
#include "favor/projection.h"

namespace favor::bench {

/// The closed form for one pair q, k [D], both multiplied by sqrt(scale), M state features of rows
/// with chi norms; `fitted` holds the parameters of a fitted map. Empty where no closed form is
/// known: coupled rows with another map than positive, M not a multiple of D.
///
/// Hadamard and Givens rows are counted as orthogonal ones, which they approximate.
std::optional<double> relative_variance(FeatureMapKind map, ProjectionKind matrix, int64_t M,
                                        std::span<const double> fitted, std::span<const double> q,
                                        std::span<const double> k);

}  // namespace favor::bench

#endif  // BENCH_VARIANCE_H_
