// SPDX-License-Identifier: Apache-2.0
// A decoding state as the causal kernel takes it up and leaves it.

// clang-format off
#if defined(FAVOR_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_STREAM_INL_H_
#undef FAVOR_STREAM_INL_H_
#else
#define FAVOR_STREAM_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>
#include <numbers>

#include "favor/state-inl.h"
#include "favor/state.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Tokens of a stream from which on its sums are kept with rests. What the chunks before round away
/// is below 5e-6 of the sums even if all of it has the same sign.
inline constexpr int64_t kLongStream = 8192;

/// Gives `to` the sizes and the position it will have after a call that continues `from` (null: the
/// empty state), which may be `to` itself.
inline void make_final_state(const Plan<float>& plan, const DecodeState* from, DecodeState& to) {
  const int64_t position = (from == nullptr ? 0 : from->position) + plan.L;
  if (from != &to) {
    to = DecodeState(plan.B, plan.G, plan.M, plan.E);
  }
  if (from != nullptr || plan.L >= kLongStream) {
    make_rests(to);
  }
  to.position = position;
}

/// Takes up the features from `first` on of row `row` (batch item and key head) of a decoding
/// state, whose stabilisers are natural logarithms, the kernel's in base 2; not the rests. Returns
/// false, with nothing done, if the row has seen no key.
inline HWY_NOINLINE bool load_stream(const HeadPlan& head, const DecodeState& from, int64_t row,
                                     int64_t first, const KeyState& state) {
  const float* z = from.z.data() + row * from.M;
  const float* S = from.S.data() + row * from.M * head.E;
  const auto all_zero = [](const float* x, int64_t n) {
    return std::all_of(x, x + n, [](float value) { return value == 0.0f; });
  };
  if (all_zero(z, from.M) && (head.log_linear || all_zero(S, from.M * head.E))) {
    return false;
  }
  const int64_t at = row * from.M + first;
  pack_rows(S + first * head.E, head.E, head.M, head.E, 1.0f, nullptr, state.S);
  std::copy_n(z + first, head.M, state.z);
  for (int64_t f = 0; f < head.M; ++f) {
    const bool empty = head.log_linear && z[first + f] == 0.0f;
    state.c[f] =
        empty ? kNoKey : from.c[static_cast<size_t>(at + f)] * std::numbers::log2e_v<float>;
  }
  return true;
}

/// The same with the rests.
inline HWY_NOINLINE bool load_stream(const HeadPlan& head, const DecodeState& from, int64_t row,
                                     int64_t first, const KeyState& state, const LongSums& rests) {
  if (!load_stream(head, from, row, first, state)) {
    return false;
  }
  if (!from.S_rest.empty()) {
    const int64_t at = row * from.M + first;
    const float* S_rest = from.S_rest.data() + at * head.E;
    pack_rows(S_rest, head.E, head.M, head.E, 1.0f, nullptr, rests.S_rest);
    std::copy_n(from.z_rest.data() + at, head.M, rests.z_rest);
  }
  return true;
}

/// Leaves a state, with its rests if `to` has them, in the same place of another decoding state.
inline HWY_NOINLINE void store_stream(const HeadPlan& head, const KeyState& state,
                                      const LongSums& rests, int64_t row, int64_t first,
                                      DecodeState& to) {
  const int64_t at = row * to.M + first;
  const auto copy = [&](const Panels& rows, float* target) {
    for (int64_t f = 0; f < head.M; ++f) {
      const float one = 1.0f;
      unpack_rows(Panels{rows.at(f, 0), rows.rows}, 1, head.E, &one, target + f * head.E, head.E);
    }
  };
  copy(state.S, to.S.data() + at * head.E);
  std::copy_n(state.z, head.M, to.z.data() + at);
  if (!to.S_rest.empty()) {
    copy(rests.S_rest, to.S_rest.data() + at * head.E);
    std::copy_n(rests.z_rest, head.M, to.z_rest.data() + at);
  }
  for (int64_t f = 0; f < head.M; ++f) {
    to.c[static_cast<size_t>(at + f)] =
        state.c[f] == kNoKey ? 0.0f : state.c[f] / std::numbers::log2e_v<float>;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_STREAM_INL_H_
