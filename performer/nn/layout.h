// SPDX-License-Identifier: Apache-2.0
// How the rows of a batch are read: which keys count, or where packed sequences begin and end.
#ifndef PERFORMER_NN_LAYOUT_H_
#define PERFORMER_NN_LAYOUT_H_

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace performer {

/// Without members: every row is one sequence from end to end.
struct BatchLayout {
  /// [B, L] bool, true = ignore this key.
  torch::Tensor key_padding_mask = {};
  /// N + 1 ascending offsets 0, ..., L, int32 or int64: every row holds N sequences one after
  /// another, empty ones included. No sequence sees another, and positions restart in each.
  torch::Tensor cu_seqlens = {};

  /// Throws favor::Error, opening with `op`, for members that do not fit rows [B, L].
  void check(const char* op, int64_t B, int64_t L) const;

  bool is_packed() const { return cu_seqlens.defined(); }
  /// The offsets; without packing 0 and L.
  std::vector<int64_t> offsets(int64_t L) const;
};

/// [L] int64: the position of each token within its sequence. `offsets` end with L.
torch::Tensor packed_positions(const std::vector<int64_t>& offsets);

}  // namespace performer

#endif  // PERFORMER_NN_LAYOUT_H_
