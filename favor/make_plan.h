// SPDX-License-Identifier: Apache-2.0
// Internal: a call's parameters, checked and with every default resolved.
#ifndef FAVOR_MAKE_PLAN_H_
#define FAVOR_MAKE_PLAN_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "favor/plan.h"
#include "favor/plan_checks.h"

namespace favor {

/// Parameters from which square roots and quotients can be taken.
template <class T>
void check_map_parameters(const char* op, const AttentionParams<T>& params, int64_t D) {
  const int64_t numbers = num_map_parameters(params.feature_map, D);
  const bool full = params.feature_map == FeatureMapKind::kFavorSharp;
  const bool diagonal = params.feature_map == FeatureMapKind::kFavorSharpDiagonal;
  for (int64_t set = 0; set < params.num_map_parameter_sets; ++set) {
    const T* x = params.map_parameters + set * numbers;
    for (int64_t i = 0; i < numbers; ++i) {
      FAVOR_CHECK(std::isfinite(x[i]), op, ": map_parameters[", set, "][", i, "] is ", x[i],
                  ", expected a finite number");
      const bool is_a = i < (full ? D : 1);
      FAVOR_CHECK(!is_a || x[i] < T{0.125}, op, ": map_parameters[", set, "][", i, "] is ", x[i],
                  ", expected A < 1/8");
      FAVOR_CHECK(is_a || !diagonal || x[i] > 0, op, ": map_parameters[", set, "][", i, "] is ",
                  x[i], ", expected Psi > 0");
    }
  }
}

/// Who reads a plan.
enum class PlanReader { kPass, kStep };

/// Replaces structured matrices by dense ones where the kernels have no transform for them: maps
/// that change the rows or, but for single steps, double them, and blocks that are too large.
template <class T>
void expand_structured(PlanReader reader, Plan<T>& plan) {
  if (plan.structured == nullptr) return;
  const bool doubles_rows = plan.rows != plan.M && reader == PlanReader::kPass;
  const bool transforms = !is_fitted(plan.feature_map) && !doubles_rows;
  if (transforms && plan.structured->block_rows <= kLargestFastBlock) return;
  for (int64_t p = 0; p < plan.P; ++p) {
    const std::vector<float> dense = plan.structured[p].to_dense();
    plan.expanded.insert(plan.expanded.end(), dense.begin(), dense.end());
  }
  plan.projection = plan.expanded.data();
  plan.structured = nullptr;
}

/// Checks the feature map and its matrix; sets M, R, P and what the map is made of.
template <class T>
void plan_feature_map(const char* op, const AttentionParams<T>& params, PlanReader reader,
                      Plan<T>& plan) {
  const FeatureMapKind kind = params.feature_map;
  const std::string map = to_string(kind);
  plan.feature_map = kind;
  plan.projection = params.projection;
  plan.structured = params.structured;
  FAVOR_CHECK(params.projection == nullptr || params.structured == nullptr, op,
              ": projection and structured are both given, expected one of them");
  if (!has_projection(params)) {
    FAVOR_CHECK(!estimates_softmax(kind), op, ": projection is null, expected an [M, D] matrix ",
                "(feature_map ", map, " is random)");
    FAVOR_CHECK(params.num_features == 0 || params.num_features == plan.D, op, ": num_features is ",
                params.num_features, ", expected 0 or D = ", plan.D,
                " (no projection: the features are those of x itself)");
    plan.M = plan.D;
    plan.P = 1;
  } else {
    FAVOR_CHECK(params.num_features >= 1, op, ": num_features is ", params.num_features,
                ", expected M >= 1 (features of the state)");
    FAVOR_CHECK(params.num_projections == 1 || params.num_projections == plan.G, op,
                ": num_projections is ", params.num_projections, ", expected 1 or ", plan.G,
                " (key heads)");
    plan.M = params.num_features;
    plan.P = params.num_projections;
  }
  plan.rows = num_projection_rows(kind, plan.M);
  FAVOR_CHECK(num_state_features(kind, plan.rows) == plan.M, op, ": num_features is ", plan.M,
              ", expected an even number (feature_map ", map, " makes two of each row)");
  for (int64_t p = 0; params.structured != nullptr && p < plan.P; ++p) {
    const StructuredProjection& matrix = params.structured[p];
    FAVOR_CHECK(matrix.num_features == plan.rows && matrix.head_dim == plan.D, op, ": structured[",
                p, "] is a matrix of ", matrix.num_features, " x ", matrix.head_dim, ", expected ",
                plan.rows, " x ", plan.D);
    FAVOR_CHECK(matrix.is_complete(), op, ": structured[", p, "] has ", matrix.signs.size(),
                " words of signs and ", matrix.row_scales.size(), " scales in blocks of ",
                matrix.block_rows, " rows, expected what draw_structured_projection gives");
  }
  expand_structured(reader, plan);
  enter_scale(op, params, plan);

  plan.eps = resolve_feature_eps(params);
  plan.official = params.compatibility == Compatibility::kOfficial;
  plan.renormalize = params.renormalize;
  FAVOR_CHECK(!plan.official || kind == FeatureMapKind::kPositive, op,
              ": compatibility is official, expected feature_map positive, not ", map);
  FAVOR_CHECK(!plan.official || plan.renormalize, op,
              ": renormalize is false, expected true (compatibility is official)");
  if (is_fitted(kind) || kind == FeatureMapKind::kTrig) {
    FAVOR_CHECK(plan.eps == 0, op, ": feature_eps is ", plan.eps, ", expected 0 (feature_map ", map,
                " takes none)");
  }
  FAVOR_CHECK(std::isfinite(plan.eps) && plan.eps >= 0, op, ": feature_eps is ", plan.eps,
              ", expected a finite number, 0 or above");

  plan.map_parameters = params.map_parameters;
  plan.num_map_parameter_sets = params.num_map_parameter_sets;
  if (params.map_parameters != nullptr) {
    FAVOR_CHECK(is_fitted(kind), op, ": map_parameters are given, expected none (feature_map ", map,
                " has no fitted parameters)");
    FAVOR_CHECK(params.num_map_parameter_sets == 1 || params.num_map_parameter_sets == plan.G, op,
                ": num_map_parameter_sets is ", params.num_map_parameter_sets, ", expected 1 or ",
                plan.G, " (key heads)");
    check_map_parameters(op, params, plan.D);
  }
}

/// Checks, after plan_feature_map, that the map's estimates can be joined to exact scores.
template <class T>
void check_window(const char* op, const Plan<T>& plan) {
  if (plan.window == 0) return;
  const FeatureMapKind kind = plan.feature_map;
  FAVOR_CHECK(estimates_softmax(kind) && is_log_linear(kind), op, ": window is ", plan.window,
              ", expected 0 (feature_map ", to_string(kind), " has no scores to join exact ones)");
  FAVOR_CHECK(plan.eps == 0, op, ": feature_eps is ", plan.eps, ", expected 0 (with a window)");
  FAVOR_CHECK(plan.renormalize, op, ": renormalize is false, expected true (with a window)");
}

template <class T>
Plan<Compute<T>> make_plan(const char* op, const AttentionParams<Compute<T>>& params,
                           const View4<const T>& q, const View4<const T>& k,
                           const View4<const T>& v, PlanReader reader = PlanReader::kPass) {
  Plan<Compute<T>> plan;
  enter_tensors(op, q, k, v, plan);
  plan_feature_map(op, params, reader, plan);
  checked_product(op, {plan.P + 1, plan.M + 64, plan.D + plan.E + 64, int64_t{4}});
  enter_keys(op, params, "goes through features", plan);
  check_window(op, plan);
  return plan;
}

}  // namespace favor

#endif  // FAVOR_MAKE_PLAN_H_
