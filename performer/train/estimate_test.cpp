// SPDX-License-Identifier: Apache-2.0
#include "performer/train/estimate.h"

#include <gtest/gtest.h>

#include "favor/check.h"

namespace performer {
namespace {

TEST(Estimate, HalfPrecisionAndFewerTokensTakeLess) {
  TrainConfig config;
  const MemoryEstimate plain = estimate_memory(config);
  EXPECT_EQ(plain.weights, 4 * count_parameters(config.model).total());
  EXPECT_EQ(plain.gradients, plain.weights);
  EXPECT_EQ(plain.optimizer, 2 * plain.weights);
  config.run.dtype = "bfloat16";
  EXPECT_LT(estimate_memory(config).activations, plain.activations);
  config.run.dtype = "float32";
  config.data.batch_tokens /= 2;
  EXPECT_EQ(2 * estimate_memory(config).activations, plain.activations);
}

TEST(Estimate, SavingsCountWhereTheyApply) {
  TrainConfig config;
  config.model.num_layers = 12;
  const int64_t stored = estimate_memory(config).activations;
  const auto with = [&](ActivationPolicy activation, int64_t ff_chunk, int64_t slice) {
    TrainConfig other = config;
    other.run.memory = {activation, ff_chunk, 0, slice};
    return estimate_memory(other).activations;
  };
  EXPECT_LT(with(ActivationPolicy::kCheckpoint, 0, 0), stored / 4);
  EXPECT_LT(with(ActivationPolicy::kStore, 256, 0), stored);
  EXPECT_LT(with(ActivationPolicy::kStore, 0, 256), stored / 2);
  // Slices as long as the rows are none.
  EXPECT_EQ(with(ActivationPolicy::kStore, 0, config.data.length), stored);
  config.model.reversible = true;
  const int64_t reversed = with(ActivationPolicy::kAuto, 0, 0);
  config.model.num_layers = 48;
  EXPECT_EQ(with(ActivationPolicy::kAuto, 0, 0), reversed);
}

TEST(Estimate, BatchIsDividedUntilItFitsAndStepsKeepTheirTokens) {
  TrainConfig config;
  config.data.length = 512;
  config.data.batch_tokens = 8192;
  config.optimizer.accumulate = 3;
  const auto with_spare = [](int64_t bytes) { return bytes + bytes / 3; };
  const int64_t whole = with_spare(estimate_memory(config).total());
  TrainConfig same = config;
  fit_batch(same, whole + 1000, 1000);
  EXPECT_EQ(same.data.batch_tokens, 8192);
  EXPECT_EQ(same.optimizer.accumulate, 3);

  TrainConfig divided = config;
  fit_batch(divided, whole + 1000, 1001);
  EXPECT_EQ(divided.data.batch_tokens, 4096);
  EXPECT_EQ(divided.optimizer.accumulate, 6);

  TrainConfig smallest = config;
  smallest.data.batch_tokens = 512;
  const int64_t least = with_spare(estimate_memory(smallest).total());
  smallest = config;
  fit_batch(smallest, least, 0);
  EXPECT_EQ(smallest.data.batch_tokens, 512);
  EXPECT_EQ(smallest.optimizer.accumulate, 48);
  try {
    fit_batch(config, least - 1, 0);
    FAIL() << "no error";
  } catch (const favor::Error& error) {
    EXPECT_EQ(error.what(),
              favor::message("max_memory is ", least - 1, " bytes, expected at least ", least,
                             " (0 of the program, and a batch of one row of 512 "
                             "tokens)"));
  }
}

}  // namespace
}  // namespace performer
