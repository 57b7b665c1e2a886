// SPDX-License-Identifier: Apache-2.0
// Tests: holds the gradients of the plain code against central differences of its output.
#ifndef FAVOR_EXPECT_GRADIENTS_H_
#define FAVOR_EXPECT_GRADIENTS_H_

#include <gtest/gtest.h>

#include <vector>

#include "favor/testing.h"

namespace favor::test {

/// `tolerance`: what a difference errs by, a sixth of its step^2 = 2^-20 times the third
/// derivative.
inline void expect_gradients_of_output(const Problem& p, double tolerance) {
  const Results<double> r = run_reference<double>(p);
  const auto loss = [&](const Problem& problem) {
    const std::vector<double> out = run_reference<double>(problem, Passes::kForward).out;
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * p.dout[i];
    return sum;
  };
  const auto check = [&](std::vector<float> Problem::*member, const std::vector<double>& gradient) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      Problem up = p, down = p;
      (up.*member)[i] += 0x1p-10f;
      (down.*member)[i] -= 0x1p-10f;
      const double step = static_cast<double>((up.*member)[i]) - (down.*member)[i];
      EXPECT_NEAR((loss(up) - loss(down)) / step, gradient[i], tolerance) << p.spec.name();
    }
  };
  check(&Problem::q, r.dq);
  check(&Problem::k, r.dk);
  check(&Problem::v, r.dv);
}

}  // namespace favor::test

#endif  // FAVOR_EXPECT_GRADIENTS_H_
