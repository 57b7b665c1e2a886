// SPDX-License-Identifier: Apache-2.0
// Multi-head self-attention behind one options struct, with any method inside. All have the same
// parameters under the same names, so weights move from one to the other; linformer has two more.
#ifndef PERFORMER_NN_ATTENTION_H_
#define PERFORMER_NN_ATTENTION_H_

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "performer/models/config.h"
#include "performer/nn/attention_state.h"
#include "performer/nn/diagnostics.h"
#include "performer/nn/layout.h"
#include "performer/ops/arguments.h"
#include "performer/ops/slice_attention.h"

namespace performer {

/// What one attention layer is made of.
struct MultiHeadAttentionOptions {
  int64_t dim = 0;         ///< width, a multiple of num_heads; required
  int64_t num_heads = 1;   ///< H
  int64_t layer = 0;       ///< which of the model's random matrices
  int64_t max_length = 0;  ///< longest row of method linformer
  bool causal = true;
  bool bias = false;  ///< in both projections
  AttentionOptions attention;
};

/// Parameters: qkv.weight [3 dim, dim] (rows of q, k, v in this order), out.weight [dim, dim], and
/// with `bias` their biases. Some methods have parameters and a buffer of their own
/// (attention_<method>.h). The first local_heads heads have method window, the others the layer's.
class MultiHeadAttentionImpl : public torch::nn::Module {
 public:
  /// Draws the weights from torch's generator and the matrices of redraw index 0.
  explicit MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options);
  ~MultiHeadAttentionImpl() override;

  /// x [B, L, dim] -> [B, L, dim]. `rotary` [2, L, D / 2] (rotary_table) turns q and k by their
  /// positions, or is undefined.
  torch::Tensor forward(const torch::Tensor& x, const BatchLayout& layout = {},
                        const torch::Tensor& rotary = {});

  /// Causal sums (AttentionOptions::keeps_sums) only: tokens of a slice, x [B, T, dim], the first
  /// of which may go on with a sequence that `state` stands for. `state` then stands for the last
  /// one. Differentiable in x and in the state. `rotary` [2, T, D / 2] is that of the slice's
  /// positions.
  torch::Tensor forward_slice(const torch::Tensor& x, const SliceLayout& layout,
                              const torch::Tensor& rotary, SliceState& state);

  /// The weights [B, H, L, L] with which queries (rows) take values (columns), read out by sending
  /// one-hot positions through as values: O(L) columns, so O(L^2) time and memory. Rows sum to 1,
  /// but for linformer; feature maps of either sign give weights of either sign.
  torch::Tensor weights(const torch::Tensor& x, const torch::Tensor& rotary = {});

  /// Method favor only: how well the features do on x [1, L, dim], in the heads that have them.
  /// Records no gradient.
  AttentionDiagnostics diagnose(const torch::Tensor& x, const torch::Tensor& rotary = {});

  /// Causal only: the rows of x [B, T, dim] that follow those already in `state`, which then holds
  /// them too. Records no gradient.
  torch::Tensor decode(const torch::Tensor& x, AttentionState& state,
                       const torch::Tensor& rotary = {});

  /// Of sums (AttentionOptions::keeps_sums) only: what favor_attention is called with.
  FavorArguments favor_arguments();
  /// A state as B streams have it after `position` >= 1 tokens, whose arrays are still to be
  /// filled.
  AttentionState blank_state(int64_t B, int64_t position) const;
  /// Throws favor::Error, opening with `where`, for a state that is not of B streams of this layer
  /// after `position` tokens.
  void check_state(const std::string& where, const AttentionState& state, int64_t B,
                   int64_t position) const;

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
