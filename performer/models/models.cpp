// SPDX-License-Identifier: Apache-2.0
// The language model: embedding, blocks, final LayerNorm, output layer; and its decoding stream.
#include "performer/models/models.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "favor/check.h"
#include "performer/models/classifier.h"
#include "performer/models/token_step.h"
#include "performer/nn/layers.h"
#include "performer/nn/linear.h"
#include "performer/nn/stack.h"

namespace performer {

using torch::Tensor;

struct LanguageModelImpl::Parts {
  ModelConfig config;
  Embedding embed{nullptr};
  BlockStack stack;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear output{nullptr};   // empty when the embedding is shared
  ClassifierHead classifier{nullptr};  // in place of the output layer
  uint32_t redraw_index = 0;
  bool fused_decode = true;
  std::unique_ptr<TokenStep> token_step;  // made when it is first wanted

  Tensor rotary(int64_t begin, int64_t length) const {
    if (config.positions != PositionKind::kRotary) return {};
    return rotary_table(begin, length, config.head_dim()).to(norm->weight.dtype());
  }

  // Of one token a row: [2, B, 1, 1, head_dim / 2].
  Tensor rotary(const std::vector<int64_t>& positions) const {
    if (config.positions != PositionKind::kRotary) return {};
    const Tensor at = torch::tensor(positions, torch::kInt64).to(torch::kDouble);
    return rotary_table(at, config.head_dim()).to(norm->weight.dtype()).unsqueeze(2).unsqueeze(2);
  }

  // After the embedding.
  Tensor drop(const Tensor& x, bool training) const {
    return training && config.dropout > 0 ? torch::dropout(x, config.dropout, /*train=*/true) : x;
  }

  Tensor logits(const Tensor& hidden) {
    if (!output.is_empty()) return apply_linear(hidden, output->weight, output->bias);
    // Rows of the table have norm sqrt(dim), and so have hidden rows: unscaled, the first logits
    // would spread by sqrt(dim) instead of 1.
    return apply_linear(hidden * (1.0 / std::sqrt(static_cast<double>(config.dim))),
                        embed->weight(), {});
  }

  // Calls visit(i, block, what its attention reads) for the first `count` blocks.
  template <class Visit>
  void visit_blocks(const Tensor& tokens, const Tensor& rotary, int64_t count, const Visit& visit) {
    Residual x = stack.open(embed->forward(tokens));
    for (int64_t i = 0; i < count; ++i) {
      Block block = stack.blocks()[static_cast<size_t>(i)];
      visit(i, block, x.attended());
      if (i + 1 == count) return;
      x = stack.advance(i, x, [&](const Tensor& in) { return block->attend(in, {}, rotary); });
    }
  }

  void check_stream(const Tensor& tokens, const DecoderState& state) const {
    FAVOR_CHECK(config.causal, "decode: causal is false, expected true (an encoder has no stream)");
    FAVOR_CHECK(tokens.dim() == 2 && tokens.size(1) >= 1, "decode: tokens has shape ",
                tokens.sizes(), ", expected [B, T] with T >= 1");
    if (state.position == 0) return;
    FAVOR_CHECK(std::ssize(state.layers) == stack.size(), "decode: state holds ",
                state.layers.size(), " layers, expected ", stack.size());
    const int64_t streams = state.streams();
    FAVOR_CHECK(streams == tokens.size(0), "decode: tokens has shape ", tokens.sizes(),
                ", expected ", streams, " rows (as the state)");
    FAVOR_CHECK(
        state.positions.empty() || (std::ssize(state.positions) == streams && tokens.size(1) == 1),
        "decode: tokens has shape ", tokens.sizes(), " and the state ", state.positions.size(),
        " positions, expected [", streams, ", 1] and ", streams,
        " (rows with positions of their own)");
    // Every layer, before the first of them moves on: an error leaves the stream as it was.
    for (size_t i = 0; i < state.layers.size(); ++i) {
      stack.blocks()[i]->check_state(favor::message("decode: layer ", i, " of the state"),
                                     state.layers[i], streams, state.position);
    }
  }
};

LanguageModelImpl::LanguageModelImpl(const ModelConfig& config)
    : parts_(std::make_unique<Parts>()) {
  config.check();
  Parts& parts = *parts_;
  parts.config = config;
  parts.embed = register_module("embed", Embedding(config));
  parts.stack = BlockStack(config);
  torch::nn::ModuleList layers;
  for (const Block& block : parts.stack.blocks()) layers->push_back(block);
  register_module("layers", layers);
  parts.norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.dim})));
  if (config.head != HeadKind::kTokens) {
    parts.classifier = register_module("classifier", ClassifierHead(config));
    return;
  }
  if (config.tie_embeddings) return;
  parts.output = register_module("output", torch::nn::Linear(config.dim, config.vocab_size));
  const torch::NoGradGuard no_grad;
  torch::nn::init::xavier_uniform_(parts.output->weight);
  parts.output->bias.zero_();
}

LanguageModelImpl::~LanguageModelImpl() = default;

Tensor LanguageModelImpl::forward(const Tensor& tokens, const BatchLayout& layout) {
  const Tensor x = hidden(tokens, layout);
  return parts_->classifier.is_empty() ? parts_->logits(x) : parts_->classifier->forward(x, layout);
}

Tensor LanguageModelImpl::hidden(const Tensor& tokens, const BatchLayout& layout, int64_t layer) {
  Parts& parts = *parts_;
  const int64_t num_layers = parts.stack.size();
  FAVOR_CHECK(layer >= -1 - num_layers && layer <= num_layers, "model: layer is ", layer,
              ", expected ", -1 - num_layers, " to ", num_layers);
  const int64_t count = layer < 0 ? layer + 1 + num_layers : layer;
  Tensor x, rotary;
  if (layout.is_packed() && tokens.dim() == 2) {
    layout.check("model", tokens.size(0), tokens.size(1));
    const std::vector<int64_t> offsets = layout.offsets(tokens.size(1));
    int64_t longest = 0;
    for (size_t n = 0; n + 1 < offsets.size(); ++n) {
      longest = std::max(longest, offsets[n + 1] - offsets[n]);
    }
    const Tensor positions = packed_positions(offsets);
    x = parts.embed->forward(tokens, positions, longest);
    rotary = parts.rotary(0, longest);
    if (rotary.defined()) rotary = rotary.index_select(1, positions);
  } else {
    x = parts.embed->forward(tokens);
    rotary = parts.rotary(0, tokens.size(1));
  }
  x = parts.drop(x, is_training());
  x = parts.stack.forward(x, count, layout, rotary).value();
  return count == num_layers ? parts.norm->forward(x) : x;
}

Tensor LanguageModelImpl::logits(const Tensor& hidden) {
  FAVOR_CHECK(parts_->classifier.is_empty(), "logits: head is ", to_string(parts_->config.head),
              ", expected tokens (forward has the logits of classes)");
  return parts_->logits(hidden);
}

TensorList LanguageModelImpl::output_parameters() const {
  return parts_->output.is_empty() ? TensorList{parts_->embed->weight()}
                                   : parts_->output->parameters();
}

Tensor LanguageModelImpl::hidden_slice(const Tensor& tokens, const BatchLayout& layout,
                                       int64_t begin, int64_t end,
                                       std::vector<SliceState>& states) {
  Parts& parts = *parts_;
  const ModelConfig& config = parts.config;
  FAVOR_CHECK(tokens.dim() == 2 && 0 <= begin && begin < end && end <= tokens.size(1),
              "model: the slice is ", begin, " to ", end, " of tokens ", tokens.sizes(),
              ", expected a part of [B, L]");
  layout.check("model", tokens.size(0), tokens.size(1));
  const SliceLayout slice = cut(layout, tokens.size(1), begin, end);
  if (begin == 0) {
    const int64_t M =
        config.attention.use_projection ? config.attention.num_features : config.head_dim();
    states.assign(static_cast<size_t>(parts.stack.size()),
                  empty_slice_state(tokens.size(0), config.num_heads, M, config.head_dim()));
  }
  FAVOR_CHECK(std::ssize(states) == parts.stack.size(), "model: states holds ", states.size(),
              " layers, expected ", parts.stack.size(), " (of the slice before)");
  const int64_t longest = slice.positions.max().item<int64_t>() + 1;
  Tensor x = parts.embed->forward(tokens.slice(1, begin, end), slice.positions, longest);
  Tensor rotary;
  if (config.positions == PositionKind::kRotary) {
    rotary = rotary_table(slice.positions.to(torch::kDouble), config.head_dim());
    rotary = rotary.to(parts.norm->weight.dtype());
  }
  x = parts.drop(x, is_training());
  return parts.norm->forward(parts.stack.forward_slice(x, slice, rotary, states).value());
}

void LanguageModelImpl::set_memory(const MemoryOptions& options) {
  parts_->stack.set_memory(options);
}

const MemoryOptions& LanguageModelImpl::memory() const {
  return parts_->stack.memory();
}

void LanguageModelImpl::visit_attention(
    const Tensor& tokens, const std::vector<int64_t>& layers,
    const std::function<void(int64_t layer, const Tensor& weights)>& visit) {
  Parts& parts = *parts_;
  const int64_t num_layers = parts.stack.size();
  std::vector<bool> wanted(static_cast<size_t>(num_layers), layers.empty());
  for (const int64_t layer : layers) {
    FAVOR_CHECK(layer >= -num_layers && layer < num_layers, "model: layer is ", layer,
                ", expected ", -num_layers, " to ", num_layers - 1);
    wanted[layer < 0 ? layer + num_layers : layer] = true;
  }
  const torch::NoGradGuard no_grad;
  const bool was_training = is_training();
  eval();
  const Tensor rotary = parts.rotary(0, tokens.size(1));
  const int64_t last = std::find(wanted.rbegin(), wanted.rend(), true).base() - wanted.begin();
  parts.visit_blocks(tokens, rotary, last, [&](int64_t i, Block& block, const Tensor& x) {
    if (wanted[i]) visit(i, block->attention_weights(x, rotary));
  });
  train(was_training);
}

void LanguageModelImpl::diagnose(
    const Tensor& tokens,
    const std::function<void(int64_t layer, const AttentionDiagnostics&)>& visit) {
  Parts& parts = *parts_;
  const torch::NoGradGuard no_grad;
  const bool was_training = is_training();
  eval();
  const Tensor rotary = parts.rotary(0, tokens.size(1));
  parts.visit_blocks(
      tokens, rotary, parts.stack.size(),
      [&](int64_t i, Block& block, const Tensor& x) { visit(i, block->diagnose(x, rotary)); });
  train(was_training);
}

Tensor LanguageModelImpl::decode(const Tensor& tokens, DecoderState& state) {
  Parts& parts = *parts_;
  parts.check_stream(tokens, state);
  const torch::NoGradGuard no_grad;
  if (parts.fused_decode && state.position > 0) {
    if (!parts.token_step) parts.token_step = std::make_unique<TokenStep>(*this, parts.config);
    if (parts.token_step->serves(tokens, state)) return parts.token_step->run(tokens, state);
  }
  const bool in_step = state.positions.empty();
  Residual x = parts.stack.open(in_step ? parts.embed->forward(tokens, state.position)
                                        : parts.embed->forward_rows(tokens, state.positions));
  const std::vector<Block>& blocks = parts.stack.blocks();
  if (state.position == 0) {
    state = DecoderState();
    state.layers.resize(blocks.size());
  }
  const Tensor rotary =
      in_step ? parts.rotary(state.position, tokens.size(1)) : parts.rotary(state.positions);
  for (size_t i = 0; i < blocks.size(); ++i) {
    Block block = blocks[i];
    x = parts.stack.advance(static_cast<int64_t>(i), x, [&](const Tensor& in) {
      return block->attend_next(in, state.layers[i], rotary);
    });
  }
  state.position += tokens.size(1);
  for (int64_t& position : state.positions) ++position;
  return parts.logits(parts.norm->forward(x.value().select(1, -1)));
}

DecoderState LanguageModelImpl::blank_state(int64_t B, int64_t position) const {
  DecoderState state;
  state.position = position;
  for (const Block& layer : parts_->stack.blocks()) {
    state.layers.push_back(layer->blank_state(B, position));
  }
  return state;
}

void LanguageModelImpl::redraw(uint32_t index) {
  for (Block block : parts_->stack.blocks()) block->redraw(index);
  parts_->redraw_index = index;
}

uint32_t LanguageModelImpl::redraw_index() const {
  return parts_->redraw_index;
}

void LanguageModelImpl::set_fused_decode(bool wanted) {
  parts_->fused_decode = wanted;
}

const ModelConfig& LanguageModelImpl::config() const {
  return parts_->config;
}

}  // namespace performer
