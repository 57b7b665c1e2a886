// SPDX-License-Identifier: Apache-2.0
// Hadamard matrices in compact form as tensors, which go wherever a matrix [R, D] goes.
#ifndef PERFORMER_OPS_COMPACT_ROWS_H_
#define PERFORMER_OPS_COMPACT_ROWS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "favor/projection.h"

namespace performer::ops {

/// Columns of the compact form: two and the words of favor::StructuredProjection::signs of a block.
int64_t compact_columns(int64_t head_dim);

/// int32 [R, compact_columns(D)]: the bits of the row's scale, D, and the signs of the row's block
/// in the order of favor::StructuredProjection::signs. Each row so describes itself.
at::Tensor compact_rows(const favor::StructuredProjection& matrix);

/// The matrix of compact rows, int32 [R, C]. Throws favor::Error unless they are those of one with
/// head dim D.
favor::StructuredProjection structured_of(const char* op, const at::Tensor& rows, int64_t D);

}  // namespace performer::ops

#endif  // PERFORMER_OPS_COMPACT_ROWS_H_
