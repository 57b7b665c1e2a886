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

/// Tokens [begin, end) of rows: which of their sequences, or parts of one, they are.
struct SliceLayout {
  torch::Tensor key_padding_mask = {};  ///< [B, end - begin], or undefined
  /// Offsets 0, ..., end - begin of the sequences within the slice, none of them empty.
  std::vector<int64_t> offsets = {};
  /// Whether the first of them began before the slice.
  bool continues = false;
  torch::Tensor positions = {};  ///< [end - begin] int64, within the sequences
};
/// Cuts rows [B, L] of a layout; 0 <= begin < end <= L.
SliceLayout cut(const BatchLayout& layout, int64_t L, int64_t begin, int64_t end);

/// [L] int64: the position of each token within its sequence. `offsets` end with L.
torch::Tensor packed_positions(const std::vector<int64_t>& offsets);

}  // namespace performer

#endif  // PERFORMER_NN_LAYOUT_H_
