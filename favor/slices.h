// SPDX-License-Identifier: Apache-2.0
// Gradients of causal attention over a stream that is taken in slices: what later slices want of
// the state between two of them.
#ifndef FAVOR_SLICES_H_
#define FAVOR_SLICES_H_

#include <cstdint>
#include <vector>

#include "favor/attention.h"
#include "favor/state.h"
#include "favor/tensor_view.h"

namespace favor {

/// The gradient of a DecodeState by its S and z, held at its stabilisers c (natural logarithms): a
/// state stands for the sums S_f exp(c_f) and z_f exp(c_f), so at other stabilisers c' the same
/// gradient is the one here times exp(c'_f - c_f). c itself carries none, because no output depends
/// on it. Where the state has seen no key the gradient is 0.
struct StateGradient {
  int64_t B = 0, H = 0, M = 0, E = 0;  ///< as of the state
  std::vector<float> c;                ///< [B, H, M]
  std::vector<float> S;                ///< [B, H, M, E]
  std::vector<float> z;                ///< [B, H, M]

  StateGradient() = default;
  /// Zeros. Throws favor::Error for negative sizes.
  StateGradient(int64_t B, int64_t H, int64_t M, int64_t E);
};

/// Gradients of causal_forward between two states. `saved` comes from that call, `initial` is what
/// it was given (null: nothing), and `dfinal` the gradient of what it left as final_state (null:
/// 0). `dinitial` (null: not wanted) receives that of `initial`, and may be `dfinal` itself. Slices
/// taken from the last to the first, each passing dinitial on as dfinal, so give the gradients of
/// the whole stream. Refused as causal_forward refuses states: windows, segments, L != S; and
/// dinitial without initial. Time and scratch as causal_backward.
template <class T>
void causal_slice_backward(const AttentionParams<Compute<T>>& params, View4<const T> q,
                           View4<const T> k, View4<const T> v, View4<const T> out,
                           View4<const T> dout, const Saved<Compute<T>>& saved,
                           const DecodeState* initial, const StateGradient* dfinal, View4<T> dq,
                           View4<T> dk, View4<T> dv, StateGradient* dinitial);

}  // namespace favor

#endif  // FAVOR_SLICES_H_
