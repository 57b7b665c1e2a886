// SPDX-License-Identifier: Apache-2.0
// Near keys exactly, far keys by the means of their clusters, under one normaliser.
#ifndef PERFORMER_NN_ATTENTION_CENTROIDS_H_
#define PERFORMER_NN_ATTENTION_CENTROIDS_H_

#include "performer/nn/attention_core.h"

namespace performer {

/// Keys are clustered by k-means. A query scores the keys of its own and the neighbouring blocks of
/// `window` tokens and the sinks exactly; of every cluster, the other keys stand in as one key,
/// their mean, with the mean of their values and the weight of their number. window = 0: all keys
/// stand in clusters. Bidirectional.
class CentroidsCore : public AttentionCore {
 public:
  explicit CentroidsCore(const AttentionCoreOptions& options) : options_(options) {}

  torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const BatchLayout& layout) override;

 private:
  AttentionCoreOptions options_;
};

}  // namespace performer

#endif  // PERFORMER_NN_ATTENTION_CENTROIDS_H_
