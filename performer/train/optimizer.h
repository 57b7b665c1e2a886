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

/// Euclidean norm of all gradients of the optimiser's parameters together.
double gradient_norm(const torch::optim::AdamW& optimizer);

/// As torch::nn::utils::clip_grad_norm_(parameters, limit) followed by optimizer.step(), for
/// gradients whose norm is known, in one pass over them; but leaves the gradients as they are. A
/// limit of 0 or less clips nothing. The optimiser's state is what step() would have left, up to
/// rounding. Parameters are float32, contiguous and on the CPU.
void clipped_step(torch::optim::AdamW& optimizer, double norm, double limit);

}  // namespace performer

#endif  // PERFORMER_TRAIN_OPTIMIZER_H_
