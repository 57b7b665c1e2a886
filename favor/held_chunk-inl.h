// SPDX-License-Identifier: Apache-2.0
// Causal backward pass: the states that its walks carry, and what the forward walk over a chunk
// leaves for the reverse walk.

// clang-format off
#if defined(FAVOR_HELD_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_HELD_CHUNK_INL_H_
#undef FAVOR_HELD_CHUNK_INL_H_
#else
#define FAVOR_HELD_CHUNK_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>
#include <vector>

#include "favor/gradients-inl.h"
#include "favor/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Tokens [begin, end) of a segment.
struct Range {
  int64_t begin, end;
};

/// The state before a chunk or the sums over later queries, features in columns.
struct WalkedState {
  Panels S;  ///< [E, M]
  float* z;  ///< [M] padded
  float* c;  ///< [M] padded

  void place(ScratchLayout& layout, const HeadPlan& head) {
    S = {layout.take(panel_floats(head.E, head.M)), head.E};
    z = layout.take(num_panels(head.M) * panel_width());
    c = layout.take(num_panels(head.M) * panel_width());
  }

  /// Multiplies what belongs to a panel's features by factor[0 .. NR).
  void scale(const HeadPlan& head, int64_t panel, const float* factor) const {
    const int64_t NR = panel_width();
    scale_columns(S, head.E, panel, factor);
    for (int64_t i = 0; i < NR; ++i) {
      z[panel * NR + i] *= factor[i];
    }
  }
};

/// What the forward walk leaves of one head's queries for the reverse walk.
struct HeldQueries {
  Panels features;             ///< [C, M] divided by the denominators
  Panels dscores;              ///< [C, C] lower triangular: gradients of the weights
  float* dz;                   ///< [M] padded: -features^T delta
  uint8_t skip[kCausalChunk];  ///< queries that take no part

  void place(ScratchLayout& layout, const HeadPlan& head) {
    features = {layout.take(panel_floats(kCausalChunk, head.M)), kCausalChunk};
    dscores = {layout.take(panel_floats(kCausalChunk, kCausalChunk)), kCausalChunk};
    dz = layout.take(num_panels(head.M) * panel_width());
  }
};

/// What the forward walk leaves of a chunk for the reverse walk.
struct HeldChunk {
  Panels key_features;               ///< [C, M]
  Panels key_slopes;                 ///< [C, M], of maps that keep them
  float* c;                          ///< [M] padded: the stabilisers of keys and queries
  std::vector<HeldQueries> queries;  ///< of each query head

  void place(ScratchLayout& layout, const HeadPlan& head) {
    key_features = {layout.take(panel_floats(kCausalChunk, head.M)), kCausalChunk};
    key_slopes = key_features;
    if (head.keeps_slopes) {
      key_slopes.data = layout.take(panel_floats(kCausalChunk, head.M));
    }
    c = layout.take(num_panels(head.M) * panel_width());
    for (HeldQueries& held : queries) {
      held.place(layout, head);
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_HELD_CHUNK_INL_H_
