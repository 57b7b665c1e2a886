// SPDX-License-Identifier: Apache-2.0
// The public entry points: every argument check, then the float kernels or the double reference.
#include "favor/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <new>
#include <string>

#include "favor/hybrid_plan.h"
#include "favor/isa.h"
#include "favor/parallel.h"
#include "favor/plan.h"
#include "favor/plan_checks.h"
#include "favor/reference.h"
#include "favor/widened.h"
#include "hwy/aligned_allocator.h"

namespace favor {
namespace {

/// Parameters from which square roots and quotients can be taken.
template <class T>
void check_map_parameters(const char* op, const AttentionParams<T>& params, int64_t D) {
  const int64_t numbers = num_map_parameters(params.feature_map, D);
  const bool full = params.feature_map == FeatureMapKind::kFavorSharp;
  const bool diagonal = params.feature_map == FeatureMapKind::kFavorSharpDiagonal;
  for (int64_t set = 0; set < params.num_map_parameter_sets; ++set) {
    const T* x = params.map_parameters + set * numbers;
    for (int64_t i = 0; i < numbers; ++i) {
      FAVOR_CHECK(std::isfinite(x[i]), op, ": map_parameters[", set, "][", i, "] is ", x[i],
                  ", expected a finite number");
      const bool is_a = i < (full ? D : 1);
      FAVOR_CHECK(!is_a || x[i] < T{0.125}, op, ": map_parameters[", set, "][", i, "] is ", x[i],
                  ", expected A < 1/8");
      FAVOR_CHECK(is_a || !diagonal || x[i] > 0, op, ": map_parameters[", set, "][", i, "] is ",
                  x[i], ", expected Psi > 0");
    }
  }
}

/// Who reads a plan.
enum class Reader { kPass, kStep };

/// Replaces structured matrices by dense ones where the kernels have no transform for them: maps
/// that change the rows or, but for single steps, double them, and blocks that are too large.
template <class T>
void expand_structured(Reader reader, Plan<T>& plan) {
  if (plan.structured == nullptr) return;
  const bool doubles_rows = plan.rows != plan.M && reader == Reader::kPass;
  const bool transforms = !is_fitted(plan.feature_map) && !doubles_rows;
  if (transforms && plan.structured->block_rows <= kLargestFastBlock) return;
  for (int64_t p = 0; p < plan.P; ++p) {
    const std::vector<float> dense = plan.structured[p].to_dense();
    plan.expanded.insert(plan.expanded.end(), dense.begin(), dense.end());
  }
  plan.projection = plan.expanded.data();
  plan.structured = nullptr;
}

/// Checks the feature map and its matrix; sets M, R, P and what the map is made of.
template <class T>
void plan_feature_map(const char* op, const AttentionParams<T>& params, Reader reader,
                      Plan<T>& plan) {
  const FeatureMapKind kind = params.feature_map;
  const std::string map = to_string(kind);
  plan.feature_map = kind;
  plan.projection = params.projection;
  plan.structured = params.structured;
  FAVOR_CHECK(params.projection == nullptr || params.structured == nullptr, op,
              ": projection and structured are both given, expected one of them");
  if (!has_projection(params)) {
    FAVOR_CHECK(!estimates_softmax(kind), op, ": projection is null, expected an [M, D] matrix ",
                "(feature_map ", map, " is random)");
    FAVOR_CHECK(params.num_features == 0 || params.num_features == plan.D, op, ": num_features is ",
                params.num_features, ", expected 0 or D = ", plan.D,
                " (no projection: the features are those of x itself)");
    plan.M = plan.D;
    plan.P = 1;
  } else {
    FAVOR_CHECK(params.num_features >= 1, op, ": num_features is ", params.num_features,
                ", expected M >= 1 (features of the state)");
    FAVOR_CHECK(params.num_projections == 1 || params.num_projections == plan.G, op,
                ": num_projections is ", params.num_projections, ", expected 1 or ", plan.G,
                " (key heads)");
    plan.M = params.num_features;
    plan.P = params.num_projections;
  }
  plan.rows = num_projection_rows(kind, plan.M);
  FAVOR_CHECK(num_state_features(kind, plan.rows) == plan.M, op, ": num_features is ", plan.M,
              ", expected an even number (feature_map ", map, " makes two of each row)");
  for (int64_t p = 0; params.structured != nullptr && p < plan.P; ++p) {
    const StructuredProjection& matrix = params.structured[p];
    FAVOR_CHECK(matrix.num_features == plan.rows && matrix.head_dim == plan.D, op, ": structured[",
                p, "] is a matrix of ", matrix.num_features, " x ", matrix.head_dim, ", expected ",
                plan.rows, " x ", plan.D);
    FAVOR_CHECK(matrix.is_complete(), op, ": structured[", p, "] has ", matrix.signs.size(),
                " words of signs and ", matrix.row_scales.size(), " scales in blocks of ",
                matrix.block_rows, " rows, expected what draw_structured_projection gives");
  }
  expand_structured(reader, plan);
  enter_scale(op, params, plan);

  plan.eps = resolve_feature_eps(params);
  plan.official = params.compatibility == Compatibility::kOfficial;
  plan.renormalize = params.renormalize;
  FAVOR_CHECK(!plan.official || kind == FeatureMapKind::kPositive, op,
              ": compatibility is official, expected feature_map positive, not ", map);
  FAVOR_CHECK(!plan.official || plan.renormalize, op,
              ": renormalize is false, expected true (compatibility is official)");
  if (is_fitted(kind) || kind == FeatureMapKind::kTrig) {
    FAVOR_CHECK(plan.eps == 0, op, ": feature_eps is ", plan.eps, ", expected 0 (feature_map ", map,
                " takes none)");
  }
  FAVOR_CHECK(std::isfinite(plan.eps) && plan.eps >= 0, op, ": feature_eps is ", plan.eps,
              ", expected a finite number, 0 or above");

  plan.map_parameters = params.map_parameters;
  plan.num_map_parameter_sets = params.num_map_parameter_sets;
  if (params.map_parameters != nullptr) {
    FAVOR_CHECK(is_fitted(kind), op, ": map_parameters are given, expected none (feature_map ", map,
                " has no fitted parameters)");
    FAVOR_CHECK(params.num_map_parameter_sets == 1 || params.num_map_parameter_sets == plan.G, op,
                ": num_map_parameter_sets is ", params.num_map_parameter_sets, ", expected 1 or ",
                plan.G, " (key heads)");
    check_map_parameters(op, params, plan.D);
  }
}

/// Checks, after plan_feature_map, that the map's estimates can be joined to exact scores.
template <class T>
void check_window(const char* op, const Plan<T>& plan) {
  if (plan.window == 0) return;
  const FeatureMapKind kind = plan.feature_map;
  FAVOR_CHECK(estimates_softmax(kind) && is_log_linear(kind), op, ": window is ", plan.window,
              ", expected 0 (feature_map ", to_string(kind), " has no scores to join exact ones)");
  FAVOR_CHECK(plan.eps == 0, op, ": feature_eps is ", plan.eps, ", expected 0 (with a window)");
  FAVOR_CHECK(plan.renormalize, op, ": renormalize is false, expected true (with a window)");
}

template <class T>
Plan<Compute<T>> make_plan(const char* op, const AttentionParams<Compute<T>>& params,
                           const View4<const T>& q, const View4<const T>& k,
                           const View4<const T>& v, Reader reader = Reader::kPass) {
  Plan<Compute<T>> plan;
  enter_tensors(op, q, k, v, plan);
  plan_feature_map(op, params, reader, plan);
  checked_product(op, {plan.P + 1, plan.M + 64, plan.D + plan.E + 64, int64_t{4}});
  enter_keys(op, params, "goes through features", plan);
  check_window(op, plan);
  return plan;
}

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

/// Whether bfloat16_forward_kernel knows the call.
bool pairs_serve(const Plan<float>& plan) {
  return plan.feature_map == FeatureMapKind::kPositive && plan.eps == 0 && plan.renormalize &&
         !plan.official && plan.window == 0 && plan.sinks == 0 && plan.structured == nullptr;
}

template <class T>
void decode_step_on(const AttentionParams<float>& params, View4<const T> q, View4<const T> k,
                    View4<const T> v, DecodeState& state, View4<T> out) {
  const char* op = "decode_step";
  const Plan<float> plan = make_plan(op, params, q, k, v, Reader::kStep);
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

std::atomic<bool> poison_scratch{false};

}  // namespace

void set_poison_scratch(bool poison) {
  poison_scratch = poison;
}

hwy::AlignedFreeUniquePtr<float[]> allocate_floats(int64_t floats) {
  auto memory = hwy::AllocateAligned<float>(static_cast<size_t>(std::max<int64_t>(floats, 1)));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  if (poison_scratch) {
    std::fill_n(memory.get(), floats, std::numeric_limits<float>::quiet_NaN());
  }
  return memory;
}

float* thread_scratch(int64_t floats) {
  thread_local hwy::AlignedFreeUniquePtr<float[]> memory;
  thread_local int64_t capacity = 0;
  if (floats > capacity) {
    memory.reset();
    capacity = 0;
    memory = allocate_floats(floats);
    capacity = floats;
  }
  if (poison_scratch) {
    std::fill_n(memory.get(), floats, std::numeric_limits<float>::quiet_NaN());
  }
  return memory.get();
}

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
  const Widened wide_q(q);
  const Widened wide_k(k);
  const View4<const Compute<T>> queries = wide_q.view();
  const View4<const Compute<T>> keys = wide_k.view();
  std::vector<Moments> moments(static_cast<size_t>(plan.G),
                               reference::moments_for(plan.feature_map, plan.D));
  reference::for_each_range(params, queries, keys, [&](const reference::PieceRange& range) {
    reference::add_moments(params, queries, keys, range, moments[static_cast<size_t>(range.g)]);
  });
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
  const Plan<float> plan = make_plan("hybrid_decode_step", params, q, k, v, Reader::kStep);
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
                                   const Saved<Compute<T>>&, View4<T>, View4<T>, View4<T>);
FAVOR_INSTANTIATE(float)
FAVOR_INSTANTIATE(bfloat16)
FAVOR_INSTANTIATE(float16)
FAVOR_INSTANTIATE(double)
#undef FAVOR_INSTANTIATE

}  // namespace favor
