// SPDX-License-Identifier: Apache-2.0
// What the operators' registration binds together: CPU kernels (kernels.cpp, decode_state.cpp) and
// the rows that they and the meta kernels return. Internal to this folder.
#ifndef PERFORMER_OPS_KERNELS_H_
#define PERFORMER_OPS_KERNELS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "performer/ops/favor_attention.h"

namespace torch {
class Library;
}

namespace performer::ops {

/// The kernels of the autograd and autocast keys (autograd.cpp). Functions and not registrations of
/// their own, because a linker leaves out files of a static library that nothing refers to.
void register_autograd(torch::Library& m);
void register_autocast(torch::Library& m);

/// Passes over all tokens. `op` is the name that error messages begin with.
ForwardResult forward_cpu(const char* op, bool is_causal, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, bool save, const FavorArguments& arguments);
BackwardResult backward_cpu(const char* op, bool is_causal, const at::Tensor& dout,
                            const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const ForwardResult& forward, const FavorArguments& arguments);

ExactForwardResult exact_forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     bool is_causal, bool save, const ExactArguments& arguments);
BackwardResult exact_backward_cpu(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const at::Tensor& out,
                                  const at::Tensor& normalizer, bool is_causal,
                                  const ExactArguments& arguments);

/// [G, num_map_parameters(feature_map, D)], in the type the kernels compute in.
at::Tensor fit_feature_map_cpu(const at::Tensor& q, const at::Tensor& k,
                               const FavorArguments& arguments);

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
