// SPDX-License-Identifier: Apache-2.0
#include "favor/feature_map.h"

#include "favor/words.h"

namespace favor {
namespace {

constexpr Word<FeatureMapKind> kFeatureMaps[] = {
    {FeatureMapKind::kPositive, "positive"},
    {FeatureMapKind::kHyperbolic, "hyperbolic"},
    {FeatureMapKind::kOptimalPositive, "optimal_positive"},
    {FeatureMapKind::kFavorSharpDiagonal, "favor_sharp_diagonal"},
    {FeatureMapKind::kFavorSharp, "favor_sharp"},
    {FeatureMapKind::kTrig, "trig"},
    {FeatureMapKind::kRelu, "relu"},
    {FeatureMapKind::kRelu2, "relu2"},
    {FeatureMapKind::kElu1, "elu1"},
    {FeatureMapKind::kExp, "exp"},
    {FeatureMapKind::kSigmoid, "sigmoid"},
    {FeatureMapKind::kSoftplus, "softplus"},
    {FeatureMapKind::kGelu, "gelu"},
    {FeatureMapKind::kAbs, "abs"},
    {FeatureMapKind::kTanh, "tanh"},
    {FeatureMapKind::kCos, "cos"},
    {FeatureMapKind::kSin, "sin"},
    {FeatureMapKind::kIdentity, "identity"},
};

bool makes_two_features(FeatureMapKind kind) {
  return kind == FeatureMapKind::kHyperbolic || kind == FeatureMapKind::kTrig;
}

}  // namespace

std::string to_string(FeatureMapKind kind) {
  return word_of(kFeatureMaps, kind);
}

FeatureMapKind feature_map_from_string(std::string_view word) {
  return value_of(kFeatureMaps, word, "feature_map_from_string: feature_map");
}

bool is_log_linear(FeatureMapKind kind) {
  return (estimates_softmax(kind) && kind != FeatureMapKind::kTrig) || kind == FeatureMapKind::kExp;
}

bool estimates_softmax(FeatureMapKind kind) {
  switch (kind) {
    case FeatureMapKind::kPositive:
    case FeatureMapKind::kHyperbolic:
    case FeatureMapKind::kOptimalPositive:
    case FeatureMapKind::kFavorSharpDiagonal:
    case FeatureMapKind::kFavorSharp:
    case FeatureMapKind::kTrig:
      return true;
    default:
      return false;
  }
}

bool is_fitted(FeatureMapKind kind) {
  return num_map_parameters(kind, 1) > 0;
}

int64_t num_projection_rows(FeatureMapKind kind, int64_t M) {
  return makes_two_features(kind) ? M / 2 : M;
}

int64_t num_state_features(FeatureMapKind kind, int64_t rows) {
  return makes_two_features(kind) ? 2 * rows : rows;
}

int64_t num_map_parameters(FeatureMapKind kind, int64_t D) {
  switch (kind) {
    case FeatureMapKind::kOptimalPositive:
      return 1;
    case FeatureMapKind::kFavorSharpDiagonal:
      return 1 + D;
    case FeatureMapKind::kFavorSharp:
      return D + D * D;
    default:
      return 0;
  }
}

}  // namespace favor
