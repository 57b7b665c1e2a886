// SPDX-License-Identifier: Apache-2.0
// A training run without the run: what it would take, tried on two steps of random tokens.
#ifndef PERFORMER_TRAIN_DRY_RUN_H_
#define PERFORMER_TRAIN_DRY_RUN_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "performer/train/estimate.h"

namespace performer {

struct DryRun {
  ParameterCount parameters;
  MemoryEstimate memory;
  int64_t resident_bytes = 0;       ///< of the program before the steps
  int64_t measured_peak_bytes = 0;  ///< of the steps, beside what was resident before
  int64_t tokens_per_step = 0;      ///< of an optimiser step, padding included
  double step_s = 0;                ///< an optimiser step
  int64_t steps_per_epoch = 0;      ///< 0: no data was named
};

/// Makes the model, takes two steps (the first allocates, the second is timed) and, where
/// config.data.data is named, counts the batches of an epoch. Writes nothing.
DryRun dry_run(const TrainConfig& config);

nlohmann::json to_json(const DryRun& run);
/// A few lines for people.
std::string describe(const DryRun& run);

}  // namespace performer

#endif  // PERFORMER_TRAIN_DRY_RUN_H_
