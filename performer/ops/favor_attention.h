// SPDX-License-Identifier: Apache-2.0
// C++ entry points of the torch operators `performer::*`, which torch.ops.performer shows to
// Python. Dims legend: favor/favor.h. Tensors are float32, bfloat16 or float16, or float64 on the
// plain double path, and live on the CPU; q, k, v may have any strides, and are copied only if
// their last dimension is not contiguous. A wrong argument throws favor::Error; Python sees its
// text unchanged.
#ifndef PERFORMER_OPS_FAVOR_ATTENTION_H_
#define PERFORMER_OPS_FAVOR_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <tuple>

#include "favor/attention.h"
#include "favor/hybrid_state.h"
#include "favor/tensor_view.h"
#include "performer/ops/arguments.h"

namespace performer {

/// performer::attention: q [B, H, L, D], k [B, G, S, D], v [B, G, S, E] -> [B, H, L, E],
/// differentiable once in q, k and v. The result has q's memory order of heads and tokens, so that
/// joining the heads of a [B, L, H, D] projection is a view. O((L + S) M (D + E)) time; a call that
/// needs no gradient keeps nothing.
at::Tensor favor_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const FavorArguments& arguments, bool is_causal);

/// performer::exact_attention: softmax attention, with the same shapes and conventions. With a
/// window, keys outside it (and no sinks) are left out. O(L S (D + E)) time, scratch O(D + E).
at::Tensor exact_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const ExactArguments& arguments, bool is_causal);

/// Causal attention of tokens that follow `state`, which then holds them too: favor::causal_forward
/// between two states. q [B, H, L, D], k [B, G, L, D], v [B, G, L, E], not float64; an empty
/// (default-constructed) state starts a stream. Records no gradient.
at::Tensor favor_decode(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const FavorArguments& arguments, favor::DecodeState& state);

/// The same of one token for views of float32, q [B, H, 1, D], k [B, G, 1, D] and v [B, G, 1, E],
/// and a state that has been started; writes out [B, H, 1, E].
void favor_decode(const favor::View4<const float>& q, const favor::View4<const float>& k,
                  const favor::View4<const float>& v, const FavorArguments& arguments,
                  favor::DecodeState& state, const favor::View4<float>& out);

/// The same with arguments.window > 0: the tokens that start a stream are one causal pass, those
/// that follow are single steps, in float32 whatever the type of q, k and v.
at::Tensor favor_decode(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const FavorArguments& arguments, favor::HybridState& state);

/// (out, normalizer, state, chunk_starts) of a forward pass; the last three are what its backward
/// pass needs, and empty without `save`; with a window it needs the normalizer only.
using ForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
/// (dq, dk, dv), each in the memory order of q, k and v.
using BackwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// performer::bidirectional_forward or performer::causal_forward.
ForwardResult favor_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const FavorArguments& arguments, bool save, bool is_causal);

/// performer::bidirectional_backward or performer::causal_backward. Has no derivative itself.
BackwardResult favor_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const ForwardResult& forward,
                              const FavorArguments& arguments, bool is_causal);

/// (out, normalizer) of performer::exact_forward; the second is empty without `save`.
using ExactForwardResult = std::tuple<at::Tensor, at::Tensor>;
ExactForwardResult exact_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const ExactArguments& arguments, bool save, bool is_causal);

/// performer::exact_backward.
BackwardResult exact_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const ExactForwardResult& forward,
                              const ExactArguments& arguments, bool is_causal);

}  // namespace performer

#endif  // PERFORMER_OPS_FAVOR_ATTENTION_H_
