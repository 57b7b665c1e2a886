// SPDX-License-Identifier: Apache-2.0
// Words and range checks of the model configuration.
#include "performer/models/config.h"

#include <cmath>
#include <limits>

#include "favor/check.h"
#include "favor/words.h"

namespace performer {
namespace {

constexpr favor::Word<AttentionMethod> kMethods[] = {
    {AttentionMethod::kFavor, "favor"},         {AttentionMethod::kExact, "exact"},
    {AttentionMethod::kLinear, "linear"},       {AttentionMethod::kWindow, "window"},
    {AttentionMethod::kLinformer, "linformer"}, {AttentionMethod::kLsh, "lsh"},
    {AttentionMethod::kClustered, "clustered"}, {AttentionMethod::kFavorClusters, "favor_clusters"},
    {AttentionMethod::kCentroids, "centroids"},
};

constexpr favor::Word<PositionKind> kPositions[] = {
    {PositionKind::kLearned, "learned"},
    {PositionKind::kSinusoidal, "sinusoidal"},
    {PositionKind::kRotary, "rotary"},
    {PositionKind::kAxial, "axial"},
};

constexpr favor::Word<HeadKind> kHeads[] = {
    {HeadKind::kTokens, "tokens"},
    {HeadKind::kClasses, "classes"},
    {HeadKind::kPairs, "pairs"},
};

constexpr favor::Word<PoolingKind> kPoolings[] = {
    {PoolingKind::kCls, "cls"},
    {PoolingKind::kMean, "mean"},
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

std::string to_string(HeadKind kind) {
  return favor::word_of(kHeads, kind);
}

std::string to_string(PoolingKind kind) {
  return favor::word_of(kPoolings, kind);
}

HeadKind head_kind_from_string(std::string_view word) {
  return favor::value_of(kHeads, word, "config: head");
}

PoolingKind pooling_kind_from_string(std::string_view word) {
  return favor::value_of(kPoolings, word, "config: pooling");
}

AttentionMethod attention_method_from_string(std::string_view word) {
  return favor::value_of(kMethods, word, "attention: method");
}

PositionKind position_kind_from_string(std::string_view word) {
  return favor::value_of(kPositions, word, "config: positions");
}

const std::vector<AttentionMethod>& attention_methods() {
  static const std::vector<AttentionMethod> methods = [] {
    std::vector<AttentionMethod> all;
    for (const auto& entry : kMethods) all.push_back(entry.value);
    return all;
  }();
  return methods;
}

bool has_causal_form(AttentionMethod method) {
  switch (method) {
    case AttentionMethod::kFavor:
    case AttentionMethod::kExact:
    case AttentionMethod::kLinear:
    case AttentionMethod::kWindow:
    case AttentionMethod::kLsh:
      return true;
    default:
      return false;
  }
}

bool has_random_matrices(AttentionMethod method) {
  return method == AttentionMethod::kFavor || method == AttentionMethod::kFavorClusters ||
         method == AttentionMethod::kLsh;
}

bool AttentionOptions::keeps_sums() const {
  return (method == AttentionMethod::kFavor || method == AttentionMethod::kLinear) && window == 0 &&
         local_heads == 0;
}

void AttentionOptions::check_direction(bool causal) const {
  FAVOR_CHECK(!causal || has_causal_form(method), "config: causal is true, expected false with ",
              "attention ", to_string(method), " (what a query sees depends on later tokens; ",
              "causal forms have favor, exact, linear, window and lsh)");
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
  check_range("window", window, 0, kLargeSize);
  check_range("sinks", sinks, 0, kLargeSize);
  check_range("local_heads", local_heads, 0, kLargeSize);
  check_range("local_window", local_window, 1, kLargeSize);
  check_range("mixed_keys", mixed_keys, 1, kLargeSize);
  check_range("hash_rounds", hash_rounds, 1, 1000);
  check_range("hash_buckets", hash_buckets, 2, int64_t{1} << 16);
  FAVOR_CHECK(hash_buckets % 2 == 0, "config: hash_buckets is ", hash_buckets,
              ", expected an even number (a direction and its opposite are two buckets)");
  check_range("bucket_block", bucket_block, 1, kLargeSize);
  check_range("num_clusters", num_clusters, 1, int64_t{1} << 16);
  check_range("cluster_iterations", cluster_iterations, 0, 1000);
  check_range("cluster_top", cluster_top, 0, kLargeSize);
  const bool takes_window =
      method == AttentionMethod::kFavor || method == AttentionMethod::kCentroids;
  FAVOR_CHECK(window == 0 || takes_window, "config: window is ", window,
              ", expected 0 with attention ", to_string(method),
              " (favor and centroids take one; attention window has local_window)");
  const bool has_window = window > 0 || local_heads > 0 || method == AttentionMethod::kWindow;
  FAVOR_CHECK(sinks == 0 || has_window, "config: sinks is ", sinks,
              ", expected 0 without a window (window, local_heads or attention window)");
  FAVOR_CHECK(method != AttentionMethod::kFavor || window == 0 ||
                  (favor::estimates_softmax(feature_map) &&
                   feature_map != favor::FeatureMapKind::kTrig && feature_eps <= 0),
              "config: window is ", window, ", expected 0 with feature_map ", map,
              feature_eps > 0 ? " and a feature_eps" : "",
              " (exact scores need features that are positive and estimate softmax)");
}

int64_t ModelConfig::max_positions() const {
  if (positions == PositionKind::kLearned) return max_length;
  if (positions == PositionKind::kAxial) return axial_rows * axial_columns * axial_channels;
  return std::numeric_limits<int64_t>::max();
}

std::string ModelConfig::max_positions_text() const {
  if (positions == PositionKind::kAxial) {
    return favor::message(max_positions(), " (axial positions of ", axial_rows, " rows, ",
                          axial_columns, " columns and ", axial_channels, " channels)");
  }
  return favor::message(max_positions(), " (rows of the model's learned position table)");
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
  check_range("axial_rows", axial_rows, 1, int64_t{1} << 20);
  check_range("axial_columns", axial_columns, 1, int64_t{1} << 20);
  check_range("axial_channels", axial_channels, 1, int64_t{1} << 20);
  FAVOR_CHECK(positions != PositionKind::kRotary || head_dim() % 2 == 0,
              "config: dim / num_heads is ", head_dim(),
              ", expected an even number with positions rotary");
  FAVOR_CHECK(dropout >= 0 && dropout < 1, "config: dropout is ", dropout,
              ", expected at least 0 and less than 1");
  check_range("num_classes", num_classes, 0, kLargeSize);
  if (head != HeadKind::kTokens) {
    FAVOR_CHECK(!causal, "config: causal is true, expected false with head ", to_string(head),
                " (a classifier sees the whole row)");
    FAVOR_CHECK(!tie_embeddings, "config: tie_embeddings is true, expected false with head ",
                to_string(head), " (there is no output layer to share it with)");
  }
  attention.check();
  attention.check_direction(causal);
  FAVOR_CHECK(attention.local_heads < num_heads, "config: local_heads is ", attention.local_heads,
              ", expected less than num_heads = ", num_heads,
              " (attention window makes all heads local)");
}

}  // namespace performer
