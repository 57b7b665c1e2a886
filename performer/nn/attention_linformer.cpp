// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/attention_linformer.h"

#include <torch/torch.h>

#include <cmath>

#include "favor/check.h"

namespace performer {

using torch::Tensor;

LinformerCore::LinformerCore(const AttentionCoreOptions& options, torch::nn::Module& owner)
    : max_length_(options.max_length) {
  FAVOR_CHECK(max_length_ >= 1, "MultiHeadAttention: max_length is ", max_length_,
              ", expected at least 1 with attention linformer (columns of its mixtures)");
  // Entries of variance 1 / mixed_keys, so that mixtures keep about the size of the keys.
  const int64_t R = options.attention.mixed_keys;
  const double deviation = 1 / std::sqrt(static_cast<double>(R));
  key_mixtures_ =
      owner.register_parameter("key_mixtures", torch::randn({R, max_length_}) * deviation);
  value_mixtures_ =
      owner.register_parameter("value_mixtures", torch::randn({R, max_length_}) * deviation);
}

Tensor LinformerCore::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                              const BatchLayout& layout) {
  return for_each_sequence(
      q, k, v, layout,
      [this](const Tensor& qs, const Tensor& ks, const Tensor& vs, const Tensor& mask) {
        const int64_t L = ks.size(2);
        FAVOR_CHECK(L <= max_length_, "MultiHeadAttention: x has ", L,
                    " tokens in a row, expected at most max_length = ", max_length_,
                    " (attention linformer has learned no more columns)");
        Tensor keys = ks, values = vs;
        if (mask.defined()) {
          const Tensor hidden = mask.reshape({mask.size(0), 1, L, 1});
          keys = ks.masked_fill(hidden, 0);
          values = vs.masked_fill(hidden, 0);
        }
        return at::scaled_dot_product_attention(qs, key_mixtures_.narrow(1, 0, L).matmul(keys),
                                                value_mixtures_.narrow(1, 0, L).matmul(values));
      });
}

}  // namespace performer
