// SPDX-License-Identifier: Apache-2.0
// The entry points of exact attention: every argument check, then the float kernels or the plain
// code in double.
#include "favor/exact.h"

#include <type_traits>
#include <utility>

#include "favor/exact_plan.h"
#include "favor/plan_checks.h"
#include "favor/reference_exact.h"

namespace favor {
namespace {

template <class T>
ExactPlan<Compute<T>> make_plan(const char* op, const ExactParams<Compute<T>>& params,
                                const View4<const T>& q, const View4<const T>& k,
                                const View4<const T>& v) {
  AttentionCall<Compute<T>> call;
  enter_tensors(op, q, k, v, call);
  enter_scale(op, params, call);
  checked_product(op, {call.D + call.E + 64, int64_t{4096}});
  enter_keys(op, params, "is seen", call);
  return {std::move(call), params.is_causal, params.skip_self};
}

}  // namespace

template <class T>
void exact_forward(const ExactParams<Compute<T>>& params, View4<const T> q, View4<const T> k,
                   View4<const T> v, View4<T> out, Compute<T>* normalizer) {
  const char* op = "exact_forward";
  const ExactPlan<Compute<T>> plan = make_plan(op, params, q, k, v);
  check_shape(op, "out", out, {plan.B, plan.H, plan.L, plan.E}, "[B, H, L, E]");
  if constexpr (std::is_same_v<Compute<T>, float>) {
    exact_forward_kernel(plan, out, normalizer);
  } else {
    reference::exact_forward(params, q, k, v, out, normalizer);
  }
}

template <class T>
void exact_backward(const ExactParams<Compute<T>>& params, View4<const T> q, View4<const T> k,
                    View4<const T> v, View4<const T> out, View4<const T> dout,
                    const Compute<T>* normalizer, View4<T> dq, View4<T> dk, View4<T> dv) {
  const char* op = "exact_backward";
  const ExactPlan<Compute<T>> plan = make_plan(op, params, q, k, v);
  check_gradients(op, plan, out, dout, dq, dk, dv);
  FAVOR_CHECK(normalizer != nullptr || plan.B * plan.H * plan.L == 0, op,
              ": normalizer is null, expected what the forward pass wrote");
  if constexpr (std::is_same_v<Compute<T>, float>) {
    exact_backward_kernel(plan, {out, dout, normalizer, dq, dk, dv});
  } else {
    reference::exact_backward(params, q, k, v, out, dout, normalizer, dq, dk, dv);
  }
}

#define FAVOR_INSTANTIATE(T)                                                                      \
  template void exact_forward<T>(const ExactParams<Compute<T>>&, View4<const T>, View4<const T>,  \
                                 View4<const T>, View4<T>, Compute<T>*);                          \
  template void exact_backward<T>(const ExactParams<Compute<T>>&, View4<const T>, View4<const T>, \
                                  View4<const T>, View4<const T>, View4<const T>,                 \
                                  const Compute<T>*, View4<T>, View4<T>, View4<T>);
FAVOR_INSTANTIATE(float)
FAVOR_INSTANTIATE(bfloat16)
FAVOR_INSTANTIATE(float16)
FAVOR_INSTANTIATE(double)
#undef FAVOR_INSTANTIATE

}  // namespace favor
