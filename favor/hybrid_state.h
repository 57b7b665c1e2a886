// SPDX-License-Identifier: Apache-2.0
// Decoding with hybrid attention: the state holds the keys that are scored exactly beside the sums
// over all others.
#ifndef FAVOR_HYBRID_STATE_H_
#define FAVOR_HYBRID_STATE_H_

#include <cstdint>
#include <vector>

#include "favor/attention.h"
#include "favor/state.h"

namespace favor {

/// The state of causal hybrid attention after some tokens. A value: copying it forks the stream.
/// Two of them cannot be merged, because which keys are near depends on the position.
struct HybridState {
  int64_t B = 0, H = 0, D = 0, E = 0;  ///< H counts key heads
  int64_t window = 0, sinks = 0;
  int64_t position = 0;  ///< tokens seen so far, masked ones included
  DecodeState far;  ///< of the keys two blocks of `window` tokens or more before the next token's
  /// Slots of near keys: the sinks, then two blocks of `window` tokens in turn.
  std::vector<float> keys;         ///< [B, H, num_slots(), D]
  std::vector<float> values;       ///< [B, H, num_slots(), E]
  std::vector<float> log_weights;  ///< [B, H, num_slots()], -inf: no key, or a masked one

  HybridState() = default;
  /// The empty state for M features. Throws favor::Error for a window below 1 or a negative size.
  HybridState(int64_t B, int64_t H, int64_t M, int64_t D, int64_t E, int64_t window, int64_t sinks);

  int64_t num_slots() const { return sinks + 2 * window; }
};

/// Throws favor::Error, `op: state has ...`, if sizes of the near keys contradict each other.
void check_near_keys(const char* op, const HybridState& state);

/// Adds the keys and values k, v [B, H, S, D|E] to the stream, as causal_forward over them would
/// see them. params.window and .sinks must be the state's; the map is one that causal_forward takes
/// with a window, without segments. Masks and log weights are those of the S tokens. O(S M (D + E))
/// per head.
void hybrid_absorb(const AttentionParams<float>& params, View4<const float> k, View4<const float> v,
                   HybridState& state);

/// One token of causal hybrid attention: hybrid_absorb of k, v [B, H, 1, D|E], then the answer to
/// q [B, H_q, 1, D] in out [B, H_q, 1, E]. O(M (D + E) + (sinks + window) (D + E)) per head,
/// whatever the position; every `window` steps, M (D + E) for each of the keys that become far.
void hybrid_decode_step(const AttentionParams<float>& params, View4<const float> q,
                        View4<const float> k, View4<const float> v, HybridState& state,
                        View4<float> out);

}  // namespace favor

#endif  // FAVOR_HYBRID_STATE_H_
