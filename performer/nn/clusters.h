// SPDX-License-Identifier: Apache-2.0
// Tokens of each head in groups: k-means, and rows sorted by group for kernels that take packed
// segments. Groups carry no gradient.
#ifndef PERFORMER_NN_CLUSTERS_H_
#define PERFORMER_NN_CLUSTERS_H_

#include <torch/types.h>

#include <cstdint>

#include "performer/nn/layout.h"

namespace performer {

struct KMeansOptions {
  int64_t num_clusters = 1;
  int64_t iterations = 0;  ///< rounds of Lloyd's algorithm after the first centres
};

/// Groups of the tokens of every item, head and sequence. Groups of unlike items, heads or
/// sequences have unlike numbers, 0 to num_groups - 1: ((b H + h) N + sequence) C + cluster.
struct ClusteredTokens {
  torch::Tensor assignment;  ///< [B, H, L] int64: of each clustered token; -1: left out (masked)
  torch::Tensor nearest;     ///< [B, H, L] int64: of each query, the cluster next to it; or none
  int64_t num_groups = 0;
};

/// k-means of the tokens x [B, H, L, D] of each head by favor::kmeans, without the masked ones.
/// `queries` [B, H, L, D], if defined, go to the centre at the least distance among those that have
/// tokens. Packed sequences are clustered one by one. O(L C D) time per round.
ClusteredTokens cluster_tokens(const torch::Tensor& x, const BatchLayout& layout,
                               const KMeansOptions& options, const torch::Tensor& queries = {});

/// Rows sorted by group, in their old order within each.
struct RowGroups {
  torch::Tensor order;    ///< [n] int64: old places of the rows that belong to a group
  torch::Tensor offsets;  ///< [num_groups + 1] int64: where each group begins
};

/// `groups` of any shape, int64, read row-major; below 0: in no group. O(rows + num_groups) time.
RowGroups group_rows(const torch::Tensor& groups, int64_t num_groups);

/// Rows [n, E] in the order of `groups`, back in their places in a tensor of `shape` [..., E]; the
/// rows of no group are 0.
torch::Tensor ungroup_rows(const torch::Tensor& rows, const RowGroups& groups,
                           torch::IntArrayRef shape);

}  // namespace performer

#endif  // PERFORMER_NN_CLUSTERS_H_
