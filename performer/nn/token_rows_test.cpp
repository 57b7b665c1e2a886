// SPDX-License-Identifier: Apache-2.0
// Layers of few tokens against plain loops in double, on every instruction set.
#include "performer/nn/token_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "favor/random.h"
#include "favor/testing.h"

namespace performer {
namespace {

std::vector<float> random_floats(uint64_t stream, int64_t count, double scale = 1.0) {
  favor::RandomStream random(5, stream);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(scale * random.normal()));
  }
  return values;
}

TEST(TokenRows, ProductsEqualPlainSums) {
  favor::test::for_each_isa([&](const std::string& isa) {
    for (const int64_t cols : {1, 3, 8, 17, 24, 64, 511}) {
      for (const int64_t rows : {1, 4, 7, 33}) {
        for (const int64_t B : {1, 2, 3, 8}) {
          SCOPED_TRACE(isa + ", [" + std::to_string(rows) + ", " + std::to_string(cols) + "], " +
                       std::to_string(B) + " tokens");
          // Exactly as large as said: what is read beyond would show under a sanitizer.
          const std::vector<float> weight = random_floats(1, rows * cols);
          const std::vector<float> bias = random_floats(2, rows), x = random_floats(3, B * cols);
          const std::vector<float> before = random_floats(4, B * rows);
          for (const bool add : {false, true}) {
            for (const bool has_bias : {false, true}) {
              std::vector<float> out = before;
              multiply_rows({weight.data(), has_bias ? bias.data() : nullptr, rows, cols}, x.data(),
                            B, add, out.data());
              for (int64_t b = 0; b < B; ++b) {
                for (int64_t r = 0; r < rows; ++r) {
                  double sum = (add ? before[b * rows + r] : 0.0) + (has_bias ? bias[r] : 0.0);
                  double size = std::abs(sum);
                  for (int64_t i = 0; i < cols; ++i) {
                    const double term = double(weight[r * cols + i]) * x[b * cols + i];
                    sum += term;
                    size += std::abs(term);
                  }
                  // Every sum in float errs by less than an eps for each addition in a row.
                  ASSERT_NEAR(out[b * rows + r], sum, 1e-7 * double(cols + 4) * size);
                }
              }
            }
          }
        }
      }
    }
  });
}

TEST(TokenRows, ATokenDoesNotDependOnTheOthers) {
  const int64_t rows = 300, cols = 700, B = 5;  // several tasks
  const std::vector<float> weight = random_floats(1, rows * cols), x = random_floats(3, B * cols);
  const LinearRows layer = {weight.data(), nullptr, rows, cols};
  std::vector<float> together(B * rows), alone(rows);
  multiply_rows(layer, x.data(), B, false, together.data());
  for (int64_t b = 0; b < B; ++b) {
    multiply_rows(layer, x.data() + b * cols, 1, false, alone.data());
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + b * rows)) << b;
  }
}

TEST(TokenRows, NormalisesToMeanAndSpreadOfOne) {
  favor::test::for_each_isa([&](const std::string& isa) {
    for (const int64_t dim : {1, 2, 7, 24, 100, 512}) {
      SCOPED_TRACE(isa + ", dim " + std::to_string(dim));
      std::vector<float> x = random_floats(1, 2 * dim, 3);
      for (float& value : x) value += 50;  // a mean far above the spread
      const std::vector<float> weight = random_floats(2, dim), bias = random_floats(3, dim);
      std::vector<float> out(x.size());
      normalize_rows(x.data(), weight.data(), bias.data(), 2, dim, out.data());
      for (int64_t b = 0; b < 2; ++b) {
        double mean = 0, square = 0;
        for (int64_t i = 0; i < dim; ++i) mean += x[b * dim + i] / double(dim);
        for (int64_t i = 0; i < dim; ++i) square += std::pow(x[b * dim + i] - mean, 2);
        const double factor = 1 / std::sqrt(square / double(dim) + 1e-5);
        for (int64_t i = 0; i < dim; ++i) {
          // The mean is rounded at the size of x, and a spread of nothing divides by sqrt(1e-5).
          const double error = 4e-7 * 60 * std::max(1.0, std::abs(factor));
          ASSERT_NEAR(out[b * dim + i], (x[b * dim + i] - mean) * factor * weight[i] + bias[i],
                      error * (1 + std::abs(weight[i])));
        }
      }
      std::vector<float> in_place = x;
      normalize_rows(in_place.data(), weight.data(), bias.data(), 2, dim, in_place.data());
      EXPECT_EQ(in_place, out);
    }
  });
}

TEST(TokenRows, GeluIsTheNormalIntegral) {
  favor::test::for_each_isa([&](const std::string& isa) {
    for (const int64_t count : {1, 5, 8, 31, 200}) {
      SCOPED_TRACE(isa + ", " + std::to_string(count));
      const std::vector<float> gate = random_floats(1, count, 2), up = random_floats(2, count);
      std::vector<float> out(gate.size()), gated(gate.size());
      gelu_rows(gate.data(), nullptr, count, out.data());
      gelu_rows(gate.data(), up.data(), count, gated.data());
      for (int64_t i = 0; i < count; ++i) {
        const double expected = 0.5 * gate[i] * std::erfc(-gate[i] / std::sqrt(2.0));
        ASSERT_NEAR(out[i], expected, 5e-7 * (1e-3 + std::abs(expected)) * (1 + std::abs(gate[i])));
        ASSERT_NEAR(gated[i], double(out[i]) * up[i], 1e-7 * std::abs(double(out[i]) * up[i]));
      }
    }
  });
}

}  // namespace
}  // namespace performer
