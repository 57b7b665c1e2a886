// SPDX-License-Identifier: Apache-2.0
// How well the random features of a layer stand in for softmax attention, as plain data. No torch.
#ifndef PERFORMER_MODELS_DIAGNOSTICS_H_
#define PERFORMER_MODELS_DIAGNOSTICS_H_

#include <optional>

namespace performer {

/// Means over the heads and queries of a sample. The queries and keys of the norms carry
/// scale^(1/2) = D^(-1/4) each. Errors are Frobenius norms relative to the exact output.
struct AttentionDiagnostics {
  double query_norm = 0;  ///< root mean square
  double key_norm = 0;
  /// Of the estimate of a kernel value, divided by its square, for independent rows, at the mean of
  /// |q + k|^2 (trigonometric: |q - k|^2) over pairs as exact attention weighs them. None for maps
  /// that do not estimate softmax.
  std::optional<double> relative_variance;
  double output_error = 0;      ///< of the attention with random features
  double uniform_error = 0;     ///< of the mean of the values in reach
  double uniform_distance = 0;  ///< from the attention with random features to that mean
};

}  // namespace performer

#endif  // PERFORMER_MODELS_DIAGNOSTICS_H_
