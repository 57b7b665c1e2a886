// SPDX-License-Identifier: Apache-2.0
// The last layers of a classifier: rows, or pairs of rows, to classes.
#ifndef PERFORMER_MODELS_CLASSIFIER_H_
#define PERFORMER_MODELS_CLASSIFIER_H_

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>

#include "performer/models/config.h"
#include "performer/nn/layout.h"

namespace performer {

/// [B, L, dim] -> [B, dim]: the first token's vector, or the mean over the tokens that
/// key_padding_mask leaves.
torch::Tensor pool(const torch::Tensor& hidden, const BatchLayout& layout, PoolingKind kind);

/// The classifier of the Long Range Arena: down(relu(up(x))) of the pooled row x. Two rows a, b
/// (neighbours 2i and 2i + 1, which went through the same layers) give x = [a, b, a * b, a - b].
/// Parameters: up [ff_dim, dim or 4 dim], down [num_classes, ff_dim] and their biases.
class ClassifierHeadImpl : public torch::nn::Module {
 public:
  /// Throws favor::Error for fewer than 2 classes.
  explicit ClassifierHeadImpl(const ModelConfig& config);
  ~ClassifierHeadImpl() override;

  /// Hidden states [B, L, dim] -> logits [B, 1, num_classes], of pairs [B / 2, 1, num_classes].
  /// Throws favor::Error for packed rows, and for an odd B of pairs.
  torch::Tensor forward(const torch::Tensor& hidden, const BatchLayout& layout);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};
TORCH_MODULE(ClassifierHead);

}  // namespace performer

#endif  // PERFORMER_MODELS_CLASSIFIER_H_
