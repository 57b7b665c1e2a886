// SPDX-License-Identifier: Apache-2.0
// Clustered attention (Vyas et al. 2020): softmax attention of clusters of queries.
#ifndef PERFORMER_NN_ATTENTION_CLUSTERED_H_
#define PERFORMER_NN_ATTENTION_CLUSTERED_H_

#include "performer/nn/attention_core.h"

namespace performer {

/// The queries of a cluster share the weights of their mean query. With cluster_top = k > 0
/// (improved clustered attention), the share of the k keys that the mean weighs most is divided
/// among them by each query's own scores. Bidirectional. Rows of masked queries are 0.
class ClusteredCore : public AttentionCore {
 public:
  explicit ClusteredCore(const AttentionCoreOptions& options) : options_(options) {}

  torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const BatchLayout& layout) override;

 private:
  AttentionCoreOptions options_;
};

}  // namespace performer

#endif  // PERFORMER_NN_ATTENTION_CLUSTERED_H_
