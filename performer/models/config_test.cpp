// SPDX-License-Identifier: Apache-2.0
#include "performer/models/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "favor/check.h"

namespace performer {
namespace {

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const favor::Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_with(const std::function<void(ModelConfig&)>& change) {
  ModelConfig config;
  change(config);
  return error_of([&] { config.check(); });
}

TEST(ModelConfig, DefaultsAreValid) {
  EXPECT_NO_THROW(ModelConfig().check());
  EXPECT_EQ(ModelConfig().head_dim(), 64);
}

TEST(ModelConfig, EachErrorNamesFieldValueAndExpectation) {
  EXPECT_EQ(error_with([](ModelConfig& c) { c.num_heads = 7; }),
            "config: num_heads is 7, expected a divisor of dim = 512");
  EXPECT_EQ(error_with([](ModelConfig& c) { c.attention.num_features = -4; }),
            "config: num_features is -4, expected 1 to 1048576");
  EXPECT_EQ(error_with([](ModelConfig& c) { c.vocab_size = 0; }),
            "config: vocab_size is 0, expected 1 to 16777216");
  EXPECT_EQ(error_with([](ModelConfig& c) { c.num_layers = 0; }),
            "config: num_layers is 0, expected 1 to 10000");
  EXPECT_EQ(error_with([](ModelConfig& c) { c.dropout = 1; }),
            "config: dropout is 1, expected at least 0 and less than 1");
  EXPECT_EQ(
      error_with([](ModelConfig& c) { c.dropout = std::numeric_limits<double>::quiet_NaN(); }),
      "config: dropout is nan, expected at least 0 and less than 1");
  EXPECT_EQ(error_with([](ModelConfig& c) { c.attention.redraw_interval = -1; }),
            "config: redraw_interval is -1, expected 0 (never) or more optimiser steps");
  EXPECT_EQ(error_with([](ModelConfig& c) {
              c.dim = 6;
              c.num_heads = 2;
              c.positions = PositionKind::kRotary;
            }),
            "config: dim / num_heads is 3, expected an even number with positions rotary");
}

TEST(ModelConfig, PositiveMapNeedsItsMatrixAndTakesNoEpsilon) {
  EXPECT_NE(error_with([](ModelConfig& c) {
              c.attention.use_projection = false;
            }).find("use_projection is false, expected true"),
            std::string::npos);
  EXPECT_NE(error_with([](ModelConfig& c) {
              c.attention.feature_eps = 1e-3;
            }).find("feature_eps is 0.001, expected 0 or negative"),
            std::string::npos);
  EXPECT_EQ(error_with([](ModelConfig& c) {
              c.attention.feature_map = favor::FeatureMapKind::kRelu;
              c.attention.use_projection = false;
              c.attention.feature_eps = 1e-2;
            }),
            "no error");
}

TEST(ModelConfig, FeatureMapsThatAModelCannotHaveAreNamed) {
  EXPECT_EQ(error_with([](ModelConfig& c) {
              c.attention.feature_map = favor::FeatureMapKind::kFavorSharp;
            }),
            "config: feature_map is favor_sharp, expected one without fitted parameters (a model "
            "keeps none)");
  EXPECT_EQ(
      error_with([](ModelConfig& c) {
        c.attention.feature_map = favor::FeatureMapKind::kTrig;
        c.attention.num_features = 5;
      }),
      "config: num_features is 5, expected an even number with feature_map trig (it makes two "
      "of each row)");
  EXPECT_EQ(error_with([](ModelConfig& c) {
              c.attention.feature_map = favor::FeatureMapKind::kHyperbolic;
              c.attention.use_projection = false;
            }),
            "config: use_projection is false, expected true with feature_map hyperbolic (only the "
            "generalised maps work without a random matrix)");
}

TEST(ModelConfig, MethodsTakeTheirOwnOptionsOnly) {
  EXPECT_EQ(error_with([](ModelConfig& c) { c.attention.method = AttentionMethod::kLinformer; }),
            "config: causal is true, expected false with attention linformer (what a query sees "
            "depends on later tokens; causal forms have favor, exact, linear, window and lsh)");
  EXPECT_EQ(error_with([](ModelConfig& c) {
              c.attention.method = AttentionMethod::kLinformer;
              c.causal = false;
            }),
            "no error");
  EXPECT_EQ(error_with([](ModelConfig& c) {
              c.attention.method = AttentionMethod::kExact;
              c.attention.window = 8;
            }),
            "config: window is 8, expected 0 with attention exact (favor and centroids take one; "
            "attention window has local_window)");
  EXPECT_EQ(error_with([](ModelConfig& c) { c.attention.sinks = 2; }),
            "config: sinks is 2, expected 0 without a window (window, local_heads or attention "
            "window)");
  EXPECT_EQ(error_with([](ModelConfig& c) {
              c.attention.sinks = 2;
              c.attention.local_heads = 1;
            }),
            "no error");
  EXPECT_EQ(error_with([](ModelConfig& c) {
              c.attention.window = 8;
              c.attention.feature_map = favor::FeatureMapKind::kRelu;
            }),
            "config: window is 8, expected 0 with feature_map relu (exact scores need features "
            "that are positive and estimate softmax)");
  EXPECT_EQ(error_with([](ModelConfig& c) { c.attention.local_heads = 8; }),
            "config: local_heads is 8, expected less than num_heads = 8 (attention window makes "
            "all heads local)");
  EXPECT_EQ(error_with([](ModelConfig& c) { c.attention.hash_buckets = 5; }),
            "config: hash_buckets is 5, expected an even number (a direction and its opposite are "
            "two buckets)");
  EXPECT_EQ(error_with([](ModelConfig& c) { c.attention.num_clusters = 0; }),
            "config: num_clusters is 0, expected 1 to 65536");
}

TEST(ModelConfig, PositionsHaveTheLimitsOfTheirTables) {
  ModelConfig config;
  config.max_length = 50;
  EXPECT_EQ(config.max_positions(), 50);
  EXPECT_EQ(config.max_positions_text(), "50 (rows of the model's learned position table)");
  config.positions = PositionKind::kAxial;
  config.axial_rows = 4;
  config.axial_columns = 5;
  config.axial_channels = 3;
  EXPECT_EQ(config.max_positions(), 60);
  EXPECT_EQ(config.max_positions_text(),
            "60 (axial positions of 4 rows, 5 columns and 3 channels)");
  config.positions = PositionKind::kSinusoidal;
  EXPECT_GT(config.max_positions(), int64_t{1} << 60);
  EXPECT_EQ(error_with([](ModelConfig& c) { c.axial_rows = 0; }),
            "config: axial_rows is 0, expected 1 to 1048576");
  EXPECT_EQ(error_with([](ModelConfig& c) { c.axial_columns = -1; }),
            "config: axial_columns is -1, expected 1 to 1048576");
  EXPECT_EQ(error_with([](ModelConfig& c) { c.axial_channels = 0; }),
            "config: axial_channels is 0, expected 1 to 1048576");
}

TEST(ModelConfig, WordsRoundTripAndUnknownOnesListTheKnown) {
  for (const AttentionMethod method : attention_methods()) {
    EXPECT_EQ(attention_method_from_string(to_string(method)), method);
  }
  for (PositionKind kind : {PositionKind::kLearned, PositionKind::kSinusoidal,
                            PositionKind::kRotary, PositionKind::kAxial}) {
    EXPECT_EQ(position_kind_from_string(to_string(kind)), kind);
  }
  EXPECT_EQ(
      error_of([] { attention_method_from_string("fast"); }),
      "attention: method is 'fast', expected favor | exact | linear | window | linformer | lsh "
      "| clustered | favor_clusters | centroids");
  EXPECT_EQ(error_of([] { position_kind_from_string("rope"); }),
            "config: positions is 'rope', expected learned | sinusoidal | rotary | axial");
}

}  // namespace
}  // namespace performer
