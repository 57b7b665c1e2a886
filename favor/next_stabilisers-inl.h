// SPDX-License-Identifier: Apache-2.0
// Causal forward pass: the stabilisers that a chunk of keys asks for, before the state takes them
// over, and whether they leave every row of the chunk a denominator to trust.

// clang-format off
#if defined(FAVOR_NEXT_STABILISERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_NEXT_STABILISERS_INL_H_
#undef FAVOR_NEXT_STABILISERS_INL_H_
#else
#define FAVOR_NEXT_STABILISERS_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "favor/query_features-inl.h"
#include "favor/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Denominators below this, relative to the largest feature product, ask for a smaller chunk:
/// terms that underflow (2^-126) are then still below 2^-86 of the denominator. For maps known by
/// their values, whose denominators say nothing about that, the row's own stabiliser relative to
/// the chunk's takes the denominator's place.
constexpr float kGuardExponent = -40.0f;

/// Stabilisers that hold for a state and a chunk of keys, while the state has its own.
struct NextStabilisers {
  float* c;        ///< [M] padded
  float* z;        ///< [M] padded: the state's z under c
  float* z_added;  ///< [M] padded: what the chunk adds to z
  float* factor;   ///< [M] padded: 2^(the state's own - c)

  void place(ScratchLayout& layout, const HeadPlan& head) {
    const int64_t features = num_panels(head.M) * panel_width();
    c = layout.take(features);
    z = layout.take(features);
    z_added = layout.take(features);
    factor = layout.take(features);
  }

  /// Features of n keys under stabilisers that hold for them and `state`. Returns whether a
  /// stabiliser rose. buffer: of project().
  bool find(const HeadPlan& head, const KeyState& state, const KeyChunk& keys, int64_t n,
            const Panels& features, float* buffer) const {
    const int64_t NR = panel_width();
    const int64_t panels = num_panels(head.M);
    bool raised = false;
    std::copy_n(state.c, panels * NR, c);
    std::fill_n(factor, panels * NR, 1.0f);
    chunk_key_features(head, keys, n, c, features, Panels{nullptr, 0}, z_added, buffer,
                       [&](int64_t panel, const float* fall) {
                         raised = true;
                         std::copy_n(fall, NR, factor + panel * NR);
                       });
    return raised;
  }

  void find_z(const HeadPlan& head, const KeyState& state) const {
    for (int64_t f = 0; f < head.M; ++f) {
      z[f] = state.z[f] * factor[f];
    }
    std::fill(z + head.M, z + num_panels(head.M) * panel_width(), 0.0f);
  }

  /// Whether they are too far above the own stabiliser of a row that has keys.
  bool are_far(const HeadPlan& head, const float* own, int64_t num_queries,
               int64_t without_keys) const {
    return !head.log_linear && num_queries > 1 && without_keys < num_queries &&
           own[without_keys] - c[0] < kGuardExponent;
  }
};

/// Whether some row's denominator is too small to trust although the row has keys.
inline bool underflows(const HeadPlan& head, const QueryFeatures& query, int64_t num_queries,
                       int64_t without_keys) {
  const float limit = std::exp2(kGuardExponent);
  for (int64_t r = without_keys; r < num_queries && num_queries > 1; ++r) {
    if (head.log_linear && query.denominator[r] < limit * query.excess[r]) {
      return true;
    }
  }
  return false;
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_NEXT_STABILISERS_INL_H_
