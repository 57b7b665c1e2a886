// SPDX-License-Identifier: Apache-2.0
// Reversible layers (Gomez et al. 2017; Kitaev et al. 2020): y1 = x1 + f(x2), y2 = x2 + g(y1). The
// backward pass finds the inputs of a layer from its outputs, x2 = y2 - g(y1) and x1 = y1 - f(x2),
// so a stack of any depth keeps the outputs of its last layer alone.
#ifndef PERFORMER_NN_REVERSIBLE_H_
#define PERFORMER_NN_REVERSIBLE_H_

#include <memory>
#include <vector>

#include "performer/nn/recompute.h"

namespace performer {

/// One layer. What f and g compute does not matter, as long as they give the same twice.
struct ReversibleLayer {
  TensorBody f;  ///< {x2, others...} -> {what x1 gains, others...}, of any number and shape
  TensorBody g;  ///< {y1} -> {what x2 gains}
  TensorList f_parameters, g_parameters;  ///< the leaves that they use beside their inputs
  bool draws = false;                     ///< whether they draw random numbers
};

/// What layers of one forward pass leave for its backward pass: the outputs of the last of them,
/// which the backward pass replaces by the outputs of the one before, and so on.
struct ReversibleTape {
  torch::Tensor y1, y2;
  int64_t depth = 0;  ///< layers whose inputs are still to be found
};

/// inputs {x1, x2, others...} -> {y1, y2, others...}, differentiable once. The layers of a pass are
/// called in order with the same tape, and nothing but them may use x1 and x2. Throws
/// std::logic_error when a backward pass takes layers out of order, or twice.
TensorList reversible_layer(ReversibleLayer layer, const std::shared_ptr<ReversibleTape>& tape,
                            const TensorList& inputs);

}  // namespace performer

#endif  // PERFORMER_NN_REVERSIBLE_H_
