// SPDX-License-Identifier: Apache-2.0
// Attention of a slice of rows that may hold several sequences.
#ifndef PERFORMER_NN_SLICE_ATTENTION_H_
#define PERFORMER_NN_SLICE_ATTENTION_H_

#include <torch/types.h>

#include "performer/nn/layout.h"
#include "performer/ops/slice_attention.h"

namespace performer {

/// favor_slice_attention of each sequence in the slice: the first goes on from `state` where the
/// layout says so, the last leaves `state`, and those between are one packed call.
torch::Tensor packed_slice_attention(const torch::Tensor& q, const torch::Tensor& k,
                                     const torch::Tensor& v, const FavorArguments& arguments,
                                     const SliceLayout& layout, SliceState& state);

}  // namespace performer

#endif  // PERFORMER_NN_SLICE_ATTENTION_H_
