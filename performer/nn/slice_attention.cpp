// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/slice_attention.h"

#include <torch/torch.h>

#include <vector>

#include "performer/ops/favor_attention.h"

namespace performer {

using torch::Tensor;

Tensor packed_slice_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                              const FavorArguments& arguments, const SliceLayout& layout,
                              SliceState& state) {
  const std::vector<int64_t>& offsets = layout.offsets;
  const int64_t sequences = static_cast<int64_t>(offsets.size()) - 1;
  const auto mask = [&](int64_t begin, int64_t end) -> std::optional<Tensor> {
    if (!layout.key_padding_mask.defined()) return std::nullopt;
    return layout.key_padding_mask.slice(1, begin, end);
  };
  // The first sequence, those in the middle, and the last one.
  std::vector<int64_t> lengths = {offsets[1]};
  if (sequences > 2) lengths.push_back(offsets[sequences - 1] - offsets[1]);
  if (sequences > 1) lengths.push_back(offsets[sequences] - offsets[sequences - 1]);
  // Split, not sliced: the backward pass of a split is one copy.
  const std::vector<Tensor> qs = q.split_with_sizes(lengths, 2);
  const std::vector<Tensor> ks = k.split_with_sizes(lengths, 2);
  const std::vector<Tensor> vs = v.split_with_sizes(lengths, 2);
  std::vector<Tensor> outs;
  int64_t begin = 0;
  for (size_t part = 0; part < lengths.size(); ++part) {
    FavorArguments own = arguments;
    own.key_padding_mask = mask(begin, begin + lengths[part]);
    if (sequences > 2 && part == 1) {
      std::vector<int64_t> within;
      for (int64_t n = 1; n < sequences; ++n) within.push_back(offsets[n] - offsets[1]);
      own.cu_seqlens_q = own.cu_seqlens_k = torch::tensor(within, torch::kInt64);
      outs.push_back(favor_attention(qs[part], ks[part], vs[part], own, /*is_causal=*/true));
    } else {
      if (part > 0 || !layout.continues) state = {};
      outs.push_back(favor_slice_attention(qs[part], ks[part], vs[part], own, state));
    }
    begin += lengths[part];
  }
  return outs.size() == 1 ? outs[0] : torch::cat(outs, 2);
}

}  // namespace performer
