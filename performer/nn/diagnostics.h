// SPDX-License-Identifier: Apache-2.0
// How well random features stand in for softmax attention on given queries, keys and values.
#ifndef PERFORMER_NN_DIAGNOSTICS_H_
#define PERFORMER_NN_DIAGNOSTICS_H_

#include <torch/types.h>

#include "performer/models/config.h"
#include "performer/models/diagnostics.h"

namespace performer {

/// q, k, v, out [1, H, L, D]; `out` is what the features made of the others. Draws nothing.
AttentionDiagnostics diagnose_attention(const torch::Tensor& q, const torch::Tensor& k,
                                        const torch::Tensor& v, const torch::Tensor& out,
                                        const AttentionOptions& options, bool causal);

}  // namespace performer

#endif  // PERFORMER_NN_DIAGNOSTICS_H_
