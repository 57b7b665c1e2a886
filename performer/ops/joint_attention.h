// SPDX-License-Identifier: Apache-2.0
// Softmax attention over keys that several calls of exact attention meet, under one normaliser.
#ifndef PERFORMER_OPS_JOINT_ATTENTION_H_
#define PERFORMER_OPS_JOINT_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "performer/ops/arguments.h"

namespace performer {

/// Some of the keys, as exact attention meets them.
struct JointPart {
  at::Tensor q, k, v;  ///< [B, H, N, D], [B, G, S, D], [B, G, S, E], of one type
  ExactArguments arguments = {};
  bool is_causal = false;
  bool skip_self = false;  ///< leaves out the key at the query's own position in its segment
  /// [N] int64, unlike numbers: the row of the result that each row of q stands for. Undefined: the
  /// same row.
  at::Tensor rows = {};
};

struct JointResult {
  at::Tensor out;      ///< [B, H, L, E]: 0 where no part has a key
  at::Tensor has_key;  ///< [B, H, L] bool
};

/// out_i = sum of exp(score) v over the keys of all parts / sum of exp(score), where a key that
/// several parts meet counts several times. Differentiable once in every q, k and v: each part's
/// backward pass runs under the common denominator, so that nothing of the size of the scores is
/// kept. Under autocast q, k and v take its type. Cost: that of the parts.
JointResult joint_attention(const std::vector<JointPart>& parts, int64_t L);

}  // namespace performer

#endif  // PERFORMER_OPS_JOINT_ATTENTION_H_
