// SPDX-License-Identifier: Apache-2.0
// Random attention problems that cover the interface, for the parity grid, the random sweep and the
// fuzzer: any source of numbers with below(n) and pick from it will do.
#ifndef FAVOR_RANDOM_CASE_H_
#define FAVOR_RANDOM_CASE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "favor/testing.h"

namespace favor::test {

/// One of `values`.
template <class Source, class T, size_t N>
T pick(Source& source, const T (&values)[N]) {
  return values[source.below(N)];
}

/// Cuts [0, length) at `pieces - 1` random places; some pieces are empty.
template <class Source>
std::vector<int64_t> random_offsets(Source& source, int64_t length, int pieces) {
  std::vector<int64_t> offsets{0, length};
  for (int i = 1; i < pieces; ++i) {
    offsets.push_back(static_cast<int64_t>(source.below(static_cast<uint64_t>(length) + 1)));
  }
  offsets.push_back(offsets[2]);  // at least one empty segment
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

/// What a random case is made of.
struct CaseSizes {
  std::vector<int64_t> lengths{0, 1, 2, 7, 31, 63, 64, 65, 100, 127, 128, 129};
  std::vector<int64_t> dims{1, 3, 8, 17, 64};
  std::vector<int64_t> features{1, 5, 16, 37, 256};
  std::vector<double> norms{0.01, 0.5, 1, 1, 4, 8, 30, 1000};
};

/// A random walk over the grid of sizes, maps, masks and layouts, so that all pairs of values meet
/// within some hundred cases.
template <class Source>
Case random_case(Source& source, bool causal, const CaseSizes& sizes = {}) {
  const auto one_of = [&](const auto& values) { return values[source.below(values.size())]; };
  const auto chance = [&](uint64_t in) { return source.below(in) == 0; };
  Case c;
  c.causal = causal;
  // Half of the cases take the positive map or relu, the others any map.
  const uint64_t kind = source.below(4);
  c.feature_map = kind == 0 ? FeatureMapKind::kRelu : FeatureMapKind::kPositive;
  if (kind >= 2) {
    c.feature_map = static_cast<FeatureMapKind>(
        source.below(static_cast<uint64_t>(FeatureMapKind::kIdentity) + 1));
  }
  c.L = one_of(sizes.lengths);
  c.S = chance(2) ? c.L : one_of(sizes.lengths);
  c.D = one_of(sizes.dims);
  c.E = one_of(sizes.dims);
  c.M = one_of(sizes.features);
  if (num_projection_rows(c.feature_map, 2) == 1) c.M += c.M % 2;
  c.norm = one_of(sizes.norms);
  c.B = 1 + static_cast<int64_t>(source.below(2));
  c.H = 1 + static_cast<int64_t>(source.below(3));
  c.group = chance(3) ? c.H : 1;
  constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kMisaligned, Layout::kTransposed,
                                 Layout::kExpanded};
  c.layout = pick(source, kLayouts);
  constexpr MaskKind kMasks[] = {MaskKind::kNone, MaskKind::kNone, MaskKind::kRandom,
                                 MaskKind::kLeft, MaskKind::kItem};
  c.mask = pick(source, kMasks);
  constexpr WeightKind kWeights[] = {WeightKind::kNone, WeightKind::kNone, WeightKind::kNone,
                                     WeightKind::kShared, WeightKind::kPerHead};
  c.weights = pick(source, kWeights);
  c.projection = chance(3) ? ProjectionUse::kPerHead : ProjectionUse::kShared;
  const bool softmax = estimates_softmax(c.feature_map);
  if (!softmax && chance(2)) c.projection = ProjectionUse::kNone;
  // Where features of these are far below 0, or products of two, they lose their digits and vanish.
  const bool vanishes =
      c.feature_map == FeatureMapKind::kElu1 || c.feature_map == FeatureMapKind::kSigmoid ||
      c.feature_map == FeatureMapKind::kSoftplus || c.feature_map == FeatureMapKind::kGelu;
  const int64_t num_features = c.projection == ProjectionUse::kNone ? c.D : c.M;
  if (vanishes) {
    const bool projected = c.projection != ProjectionUse::kNone;
    const double norm_of_row = projected ? std::sqrt(static_cast<double>(c.D)) : 1;
    c.norm = std::min(c.norm, (num_features < 8 ? 3 : 8) / norm_of_row);
  }
  c.structured = c.projection != ProjectionUse::kNone && (c.L + c.D + c.M) % 3 == 0;
  if (chance(4)) c.scale = 0.3;
  const bool takes_eps = !is_fitted(c.feature_map) && c.feature_map != FeatureMapKind::kTrig;
  if (takes_eps && chance(softmax ? 6 : 3)) c.feature_eps = 0.2;
  // A sum that is not divided grows as exp(|x|^2), beyond floats at large norms.
  c.renormalize = c.norm > 1 || !chance(6);
  if (c.feature_map == FeatureMapKind::kPositive && !causal && c.renormalize && chance(8)) {
    c.compatibility = Compatibility::kOfficial;
  }
  if (chance(3)) {
    const int pieces = 1 + static_cast<int>(source.below(4));
    c.cu_seqlens_q = random_offsets(source, c.L, pieces + 1);
    c.cu_seqlens_k = random_offsets(source, c.S, pieces + 1);
  }
  c.keep_state = !chance(3);
  return c;
}

}  // namespace favor::test

#endif  // FAVOR_RANDOM_CASE_H_
