// SPDX-License-Identifier: Apache-2.0
// Linformer (Wang et al. 2020): softmax attention over learned mixtures of the keys.
#ifndef PERFORMER_NN_ATTENTION_LINFORMER_H_
#define PERFORMER_NN_ATTENTION_LINFORMER_H_

#include "performer/nn/attention_core.h"

namespace performer {

/// Parameters: key_mixtures and value_mixtures [mixed_keys, max_length], shared by the heads.
/// Bidirectional. A sequence of L tokens uses the first L columns; masked keys and values count as
/// zeros. Longer sequences throw favor::Error.
class LinformerCore : public AttentionCore {
 public:
  LinformerCore(const AttentionCoreOptions& options, torch::nn::Module& owner);

  torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const BatchLayout& layout) override;

 private:
  int64_t max_length_;
  torch::Tensor key_mixtures_, value_mixtures_;
};

}  // namespace performer

#endif  // PERFORMER_NN_ATTENTION_LINFORMER_H_
