// SPDX-License-Identifier: Apache-2.0
// Words and range checks of the model configuration.
#include "performer/models/config.h"

#include <cmath>

#include "favor/check.h"
#include "favor/words.h"

namespace performer {
namespace {

constexpr favor::Word<AttentionMethod> kMethods[] = {
    {AttentionMethod::kFavor, "favor"},
    {AttentionMethod::kExact, "exact"},
};

constexpr favor::Word<PositionKind> kPositions[] = {
    {PositionKind::kLearned, "learned"},
    {PositionKind::kSinusoidal, "sinusoidal"},
    {PositionKind::kRotary, "rotary"},
};

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  FAVOR_CHECK(value >= low && value <= high, "config: ", name, " is ", value, ", expected ", low,
              " to ", high);
}

constexpr int64_t kLargeSize = int64_t{1} << 24;

}  // namespace

std::string to_string(AttentionMethod method) {
  return favor::word_of(kMethods, method);
}

std::string to_string(PositionKind kind) {
  return favor::word_of(kPositions, kind);
}

AttentionMethod attention_method_from_string(std::string_view word) {
  return favor::value_of(kMethods, word, "attention: method");
}

PositionKind position_kind_from_string(std::string_view word) {
  return favor::value_of(kPositions, word, "config: positions");
}

void AttentionOptions::check() const {
  check_range("num_features", num_features, 1, int64_t{1} << 20);
  FAVOR_CHECK(redraw_interval >= 0, "config: redraw_interval is ", redraw_interval,
              ", expected 0 (never) or more optimiser steps");
  FAVOR_CHECK(!std::isnan(feature_eps) && !std::isinf(feature_eps), "config: feature_eps is ",
              feature_eps, ", expected a finite number (negative: the map's default)");
  const std::string map = favor::to_string(feature_map);
  FAVOR_CHECK(!favor::is_fitted(feature_map), "config: feature_map is ", map,
              ", expected one without fitted parameters (a model keeps none)");
  const int64_t rows = favor::num_projection_rows(feature_map, num_features);
  FAVOR_CHECK(favor::num_state_features(feature_map, rows) == num_features,
              "config: num_features is ", num_features,
              ", expected an even number with feature_map ", map, " (it makes two of each row)");
  if (favor::estimates_softmax(feature_map)) {
    FAVOR_CHECK(use_projection, "config: use_projection is false, expected true with feature_map ",
                map, " (only the generalised maps work without a random matrix)");
  }
  if (feature_map == favor::FeatureMapKind::kPositive) {
    FAVOR_CHECK(feature_eps <= 0, "config: feature_eps is ", feature_eps,
                ", expected 0 or negative with feature_map positive (it needs none)");
  }
}

void ModelConfig::check() const {
  check_range("vocab_size", vocab_size, 1, kLargeSize);
  check_range("dim", dim, 1, kLargeSize);
  check_range("num_layers", num_layers, 1, 10000);
  check_range("num_heads", num_heads, 1, dim);
  FAVOR_CHECK(dim % num_heads == 0, "config: num_heads is ", num_heads,
              ", expected a divisor of dim = ", dim);
  check_range("ff_dim", ff_dim, 1, kLargeSize);
  check_range("max_length", max_length, 1, int64_t{1} << 40);
  FAVOR_CHECK(positions != PositionKind::kRotary || head_dim() % 2 == 0,
              "config: dim / num_heads is ", head_dim(),
              ", expected an even number with positions rotary");
  FAVOR_CHECK(dropout >= 0 && dropout < 1, "config: dropout is ", dropout,
              ", expected at least 0 and less than 1");
  attention.check();
}

}  // namespace performer
