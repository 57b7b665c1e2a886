// SPDX-License-Identifier: Apache-2.0
// The optimiser of a model.
#ifndef PERFORMER_TRAIN_OPTIMIZER_H_
#define PERFORMER_TRAIN_OPTIMIZER_H_

#include <torch/optim/adamw.h>

#include "performer/models/models.h"
#include "performer/train/config.h"

namespace performer {

/// AdamW in two groups: matrices decay; biases, norms and position tables, whose scale matters, do
/// not.
torch::optim::AdamW make_optimizer(LanguageModel& model, const OptimizerConfig& config);

}  // namespace performer

#endif  // PERFORMER_TRAIN_OPTIMIZER_H_
