// SPDX-License-Identifier: Apache-2.0
// One token of causal attention against a state of constant size.
//
// A step is bound by memory: it reads the random matrix and S once, and writes neither. The key's
// features and value join the hot part of the state, whose few tokens are scored one by one; when
// it is full, they are added to S at once, which also rounds S once per kHotTokens tokens.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/decode.cpp"
#include "hwy/foreach_target.h"
#include "favor/step_group-inl.h"
// clang-format on

#include <algorithm>

#include "favor/parallel.h"
#include "favor/step_rows.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Calls body(first, end) for groups of the state's heads. Heads go to threads in groups, because a
/// step of few heads takes less time than waking a thread.
template <class Body>
void for_each_group(const DecodeState& state, const Body& body) {
  constexpr int64_t kHeadsPerTask = 8;
  const int64_t heads = state.B * state.H;
  parallel_for((heads + kHeadsPerTask - 1) / kHeadsPerTask, [&](int64_t task) {
    body(task * kHeadsPerTask, std::min((task + 1) * kHeadsPerTask, heads));
  });
}

void run_decode_step(const Plan<float>& plan, const StepRows* rows, DecodeState& state,
                     const OutputRows& out, float* log_sums) {
  const Step step(plan, rows, state, out, log_sums);
  for_each_group(state, [&](int64_t first, int64_t end) {
    if (step.share_matrix()) return DecodeGroup(step, first, end).run();
    for (int64_t head = first; head < end; ++head) DecodeGroup(step, head, head + 1).run();
  });
  state.position += 1;
  state.num_hot = (state.num_hot + 1) % kHotTokens;
}

void run_flush(DecodeState& state) {
  for_each_group(state, [&](int64_t first, int64_t end) {
    for (int64_t head = first; head < end; ++head) HeadOfState(state, head).flush(state.num_hot);
  });
  state.num_hot = 0;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_decode_step);
HWY_EXPORT(run_flush);

void decode_step_kernel(const Plan<float>& plan, DecodeState& state, OutputRows out,
                        float* log_sums) {
  if (is_fitted(plan.feature_map)) state.step_rows = make_step_rows(plan, state.step_rows);
  const StepRows* rows = is_fitted(plan.feature_map) ? state.step_rows.get() : nullptr;
  HWY_DYNAMIC_DISPATCH(run_decode_step)(plan, rows, state, out, log_sums);
}

void flush_kernel(DecodeState& state) {
  HWY_DYNAMIC_DISPATCH(run_flush)(state);
}

}  // namespace favor
#endif  // HWY_ONCE
