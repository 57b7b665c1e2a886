// SPDX-License-Identifier: Apache-2.0
// The learning rate as a function of the step and of the progress of the run. No torch here.
#ifndef PERFORMER_TRAIN_SCHEDULE_H_
#define PERFORMER_TRAIN_SCHEDULE_H_

#include <cstdint>

#include "performer/train/config.h"

namespace performer {

/// Share of the run that is over, in [0, 1]: the larger of steps done / max_steps and, with a time
/// limit, elapsed / max_minutes. Only runs limited by steps are reproducible.
double run_progress(const RunConfig& run, int64_t steps_done, double elapsed_s);

/// Rate of the optimiser step that follows `steps_done` steps: a linear warm-up, times the
/// schedule.
double learning_rate(const OptimizerConfig& optimizer, int64_t steps_done, double progress);

}  // namespace performer

#endif  // PERFORMER_TRAIN_SCHEDULE_H_
