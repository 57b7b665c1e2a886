// SPDX-License-Identifier: Apache-2.0
// Internal: the rows and constants of a fitted map as decoding steps use them, which a state keeps
// from step to step because they take O(M D) or more to make.
#ifndef FAVOR_STEP_ROWS_H_
#define FAVOR_STEP_ROWS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "favor/plan.h"

namespace favor {

struct StepRows {
  // What they were made of: another matrix or map makes other rows.
  FeatureMapKind feature_map;
  bool whole;  ///< the constants that cancel among estimates are there too
  int64_t M, D, P, parameter_sets;
  std::vector<float> matrix, parameters;

  int64_t sets = 0;                           ///< 1, or one per key head
  std::vector<float> query_rows, key_rows;    ///< [sets, M, D]; key_rows empty: as the query's
  std::vector<float> query_shift;             ///< [sets, M] added to logits of queries
  std::vector<float> query_norms, key_norms;  ///< [sets, D] factors of squares, or empty: ones
};

/// The rows of a checked call with a fitted map: `kept` if it has them, or made anew.
std::shared_ptr<const StepRows> make_step_rows(const Plan<float>& plan,
                                               const std::shared_ptr<const StepRows>& kept);

}  // namespace favor

#endif  // FAVOR_STEP_ROWS_H_
