// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/linear.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <optional>
#include <string_view>
#include <vector>

#include "performer/nn/recompute.h"

namespace performer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;

// Below, the time of setting a product up shows.
constexpr int64_t kLeastRows = 128;

// torch's own entry to oneDNN's product for tensors in plain layout.
using Product = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, std::string_view,
                       c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);

const std::optional<c10::TypedOperatorHandle<Product>>& onednn_product() {
  static const auto handle = []() -> std::optional<c10::TypedOperatorHandle<Product>> {
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!found) return std::nullopt;
    try {
      return found->typed<Product>();
    } catch (const c10::Error&) {
      return std::nullopt;  // a torch in which it takes something else
    }
  }();
  return handle;
}

// x W^T + b for x [n, in]; the weight may be a transposed view.
Tensor multiply(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return onednn_product()->call(x, weight, bias, "none", c10::List<std::optional<at::Scalar>>(),
                                std::nullopt);
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value();
    return multiply(x, weight, bias);
  }

  static TensorList backward(AutogradContext* context, const TensorList& douts) {
    const TensorList saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor& weight = saved[1];
    const Tensor dout = douts[0].contiguous();
    TensorList gradients(3);
    if (context->needs_input_grad(0)) {
      // oneDNN's products cannot be differentiated again.
      gradients[0] =
          at::GradMode::is_enabled() ? dout.mm(weight) : multiply(dout, weight.t(), std::nullopt);
    }
    // Of gradients of weights, long sums, MKL makes no less.
    if (context->needs_input_grad(1)) gradients[1] = dout.t().mm(x);
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) {
      gradients[2] = dout.sum(0);
    }
    return gradients;
  }
};

bool is_plain(const Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.layout() == at::kStrided;
}

// For x [n, in].
bool suits_onednn(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return !is_autocast() && at::globalContext().userEnabledMkldnn() && onednn_product() &&
         is_plain(x) && is_plain(weight) && x.size(0) >= kLeastRows && weight.dim() == 2 &&
         weight.is_contiguous() && weight.size(0) > 0 && x.size(1) == weight.size(1) &&
         (!bias || (is_plain(*bias) && bias->is_contiguous() && bias->dim() == 1 &&
                    bias->size(0) == weight.size(0)));
}

Tensor apply_to_rows(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  if (!suits_onednn(x, weight, bias)) return torch::linear(x, weight, bias.value_or(Tensor()));
  const Tensor rows = x.contiguous();
  const bool records =
      at::GradMode::is_enabled() &&
      (rows.requires_grad() || weight.requires_grad() || (bias && bias->requires_grad()));
  return records ? Linear::apply(rows, weight, bias) : multiply(rows, weight, bias);
}

}  // namespace

Tensor apply_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (x.dim() == 0 || x.numel() == 0) return torch::linear(x, weight, bias);
  // Of rows in a matrix every library adds the bias on the way.
  const Tensor out = apply_to_rows(x.reshape({-1, x.size(-1)}), weight,
                                   bias.defined() ? std::optional(bias) : std::nullopt);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = out.size(1);
  return out.view(shape);
}

}  // namespace performer
