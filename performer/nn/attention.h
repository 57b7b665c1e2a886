// SPDX-License-Identifier: Apache-2.0
// Multi-head self-attention behind one options struct, with FAVOR+ or exact softmax inside. Both
// have the same parameters under the same names, so weights move from one to the other.
#ifndef PERFORMER_NN_ATTENTION_H_
#define PERFORMER_NN_ATTENTION_H_

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "favor/attention.h"
#include "performer/models/config.h"
#include "performer/nn/diagnostics.h"
#include "performer/nn/layout.h"
#include "performer/ops/arguments.h"
#include "performer/ops/slice_attention.h"

namespace performer {

/// What one attention layer is made of.
struct MultiHeadAttentionOptions {
  int64_t dim = 0;        ///< width, a multiple of num_heads; required
  int64_t num_heads = 1;  ///< H
  int64_t layer = 0;      ///< which of the model's random matrices
  bool causal = true;
  bool bias = false;  ///< in both projections
  AttentionOptions attention;
};

/// What a causal layer remembers of a stream. A value: a copy forks the stream.
struct AttentionState {
  favor::DecodeState favor;    ///< method favor
  torch::Tensor keys, values;  ///< method exact: [B, H, position, D] each
};

/// Parameters: qkv.weight [3 dim, dim] (rows of q, k, v in this order), out.weight [dim, dim], and
/// with `bias` their biases. Buffer with method favor: projection [P, M, D], P = 1 or num_heads.
class MultiHeadAttentionImpl : public torch::nn::Module {
 public:
  /// Draws the weights from torch's generator and the matrices of redraw index 0.
  explicit MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options);
  ~MultiHeadAttentionImpl() override;

  /// x [B, L, dim] -> [B, L, dim]. `rotary` [2, L, D / 2] (rotary_table) turns q and k by their
  /// positions, or is undefined.
  torch::Tensor forward(const torch::Tensor& x, const BatchLayout& layout = {},
                        const torch::Tensor& rotary = {});

  /// Method favor and causal only: tokens of a slice, x [B, T, dim], the first of which may go on
  /// with a sequence that `state` stands for. `state` then stands for the last one. Differentiable
  /// in x and in the state. `rotary` [2, T, D / 2] is that of the slice's positions.
  torch::Tensor forward_slice(const torch::Tensor& x, const SliceLayout& layout,
                              const torch::Tensor& rotary, SliceState& state);

  /// The weights [B, H, L, L] with which queries (rows) take values (columns), read out by sending
  /// one-hot positions through as values: O(L) columns, so O(L^2) time and memory. Rows sum to 1;
  /// feature maps of either sign give weights of either sign.
  torch::Tensor weights(const torch::Tensor& x, const torch::Tensor& rotary = {});

  /// Method favor only: how well the features do on x [1, L, dim]. Records no gradient.
  AttentionDiagnostics diagnose(const torch::Tensor& x, const torch::Tensor& rotary = {});

  /// Causal only: the rows of x [B, T, dim] that follow those already in `state`, which then holds
  /// them too. Records no gradient.
  torch::Tensor decode(const torch::Tensor& x, AttentionState& state,
                       const torch::Tensor& rotary = {});

  /// Method favor only: what favor_attention is called with.
  FavorArguments favor_arguments();

  /// Draws the matrices of redraw index `index` in place; does nothing without random matrices.
  void redraw(uint32_t index);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};
TORCH_MODULE(MultiHeadAttention);

/// Cosines and sines [2, length, head_dim / 2] of the rotary embedding from position `begin` on.
torch::Tensor rotary_table(int64_t begin, int64_t length, int64_t head_dim);
/// The same [2, L, head_dim / 2] of any positions [L], float64.
torch::Tensor rotary_table(const torch::Tensor& positions, int64_t head_dim);

}  // namespace performer

#endif  // PERFORMER_NN_ATTENTION_H_
