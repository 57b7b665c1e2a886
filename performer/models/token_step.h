// SPDX-License-Identifier: Apache-2.0
// One more token of each stream in one go through the weights. Operators of torch cost more to call
// than most of these layers cost to compute, and its products of single rows read weights at half
// the speed of memory.
#ifndef PERFORMER_MODELS_TOKEN_STEP_H_
#define PERFORMER_MODELS_TOKEN_STEP_H_

#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

#include "performer/models/models.h"
#include "performer/nn/attention.h"
#include "performer/nn/token_rows.h"

namespace performer {

/// The fused step of a causal model of FAVOR layers with float32 weights.
class TokenStep {
 public:
  /// Keeps handles of the parameters, which may be written to or converted later. `model` must
  /// outlive it.
  TokenStep(torch::nn::Module& model, const ModelConfig& config);

  /// Whether run() can take these tokens now. What it cannot take, wrong tokens too, is left to the
  /// modules.
  bool serves(const torch::Tensor& tokens, const DecoderState& state) const;

  /// As LanguageModel::decode, for tokens [B, 1] and a state that fit the model.
  torch::Tensor run(const torch::Tensor& tokens, DecoderState& state);

 private:
  struct Layer {
    torch::Tensor norm1_weight, norm1_bias, norm2_weight, norm2_bias;
    torch::Tensor qkv_weight, qkv_bias, out_weight, out_bias;
    torch::Tensor up_weight, up_bias, down_weight, down_bias;
  };

  bool knows_positions(int64_t last) const;
  void embed(const int64_t* tokens, const std::vector<int64_t>& positions, float* x) const;
  void turn(int64_t B, float* qkv) const;
  void set_angles(const std::vector<int64_t>& positions);
  LinearRows output() const;

  const ModelConfig& config_;
  std::vector<MultiHeadAttentionImpl*> attention_;
  std::vector<Layer> layers_;
  std::vector<torch::Tensor> axes_;  ///< tables of axial positions: rows, columns, channels
  torch::Tensor tokens_, positions_, norm_weight_, norm_bias_, output_weight_, output_bias_;
  std::vector<torch::Tensor> all_;    ///< every parameter
  bool is_known_ = false;             ///< whether the model is made of these parts alone
  std::vector<double> frequencies_;   ///< of sinusoids or rotary pairs
  std::vector<float> cosine_, sine_;  ///< [B, head_dim / 2] of rotary positions
  std::vector<float> x_, normal_, wide_, heads_;
};

}  // namespace performer

#endif  // PERFORMER_MODELS_TOKEN_STEP_H_
