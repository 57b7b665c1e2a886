// SPDX-License-Identifier: Apache-2.0
// What a run will take, worked out from its configuration alone. No torch here.
#ifndef PERFORMER_TRAIN_ESTIMATE_H_
#define PERFORMER_TRAIN_ESTIMATE_H_

#include <cstdint>

#include "performer/train/config.h"

namespace performer {

/// Parameters by group. A LayerNorm counts with what it stands before.
struct ParameterCount {
  int64_t embedding = 0;  ///< tokens, and positions that are learned
  int64_t attention = 0;
  int64_t feed_forward = 0;
  int64_t output = 0;  ///< the final LayerNorm, and the output layer unless it is the embedding

  int64_t total() const { return embedding + attention + feed_forward + output; }
};
ParameterCount count_parameters(const ModelConfig& config);

/// Bytes of a training step beside the program, its libraries and the data. Measured peaks lie
/// within a factor of 1.5 where the sum is 50 MB or more.
struct MemoryEstimate {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;    ///< the two moments of AdamW
  int64_t activations = 0;  ///< of batch_tokens, as run.memory has them kept, states included

  int64_t total() const { return weights + gradients + optimizer + activations; }
};
MemoryEstimate estimate_memory(const TrainConfig& config);

/// Divides batch_tokens until a step fits into `max_bytes`, of which `used_bytes` are taken, with a
/// third of the estimate to spare (measured steps exceed it by less), and multiplies accumulate as
/// much, so that an optimiser step keeps its tokens. Throws favor::Error when a batch of one row is
/// too large.
void fit_batch(TrainConfig& config, int64_t max_bytes, int64_t used_bytes);

}  // namespace performer

#endif  // PERFORMER_TRAIN_ESTIMATE_H_
