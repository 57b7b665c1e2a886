// SPDX-License-Identifier: Apache-2.0
// The entry points of exact attention: every argument check, then the float kernels or the plain
// code in double.
#include "favor/exact.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "favor/exact_plan.h"
#include "favor/isa.h"
#include "favor/parallel.h"
#include "favor/plan_checks.h"
#include "favor/reference_exact.h"

namespace favor {
namespace {

template <class T>
ExactPlan<Compute<T>> make_plan(const char* op, const ExactParams<Compute<T>>& params,
                                const View4<const T>& q, const View4<const T>& k,
                                const View4<const T>& v) {
  apply_isa_limit();
  check_inputs(op, q, k, v);
  ExactPlan<Compute<T>> plan;
  plan.B = q.sizes[0];
  plan.H = q.sizes[1];
  plan.L = q.sizes[2];
  plan.D = q.sizes[3];
  plan.G = k.sizes[1];
  plan.S = k.sizes[2];
  plan.E = v.sizes[3];
  plan.is_causal = params.is_causal;
  plan.scale = resolve_scale(params, plan.D);
  FAVOR_CHECK(std::isfinite(plan.scale) && plan.scale > 0, op, ": scale is ", plan.scale,
              ", expected a finite number above 0");
  checked_product(op, {plan.D + plan.E + 64, int64_t{4096}});
  num_threads();  // a wrong FAVOR_NUM_THREADS is reported before any work
  check_key_log_weight(op, params, plan.B, plan.G, plan.S);
  FAVOR_CHECK(params.window >= 0, op, ": window is ", params.window, ", expected 0 or more tokens");
  FAVOR_CHECK(params.sinks >= 0, op, ": sinks is ", params.sinks, ", expected 0 or more tokens");
  FAVOR_CHECK(params.window > 0 || params.sinks == 0, op, ": sinks is ", params.sinks,
              ", expected 0 (without a window every key is seen)");
  plan.set_window(params.window, params.sinks);
  plan.key_padding_mask = params.key_padding_mask;
  plan.key_log_weight = params.key_log_weight;
  plan.num_key_log_weights = params.num_key_log_weights;
  plan.segments = make_segments(op, params, plan.L, plan.S);
  plan.q = q;
  plan.k = k;
  plan.v = v;
  return plan;
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
  check_shape(op, "out", out, {plan.B, plan.H, plan.L, plan.E}, "[B, H, L, E]");
  check_shape(op, "dout", dout, {plan.B, plan.H, plan.L, plan.E}, "as out");
  check_shape(op, "dq", dq, {plan.B, plan.H, plan.L, plan.D}, "as q");
  check_shape(op, "dk", dk, {plan.B, plan.G, plan.S, plan.D}, "as k");
  check_shape(op, "dv", dv, {plan.B, plan.G, plan.S, plan.E}, "as v");
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
