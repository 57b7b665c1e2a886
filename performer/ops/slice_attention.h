// SPDX-License-Identifier: Apache-2.0
// Causal attention over a stream taken in slices, with a gradient that passes from slice to slice
// through the states between them.
#ifndef PERFORMER_OPS_SLICE_ATTENTION_H_
#define PERFORMER_OPS_SLICE_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include "performer/ops/arguments.h"

namespace performer {

/// The state between two slices, float32: c [B, G, M], S [B, G, M, E], z [B, G, M], as those of
/// favor::DecodeState. Gradients of S and z are held at c (favor::StateGradient), which carries
/// none.
struct SliceState {
  at::Tensor c, S, z;

  bool defined() const { return c.defined(); }
};

/// The state before the first token.
SliceState empty_slice_state(int64_t B, int64_t G, int64_t M, int64_t E);

/// q [B, H, L, D], k [B, G, L, D], v [B, G, L, E], not float64, of the tokens that follow `state`
/// (undefined members: that start a stream), which then is the state after them. Differentiable
/// once in q, k, v and the state's S and z. Obeys autocast. Arguments without a window and without
/// offsets; others throw favor::Error.
at::Tensor favor_slice_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const FavorArguments& arguments, SliceState& state);

}  // namespace performer

#endif  // PERFORMER_OPS_SLICE_ATTENTION_H_
