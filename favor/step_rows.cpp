// SPDX-License-Identifier: Apache-2.0
#include "favor/step_rows.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "favor/fitted_map.h"

namespace favor {
namespace {

/// Whether the floats are the same, bit for bit.
bool equals(const std::vector<float>& kept, const float* given, int64_t floats) {
  return static_cast<int64_t>(kept.size()) == floats &&
         std::memcmp(kept.data(), given, kept.size() * sizeof(float)) == 0;
}

bool describes(const StepRows& rows, const Plan<float>& plan, bool whole) {
  return rows.feature_map == plan.feature_map && rows.whole == whole && rows.M == plan.M &&
         rows.D == plan.D && rows.P == plan.P &&
         rows.parameter_sets == plan.num_map_parameter_sets &&
         equals(rows.parameters, plan.map_parameters,
                plan.num_map_parameter_sets * num_map_parameters(plan.feature_map, plan.D)) &&
         equals(rows.matrix, plan.projection, plan.P * plan.M * plan.D);
}

void append(const std::vector<double>& from, double subtracted, std::vector<float>& to) {
  for (const double x : from) to.push_back(static_cast<float>(x - subtracted));
}

}  // namespace

std::shared_ptr<const StepRows> make_step_rows(const Plan<float>& plan,
                                               const std::shared_ptr<const StepRows>& kept) {
  const bool whole = !plan.renormalize || plan.window > 0;
  if (kept != nullptr && describes(*kept, plan, whole)) return kept;
  const int64_t numbers = num_map_parameters(plan.feature_map, plan.D);
  const bool diagonal = plan.feature_map == FeatureMapKind::kFavorSharpDiagonal;
  auto rows = std::make_shared<StepRows>();
  rows->feature_map = plan.feature_map;
  rows->whole = whole;
  rows->M = plan.M;
  rows->D = plan.D;
  rows->P = plan.P;
  rows->parameter_sets = plan.num_map_parameter_sets;
  rows->matrix.assign(plan.projection, plan.projection + plan.P * plan.M * plan.D);
  rows->parameters.assign(plan.map_parameters,
                          plan.map_parameters + plan.num_map_parameter_sets * numbers);
  rows->sets = std::max(plan.P, plan.num_map_parameter_sets);
  for (int64_t g = 0; g < rows->sets; ++g) {
    const float* from = rows->parameters.data() + (rows->parameter_sets == 1 ? 0 : g * numbers);
    const std::vector<double> parameters(from, from + numbers);
    const float* matrix = rows->matrix.data() + (plan.P == 1 ? 0 : g * plan.M * plan.D);
    const LogLinearMap map = make_log_linear_map(plan.feature_map, matrix, plan.M, plan.D,
                                                 std::span<const double>(parameters));
    append(map.query_rows, 0, rows->query_rows);
    // What all features have in common cancels in a ratio.
    append(map.query_constant, whole ? 0.0 : map.query_constant[0], rows->query_shift);
    if (!diagonal) continue;
    append(map.key_rows, 0, rows->key_rows);
    append(map.query_norm, 0, rows->query_norms);
    append(map.key_norm, 0, rows->key_norms);
  }
  return rows;
}

}  // namespace favor
