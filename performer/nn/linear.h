// SPDX-License-Identifier: Apache-2.0
// The linear layer's product, by the fastest of torch's libraries.
#ifndef PERFORMER_NN_LINEAR_H_
#define PERFORMER_NN_LINEAR_H_

#include <torch/types.h>

namespace performer {

/// x W^T + b: x [..., in], weight [out, in], bias [out] or undefined; returns [..., out]. The same
/// as torch::linear, but float32 products of many rows, and the gradients of their inputs, go to
/// oneDNN where torch has it. On the AMD CPU of docs/performance.md it is a tenth to a fifth faster
/// than MKL, which torch::linear calls; on others nobody has measured it.
torch::Tensor apply_linear(const torch::Tensor& x, const torch::Tensor& weight,
                           const torch::Tensor& bias);

}  // namespace performer

#endif  // PERFORMER_NN_LINEAR_H_
