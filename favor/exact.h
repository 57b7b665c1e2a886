// SPDX-License-Identifier: Apache-2.0
// Exact softmax attention, in time that grows with L S: what random features estimate, and the
// faster choice for short sequences. Formulas: docs/math.md. Dims legend and contract: favor.h,
// attention.h; both hold here as well.
#ifndef FAVOR_EXACT_H_
#define FAVOR_EXACT_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

#include "favor/half.h"
#include "favor/tensor_view.h"

namespace favor {

/// What both passes of one call need beside q, k and v.
template <class T>
struct ExactParams {
  /// Multiplies q.k. Empty: 1/sqrt(D).
  std::optional<double> scale;
  /// Query i sees keys j <= i only (positions counted within the segment, aligned at the top left
  /// when L != S).
  bool is_causal = false;
  /// [B, S] row-major, nonzero = ignore this key. Null: every key takes part.
  const uint8_t* key_padding_mask = nullptr;
  /// [B, W, S] row-major, where W is 1 or G: added to q.k, -inf ignores the key. Null: 0. Carries
  /// no gradient.
  const T* key_log_weight = nullptr;
  int64_t num_key_log_weights = 1;  ///< W
  /// w > 0: a query sees the keys of the same and the neighbouring blocks of w tokens only (causal:
  /// the same and the block before; counted within the segment). 0: no such limit.
  int64_t window = 0;
  /// With a window: the first keys of each segment, and the last ones too unless causal, that every
  /// query sees.
  int64_t sinks = 0;
  /// Leaves out the key at the query's own position in the segment.
  bool skip_self = false;
  /// Packed segments: N + 1 ascending offsets from 0 to L (queries) and to S (keys). Segment n of
  /// the queries sees segment n of the keys only. Both empty: one segment.
  std::span<const int64_t> cu_seqlens_q;
  std::span<const int64_t> cu_seqlens_k;
};

/// The factor of q.k that `params` stands for.
template <class T>
double resolve_scale(const ExactParams<T>& params, int64_t D) {
  return params.scale.value_or(1 / std::sqrt(static_cast<double>(D)));
}

/// out_i = sum_j exp(scale q_i.k_j) v_j / sum_j exp(scale q_i.k_j) over the keys j that query i
/// sees.
///
/// q [B, H, L, D], k [B, G, S, D], v [B, G, S, E], out [B, H, L, E]; query head h uses key head
/// h / (H / G). `normalizer` [B, H, L] receives what the backward pass needs, a logarithm of each
/// denominator; it may be null. O(L S (D + E)) time, with a window O(L (w + sinks) (D + E)).
/// Scratch per thread O(D + E), whatever L and S are.
template <class T>
void exact_forward(const ExactParams<Compute<T>>& params, View4<const T> q, View4<const T> k,
                   View4<const T> v, View4<T> out, Compute<T>* normalizer = nullptr);

/// Gradients of exact_forward, whose `out` and `normalizer` these are; dout [B, H, L, E]. Scratch
/// per thread O(D + E).
template <class T>
void exact_backward(const ExactParams<Compute<T>>& params, View4<const T> q, View4<const T> k,
                    View4<const T> v, View4<const T> out, View4<const T> dout,
                    const Compute<T>* normalizer, View4<T> dq, View4<T> dk, View4<T> dv);

}  // namespace favor

#endif  // FAVOR_EXACT_H_
