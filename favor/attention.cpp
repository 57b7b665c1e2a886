// SPDX-License-Identifier: Apache-2.0
// The public entry points: every argument check, then the float kernels or the double reference.
#include "favor/attention.h"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "favor/hybrid_plan.h"
#include "favor/isa.h"
#include "favor/item_moments.h"
#include "favor/make_plan.h"
#include "favor/parallel.h"
#include "favor/plan.h"
#include "favor/plan_checks.h"
#include "favor/reference.h"
#include "favor/slice_plan.h"
#include "favor/widened.h"

namespace favor {
namespace {

template <class T>
void check_backward(const char* op, const Plan<Compute<T>>& plan, const View4<const T>& out,
                    const View4<const T>& dout, const Saved<Compute<T>>& saved, const View4<T>& dq,
                    const View4<T>& dk, const View4<T>& dv) {
  check_gradients(op, plan, out, dout, dq, dk, dv);
  FAVOR_CHECK(saved.normalizer != nullptr || plan.B * plan.H * plan.L == 0, op,
              ": saved.normalizer is null, expected what the forward pass saved");
}

template <class T>
void check_state(const char* op, const char* name, const Plan<T>& plan, const DecodeState& state) {
  FAVOR_CHECK(state.B == plan.B && state.H == plan.G && state.M == plan.M && state.E == plan.E, op,
              ": ", name, " has B, H, M, E = ", state.B, ", ", state.H, ", ", state.M, ", ",
              state.E, ", expected ", plan.B, ", ", plan.G, ", ", plan.M, ", ", plan.E);
  check_sizes(op, name, state);
}

template <class T>
void check_stream(const char* op, const Plan<T>& plan, const DecodeState* initial,
                  const DecodeState* final_state) {
  if (initial == nullptr && final_state == nullptr) {
    return;
  }
  FAVOR_CHECK(plan.L == plan.S, op, ": q has length ", plan.L, ", expected ", plan.S,
              " (as k, because a state is given or asked for)");
  FAVOR_CHECK(plan.num_segments() == 1, op, ": there are ", plan.num_segments(),
              " segments, expected 1 (a state is given or asked for)");
  FAVOR_CHECK(plan.window == 0, op, ": window is ", plan.window,
              ", expected 0 (a state is given or asked for)");
  if (initial != nullptr) {
    check_state(op, "initial", plan, *initial);
  }
}

/// What only bidirectional attention can do.
template <class T>
void check_causal(const char* op, const Plan<T>& plan) {
  FAVOR_CHECK(!is_fitted(plan.feature_map) || plan.map_parameters != nullptr, op,
              ": map_parameters is null, expected those of fit_feature_map (feature_map ",
              to_string(plan.feature_map), " would be fitted to later tokens)");
  FAVOR_CHECK(!plan.official, op, ": compatibility is official, expected none (its stabiliser is ",
              "the maximum over later keys too)");
}

template <class T>
void decode_step_on(const AttentionParams<float>& params, View4<const T> q, View4<const T> k,
                    View4<const T> v, DecodeState& state, View4<T> out) {
  const char* op = "decode_step";
  const Plan<float> plan = make_plan(op, params, q, k, v, PlanReader::kStep);
  check_causal(op, plan);
  FAVOR_CHECK(plan.L == 1 && plan.S == 1, op, ": q and k have lengths ", plan.L, " and ", plan.S,
              ", expected 1 and 1");
  FAVOR_CHECK(plan.num_segments() == 1, op, ": there are ", plan.num_segments(),
              " segments, expected 1");
  FAVOR_CHECK(plan.window == 0, op, ": window is ", plan.window,
              ", expected 0 (hybrid_decode_step has a state that holds keys)");
  check_shape(op, "out", out, {plan.B, plan.H, 1, plan.E}, "[B, H, 1, E]");
  check_state(op, "state", plan, state);
  make_steppable(state);
  decode_step_kernel(plan, state, out);
}

}  // namespace

int64_t saved_state_size(int64_t B, int64_t G, int64_t L, int64_t M, int64_t E, bool is_causal,
                         int64_t num_segments) {
  const char* op = "saved_state_size";
  const int64_t states = is_causal ? (L + kStateInterval - 1) / kStateInterval : num_segments == 1;
  return checked_product(op, {B, G, M, E + 2, states});
}

template <class T>
std::vector<Compute<T>> fit_feature_map(const AttentionParams<Compute<T>>& params, View4<const T> q,
                                        View4<const T> k) {
  const char* op = "fit_feature_map";
  // Only the shapes of k matter of v.
  const Plan<Compute<T>> plan = make_plan(op, params, q, k, k);
  std::vector<Compute<T>> result;
  if (!is_fitted(plan.feature_map)) return result;
  std::vector<Moments> moments;
  if constexpr (std::is_same_v<Compute<T>, float>) {
    moments = head_moments(plan);
  } else {
    moments.assign(static_cast<size_t>(plan.G), reference::moments_for(plan.feature_map, plan.D));
    reference::for_each_range(params, q, k, [&](const reference::PieceRange& range) {
      reference::add_moments(params, q, k, range, moments[static_cast<size_t>(range.g)]);
    });
  }
  for (const Moments& head : moments) {
    for (const double x : head.fit(plan.feature_map)) {
      result.push_back(static_cast<Compute<T>>(x));
    }
  }
  return result;
}

template <class T>
void bidirectional_forward(const AttentionParams<Compute<T>>& params, View4<const T> q,
                           View4<const T> k, View4<const T> v, View4<T> out,
                           Saved<Compute<T>>* saved) {
  const char* op = "bidirectional_forward";
  const Plan<Compute<T>> plan = make_plan(op, params, q, k, v);
  check_shape(op, "out", out, {plan.B, plan.H, plan.L, plan.E}, "[B, H, L, E]");
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (pairs_serve(plan) && bfloat16_forward_kernel(plan, out, saved)) return;
  }
  if constexpr (std::is_same_v<Compute<T>, float>) {
    if (plan.window > 0) {
      hybrid_forward_kernel(plan, false, Widened(out).view(), saved);
    } else {
      bidirectional_forward_kernel(plan, out, saved);
    }
  } else {
    reference::bidirectional_forward(params, q, k, v, out, saved);
  }
}

template <class T>
void bidirectional_backward(const AttentionParams<Compute<T>>& params, View4<const T> q,
                            View4<const T> k, View4<const T> v, View4<const T> out,
                            View4<const T> dout, const Saved<Compute<T>>& saved, View4<T> dq,
                            View4<T> dk, View4<T> dv) {
  const char* op = "bidirectional_backward";
  const Plan<Compute<T>> plan = make_plan(op, params, q, k, v);
  check_backward(op, plan, out, dout, saved, dq, dk, dv);
  if constexpr (std::is_same_v<Compute<T>, float>) {
    if (plan.window > 0) {
      hybrid_backward_kernel(plan, false, out, dout, saved, Widened(dq).view(), Widened(dk).view(),
                             Widened(dv).view());
    } else {
      bidirectional_backward_kernel(plan, out, dout, saved, dq, dk, dv);
    }
  } else {
    reference::bidirectional_backward(params, q, k, v, out, dout, saved, dq, dk, dv);
  }
}

template <class T>
void causal_forward(const AttentionParams<Compute<T>>& params, View4<const T> q, View4<const T> k,
                    View4<const T> v, View4<T> out, Saved<Compute<T>>* saved,
                    const DecodeState* initial, DecodeState* final_state) {
  const char* op = "causal_forward";
  const Plan<Compute<T>> plan = make_plan(op, params, q, k, v);
  check_causal(op, plan);
  check_shape(op, "out", out, {plan.B, plan.H, plan.L, plan.E}, "[B, H, L, E]");
  check_stream(op, plan, initial, final_state);
  // The kernels read c, S and z alone.
  DecodeState flushed;
  if (initial != nullptr && initial->num_hot > 0) {
    flushed = *initial;
    flush(flushed);
    initial = &flushed;
  }
  if constexpr (std::is_same_v<Compute<T>, float>) {
    if (plan.window > 0) {
      hybrid_forward_kernel(plan, true, Widened(out).view(), saved);
    } else {
      causal_forward_kernel(plan, out, saved, initial, final_state);
    }
  } else {
    reference::causal_forward(params, q, k, v, out, saved, initial, final_state);
  }
}

template <class T>
void causal_backward(const AttentionParams<Compute<T>>& params, View4<const T> q, View4<const T> k,
                     View4<const T> v, View4<const T> out, View4<const T> dout,
                     const Saved<Compute<T>>& saved, View4<T> dq, View4<T> dk, View4<T> dv) {
  const char* op = "causal_backward";
  const Plan<Compute<T>> plan = make_plan(op, params, q, k, v);
  check_causal(op, plan);
  check_backward(op, plan, out, dout, saved, dq, dk, dv);
  const bool needs_chunks = plan.window == 0 && plan.B * plan.H * plan.L > 0;
  FAVOR_CHECK(saved.chunk_starts != nullptr || !needs_chunks, op,
              ": saved.chunk_starts is null, expected what the forward pass saved");
  if constexpr (std::is_same_v<Compute<T>, float>) {
    if (plan.window > 0) {
      hybrid_backward_kernel(plan, true, out, dout, saved, Widened(dq).view(), Widened(dk).view(),
                             Widened(dv).view());
    } else {
      causal_backward_kernel(plan, out, dout, saved, dq, dk, dv);
    }
  } else {
    reference::causal_backward(params, q, k, v, out, dout, saved, dq, dk, dv);
  }
}

StateGradient::StateGradient(int64_t batch, int64_t heads, int64_t features, int64_t value_dim)
    : B(batch), H(heads), M(features), E(value_dim) {
  DecodeState zeros(B, H, M, E);  // checks the sizes
  c = std::move(zeros.c);
  S = std::move(zeros.S);
  z = std::move(zeros.z);
}

template <class T>
void causal_slice_backward(const AttentionParams<Compute<T>>& params, View4<const T> q,
                           View4<const T> k, View4<const T> v, View4<const T> out,
                           View4<const T> dout, const Saved<Compute<T>>& saved,
                           const DecodeState* initial, const StateGradient* dfinal, View4<T> dq,
                           View4<T> dk, View4<T> dv, StateGradient* dinitial) {
  const char* op = "causal_slice_backward";
  const Plan<Compute<T>> plan = make_plan(op, params, q, k, v);
  check_causal(op, plan);
  check_backward(op, plan, out, dout, saved, dq, dk, dv);
  FAVOR_CHECK(saved.chunk_starts != nullptr || plan.B * plan.H * plan.L == 0, op,
              ": saved.chunk_starts is null, expected what the forward pass saved");
  FAVOR_CHECK(plan.L == plan.S && plan.num_segments() == 1 && plan.window == 0, op, ": L, S are ",
              plan.L, ", ", plan.S, ", with ", plan.num_segments(), " segments and window ",
              plan.window, ", expected L = S, 1 and 0 (states lie between slices of one stream)");
  if (initial != nullptr) check_state(op, "initial", plan, *initial);
  FAVOR_CHECK(initial != nullptr || dinitial == nullptr, op,
              ": initial is null, expected a state where its gradient is asked for");
  if (dfinal != nullptr) {
    const auto rows = static_cast<size_t>(plan.B * plan.G * plan.M);
    const size_t elements = rows * static_cast<size_t>(plan.E);
    FAVOR_CHECK(dfinal->c.size() == rows && dfinal->z.size() == rows &&
                    dfinal->S.size() == elements && dfinal->M == plan.M && dfinal->H == plan.G,
                op, ": dfinal has ", dfinal->c.size(), ", ", dfinal->S.size(), ", ",
                dfinal->z.size(), " elements in c, S, z, expected ", rows, ", ", elements, ", ",
                rows);
  }
  DecodeState flushed;
  if (initial != nullptr && initial->num_hot > 0) {
    flushed = *initial;
    flush(flushed);
    initial = &flushed;
  }
  // Apart from *dinitial, which may be the same object as *dfinal.
  StateGradient result;
  if (dinitial != nullptr) {
    result = StateGradient(plan.B, plan.G, plan.M, plan.E);
    result.c = initial->c;
  }
  StateGradient* const wanted = dinitial == nullptr ? nullptr : &result;
  if constexpr (std::is_same_v<Compute<T>, float>) {
    if (plan.L == 0 && wanted != nullptr && dfinal != nullptr) {
      result = *dfinal;  // without tokens both states are the same
    }
    causal_slice_backward_kernel(plan, out, dout, saved, {initial, dfinal, wanted}, dq, dk, dv);
  } else {
    reference::causal_slice_backward(params, q, k, v, out, dout, initial, dfinal, dq, dk, dv,
                                     wanted);
  }
  if (dinitial != nullptr) *dinitial = std::move(result);
}

void decode_step(const AttentionParams<float>& params, View4<const float> q, View4<const float> k,
                 View4<const float> v, DecodeState& state, View4<float> out) {
  decode_step_on(params, q, k, v, state, out);
}

void decode_step(const AttentionParams<float>& params, View4<const bfloat16> q,
                 View4<const bfloat16> k, View4<const bfloat16> v, DecodeState& state,
                 View4<bfloat16> out) {
  decode_step_on(params, q, k, v, state, out);
}

void decode_step(const AttentionParams<float>& params, View4<const float16> q,
                 View4<const float16> k, View4<const float16> v, DecodeState& state,
                 View4<float16> out) {
  decode_step_on(params, q, k, v, state, out);
}

void check_call(const char* op, const AttentionParams<float>& params, View4<const float> q,
                View4<const float> k, View4<const float> v) {
  make_plan(op, params, q, k, v);
}

void answer_from_state(const AttentionParams<float>& params, View4<const float> q,
                       View4<const float> k, View4<const float> v, DecodeState& state,
                       View4<float> out, float* log_sums) {
  const Plan<float> plan = make_plan("hybrid_decode_step", params, q, k, v, PlanReader::kStep);
  make_steppable(state);
  decode_step_kernel(plan, state, out, log_sums);
}

#define FAVOR_INSTANTIATE(T)                                                                       \
  template std::vector<Compute<T>> fit_feature_map<T>(const AttentionParams<Compute<T>>&,          \
                                                      View4<const T>, View4<const T>);             \
  template void bidirectional_forward<T>(const AttentionParams<Compute<T>>&, View4<const T>,       \
                                         View4<const T>, View4<const T>, View4<T>,                 \
                                         Saved<Compute<T>>*);                                      \
  template void bidirectional_backward<T>(                                                         \
      const AttentionParams<Compute<T>>&, View4<const T>, View4<const T>, View4<const T>,          \
      View4<const T>, View4<const T>, const Saved<Compute<T>>&, View4<T>, View4<T>, View4<T>);     \
  template void causal_forward<T>(const AttentionParams<Compute<T>>&, View4<const T>,              \
                                  View4<const T>, View4<const T>, View4<T>, Saved<Compute<T>>*,    \
                                  const DecodeState*, DecodeState*);                               \
  template void causal_backward<T>(const AttentionParams<Compute<T>>&, View4<const T>,             \
                                   View4<const T>, View4<const T>, View4<const T>, View4<const T>, \
                                   const Saved<Compute<T>>&, View4<T>, View4<T>, View4<T>);        \
  template void causal_slice_backward<T>(                                                          \
      const AttentionParams<Compute<T>>&, View4<const T>, View4<const T>, View4<const T>,          \
      View4<const T>, View4<const T>, const Saved<Compute<T>>&, const DecodeState*,                \
      const StateGradient*, View4<T>, View4<T>, View4<T>, StateGradient*);
FAVOR_INSTANTIATE(float)
FAVOR_INSTANTIATE(bfloat16)
FAVOR_INSTANTIATE(float16)
FAVOR_INSTANTIATE(double)
#undef FAVOR_INSTANTIATE

}  // namespace favor
