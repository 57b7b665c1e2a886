// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/attention_window.h"

#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "performer/ops/favor_attention.h"

namespace performer {

using torch::Tensor;

Tensor WindowCore::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                           const BatchLayout& layout) {
  ExactArguments arguments;
  arguments.window = options_.attention.local_window;
  arguments.sinks = options_.attention.sinks;
  if (layout.key_padding_mask.defined()) arguments.key_padding_mask = layout.key_padding_mask;
  if (layout.is_packed()) arguments.cu_seqlens_q = arguments.cu_seqlens_k = layout.cu_seqlens;
  return exact_attention(q, k, v, arguments, options_.causal);
}

// The first key that the token at `position` sees, without the sinks.
int64_t WindowCore::first_near(int64_t position) const {
  const int64_t w = options_.attention.local_window;
  return std::max<int64_t>(position / w - 1, 0) * w;
}

// The cache holds the sinks that are no near keys, then the near keys of the next token.
Tensor WindowCore::decode(const Tensor& q, const Tensor& k, const Tensor& v, HeadsState& state) {
  const int64_t w = options_.attention.local_window, sinks = options_.attention.sinks;
  const int64_t T = q.size(2);
  KeyCache cache;
  if (const auto* past = std::get_if<KeyCache>(&state)) cache = *past;
  const auto keep = [&](const Tensor& kept, const Tensor& added, int64_t far_sinks, int64_t drop) {
    const Tensor all = kept.defined() ? torch::cat({kept, added}, 2) : added;
    return drop == 0 ? all
                     : torch::cat({all.narrow(2, 0, far_sinks),
                                   all.narrow(2, far_sinks + drop, all.size(2) - far_sinks - drop)},
                                  2);
  };
  std::vector<Tensor> outs;
  for (int64_t done = 0; done < T;) {
    // Tokens of one block see the same earlier keys.
    const int64_t position = cache.position;
    const int64_t count = std::min(w - position % w, T - done);
    const Tensor keys = k.narrow(2, done, count), values = v.narrow(2, done, count);
    cache.keys = keep(cache.keys, keys, 0, 0);
    cache.values = keep(cache.values, values, 0, 0);
    const int64_t S = cache.keys.size(2);
    const Tensor past = torch::ones({count, S}, torch::kBool).tril(S - count);
    outs.push_back(
        at::scaled_dot_product_attention(q.narrow(2, done, count), cache.keys, cache.values, past));
    cache.position += count;
    done += count;
    const int64_t first = first_near(position), next = first_near(cache.position);
    if (next == first) continue;
    // Sinks stay, as those that were far did.
    const int64_t far_before = std::min(sinks, first), far_now = std::min(sinks, next);
    const int64_t drop = (next - first) - (far_now - far_before);
    cache.keys = keep({}, cache.keys, far_now, drop);
    cache.values = keep({}, cache.values, far_now, drop);
  }
  state = cache;
  return torch::cat(outs, 2);
}

HeadsState WindowCore::blank_state(int64_t B, int64_t position) const {
  const int64_t first = first_near(position);
  const int64_t kept = std::min(options_.attention.sinks, first) + position - first;
  const std::vector<int64_t> shape = {B, options_.num_heads, kept, options_.head_dim};
  return KeyCache{torch::empty(shape), torch::empty(shape), {}, position};
}

}  // namespace performer
