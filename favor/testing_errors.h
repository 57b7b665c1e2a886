// SPDX-License-Identifier: Apache-2.0
// What calls throw; how far results are from the truth, and how far a kernel's may be.
#ifndef FAVOR_TESTING_ERRORS_H_
#define FAVOR_TESTING_ERRORS_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "favor/check.h"

namespace favor::test {

/// What `call` says when it throws an Exception; "no error" if it returns.
template <class Exception = Error, class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no error";
}

/// Largest and root mean square difference between values and the truth.
struct ErrorSize {
  double largest = 0, rms = 0;
};

/// Values that are not finite make the error of a kernel infinite; as naive results they are left
/// out, because they allow nothing.
inline ErrorSize error_size(const std::vector<float>& values, const std::vector<double>& truth,
                            bool is_naive) {
  if (values.size() != truth.size()) throw std::logic_error("error_size: the sizes differ");
  ErrorSize size;
  for (size_t i = 0; i < truth.size(); ++i) {
    if (is_naive && !std::isfinite(values[i])) continue;
    const double error = std::isfinite(values[i]) ? std::abs(values[i] - truth[i])
                                                  : std::numeric_limits<double>::infinity();
    size.largest = std::max(size.largest, error);
    size.rms += error * error / static_cast<double>(truth.size());
  }
  size.rms = std::sqrt(size.rms);
  return size;
}

/// How far a kernel is from what it is allowed: a ratio of at most 1 is right.
struct ErrorRatio {
  double ratio = 0;
  double kernel = 0;  ///< largest error of the kernel
  double naive = 0;   ///< largest error of the naive float code
};

/// The rule: err(kernel) <= 2 err(naive) + 4 eps scale + the smallest normal float, below which
/// numbers lose digits; with errors against `truth`, both for the largest and for the root mean
/// square error. scale is the size of the truth, or that of `terms`
/// if larger: results that are differences of larger terms are rounded relative to these.
inline ErrorRatio error_ratio(const std::vector<float>& kernel, const ErrorSize& naive,
                              const std::vector<double>& truth,
                              const std::vector<double>& terms = {}, double extra = 0) {
  const ErrorSize error = error_size(kernel, truth, false);
  ErrorSize scale;
  for (const std::vector<double>* x : {&truth, &terms}) {
    double square = 0;
    for (const double value : *x) {
      scale.largest = std::max(scale.largest, std::abs(value));
      square += value * value / static_cast<double>(x->size());
    }
    scale.rms = std::max(scale.rms, std::sqrt(square));
  }
  const double eps = std::numeric_limits<float>::epsilon();
  const auto ratio = [&](double actual, double budget, double size) {
    const double least = std::numeric_limits<float>::min();
    return actual == 0 ? 0 : actual / (2 * budget + (4 * eps + extra) * size + least);
  };
  return {std::max(ratio(error.largest, naive.largest, scale.largest),
                   ratio(error.rms, naive.rms, scale.rms)),
          error.largest, naive.largest};
}

inline ErrorRatio error_ratio(const std::vector<float>& kernel, const std::vector<float>& naive,
                              const std::vector<double>& truth,
                              const std::vector<double>& terms = {}) {
  return error_ratio(kernel, error_size(naive, truth, true), truth, terms);
}

}  // namespace favor::test

#endif  // FAVOR_TESTING_ERRORS_H_
