// SPDX-License-Identifier: Apache-2.0
// The autograd rule of performer::attention: its forward and backward operators, called through the
// dispatcher, so that every backend and torch.compile share it. First derivatives only.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "favor/check.h"
#include "performer/ops/kernels.h"

namespace performer::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor or_undefined(const OptionalTensor& tensor) {
  return tensor.value_or(at::Tensor());
}

OptionalTensor or_empty(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const FavorArguments& arguments, bool is_causal) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [out, normalizer, state, chunk_starts] =
        favor_forward(q, k, v, arguments, /*save=*/true, is_causal);
    context->save_for_backward(
        {q, k, v, out, normalizer, state, chunk_starts, or_undefined(arguments.projection),
         or_undefined(arguments.key_padding_mask), or_undefined(arguments.cu_seqlens_q),
         or_undefined(arguments.cu_seqlens_k)});
    context->saved_data["is_causal"] = is_causal;
    context->saved_data["feature_map"] = arguments.feature_map;
    context->saved_data["scale"] = arguments.scale;
    context->saved_data["feature_eps"] = arguments.feature_eps;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    FavorArguments arguments;
    arguments.projection = or_empty(saved[7]);
    arguments.key_padding_mask = or_empty(saved[8]);
    arguments.cu_seqlens_q = or_empty(saved[9]);
    arguments.cu_seqlens_k = or_empty(saved[10]);
    arguments.feature_map = context->saved_data["feature_map"].toStringRef();
    arguments.scale = context->saved_data["scale"].toOptional<double>();
    arguments.feature_eps = context->saved_data["feature_eps"].toOptional<double>();
    auto [dq, dk, dv] = favor_backward(gradients[0], saved[0], saved[1], saved[2],
                                       ForwardResult(saved[3], saved[4], saved[5], saved[6]),
                                       arguments, context->saved_data["is_causal"].toBool());
    return {dq, dk, dv, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor attention_autograd(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const OptionalTensor& projection,
                              const OptionalTensor& key_padding_mask,
                              const OptionalTensor& cu_seqlens_q,
                              const OptionalTensor& cu_seqlens_k, bool is_causal,
                              std::string_view feature_map, std::optional<double> scale,
                              std::optional<double> feature_eps) {
  FAVOR_CHECK(!projection || !projection->requires_grad(),
              "attention: projection requires a gradient, expected none (random matrices are "
              "fixed; pass projection.detach())");
  const FavorArguments arguments = {projection,   key_padding_mask,         cu_seqlens_q,
                                    cu_seqlens_k, std::string(feature_map), scale,
                                    feature_eps};
  const bool needs_gradient =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  if (needs_gradient) return Attention::apply(q, k, v, arguments, is_causal);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return std::get<0>(favor_forward(q, k, v, arguments, /*save=*/false, is_causal));
}

}  // namespace performer::ops

// The passes themselves have no derivative: asking for one raises instead of giving zero.
TORCH_LIBRARY_IMPL(performer, Autograd, m) {
  using torch::autograd::autogradNotImplementedFallback;
  m.impl("bidirectional_forward", autogradNotImplementedFallback());
  m.impl("bidirectional_backward", autogradNotImplementedFallback());
  m.impl("causal_forward", autogradNotImplementedFallback());
  m.impl("causal_backward", autogradNotImplementedFallback());
  m.impl("decode_step", autogradNotImplementedFallback());
}
