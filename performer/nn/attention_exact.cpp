// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/attention_exact.h"

#include <torch/torch.h>

#include <optional>

namespace performer {
namespace {

using torch::Tensor;

// Keys may outnumber queries: the queries are then the last ones of the stream.
Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& key_padding_mask, bool causal) {
  const int64_t L = q.size(2), S = k.size(2);
  const bool plain_causal = causal && !key_padding_mask.defined() && L == S;
  std::optional<Tensor> allowed;
  if (key_padding_mask.defined()) {
    allowed = key_padding_mask.logical_not().reshape({q.size(0), 1, 1, S});
  }
  if (causal && !plain_causal && L > 1) {
    const Tensor past = torch::ones({L, S}, torch::kBool).tril(S - L);
    allowed = allowed ? allowed->logical_and(past) : past;
  }
  return at::scaled_dot_product_attention(q, k, v, allowed, /*dropout_p=*/0.0, plain_causal);
}

}  // namespace

Tensor ExactCore::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                          const BatchLayout& layout) {
  return for_each_sequence(
      q, k, v, layout,
      [this](const Tensor& qs, const Tensor& ks, const Tensor& vs, const Tensor& mask) {
        if (!mask.defined()) return softmax_attention(qs, ks, vs, mask, options_.causal);
        // A weight of 0 does not make NaN vanish.
        const Tensor hidden = mask.reshape({mask.size(0), 1, mask.size(1), 1});
        return softmax_attention(qs, ks.masked_fill(hidden, 0), vs.masked_fill(hidden, 0), mask,
                                 options_.causal);
      });
}

Tensor ExactCore::decode(const Tensor& q, const Tensor& k, const Tensor& v, HeadsState& state) {
  const auto* past = std::get_if<KeyCache>(&state);
  KeyCache cache = {k, v, {}, k.size(2)};
  if (past != nullptr) {
    cache.keys = torch::cat({past->keys, k}, 2);
    cache.values = torch::cat({past->values, v}, 2);
    cache.position += past->position;
  }
  state = cache;
  return softmax_attention(q, cache.keys, cache.values, {}, /*causal=*/true);
}

HeadsState ExactCore::blank_state(int64_t B, int64_t position) const {
  const std::vector<int64_t> shape = {B, options_.num_heads, position, options_.head_dim};
  return KeyCache{torch::empty(shape), torch::empty(shape), {}, position};
}

}  // namespace performer
