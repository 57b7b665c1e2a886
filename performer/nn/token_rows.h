// SPDX-License-Identifier: Apache-2.0
// The layers of a Transformer for few tokens at a time, whose cost is to read the weights once. No
// torch here.
#ifndef PERFORMER_NN_TOKEN_ROWS_H_
#define PERFORMER_NN_TOKEN_ROWS_H_

#include <cstdint>

namespace performer {

/// A linear layer as it lies in memory.
struct LinearRows {
  const float* weight = nullptr;  ///< [rows, cols]
  const float* bias = nullptr;    ///< [rows], or null: zeros
  int64_t rows = 0, cols = 0;
};

/// out[b, r] = weight[r] . x[b] + bias[r] for x [B, cols] and out [B, rows], both contiguous and
/// apart; with `add`, that is added to what stands in out. Reads the weights once from memory, on
/// favor's threads. A row's result does not depend on B.
void multiply_rows(const LinearRows& layer, const float* x, int64_t B, bool add, float* out);

/// LayerNorm with torch's default eps, 1e-5, of x [B, dim] into out, which may be x.
void normalize_rows(const float* x, const float* weight, const float* bias, int64_t B, int64_t dim,
                    float* out);

/// out[i] = gelu(gate[i]) up[i], the GELU of the normal distribution's exact integral. A null `up`
/// stands for ones; out may be gate or up.
void gelu_rows(const float* gate, const float* up, int64_t count, float* out);

}  // namespace performer

#endif  // PERFORMER_NN_TOKEN_ROWS_H_
