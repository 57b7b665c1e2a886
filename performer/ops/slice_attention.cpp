// SPDX-License-Identifier: Apache-2.0
#include "performer/ops/slice_attention.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "favor/check.h"
#include "favor/slices.h"
#include "performer/ops/kernels.h"
#include "performer/ops/parameters.h"

namespace performer {
namespace ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<float> values_of(const Tensor& tensor) {
  const Tensor flat = tensor.contiguous();
  const float* data = flat.const_data_ptr<float>();
  return {data, data + flat.numel()};
}

Tensor tensor_of(const std::vector<float>& values, at::IntArrayRef sizes) {
  Tensor tensor = at::empty(sizes, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

// A state or a gradient of one, which have the same members.
template <class State>
State state_of(const Tensor& c, const Tensor& S, const Tensor& z) {
  State state;
  state.B = S.size(0);
  state.H = S.size(1);
  state.M = S.size(2);
  state.E = S.size(3);
  state.c = values_of(c);
  state.S = values_of(S);
  state.z = values_of(z);
  return state;
}

template <class Run>
void for_slice_type_of(const Tensor& q, const Run& run) {
  for_type_of(q, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, double>) run(T());
  });
}

// What forward and backward share beside tensors.
struct SliceCall : torch::CustomClassHolder {
  FavorArguments arguments;
};

struct SliceAttention : torch::autograd::Function<SliceAttention> {
  // {out, c, S, z} after the slice.
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& c, const Tensor& S, const Tensor& z,
                               const c10::intrusive_ptr<SliceCall>& call) {
    const char* op = "slice_attention";
    const Parameters<float> params(op, q, k, call->arguments);
    const int64_t B = q.size(0), H = q.size(1), L = q.size(2), G = k.size(1), E = v.size(3);
    Tensor out = empty_rows(q, E);
    Tensor normalizer = at::empty({B, H, L}, at::kFloat);
    Tensor kept = at::empty({favor::saved_state_size(B, G, L, params.M, E, true, 1)}, at::kFloat);
    Tensor starts = at::empty({B, G, L}, at::kByte);
    favor::Saved<float> saved;
    saved.normalizer = normalizer.mutable_data_ptr<float>();
    if (kept.numel() > 0) saved.state = kept.mutable_data_ptr<float>();
    saved.chunk_starts = starts.mutable_data_ptr<uint8_t>();
    const auto initial = state_of<favor::DecodeState>(c, S, z);
    favor::DecodeState after;
    for_slice_type_of(q, [&]<class T>(T) {
      const Inputs<T> in(q, k, v);
      favor::causal_forward<T>(params.value, in.q, in.k, in.v, view_of<T>(out), &saved, &initial,
                               &after);
    });
    // The rests are below what a float of the sums keeps.
    variable_list results = {out, tensor_of(after.c, c.sizes()), tensor_of(after.S, S.sizes()),
                             tensor_of(after.z, z.sizes())};
    context->save_for_backward({q, k, v, c, S, z, out, normalizer, kept, starts, results[1]});
    context->mark_non_differentiable({results[1]});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& douts) {
    const variable_list kept = context->get_saved_variables();
    const Tensor &q = kept[0], &k = kept[1], &v = kept[2], &c = kept[3], &S = kept[4], &z = kept[5];
    const auto call =
        c10::static_intrusive_pointer_cast<SliceCall>(context->saved_data["call"].toCapsule());
    const Parameters<float> params("slice_attention", q, k, call->arguments);
    Tensor dq = empty_rows(q, q.size(3)), dk = empty_rows(k, k.size(3)),
           dv = empty_rows(v, v.size(3));
    const Tensor out = rows_contiguous(kept[6]);
    const Tensor dout =
        douts[0].defined() ? rows_contiguous(douts[0]) : at::zeros(out.sizes(), out.options());
    favor::Saved<float> saved;
    saved.normalizer = const_cast<float*>(kept[7].const_data_ptr<float>());
    if (kept[8].numel() > 0) saved.state = const_cast<float*>(kept[8].const_data_ptr<float>());
    saved.chunk_starts = const_cast<uint8_t*>(kept[9].const_data_ptr<uint8_t>());
    const auto initial = state_of<favor::DecodeState>(c, S, z);
    const bool has_final = douts[2].defined() || douts[3].defined();
    favor::StateGradient dfinal;
    if (has_final) {
      const auto or_zeros = [](const Tensor& given, const Tensor& like) {
        return given.defined() ? given : at::zeros(like.sizes(), like.options());
      };
      dfinal =
          state_of<favor::StateGradient>(kept[10], or_zeros(douts[2], S), or_zeros(douts[3], z));
    }
    favor::StateGradient dinitial;
    const bool wanted = context->needs_input_grad(4) || context->needs_input_grad(5);
    for_slice_type_of(q, [&]<class T>(T) {
      const Inputs<T> in(q, k, v);
      favor::causal_slice_backward<T>(params.value, in.q, in.k, in.v, view_of<const T>(out),
                                      view_of<const T>(dout), saved, &initial,
                                      has_final ? &dfinal : nullptr, view_of<T>(dq), view_of<T>(dk),
                                      view_of<T>(dv), wanted ? &dinitial : nullptr);
    });
    if (!wanted) return {dq, dk, dv, Tensor(), Tensor(), Tensor(), Tensor()};
    return {dq,
            dk,
            dv,
            Tensor(),
            tensor_of(dinitial.S, S.sizes()),
            tensor_of(dinitial.z, z.sizes()),
            Tensor()};
  }
};

}  // namespace
}  // namespace ops

SliceState empty_slice_state(int64_t B, int64_t G, int64_t M, int64_t E) {
  return {at::zeros({B, G, M}, at::kFloat), at::zeros({B, G, M, E}, at::kFloat),
          at::zeros({B, G, M}, at::kFloat)};
}

at::Tensor favor_slice_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const FavorArguments& arguments, SliceState& state) {
  const char* op = "slice_attention";
  at::Tensor rows[] = {q, k, v};
  if (at::autocast::is_autocast_enabled(at::kCPU)) {
    for (at::Tensor& x : rows) x = x.to(at::autocast::get_autocast_dtype(at::kCPU));
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  ops::check_inputs(op, rows[0], rows[1], rows[2]);
  FAVOR_CHECK(q.scalar_type() != at::kDouble, op,
              ": q has dtype Double, expected Float, BFloat16 or Half (states are float32)");
  if (!state.defined()) {
    const int64_t M = ops::Parameters<float>(op, rows[0], rows[1], arguments).M;
    state = empty_slice_state(q.size(0), k.size(1), M, v.size(3));
  }
  auto call = c10::make_intrusive<ops::SliceCall>();
  call->arguments = arguments;
  const auto results =
      ops::SliceAttention::apply(rows[0], rows[1], rows[2], state.c, state.S, state.z, call);
  state = {results[1], results[2], results[3]};
  return results[0];
}

}  // namespace performer
