// SPDX-License-Identifier: Apache-2.0
#include "performer/models/classifier.h"

#include <torch/torch.h>

#include "favor/check.h"

namespace performer {

using torch::Tensor;

struct ClassifierHeadImpl::Parts {
  bool pairs = false;
  PoolingKind pooling = PoolingKind::kCls;
  torch::nn::Linear up{nullptr}, down{nullptr};
};

Tensor pool(const Tensor& hidden, const BatchLayout& layout, PoolingKind kind) {
  if (kind == PoolingKind::kCls) return hidden.select(1, 0);
  if (!layout.key_padding_mask.defined()) return hidden.mean(1);
  // Whatever stands under the mask, NaN included, stays out.
  const Tensor padded = layout.key_padding_mask.unsqueeze(-1);
  const Tensor count = padded.logical_not().sum(1).clamp_min(1);
  return hidden.masked_fill(padded, 0).sum(1) / count;
}

ClassifierHeadImpl::ClassifierHeadImpl(const ModelConfig& config)
    : parts_(std::make_unique<Parts>()) {
  FAVOR_CHECK(config.num_classes >= 2, "config: num_classes is ", config.num_classes,
              ", expected at least 2 with head ", to_string(config.head));
  Parts& parts = *parts_;
  parts.pairs = config.head == HeadKind::kPairs;
  parts.pooling = config.pooling;
  const int64_t dim = parts.pairs ? 4 * config.dim : config.dim;
  parts.up = register_module("up", torch::nn::Linear(dim, config.ff_dim));
  parts.down = register_module("down", torch::nn::Linear(config.ff_dim, config.num_classes));
  const torch::NoGradGuard no_grad;
  for (torch::nn::Linear layer : {parts.up, parts.down}) {
    torch::nn::init::xavier_uniform_(layer->weight);
    layer->bias.zero_();
  }
}

ClassifierHeadImpl::~ClassifierHeadImpl() = default;

Tensor ClassifierHeadImpl::forward(const Tensor& hidden, const BatchLayout& layout) {
  FAVOR_CHECK(!layout.is_packed(),
              "classifier: rows are packed, expected one example a row (--windowing crop)");
  Tensor x = pool(hidden, layout, parts_->pooling);
  if (parts_->pairs) {
    FAVOR_CHECK(x.size(0) % 2 == 0, "classifier: there are ", x.size(0),
                " rows, expected an even number (pairs)");
    const Tensor rows = x.unflatten(0, {x.size(0) / 2, 2});
    const Tensor a = rows.select(1, 0), b = rows.select(1, 1);
    x = torch::cat({a, b, a * b, a - b}, 1);
  }
  return parts_->down->forward(torch::relu(parts_->up->forward(x))).unsqueeze(1);
}

}  // namespace performer
