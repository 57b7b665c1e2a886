// SPDX-License-Identifier: Apache-2.0
// Scores of a model on prepared batches.
#ifndef PERFORMER_TRAIN_EVALUATE_H_
#define PERFORMER_TRAIN_EVALUATE_H_

#include "performer/data/batches.h"
#include "performer/models/models.h"
#include "performer/train/metrics.h"

namespace performer {

/// Tensors of a batch, on its memory: the batch must outlive them.
struct BatchTensors {
  torch::Tensor tokens;   // [rows, length]
  torch::Tensor targets;  // [rows, length], -1 = none; of classes [rows or pairs, 1]
  BatchLayout layout;     // the mask only where the model needs it
};
BatchTensors to_tensors(const Batch& batch, bool causal);

/// logits [..., V] and targets of the same leading sizes. Negative log-likelihood summed over the
/// targets of a batch, a scalar with gradient.
torch::Tensor summed_loss(const torch::Tensor& logits, const torch::Tensor& targets);

/// Mean loss, perplexity, accuracy and the given units over all targets. Runs without dropout and
/// draws no random number; the model's mode is restored. Of long rows it holds no more at a time
/// than memory().slice_tokens and loss_chunk say. Throws favor::Error when the batches hold no
/// target.
EvalScore evaluate(LanguageModel& model, const EvalSource& batches,
                   const std::vector<Unit>& units = {});

}  // namespace performer

#endif  // PERFORMER_TRAIN_EVALUATE_H_
