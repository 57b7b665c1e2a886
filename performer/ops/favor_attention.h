// SPDX-License-Identifier: Apache-2.0
// C++ entry points of the torch operators `performer::*`, which torch.ops.performer shows to
// Python. Dims legend: favor/favor.h. Tensors are float32, or float64 on the plain double path, and
// live on the CPU; q, k, v may have any strides, and are copied only if their last dimension is not
// contiguous. A wrong argument throws favor::Error; Python sees its text unchanged.
#ifndef PERFORMER_OPS_FAVOR_ATTENTION_H_
#define PERFORMER_OPS_FAVOR_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>

#include "favor/attention.h"

namespace performer {

/// What an attention call takes beside q, k and v; the operators list the same fields one by one.
struct FavorArguments {
  /// Rows w_f: [M, D], or [P, M, D] with P = 1 or H. Empty: the relu map of x itself.
  std::optional<at::Tensor> projection;
  /// [B, S] bool, true = ignore this key.
  std::optional<at::Tensor> key_padding_mask;
  /// Packed segments: N + 1 offsets, int32 or int64. Both or none.
  std::optional<at::Tensor> cu_seqlens_q;
  std::optional<at::Tensor> cu_seqlens_k;
  std::string feature_map = "positive";
  std::optional<double> scale;        ///< empty: 1/sqrt(D) (positive) or 1
  std::optional<double> feature_eps;  ///< empty: the map's default
};

/// performer::attention: q [B, H, L, D], k [B, H, S, D], v [B, H, S, E] -> [B, H, L, E],
/// differentiable once in q, k and v. The result has q's memory order of heads and tokens, so that
/// joining the heads of a [B, L, H, D] projection is a view. O((L + S) M (D + E)) time; a call that
/// needs no gradient keeps nothing.
at::Tensor favor_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const FavorArguments& arguments, bool is_causal);

/// Causal attention of tokens that follow `state`, which then holds them too: favor::causal_forward
/// between two states. q, k [B, H, L, D], v [B, H, L, E], float32; an empty (default-constructed)
/// state starts a stream. Records no gradient.
at::Tensor favor_decode(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const FavorArguments& arguments, favor::DecodeState& state);

/// (out, normalizer, state, chunk_starts) of a forward pass; the last three are what its backward
/// pass needs, and empty without `save`.
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

}  // namespace performer

#endif  // PERFORMER_OPS_FAVOR_ATTENTION_H_
