// SPDX-License-Identifier: Apache-2.0
// Names of the feature maps. Their mathematics is in docs/math.md, their plain form in reference.h.
#ifndef FAVOR_FEATURE_MAP_H_
#define FAVOR_FEATURE_MAP_H_

#include <string>
#include <string_view>

namespace favor {

enum class FeatureMapKind {
  kPositive,  ///< exp(w.x - |x|^2 / 2): positive random features of the softmax kernel
  kRelu,      ///< relu(w.x) + eps, or relu(x) + eps without projection: generalised attention
};

std::string to_string(FeatureMapKind kind);
/// Throws favor::Error, listing the known words, if `word` is none of them.
FeatureMapKind feature_map_from_string(std::string_view word);

}  // namespace favor

#endif  // FAVOR_FEATURE_MAP_H_
