// SPDX-License-Identifier: Apache-2.0
// What causal attention layers remember of streams, and rows of it taken out and put together.
#ifndef PERFORMER_NN_ATTENTION_STATE_H_
#define PERFORMER_NN_ATTENTION_STATE_H_

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "favor/hybrid_state.h"
#include "favor/state.h"

namespace performer {

/// Keys and values that later tokens still meet.
struct KeyCache {
  torch::Tensor keys, values;  ///< [B, H, kept, D] each
  torch::Tensor hashes;        ///< method lsh: [B, H, rounds, kept] float32, whole numbers
  int64_t position = 0;        ///< tokens seen so far, those that are not kept included
};

/// Of the heads of one method; the first alternative before the first token.
using HeadsState = std::variant<std::monostate, favor::DecodeState, favor::HybridState, KeyCache>;

/// Of one layer: a state for each of its groups of heads, or none before the first token. A value:
/// a copy forks the streams.
struct AttentionState {
  std::vector<HeadsState> groups;
};

/// Streams (rows); 0 before the first token.
int64_t num_streams(const HeadsState& state);
/// Tokens absorbed.
int64_t position_of(const HeadsState& state);

/// The named rows in this order; a row named twice is forked. Rows must exist.
HeadsState select_streams(const HeadsState& state, const std::vector<int64_t>& rows);

/// Appends the rows of `other`. The streams of sums (favor::DecodeState) may be at unlike
/// positions; all others throw favor::Error then, and so do states of unlike kinds or sizes.
void append_streams(HeadsState& into, HeadsState other);

/// Sets the position of sums, whose rows have positions of their own elsewhere.
void set_position(HeadsState& state, int64_t position);

/// An array of a state by name: of `values` where that is not null, else of `tensor`.
struct StateArray {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float>* values;
  torch::Tensor* tensor;
  bool optional;  ///< an empty one stands for zeros
};

/// The arrays of a state in a fixed order, empty optional ones included.
std::vector<StateArray> state_arrays(HeadsState& state);
/// The number of hot tokens, which the arrays do not show; null where there are none.
int64_t* hot_tokens(HeadsState& state);

}  // namespace performer

#endif  // PERFORMER_NN_ATTENTION_STATE_H_
