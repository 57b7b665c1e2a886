// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/attention_clustered.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "performer/nn/clusters.h"
#include "performer/ops/favor_attention.h"

namespace performer {
namespace {

using torch::Tensor;

// Scores of each query among the keys of its cluster's list: `lists` [B, H, C, n] of places of keys
// and -inf where a list is shorter in `extra`. One sequence of all heads, in which every cluster is
// a segment.
Tensor attend_lists(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lists,
                    const Tensor& extra, const RowGroups& queries) {
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2), E = v.size(3);
  const int64_t n = lists.size(3), keys = lists.size(2) * n;
  const auto listed = [&](const Tensor& x) {
    const int64_t width = x.size(3);
    return x.gather(2, lists.view({B, H, keys, 1}).expand({B, H, keys, width}))
        .reshape({1, 1, B * H * keys, width});
  };
  ExactArguments arguments;
  arguments.cu_seqlens_q = queries.offsets;
  arguments.cu_seqlens_k = torch::arange(queries.offsets.numel(), torch::kLong) * n;
  arguments.key_log_weight = extra.reshape({1, B * H * keys});
  const Tensor rows = q.reshape({B * H * L, q.size(3)}).index_select(0, queries.order);
  const Tensor out = exact_attention(rows.unsqueeze(0).unsqueeze(0), listed(k), listed(v),
                                     arguments, /*is_causal=*/false);
  return ungroup_rows(out[0][0], queries, {B, H, L, E});
}

}  // namespace

Tensor ClusteredCore::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                              const BatchLayout& layout) {
  const AttentionOptions& attention = options_.attention;
  return for_each_sequence(
      q, k, v, layout,
      [&](const Tensor& qs, const Tensor& ks, const Tensor& vs, const Tensor& mask) {
        const int64_t B = qs.size(0), H = qs.size(1), L = qs.size(2), D = qs.size(3);
        const int64_t C = attention.num_clusters;
        const ClusteredTokens clusters =
            cluster_tokens(qs, {.key_padding_mask = mask}, {C, attention.cluster_iterations});
        const RowGroups queries = group_rows(clusters.assignment, clusters.num_groups);
        const Tensor counts = queries.offsets.diff();
        const Tensor cluster = torch::repeat_interleave(counts);
        const auto wide = qs.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
        const Tensor rows = qs.reshape({B * H * L, D}).index_select(0, queries.order).to(wide);
        const Tensor sums =
            torch::zeros({B * H * C, D}, rows.options()).index_add(0, cluster, rows);
        const Tensor means = (sums / counts.clamp_min(1).unsqueeze(1).to(wide))
                                 .view({B, H, C, D})
                                 .to(qs.scalar_type());
        const auto spread = [&](const Tensor& of_clusters) {
          const int64_t width = of_clusters.size(3);
          const Tensor rows_of = of_clusters.reshape({B * H * C, width}).index_select(0, cluster);
          return ungroup_rows(rows_of, queries, {B, H, L, width});
        };
        Tensor keys = ks, values = vs;
        if (mask.defined()) {
          const Tensor hidden = mask.reshape({B, 1, L, 1});
          keys = ks.masked_fill(hidden, 0);
          values = vs.masked_fill(hidden, 0);
        }
        Tensor scores = means.matmul(keys.transpose(2, 3)) / std::sqrt(static_cast<double>(D));
        if (mask.defined()) {
          scores = scores.masked_fill(mask.reshape({B, 1, 1, L}),
                                      -std::numeric_limits<double>::infinity());
          // An item without keys: weights of 0 instead of NaN.
          scores = scores.masked_fill(mask.all(1).view({B, 1, 1, 1}), 0);
        }
        const Tensor weights = scores.softmax(-1);
        const int64_t top = std::min(attention.cluster_top, L);
        if (top == 0) return spread(weights.matmul(values));
        const Tensor lists = std::get<1>(weights.topk(top, -1));
        const Tensor listed = weights.gather(3, lists);
        const Tensor rest = weights.scatter(3, lists, 0).matmul(values);
        const Tensor extra =
            torch::zeros({B, H, C, top}, weights.options().requires_grad(false))
                .masked_fill(listed.detach().eq(0), -std::numeric_limits<double>::infinity());
        return spread(rest) +
               spread(listed.sum(-1, true)) * attend_lists(qs, keys, values, lists, extra, queries);
      });
}

}  // namespace performer
