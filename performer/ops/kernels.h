// SPDX-License-Identifier: Apache-2.0
// What the operators' registration binds together: CPU and meta kernels (favor_attention.cpp) and
// the autograd rule (autograd.cpp). Internal to this folder.
#ifndef PERFORMER_OPS_KERNELS_H_
#define PERFORMER_OPS_KERNELS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "performer/ops/favor_attention.h"

namespace performer::ops {

using OptionalTensor = std::optional<at::Tensor>;

/// The autograd kernel of performer::attention.
at::Tensor attention_autograd(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const OptionalTensor& projection,
                              const OptionalTensor& key_padding_mask,
                              const OptionalTensor& cu_seqlens_q,
                              const OptionalTensor& cu_seqlens_k, bool is_causal,
                              std::string_view feature_map, std::optional<double> scale,
                              std::optional<double> feature_eps);

/// CPU kernels. `op` is the name that error messages begin with.
ForwardResult forward_cpu(const char* op, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const FavorArguments& arguments, bool save,
                          bool is_causal);
BackwardResult backward_cpu(const char* op, const at::Tensor& dout, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, const ForwardResult& forward,
                            const FavorArguments& arguments, bool is_causal);

/// (out, c, S, z) after one token; the tensors of the given state stay as they are.
using DecodeResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
DecodeResult decode_step_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& c, const at::Tensor& S, const at::Tensor& z,
                             int64_t position, const FavorArguments& arguments);

/// An uninitialised [B, H, L, width] tensor for the rows of `model` [B, H, L, *], with heads inside
/// tokens in memory if the model has them so.
at::Tensor empty_rows(const at::Tensor& model, const c10::SymInt& width);

}  // namespace performer::ops

#endif  // PERFORMER_OPS_KERNELS_H_
