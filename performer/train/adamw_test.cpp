// SPDX-License-Identifier: Apache-2.0
// Optimiser arithmetic against plain loops in double, on every instruction set.
#include "performer/train/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "favor/parallel.h"
#include "favor/random.h"
#include "favor/testing.h"

namespace performer {
namespace {

std::vector<float> random_floats(uint64_t stream, int64_t count) {
  favor::RandomStream random(7, stream);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(random.normal()));
  return values;
}

TEST(AdamW, StepsEqualTheFormula) {
  favor::test::for_each_isa([&](const std::string& isa) {
    for (const int64_t count : {0, 1, 7, 8, 33, 70000}) {
      SCOPED_TRACE(isa + ", " + std::to_string(count));
      std::vector<float> parameter = random_floats(1, count), mean(count), square(count);
      std::vector<double> p(parameter.begin(), parameter.end()), m(count), s(count);
      const double lr = 0.01, beta1 = 0.9, beta2 = 0.98, eps = 1e-6, decay = 0.1, factor = 0.3;
      for (int64_t t = 1; t <= 3; ++t) {
        const std::vector<float> gradient = random_floats(10 + t, count);
        adamw_step(AdamWStep(lr, beta1, beta2, eps, decay, t, factor), gradient.data(), count,
                   parameter.data(), mean.data(), square.data());
        for (int64_t i = 0; i < count; ++i) {
          const double g = factor * gradient[i];
          m[i] = beta1 * m[i] + (1 - beta1) * g;
          s[i] = beta2 * s[i] + (1 - beta2) * g * g;
          const double unbiased_mean = m[i] / (1 - std::pow(beta1, double(t)));
          const double unbiased_square = s[i] / (1 - std::pow(beta2, double(t)));
          p[i] = (1 - lr * decay) * p[i] - lr * unbiased_mean / (std::sqrt(unbiased_square) + eps);
          // Means of three terms, each of size one, rounded a few times.
          ASSERT_NEAR(mean[i], m[i], 1e-6);
          ASSERT_NEAR(square[i], s[i], 1e-6 * (1e-3 + s[i]));
          ASSERT_NEAR(parameter[i], p[i], 1e-6 * (1 + std::abs(p[i])));
        }
      }
    }
  });
}

TEST(AdamW, SumsOfSquaresKeepSmallTerms) {
  favor::test::for_each_isa([&](const std::string& isa) {
    for (const int64_t count : {0, 1, 9, 1024, 1030, 200001}) {
      SCOPED_TRACE(isa + ", " + std::to_string(count));
      std::vector<float> values = random_floats(1, count);
      if (count > 9) values[3] = 3000;  // beside which plain float sums lose the rest
      double expected = 0;
      for (const float x : values) expected += double(x) * x;
      EXPECT_NEAR(sum_of_squares(values.data(), count), expected, 1e-6 * expected);
    }
  });
}

TEST(AdamW, ThreadsDoNotChangeBits) {
  const int before = favor::num_threads();
  const int64_t count = 300001;
  const std::vector<float> gradient = random_floats(2, count);
  std::vector<double> sums;
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    favor::set_num_threads(threads);
    std::vector<float> parameter = random_floats(1, count), mean(count), square(count);
    adamw_step(AdamWStep(0.01, 0.9, 0.999, 1e-8, 0.1, 1, 1), gradient.data(), count,
               parameter.data(), mean.data(), square.data());
    results.push_back(parameter);
    sums.push_back(sum_of_squares(gradient.data(), count));
  }
  favor::set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

}  // namespace
}  // namespace performer
