// SPDX-License-Identifier: Apache-2.0
// The gradient of one batch, within the memory that the model was told to use.
#ifndef PERFORMER_TRAIN_STEP_H_
#define PERFORMER_TRAIN_STEP_H_

#include "performer/models/models.h"
#include "performer/train/evaluate.h"

namespace performer {

/// Negative log-likelihood summed over the targets [B, L] of hidden states [B, L, dim], a scalar
/// with gradient. With memory().loss_chunk the logits of so many tokens are held at a time.
torch::Tensor output_loss(LanguageModel& model, const torch::Tensor& hidden,
                          const torch::Tensor& targets);

/// Adds to the gradients of the parameters that of the batch's summed loss divided by `divisor`,
/// and returns the summed loss. `bfloat16`: forward passes run under Autocast.
///
/// With memory().slice_tokens = C the rows go through all layers C tokens at a time (Likhosherstov
/// et al. 2020, "Sub-linear memory"): forward keeps the attention's states at the borders, backward
/// takes the slices from the last to the first, computes each again and passes the gradient of its
/// first state on. The gradients are those of the whole rows, the activations those of one slice,
/// and the states M (E + 2) floats per head, layer and slice. Dropout is drawn slice by slice, and
/// alike both times.
double add_gradients(LanguageModel& model, const BatchTensors& batch, double divisor,
                     bool bfloat16);

}  // namespace performer

#endif  // PERFORMER_TRAIN_STEP_H_
