// SPDX-License-Identifier: Apache-2.0
#include "performer/train/estimate.h"

#include <algorithm>

#include "favor/check.h"

namespace performer {

ParameterCount count_parameters(const ModelConfig& config) {
  const int64_t dim = config.dim, norm = 2 * dim;
  const int64_t up = (config.ff_glu ? 2 : 1) * config.ff_dim;
  ParameterCount count;
  count.embedding = config.vocab_size * dim;
  if (config.positions == PositionKind::kLearned) count.embedding += config.max_length * dim;
  count.attention =
      config.num_layers * (norm + 4 * dim * dim + (config.attention_bias ? 4 * dim : 0));
  count.feed_forward = config.num_layers * (norm + (dim + 1) * up + (config.ff_dim + 1) * dim);
  count.output = norm + (config.tie_embeddings ? 0 : (dim + 1) * config.vocab_size);
  return count;
}

MemoryEstimate estimate_memory(const TrainConfig& config) {
  const ModelConfig& model = config.model;
  const int64_t parameters = count_parameters(model).total();
  const int64_t dim = model.dim, ff = model.ff_dim;
  // Bytes per number: in products, and everywhere else.
  const int64_t low = config.run.dtype == "bfloat16" ? 2 : 4, full = 4;
  const int64_t noise = model.dropout > 0 ? full * dim : 0;
  // What a block keeps per token until its backward pass: the input of each LayerNorm, and the
  // input of each product and of the attention.
  int64_t block = 2 * full * dim                       // inputs of the norms
                  + 2 * low * dim                      // their outputs
                  + low * (3 * dim + dim)              // q, k, v and what attention makes of them
                  + low * (model.ff_glu ? 4 : 2) * ff  // around the GELU
                  + 2 * noise;
  if (model.positions == PositionKind::kRotary) block += 2 * low * dim;
  // Logits, their logarithms of softmax and their gradient; the embedding and the final norm.
  const int64_t ends = 3 * full * model.vocab_size + full * dim + low * dim + noise;
  // Gradients of the block at work.
  const int64_t backward = full * (2 * dim + (model.ff_glu ? 4 : 2) * ff);

  MemoryEstimate estimate;
  estimate.weights = full * parameters;
  estimate.gradients = full * parameters;
  estimate.optimizer = 2 * full * parameters;
  estimate.activations = config.data.batch_tokens * (model.num_layers * block + ends + backward);
  // Weights are cast once per pass.
  if (low != full) estimate.activations += low * parameters;
  return estimate;
}

void fit_batch(TrainConfig& config, int64_t max_bytes, int64_t used_bytes) {
  const TrainConfig asked = config;
  for (int64_t parts = 1;; parts *= 2) {
    config.data.batch_tokens = std::max(asked.data.batch_tokens / parts, asked.data.length);
    config.optimizer.accumulate = asked.optimizer.accumulate * parts;
    const int64_t estimate = estimate_memory(config).total();
    const int64_t needed = used_bytes + estimate + estimate / 3;
    if (needed <= max_bytes) return;
    FAVOR_CHECK(config.data.batch_tokens > asked.data.length, "max_memory is ", max_bytes,
                " bytes, expected at least ", needed, " (", used_bytes,
                " of the program, and a batch of one row of ", asked.data.length, " tokens)");
  }
}

}  // namespace performer
