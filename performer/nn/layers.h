// SPDX-License-Identifier: Apache-2.0
// The other parts of a Transformer: feed-forward, block, token embedding with positions.
#ifndef PERFORMER_NN_LAYERS_H_
#define PERFORMER_NN_LAYERS_H_

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "performer/models/config.h"
#include "performer/nn/attention.h"
#include "performer/nn/recompute.h"

namespace performer {

/// down(gelu(up(x))), or with `glu` down(gelu(gate) * up) where up.weight holds the rows of the
/// gate after those of up. Parameters: up.weight [ff_dim or 2 ff_dim, dim], down.weight [dim,
/// ff_dim] and their biases.
class FeedForwardImpl : public torch::nn::Module {
 public:
  FeedForwardImpl(int64_t dim, int64_t ff_dim, bool glu);
  ~FeedForwardImpl() override;
  /// [..., dim] -> [..., dim].
  torch::Tensor forward(const torch::Tensor& x);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};
TORCH_MODULE(FeedForward);

/// The two branches of a pre-LN block. What they are added to is BlockStack's part.
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(const ModelConfig& config, int64_t layer);
  ~BlockImpl() override;

  /// dropout(attention(norm1(x))), with arguments as MultiHeadAttention::forward.
  torch::Tensor attend(const torch::Tensor& x, const BatchLayout& layout = {},
                       const torch::Tensor& rotary = {});
  /// The same of a slice of the rows, as MultiHeadAttention::forward_slice.
  torch::Tensor attend_slice(const torch::Tensor& x, const SliceLayout& layout,
                             const torch::Tensor& rotary, SliceState& state);
  /// As MultiHeadAttention::decode, of norm1(x); without dropout.
  torch::Tensor attend_next(const torch::Tensor& x, AttentionState& state,
                            const torch::Tensor& rotary = {});
  /// dropout(feed_forward(norm2(x))), in pieces where set_ff_chunk says so; `drops` false leaves
  /// the dropout out.
  torch::Tensor transform(const torch::Tensor& x, bool drops = true);

  /// As MultiHeadAttention::weights, of norm1(x).
  torch::Tensor attention_weights(const torch::Tensor& x, const torch::Tensor& rotary = {});
  /// As MultiHeadAttention::diagnose, of norm1(x).
  AttentionDiagnostics diagnose(const torch::Tensor& x, const torch::Tensor& rotary = {});

  /// Tokens that go through the feed-forward at a time, see by_chunks; 0: all.
  void set_ff_chunk(int64_t tokens);
  /// Parameters of attend, and of transform.
  TensorList attend_parameters() const;
  TensorList transform_parameters() const;
  /// As those of MultiHeadAttention.
  AttentionState blank_state(int64_t B, int64_t position) const;
  void check_state(const std::string& where, const AttentionState& state, int64_t B,
                   int64_t position) const;
  void redraw(uint32_t index);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};
TORCH_MODULE(Block);

/// Token vectors plus positions. Parameters: tokens.weight [vocab, dim] drawn from N(0, 1); with
/// learned positions `positions` [max_length, dim], which start as the sinusoids; with axial ones
/// `position_rows`, `position_columns` and `position_channels` [axial size, dim], each of which
/// starts with sinusoids in a share of the width of its own and zeros elsewhere.
class EmbeddingImpl : public torch::nn::Module {
 public:
  explicit EmbeddingImpl(const ModelConfig& config);
  ~EmbeddingImpl() override;
  /// tokens [B, L] int64, the first at position `begin` -> [B, L, dim]. Throws favor::Error for ids
  /// outside the vocabulary and for positions beyond the tables.
  torch::Tensor forward(const torch::Tensor& tokens, int64_t begin = 0);
  /// Tokens at the positions [L], the largest of which is `longest` - 1.
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& positions,
                        int64_t longest);
  /// One token [B, 1] of each of some streams, at the positions [B] -> [B, 1, dim].
  torch::Tensor forward_rows(const torch::Tensor& tokens, const std::vector<int64_t>& positions);
  /// The table [vocab, dim], for an output layer that shares it.
  torch::Tensor weight() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};
TORCH_MODULE(Embedding);

/// [length, dim]: sines in the first half of each row, cosines in the second, with wavelengths from
/// 2 pi to 20000 pi, of the positions from `begin` on.
torch::Tensor sinusoids(int64_t begin, int64_t length, int64_t dim);
/// The same of any positions [L], float64.
torch::Tensor sinusoids(const torch::Tensor& positions, int64_t dim);

}  // namespace performer

#endif  // PERFORMER_NN_LAYERS_H_
