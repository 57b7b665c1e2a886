// SPDX-License-Identifier: Apache-2.0
// Softmax attention by torch's scaled_dot_product_attention.
#ifndef PERFORMER_NN_ATTENTION_EXACT_H_
#define PERFORMER_NN_ATTENTION_EXACT_H_

#include "performer/nn/attention_core.h"

namespace performer {

class ExactCore : public AttentionCore {
 public:
  explicit ExactCore(const AttentionCoreOptions& options) : options_(options) {}

  torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const BatchLayout& layout) override;
  torch::Tensor decode(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                       HeadsState& state) override;
  HeadsState blank_state(int64_t B, int64_t position) const override;

 private:
  AttentionCoreOptions options_;
};

}  // namespace performer

#endif  // PERFORMER_NN_ATTENTION_EXACT_H_
