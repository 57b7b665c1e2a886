// SPDX-License-Identifier: Apache-2.0
// The autograd rules of performer::attention and performer::exact_attention: their forward and
// backward operators, called through the dispatcher, so that every backend and torch.compile share
// them. First derivatives only. The autocast rule stands here as the other wrapper around both.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>

#include "favor/check.h"
#include "performer/ops/favor_attention.h"
#include "performer/ops/kernels.h"
#include "performer/ops/signatures.h"

namespace performer::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Tensors are saved as such, so that a change in place is noticed; the other members as values.
template <class Arguments>
void save_for_backward(AutogradContext* context, variable_list tensors,
                       const Arguments& arguments) {
  c10::impl::GenericList values(c10::AnyType::get());
  const auto keep = [&](const auto& member) {
    if constexpr (std::is_same_v<decltype(member), const std::optional<Tensor>&>) {
      tensors.push_back(member.value_or(Tensor()));
    } else {
      values.push_back(member);
    }
  };
  std::apply([&](const auto&... members) { (keep(members), ...); }, Arguments::fields(arguments));
  context->save_for_backward(std::move(tensors));
  context->saved_data["arguments"] = values;
}

// The arguments that save_for_backward kept behind the first num_tensors tensors.
template <class Arguments>
Arguments saved_arguments(AutogradContext* context, const variable_list& tensors) {
  Arguments arguments;
  const c10::impl::GenericList values = context->saved_data["arguments"].toList();
  size_t next_tensor = static_cast<size_t>(context->saved_data["num_tensors"].toInt());
  size_t next_value = 0;
  const auto restore = [&](auto& member) {
    using Member = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_same_v<Member, std::optional<Tensor>>) {
      const Tensor& tensor = tensors[next_tensor++];
      if (tensor.defined()) member = tensor;
    } else {
      member = values.get(next_value++).template to<Member>();
    }
  };
  std::apply([&](auto&... members) { (restore(members), ...); }, Arguments::fields(arguments));
  return arguments;
}

// The passes of both kinds of attention: the output first, then what the backward pass needs.
variable_list forward_pass(const Tensor& q, const Tensor& k, const Tensor& v, bool save,
                           const FavorArguments& arguments, bool is_causal) {
  auto [out, normalizer, state, chunk_starts] = favor_forward(q, k, v, arguments, save, is_causal);
  return {out, normalizer, state, chunk_starts};
}
variable_list forward_pass(const Tensor& q, const Tensor& k, const Tensor& v, bool save,
                           const ExactArguments& arguments, bool is_causal) {
  auto [out, normalizer] = exact_forward(q, k, v, arguments, save, is_causal);
  return {out, normalizer};
}

// saved: q, k, v, then the results of forward_pass.
BackwardResult backward_pass(const Tensor& dout, const variable_list& saved,
                             const FavorArguments& arguments, bool is_causal) {
  return favor_backward(dout, saved[0], saved[1], saved[2],
                        {saved[3], saved[4], saved[5], saved[6]}, arguments, is_causal);
}
BackwardResult backward_pass(const Tensor& dout, const variable_list& saved,
                             const ExactArguments& arguments, bool is_causal) {
  return exact_backward(dout, saved[0], saved[1], saved[2], {saved[3], saved[4]}, arguments,
                        is_causal);
}

template <class Arguments>
struct Attention : torch::autograd::Function<Attention<Arguments>> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Arguments& arguments, bool is_causal) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    variable_list kept = forward_pass(q, k, v, /*save=*/true, arguments, is_causal);
    const Tensor out = kept[0];
    kept.insert(kept.begin(), {q, k, v});
    context->saved_data["num_tensors"] = static_cast<int64_t>(kept.size());
    context->saved_data["is_causal"] = is_causal;
    save_for_backward(context, std::move(kept), arguments);
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto arguments = saved_arguments<Arguments>(context, saved);
    auto [dq, dk, dv] =
        backward_pass(gradients[0], saved, arguments, context->saved_data["is_causal"].toBool());
    return {dq, dk, dv, Tensor(), Tensor()};
  }
};

void check_no_gradient(const char* name, const std::optional<Tensor>& tensor, const char* why) {
  FAVOR_CHECK(!tensor || !tensor->requires_grad(), "attention: ", name,
              " requires a gradient, expected none (", why, "; pass ", name, ".detach())");
}

void check_no_gradients(const ExactArguments& arguments) {
  check_no_gradient("key_log_weight", arguments.key_log_weight, "weights of keys carry none");
}
void check_no_gradients(const FavorArguments& arguments) {
  check_no_gradient("projection", arguments.projection, "random matrices are fixed");
  check_no_gradient("map_parameters", arguments.map_parameters, "statistics carry none");
  check_no_gradients(static_cast<const ExactArguments&>(arguments));
}

template <class Arguments>
Tensor attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                          const Arguments& arguments) {
  check_no_gradients(arguments);
  const bool needs_gradient =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  if (needs_gradient) return Attention<Arguments>::apply(q, k, v, arguments, is_causal);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return forward_pass(q, k, v, /*save=*/false, arguments, is_causal)[0];
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const FavorArguments& arguments,
              bool is_causal) {
  return favor_attention(q, k, v, arguments, is_causal);
}
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const ExactArguments& arguments,
              bool is_causal) {
  return exact_attention(q, k, v, arguments, is_causal);
}

// q, k and v take the type of autocast together; matrices and weights stay as they are.
template <class Arguments>
Tensor attention_autocast(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                          const Arguments& arguments) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  for (const Tensor& x : {q, k, v}) {
    if (x.scalar_type() == at::kDouble) return attend(q, k, v, arguments, is_causal);
  }
  const at::ScalarType type = at::autocast::get_autocast_dtype(at::kCPU);
  const auto cast = [=](const Tensor& x) { return at::autocast::cached_cast(type, x, at::kCPU); };
  return attend(cast(q), cast(k), cast(v), arguments, is_causal);
}

}  // namespace

// The passes themselves have no derivative: asking for one raises instead of giving zero.
void register_autograd(torch::Library& m) {
  using torch::autograd::autogradNotImplementedFallback;
  m.impl("attention", kernel_of<attention_autograd<FavorArguments>>);
  m.impl("exact_attention", kernel_of<attention_autograd<ExactArguments>>);
  for (const char* name :
       {"bidirectional_forward", "bidirectional_backward", "causal_forward", "causal_backward",
        "exact_forward", "exact_backward", "decode_step", "fit_feature_map", "stream"}) {
    m.impl(name, autogradNotImplementedFallback());
  }
}

void register_autocast(torch::Library& m) {
  m.impl("attention", kernel_of<attention_autocast<FavorArguments>>);
  m.impl("exact_attention", kernel_of<attention_autocast<ExactArguments>>);
}

}  // namespace performer::ops
