// SPDX-License-Identifier: Apache-2.0
#include "performer/ops/joint_attention.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "favor/check.h"
#include "favor/exact.h"
#include "performer/ops/kernels.h"
#include "performer/ops/parameters.h"

namespace performer {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "joint_attention";

template <class T>
struct PartParameters {
  ops::KeyTensors keys;
  favor::ExactParams<T> value;

  explicit PartParameters(const JointPart& part)
      : keys(kOp, part.k, part.arguments, ops::kTypeOf<T>) {
    ops::set_keys<T>(part.arguments, keys, value);
    value.is_causal = part.is_causal;
    value.skip_self = part.skip_self;
  }
};

// (out, log of the denominators) of one part; the logarithm is the kernels' own, see log_base.
std::pair<Tensor, Tensor> part_forward(const JointPart& part) {
  ops::check_inputs(kOp, part.q, part.k, part.v);
  Tensor out = ops::empty_rows(part.q, part.v.size(3));
  return ops::for_type_of(part.q, [&]<class T>(T) {
    using C = favor::Compute<T>;
    const PartParameters<C> params(part);
    Tensor log_sum = at::empty(part.q.sizes().slice(0, 3), at::TensorOptions(ops::kTypeOf<C>));
    const ops::Inputs<T> in(part.q, part.k, part.v);
    favor::exact_forward<T>(params.value, in.q, in.k, in.v, ops::view_of<T>(out),
                            log_sum.template mutable_data_ptr<C>());
    return std::pair{out, log_sum};
  });
}

variable_list part_backward(const JointPart& part, const Tensor& out, const Tensor& dout,
                            const Tensor& log_sum) {
  Tensor dq = ops::empty_rows(part.q, part.q.size(3));
  Tensor dk = ops::empty_rows(part.k, part.k.size(3));
  Tensor dv = ops::empty_rows(part.v, part.v.size(3));
  ops::for_type_of(part.q, [&]<class T>(T) {
    using C = favor::Compute<T>;
    const PartParameters<C> params(part);
    const ops::Inputs<T> in(part.q, part.k, part.v);
    const Tensor out_rows = ops::rows_contiguous(out), dout_rows = ops::rows_contiguous(dout);
    const Tensor logs = log_sum.contiguous();
    favor::exact_backward<T>(params.value, in.q, in.k, in.v, ops::view_of<const T>(out_rows),
                             ops::view_of<const T>(dout_rows), logs.template const_data_ptr<C>(),
                             ops::view_of<T>(dq), ops::view_of<T>(dk), ops::view_of<T>(dv));
  });
  return {dq, dk, dv};
}

Tensor take_rows(const Tensor& x, const Tensor& rows) {
  return rows.defined() ? x.index_select(2, rows) : x;
}

Tensor place_rows(const Tensor& x, const Tensor& rows, int64_t L, double elsewhere) {
  if (!rows.defined()) return x;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[2] = L;
  return at::full(sizes, elsewhere, x.options()).index_copy_(2, rows, x);
}

// base^x, with the base of the kernels' logarithms: 2 in float, e in the plain code of double.
Tensor power(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? x.exp() : x.exp2();
}

struct Parts : torch::CustomClassHolder {
  std::vector<JointPart> parts;  // without q, k and v, which autograd keeps
  int64_t L = 0;
};

struct Joint : torch::autograd::Function<Joint> {
  static variable_list forward(AutogradContext* context, const at::TensorList& tensors,
                               const c10::intrusive_ptr<Parts>& parts) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const double none = -std::numeric_limits<double>::infinity();
    std::vector<Tensor> outs, logs;
    for (size_t p = 0; p < parts->parts.size(); ++p) {
      JointPart part = parts->parts[p];
      part.q = tensors[3 * p];
      part.k = tensors[3 * p + 1];
      part.v = tensors[3 * p + 2];
      auto [out, log_sum] = part_forward(part);
      outs.push_back(place_rows(out, part.rows, parts->L, 0));
      logs.push_back(place_rows(log_sum, part.rows, parts->L, none));
    }
    Tensor top = logs[0];
    for (size_t p = 1; p < logs.size(); ++p) top = at::maximum(top, logs[p]);
    const Tensor has_key = top.gt(none);
    const Tensor finite_top = top.masked_fill(has_key.logical_not(), 0);
    Tensor out, total;
    for (size_t p = 0; p < logs.size(); ++p) {
      const Tensor weight = power(logs[p] - finite_top);
      const Tensor share = outs[p] * weight.unsqueeze(3);
      out = out.defined() ? out + share : share;
      total = total.defined() ? total + weight : weight;
    }
    out = (out / total.masked_fill(has_key.logical_not(), 1).unsqueeze(3))
              .to(tensors[0].scalar_type());
    const Tensor log_total =
        finite_top + (total.scalar_type() == at::kDouble ? total.log() : total.log2());
    variable_list kept = tensors.vec();
    kept.push_back(out);
    kept.push_back(log_total);
    context->save_for_backward(std::move(kept));
    context->saved_data["parts"] = c10::IValue::make_capsule(parts);
    context->mark_non_differentiable({has_key});
    return {out, has_key};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto holder = context->saved_data["parts"].toCapsule();
    const auto& parts = static_cast<const Parts&>(*holder);
    const Tensor &out = saved[saved.size() - 2], &log_total = saved[saved.size() - 1];
    const Tensor dout = gradients[0].to(out.scalar_type());
    variable_list result;
    for (size_t p = 0; p < parts.parts.size(); ++p) {
      JointPart part = parts.parts[p];
      part.q = saved[3 * p];
      part.k = saved[3 * p + 1];
      part.v = saved[3 * p + 2];
      for (Tensor& gradient :
           part_backward(part, take_rows(out, part.rows), take_rows(dout, part.rows),
                         take_rows(log_total, part.rows))) {
        result.push_back(std::move(gradient));
      }
    }
    result.emplace_back();
    return result;
  }
};

}  // namespace

JointResult joint_attention(const std::vector<JointPart>& parts, int64_t L) {
  FAVOR_CHECK(!parts.empty(), kOp, ": parts is empty, expected at least one");
  auto kept = c10::make_intrusive<Parts>();
  kept->L = L;
  const bool cast = at::autocast::is_autocast_enabled(at::kCPU);
  variable_list tensors;
  for (const JointPart& part : parts) {
    const int64_t rows = part.rows.defined() ? part.rows.numel() : L;
    FAVOR_CHECK(part.q.dim() == 4 && part.q.size(2) == rows, kOp, ": q has shape ", part.q.sizes(),
                ", expected 4 dimensions and ", rows, " rows");
    for (const Tensor& x : {part.q, part.k, part.v}) {
      tensors.push_back(cast && x.scalar_type() != at::kDouble
                            ? x.to(at::autocast::get_autocast_dtype(at::kCPU))
                            : x);
    }
    kept->parts.push_back(part);
    kept->parts.back().q = kept->parts.back().k = kept->parts.back().v = Tensor();
  }
  // The arithmetic around the kernels keeps its types.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const variable_list result = Joint::apply(at::TensorList(tensors), kept);
  return {result[0], result[1]};
}

}  // namespace performer
