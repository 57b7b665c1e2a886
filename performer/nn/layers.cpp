// SPDX-License-Identifier: Apache-2.0
// Feed-forward, block and embedding. Linear layers start Xavier-uniform with zero biases.
#include "performer/nn/layers.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "favor/check.h"
#include "performer/nn/linear.h"

namespace performer {

using torch::Tensor;

struct FeedForwardImpl::Parts {
  bool glu = false;
  torch::nn::Linear up{nullptr}, down{nullptr};
};

FeedForwardImpl::FeedForwardImpl(int64_t dim, int64_t ff_dim, bool glu)
    : parts_(std::make_unique<Parts>()) {
  parts_->glu = glu;
  parts_->up = register_module("up", torch::nn::Linear(dim, glu ? 2 * ff_dim : ff_dim));
  parts_->down = register_module("down", torch::nn::Linear(ff_dim, dim));
  const torch::NoGradGuard no_grad;
  for (Tensor& part : parts_->up->weight.chunk(glu ? 2 : 1)) {
    torch::nn::init::xavier_uniform_(part);
  }
  torch::nn::init::xavier_uniform_(parts_->down->weight);
  parts_->up->bias.zero_();
  parts_->down->bias.zero_();
}

FeedForwardImpl::~FeedForwardImpl() = default;

Tensor FeedForwardImpl::forward(const Tensor& x) {
  const torch::nn::Linear& up = parts_->up;
  const torch::nn::Linear& down = parts_->down;
  const Tensor hidden = apply_linear(x, up->weight, up->bias);
  if (!parts_->glu) return apply_linear(torch::gelu(hidden), down->weight, down->bias);
  const std::vector<Tensor> halves = hidden.chunk(2, -1);
  return apply_linear(torch::gelu(halves[1]) * halves[0], down->weight, down->bias);
}

struct BlockImpl::Parts {
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  MultiHeadAttention attention{nullptr};
  FeedForward feed_forward{nullptr};
  double dropout = 0;
  int64_t ff_chunk = 0;

  Tensor drop(const Tensor& branch, bool training) const {
    return training && dropout > 0 ? torch::dropout(branch, dropout, true) : branch;
  }
};

namespace {

TensorList joined(TensorList a, const TensorList& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

BlockImpl::BlockImpl(const ModelConfig& config, int64_t layer) : parts_(std::make_unique<Parts>()) {
  MultiHeadAttentionOptions options;
  options.dim = config.dim;
  options.num_heads = config.num_heads;
  options.layer = layer;
  options.max_length = config.max_length;
  options.causal = config.causal;
  options.bias = config.attention_bias;
  options.attention = config.attention;
  const torch::nn::LayerNormOptions norm({config.dim});
  parts_->norm1 = register_module("norm1", torch::nn::LayerNorm(norm));
  parts_->attention = register_module("attention", MultiHeadAttention(options));
  parts_->norm2 = register_module("norm2", torch::nn::LayerNorm(norm));
  parts_->feed_forward =
      register_module("feed_forward", FeedForward(config.dim, config.ff_dim, config.ff_glu));
  parts_->dropout = config.dropout;
}

BlockImpl::~BlockImpl() = default;

Tensor BlockImpl::attend(const Tensor& x, const BatchLayout& layout, const Tensor& rotary) {
  return parts_->drop(parts_->attention->forward(parts_->norm1->forward(x), layout, rotary),
                      is_training());
}

Tensor BlockImpl::attend_slice(const Tensor& x, const SliceLayout& layout, const Tensor& rotary,
                               SliceState& state) {
  const Tensor normed = parts_->norm1->forward(x);
  return parts_->drop(parts_->attention->forward_slice(normed, layout, rotary, state),
                      is_training());
}

Tensor BlockImpl::attend_next(const Tensor& x, AttentionState& state, const Tensor& rotary) {
  return parts_->attention->decode(parts_->norm1->forward(x), state, rotary);
}

Tensor BlockImpl::transform(const Tensor& x, bool drops) {
  const auto body = [norm = parts_->norm2,
                     feed_forward = parts_->feed_forward](const Tensor& tokens) mutable {
    return feed_forward->forward(norm->forward(tokens));
  };
  return parts_->drop(by_chunks(body, x, parts_->ff_chunk, transform_parameters()),
                      drops && is_training());
}

Tensor BlockImpl::attention_weights(const Tensor& x, const Tensor& rotary) {
  return parts_->attention->weights(parts_->norm1->forward(x), rotary);
}

AttentionDiagnostics BlockImpl::diagnose(const Tensor& x, const Tensor& rotary) {
  return parts_->attention->diagnose(parts_->norm1->forward(x), rotary);
}

void BlockImpl::set_ff_chunk(int64_t tokens) {
  parts_->ff_chunk = tokens;
}

TensorList BlockImpl::attend_parameters() const {
  return joined(parts_->norm1->parameters(), parts_->attention->parameters());
}

TensorList BlockImpl::transform_parameters() const {
  return joined(parts_->norm2->parameters(), parts_->feed_forward->parameters());
}

AttentionState BlockImpl::blank_state(int64_t B, int64_t position) const {
  return parts_->attention->blank_state(B, position);
}

void BlockImpl::check_state(const std::string& where, const AttentionState& state, int64_t B,
                            int64_t position) const {
  parts_->attention->check_state(where, state, B, position);
}

void BlockImpl::redraw(uint32_t index) {
  parts_->attention->redraw(index);
}

struct EmbeddingImpl::Parts {
  PositionKind kind = PositionKind::kLearned;
  int64_t vocab_size = 0, max_length = 0, dim = 0;
  torch::nn::Embedding tokens{nullptr};
  Tensor positions;          // the learned table
  std::vector<Tensor> axes;  // the axial tables: of rows, columns, channels

  // Vectors of the ids alone.
  Tensor look_up(const Tensor& ids, int64_t end) {
    FAVOR_CHECK(ids.dim() == 2 && ids.scalar_type() == torch::kLong, "model: tokens is ",
                ids.scalar_type(), " of shape ", ids.sizes(), ", expected int64 of shape [B, L]");
    FAVOR_CHECK(kind != PositionKind::kLearned || end <= max_length,
                "model: tokens reach position ", end,
                ", expected at most max_length = ", max_length,
                " (learned positions; sinusoidal and rotary have no limit)");
    FAVOR_CHECK(kind != PositionKind::kAxial || end <= num_axial(), "model: tokens reach position ",
                end, ", expected at most ", num_axial(), " (axial positions of ", axes[0].size(0),
                " rows, ", axes[1].size(0), " columns and ", axes[2].size(0), " channels)");
    if (ids.numel() > 0) {
      const auto [low, high] = torch::aminmax(ids);
      const int64_t smallest = low.item<int64_t>(), largest = high.item<int64_t>();
      FAVOR_CHECK(smallest >= 0 && largest < vocab_size, "model: tokens holds id ",
                  smallest < 0 ? smallest : largest, ", expected 0 to ", vocab_size - 1);
    }
    return tokens->forward(ids);
  }

  int64_t num_axial() const { return axes[0].size(0) * axes[1].size(0) * axes[2].size(0); }

  // What is added at axial positions [L].
  Tensor axial(const Tensor& at) const {
    const int64_t columns = axes[1].size(0), channels = axes[2].size(0);
    const Tensor pixel = at.div(channels, "floor");
    return axes[0].index_select(0, pixel.div(columns, "floor")) +
           axes[1].index_select(0, pixel.remainder(columns)) +
           axes[2].index_select(0, at.remainder(channels));
  }

  // What is added to the vectors at positions [begin, end); undefined for rotary.
  Tensor table(int64_t begin, int64_t end) const {
    if (kind == PositionKind::kAxial) return axial(torch::arange(begin, end));
    if (kind == PositionKind::kLearned) return positions.slice(0, begin, end);
    if (kind == PositionKind::kRotary) return {};
    return sinusoids(begin, end - begin, dim).to(tokens->weight.dtype());
  }
};

EmbeddingImpl::EmbeddingImpl(const ModelConfig& config) : parts_(std::make_unique<Parts>()) {
  parts_->kind = config.positions;
  parts_->vocab_size = config.vocab_size;
  parts_->max_length = config.max_length;
  parts_->dim = config.dim;
  parts_->tokens = register_module("tokens", torch::nn::Embedding(config.vocab_size, config.dim));
  if (config.positions == PositionKind::kLearned) {
    parts_->positions =
        register_parameter("positions", sinusoids(0, config.max_length, config.dim));
  }
  if (config.positions != PositionKind::kAxial) return;
  const std::pair<const char*, int64_t> axes[] = {{"position_rows", config.axial_rows},
                                                  {"position_columns", config.axial_columns},
                                                  {"position_channels", config.axial_channels}};
  int64_t shares = 0, share = 0;
  for (const auto& [name, size] : axes) shares += size > 1 ? 1 : 0;
  for (const auto& [name, size] : axes) {
    Tensor table = torch::zeros({size, config.dim});
    // An axis of one place tells nothing and needs no share.
    if (size > 1) {
      const int64_t begin = config.dim * share / shares, end = config.dim * (share + 1) / shares;
      table.slice(1, begin, end).copy_(sinusoids(0, size, end - begin));
      ++share;
    }
    parts_->axes.push_back(register_parameter(name, table));
  }
}

EmbeddingImpl::~EmbeddingImpl() = default;

Tensor EmbeddingImpl::forward(const Tensor& tokens, int64_t begin) {
  const int64_t end = begin + (tokens.dim() == 2 ? tokens.size(1) : 0);
  const Tensor vectors = parts_->look_up(tokens, end);
  const Tensor added = parts_->table(begin, end);
  return added.defined() ? vectors + added : vectors;
}

Tensor EmbeddingImpl::forward(const Tensor& tokens, const Tensor& positions, int64_t longest) {
  const Tensor vectors = parts_->look_up(tokens, longest);
  // A slice of a long row needs few of the positions before it.
  if (parts_->kind == PositionKind::kSinusoidal && longest > positions.size(0)) {
    return vectors + sinusoids(positions.to(torch::kDouble), parts_->dim).to(vectors.dtype());
  }
  if (parts_->kind == PositionKind::kAxial) return vectors + parts_->axial(positions);
  const Tensor added = parts_->table(0, longest);
  return added.defined() ? vectors + added.index_select(0, positions) : vectors;
}

Tensor EmbeddingImpl::forward_rows(const Tensor& tokens, const std::vector<int64_t>& positions) {
  const Parts& parts = *parts_;
  const int64_t largest =
      positions.empty() ? -1 : *std::max_element(positions.begin(), positions.end());
  const Tensor vectors = parts_->look_up(tokens, largest + 1);
  if (parts.kind == PositionKind::kRotary) return vectors;
  const Tensor at = torch::tensor(positions, torch::kInt64);
  Tensor added;
  if (parts.kind == PositionKind::kLearned) {
    added = parts.positions.index_select(0, at);
  } else if (parts.kind == PositionKind::kAxial) {
    added = parts.axial(at);
  } else {
    added = sinusoids(at.to(torch::kDouble), parts.dim).to(vectors.dtype());
  }
  return vectors + added.unsqueeze(1);
}

Tensor EmbeddingImpl::weight() const {
  return parts_->tokens->weight;
}

Tensor sinusoids(const Tensor& positions, int64_t dim) {
  const int64_t half = dim / 2;
  const double step = std::log(10000.0) / static_cast<double>(std::max<int64_t>(half - 1, 1));
  const Tensor frequencies = torch::exp(torch::arange(half, positions.options()) * -step);
  const Tensor angles = torch::outer(positions, frequencies);
  const Tensor rest = torch::zeros({positions.size(0), dim - 2 * half}, positions.options());
  // An odd width leaves its last column 0.
  return torch::cat({angles.sin(), angles.cos(), rest}, 1).to(torch::kFloat);
}

Tensor sinusoids(int64_t begin, int64_t length, int64_t dim) {
  return sinusoids(torch::arange(begin, begin + length, torch::kDouble), dim);
}

}  // namespace performer
