// SPDX-License-Identifier: Apache-2.0
// Models: token ids in, logits out. One module serves as masked-LM encoder, as causal decoder and
// as classifier; the configuration decides.
#ifndef PERFORMER_MODELS_MODELS_H_
#define PERFORMER_MODELS_MODELS_H_

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <vector>

#include "performer/models/config.h"
#include "performer/models/memory.h"
#include "performer/nn/attention_state.h"
#include "performer/nn/diagnostics.h"
#include "performer/nn/layout.h"
#include "performer/nn/recompute.h"
#include "performer/ops/slice_attention.h"

namespace performer {

/// State of causal streams, one a row, through all layers. A value: a copy forks the streams.
struct DecoderState {
  int64_t position = 0;                ///< tokens absorbed so far, by the longest row
  std::vector<AttentionState> layers;  ///< none before the first token
  std::vector<int64_t> positions;      ///< of each row where they may differ, else empty

  /// Rows; 0 before the first token.
  int64_t streams() const;
};

/// The state of the named rows, in this order; a row named twice is forked. They go on in the same
/// bits. Throws favor::Error for a row that is not there.
DecoderState select_streams(const DecoderState& state, const std::vector<int64_t>& rows);

/// The rows of all states, one below the other, so that they decode together. Streams of layers
/// that keep keys must have equal positions (see rows_share_position). Throws favor::Error for
/// states of unlike models or empty ones.
DecoderState join_streams(std::vector<DecoderState> states);

/// Whether streams that decode together must be at one position: all methods but those whose state
/// is sums alone.
bool rows_share_position(const ModelConfig& config);

/// Pre-LN Transformer: embedding, num_layers blocks, final LayerNorm, output layer. Reversible
/// models start both streams from the embedding; hidden states are the mean of the two.
class LanguageModelImpl : public torch::nn::Module {
 public:
  /// Draws initial weights from torch's global generator and matrices from
  /// config.attention.projection_seed. Throws favor::Error for a wrong configuration.
  explicit LanguageModelImpl(const ModelConfig& config);
  ~LanguageModelImpl() override;

  /// tokens [B, L] int64 -> logits [B, L, vocab], of a classifier [B or B / 2, 1, num_classes].
  /// With a learned position table no sequence (L, or the longest packed one) may exceed
  /// max_length.
  torch::Tensor forward(const torch::Tensor& tokens, const BatchLayout& layout = {});

  /// Hidden states [B, L, dim] of a layer: 0 is the embedding, i the output of block i, num_layers
  /// that of the last block after the final LayerNorm. Negative numbers count from the end.
  torch::Tensor hidden(const torch::Tensor& tokens, const BatchLayout& layout = {},
                       int64_t layer = -1);

  /// The output layer: hidden states [..., dim] of the last layer -> logits [..., vocab].
  torch::Tensor logits(const torch::Tensor& hidden);
  /// The parameters of the output layer, whose gradients logits gives.
  TensorList output_parameters() const;

  /// Causal models of method favor. Hidden states of tokens [begin, end) of each row of `tokens`
  /// [B, L], through all layers and the final LayerNorm. `states` hold the tokens before, one a
  /// layer (begin = 0: empty), and then those of the slice too. Slices in order give the same as
  /// hidden, and with gradients through the states the same gradients.
  torch::Tensor hidden_slice(const torch::Tensor& tokens, const BatchLayout& layout, int64_t begin,
                             int64_t end, std::vector<SliceState>& states);

  /// How training passes use memory. Throws favor::Error for what does not fit the model.
  void set_memory(const MemoryOptions& options);
  const MemoryOptions& memory() const;

  /// Calls visit(layer, weights [B, H, L, L]) for the attention of some blocks, counted from 0 or
  /// with negative numbers from the end, or of all where none is named, in their order. tokens
  /// [B, L]. Without dropout and gradient. MultiHeadAttention::weights says how they are read out.
  void visit_attention(
      const torch::Tensor& tokens, const std::vector<int64_t>& layers,
      const std::function<void(int64_t layer, const torch::Tensor& weights)>& visit);

  /// Calls visit(layer, diagnostics) for every block, from 0 on, on one row of tokens [1, L].
  /// Method favor only. Without dropout and gradient; draws no random number.
  void diagnose(const torch::Tensor& tokens,
                const std::function<void(int64_t layer, const AttentionDiagnostics&)>& visit);

  /// Causal only. Absorbs tokens [B, T] (T >= 1) and returns the logits [B, vocab] that follow the
  /// last of them. Equals the last row of forward over the whole stream, in O(T) time. Rows at
  /// positions of their own take one token at a time. Tokens or a state that do not fit the model
  /// throw favor::Error and leave the state as it was.
  torch::Tensor decode(const torch::Tensor& tokens, DecoderState& state);

  /// A state as B streams have it after `position` >= 1 tokens, whose arrays are still to be
  /// filled. Causal only.
  DecoderState blank_state(int64_t B, int64_t position) const;

  /// Draws the random matrices of redraw index `index`. Weights and torch's generator stay.
  void redraw(uint32_t index);
  uint32_t redraw_index() const;

  /// Whether decode takes single tokens through a fused step where it knows one (the default), or
  /// always through the modules. The results differ by rounding.
  void set_fused_decode(bool wanted);

  const ModelConfig& config() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};
TORCH_MODULE(LanguageModel);

}  // namespace performer

#endif  // PERFORMER_MODELS_MODELS_H_
