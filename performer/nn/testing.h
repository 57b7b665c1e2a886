// SPDX-License-Identifier: Apache-2.0
// What tests of layers and models share.
#ifndef PERFORMER_NN_TESTING_H_
#define PERFORMER_NN_TESTING_H_

#include <torch/types.h>

#include <functional>
#include <string>

#include "favor/check.h"

namespace performer {

/// The largest absolute difference.
inline double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// What favor::Error says, or that there was none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const favor::Error& error) {
    return error.what();
  }
  return "no favor::Error";
}

}  // namespace performer

#endif  // PERFORMER_NN_TESTING_H_
