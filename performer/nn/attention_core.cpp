// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/attention_core.h"

#include <torch/torch.h>

#include <stdexcept>
#include <vector>

#include "favor/check.h"
#include "performer/nn/attention_centroids.h"
#include "performer/nn/attention_clustered.h"
#include "performer/nn/attention_exact.h"
#include "performer/nn/attention_favor.h"
#include "performer/nn/attention_linformer.h"
#include "performer/nn/attention_lsh.h"
#include "performer/nn/attention_window.h"

namespace performer {

using torch::Tensor;

Tensor AttentionCore::decode(const Tensor&, const Tensor&, const Tensor&, HeadsState&) {
  throw favor::Error("MultiHeadAttention: the method has no causal form to decode with");
}

HeadsState AttentionCore::blank_state(int64_t, int64_t) const {
  throw favor::Error("MultiHeadAttention: the method has no causal form to decode with");
}

void AttentionCore::check_state(const std::string& where, const HeadsState& state, int64_t B,
                                int64_t position) const {
  HeadsState wanted = blank_state(B, position);
  HeadsState& given = const_cast<HeadsState&>(state);  // arrays are listed, not written
  FAVOR_CHECK(given.index() == wanted.index(), where, " is of another method of attention");
  const std::vector<StateArray> a = state_arrays(given), b = state_arrays(wanted);
  FAVOR_CHECK(a.size() == b.size(), where, " holds ", a.size(), " arrays, expected ", b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    FAVOR_CHECK(a[i].shape == b[i].shape, where, " holds ", a[i].name, " ",
                at::IntArrayRef(a[i].shape), ", expected ", at::IntArrayRef(b[i].shape));
  }
  FAVOR_CHECK(position_of(state) == position, where, " is at position ", position_of(state),
              ", expected ", position);
}

std::unique_ptr<AttentionCore> make_attention_core(const AttentionCoreOptions& options,
                                                   torch::nn::Module& owner) {
  options.attention.check();
  options.attention.check_direction(options.causal);
  switch (options.attention.method) {
    case AttentionMethod::kFavor:
      return std::make_unique<FavorCore>(options, owner);
    case AttentionMethod::kExact:
      return std::make_unique<ExactCore>(options);
    case AttentionMethod::kLinear:
      return make_linear_core(options, owner);
    case AttentionMethod::kWindow:
      return std::make_unique<WindowCore>(options);
    case AttentionMethod::kLinformer:
      return std::make_unique<LinformerCore>(options, owner);
    case AttentionMethod::kLsh:
      return std::make_unique<LshCore>(options, owner);
    case AttentionMethod::kClustered:
      return std::make_unique<ClusteredCore>(options);
    case AttentionMethod::kFavorClusters:
      return std::make_unique<FavorClustersCore>(options, owner);
    case AttentionMethod::kCentroids:
      return std::make_unique<CentroidsCore>(options);
  }
  throw std::logic_error("make_attention_core: unknown method");
}

Tensor for_each_sequence(const Tensor& q, const Tensor& k, const Tensor& v,
                         const BatchLayout& layout,
                         const std::function<Tensor(const Tensor& q, const Tensor& k,
                                                    const Tensor& v, const Tensor& mask)>& attend) {
  if (!layout.is_packed()) return attend(q, k, v, layout.key_padding_mask);
  const std::vector<int64_t> offsets = layout.offsets(q.size(2));
  std::vector<int64_t> lengths;
  for (size_t n = 0; n + 1 < offsets.size(); ++n) lengths.push_back(offsets[n + 1] - offsets[n]);
  // Splitting, not slicing: its backward pass is one copy.
  const std::vector<Tensor> qs = q.split_with_sizes(lengths, 2);
  const std::vector<Tensor> ks = k.split_with_sizes(lengths, 2);
  const std::vector<Tensor> vs = v.split_with_sizes(lengths, 2);
  std::vector<Tensor> outs;
  for (size_t n = 0; n < lengths.size(); ++n) {
    if (lengths[n] == 0) continue;
    Tensor mask;
    if (layout.key_padding_mask.defined()) {
      mask = layout.key_padding_mask.slice(1, offsets[n], offsets[n + 1]);
    }
    outs.push_back(attend(qs[n], ks[n], vs[n], mask));
  }
  return outs.empty() ? v : torch::cat(outs, 2);
}

}  // namespace performer
