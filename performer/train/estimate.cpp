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
  if (config.positions == PositionKind::kAxial) {
    count.embedding += (config.axial_rows + config.axial_columns + config.axial_channels) * dim;
  }
  count.attention =
      config.num_layers * (norm + 4 * dim * dim + (config.attention_bias ? 4 * dim : 0));
  if (config.attention.method == AttentionMethod::kLinformer) {
    count.attention += config.num_layers * 2 * config.attention.mixed_keys * config.max_length;
  }
  count.feed_forward = config.num_layers * (norm + (dim + 1) * up + (config.ff_dim + 1) * dim);
  const int64_t pooled = config.head == HeadKind::kPairs ? 4 * dim : dim;
  const int64_t classifier =
      (pooled + 1) * config.ff_dim + (config.ff_dim + 1) * config.num_classes;
  count.output = norm + (config.head != HeadKind::kTokens ? classifier
                         : config.tie_embeddings          ? 0
                                                          : (dim + 1) * config.vocab_size);
  return count;
}

namespace {

// Rows of dim numbers per token that a method keeps beside q, k, v and its output, as measured:
// mostly copies of tokens in the order of their buckets or clusters.
double method_rows(const AttentionOptions& attention) {
  switch (attention.method) {
    case AttentionMethod::kLsh:
      return 3.5 * static_cast<double>(attention.hash_rounds);
    case AttentionMethod::kClustered:
      return 13;
    case AttentionMethod::kFavorClusters:
      return 8;
    case AttentionMethod::kCentroids:
      return 3;
    default:
      return 0;
  }
}

// Bytes per token of what a block keeps until its backward pass, and of the gradients of the block
// at work.
struct BlockBytes {
  int64_t attention, feed_forward;      // the two branches, each with the input of its norm
  int64_t feed_forward_kept;            // of a feed-forward in chunks: its input and its dropout
  int64_t gradients, hidden_gradients;  // of the streams, and within the feed-forward
};

BlockBytes block_bytes(const ModelConfig& model, int64_t low) {
  constexpr int64_t full = 4;
  const int64_t dim = model.dim, hidden = (model.ff_glu ? 4 : 2) * model.ff_dim;
  const int64_t noise = model.dropout > 0 ? full * dim : 0;
  const bool turns = model.positions == PositionKind::kRotary;
  BlockBytes bytes{};
  const auto extra = static_cast<int64_t>(method_rows(model.attention) * static_cast<double>(dim));
  // The norm's input and output; q, k, v and what attention makes of them.
  bytes.attention = full * dim + low * (5 * dim + extra) + (turns ? 2 * low * dim : 0) + noise;
  bytes.feed_forward_kept = full * dim + noise;
  // The norm's output, and what lies around the GELU.
  bytes.feed_forward = bytes.feed_forward_kept + low * dim + low * hidden;
  bytes.gradients = full * (2 * dim + extra);
  bytes.hidden_gradients = full * hidden;
  return bytes;
}

// Activations of `tokens` that go through all layers at once.
int64_t activation_bytes(const TrainConfig& config, int64_t tokens, int64_t low) {
  const ModelConfig& model = config.model;
  const MemoryOptions& memory = config.run.memory;
  constexpr int64_t full = 4;
  const BlockBytes block = block_bytes(model, low);
  const auto part = [tokens](int64_t chunk) {
    return chunk > 0 ? std::min(chunk, tokens) : tokens;
  };
  const bool chunked = part(memory.ff_chunk) < tokens;
  const int64_t stored = block.attention + (chunked ? block.feed_forward_kept : block.feed_forward);
  // One feed-forward, or a piece of one, at its backward pass.
  int64_t working = tokens * block.gradients + part(memory.ff_chunk) * block.hidden_gradients;
  if (chunked) working += part(memory.ff_chunk) * (block.feed_forward - block.feed_forward_kept);
  const int64_t streams = model.reversible ? 2 : 1;
  int64_t kept = 0;
  switch (memory.resolve(model)) {
    case ActivationPolicy::kCheckpoint:
      kept = model.num_layers * streams * full * model.dim + stored;
      break;
    case ActivationPolicy::kReverse:
      // Both streams, those found from them and their gradients, and one branch at a time.
      kept = 8 * full * model.dim + std::max(block.attention, stored - block.attention);
      break;
    default:
      kept = model.num_layers * stored;
  }
  // Logits, their logarithms of softmax and their gradient; the embedding and the final norm.
  const int64_t vocab_size = model.head == HeadKind::kTokens ? model.vocab_size : 0;
  const int64_t logits = 3 * full * vocab_size * part(memory.loss_chunk);
  const int64_t noise = model.dropout > 0 ? full * model.dim : 0;
  return tokens * (kept + full * model.dim + low * model.dim + noise) + logits + working;
}

}  // namespace

MemoryEstimate estimate_memory(const TrainConfig& config) {
  const ModelConfig& model = config.model;
  const int64_t parameters = count_parameters(model).total();
  // Bytes per number: in products, and everywhere else.
  const int64_t low = config.run.dtype == "bfloat16" ? 2 : 4, full = 4;
  MemoryEstimate estimate;
  estimate.weights = full * parameters;
  estimate.gradients = full * parameters;
  estimate.optimizer = 2 * full * parameters;
  const int64_t C = config.run.memory.slice_tokens, length = config.data.length;
  const int64_t rows = std::max<int64_t>(config.data.batch_tokens / length, 1);
  if (C > 0 && C < length) {
    const int64_t features =
        model.attention.use_projection ? model.attention.num_features : model.head_dim();
    const int64_t state =
        full * model.num_layers * model.num_heads * features * (model.head_dim() + 2);
    // One a border, and those at both ends of a slice with their gradients.
    estimate.activations = rows * state * ((length + C - 1) / C + 4);
    estimate.activations += activation_bytes(config, rows * C, low);
  } else {
    estimate.activations = activation_bytes(config, config.data.batch_tokens, low);
  }
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
