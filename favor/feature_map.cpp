// SPDX-License-Identifier: Apache-2.0
#include "favor/feature_map.h"

#include "favor/words.h"

namespace favor {
namespace {

constexpr Word<FeatureMapKind> kFeatureMaps[] = {
    {FeatureMapKind::kPositive, "positive"},
    {FeatureMapKind::kRelu, "relu"},
};

}  // namespace

std::string to_string(FeatureMapKind kind) {
  return word_of(kFeatureMaps, kind);
}

FeatureMapKind feature_map_from_string(std::string_view word) {
  return value_of(kFeatureMaps, word, "feature_map_from_string: feature_map");
}

}  // namespace favor
