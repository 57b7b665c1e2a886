// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/attention_centroids.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "performer/nn/clusters.h"
#include "performer/ops/joint_attention.h"

namespace performer {
namespace {

using torch::Tensor;

// Sums over blocks b - 2 and before plus b + 2 and behind, of blocks [X, blocks, ...]: by running
// sums from both ends, because taking the near ones from the total would cancel.
Tensor sums_of_far_blocks(const Tensor& blocks) {
  const int64_t n = blocks.size(1);
  if (n <= 2) return torch::zeros_like(blocks);
  std::vector<int64_t> two = blocks.sizes().vec();
  two[1] = 2;
  const Tensor none = torch::zeros(two, blocks.options());
  const Tensor before = torch::cat({none, blocks.narrow(1, 0, n - 2).cumsum(1)}, 1);
  const Tensor behind = torch::cat({blocks.narrow(1, 2, n - 2).flip(1).cumsum(1).flip(1), none}, 1);
  return before + behind;
}

}  // namespace

Tensor CentroidsCore::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                              const BatchLayout& layout) {
  const AttentionOptions& attention = options_.attention;
  return for_each_sequence(
      q, k, v, layout,
      [&](const Tensor& qs, const Tensor& ks, const Tensor& vs, const Tensor& mask) {
        const int64_t B = qs.size(0), H = qs.size(1), L = qs.size(2);
        const int64_t C = attention.num_clusters;
        if (L == 0) return vs;
        const bool has_window = attention.window > 0;
        const int64_t w = has_window ? std::min(attention.window, L) : L;
        const int64_t blocks = (L + w - 1) / w;
        std::vector<JointPart> parts;
        if (has_window) {
          JointPart near = {qs, ks, vs};
          near.arguments.window = w;
          near.arguments.sinks = attention.sinks;
          if (mask.defined()) near.arguments.key_padding_mask = mask;
          parts.push_back(std::move(near));
        }
        if (has_window && blocks <= 2) return joint_attention(parts, L).out;

        // Keys that may be far, by block and cluster.
        const ClusteredTokens clusters =
            cluster_tokens(ks, {.key_padding_mask = mask}, {C, attention.cluster_iterations});
        const Tensor place = torch::arange(L, torch::kLong);
        Tensor group =
            clusters.assignment +
            (clusters.assignment.div(C, "floor") * (blocks - 1) + place.div(w, "floor")) * C;
        group = group.masked_fill(clusters.assignment < 0, -1);
        if (has_window && attention.sinks > 0) {
          const Tensor is_sink =
              place.lt(attention.sinks).logical_or(place.ge(L - attention.sinks));
          group = group.masked_fill(is_sink, -1);
        }
        const RowGroups sorted = group_rows(group, B * H * blocks * C);
        const Tensor counts = sorted.offsets.diff();
        const Tensor of_group = torch::repeat_interleave(counts);
        const auto far = [&](const Tensor& of_blocks) {
          return has_window ? sums_of_far_blocks(of_blocks) : of_blocks;
        };
        const Tensor number = far(counts.view({B * H, blocks, C, 1})).to(torch::kDouble);
        const auto means = [&](const Tensor& x) {
          const int64_t width = x.size(3);
          const Tensor wide = x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
          const Tensor rows = wide.reshape({B * H * L, width}).index_select(0, sorted.order);
          const Tensor sums = torch::zeros({B * H * blocks * C, width}, wide.options())
                                  .index_add(0, of_group, rows)
                                  .view({B * H, blocks, C, width});
          return (far(sums) / number.clamp_min(1).to(wide.scalar_type()))
              .view({B, H, blocks * C, width})
              .to(x.scalar_type());
        };
        JointPart clustered = {qs, means(ks), means(vs)};
        clustered.arguments.key_log_weight = number.log().view({B, H, blocks * C});
        const Tensor block = torch::arange(blocks + 1, torch::kLong);
        clustered.arguments.cu_seqlens_q = (block * w).clamp_max(L);
        clustered.arguments.cu_seqlens_k = block * C;
        parts.push_back(std::move(clustered));
        return joint_attention(parts, L).out;
      });
}

}  // namespace performer
