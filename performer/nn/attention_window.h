// SPDX-License-Identifier: Apache-2.0
// Local attention: softmax over the keys of near blocks, in linear time.
#ifndef PERFORMER_NN_ATTENTION_WINDOW_H_
#define PERFORMER_NN_ATTENTION_WINDOW_H_

#include "performer/nn/attention_core.h"

namespace performer {

/// A query sees the keys of its block of local_window tokens and of the neighbouring ones (causal:
/// the one before, up to itself), and the sinks.
class WindowCore : public AttentionCore {
 public:
  explicit WindowCore(const AttentionCoreOptions& options) : options_(options) {}

  torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const BatchLayout& layout) override;
  torch::Tensor decode(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                       HeadsState& state) override;
  HeadsState blank_state(int64_t B, int64_t position) const override;

 private:
  int64_t first_near(int64_t position) const;

  AttentionCoreOptions options_;
};

}  // namespace performer

#endif  // PERFORMER_NN_ATTENTION_WINDOW_H_
