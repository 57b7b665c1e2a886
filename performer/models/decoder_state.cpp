// SPDX-License-Identifier: Apache-2.0
// Rows of decoding states: taken out, forked and put together.
#include <algorithm>
#include <utility>

#include "favor/check.h"
#include "performer/models/models.h"

namespace performer {

int64_t DecoderState::streams() const {
  return layers.empty() || layers[0].groups.empty() ? 0 : num_streams(layers[0].groups[0]);
}

bool rows_share_position(const ModelConfig& config) {
  return !config.attention.keeps_sums();
}

DecoderState select_streams(const DecoderState& state, const std::vector<int64_t>& rows) {
  const int64_t B = state.streams();
  for (const int64_t row : rows) {
    FAVOR_CHECK(row >= 0 && row < B, "select_streams: row is ", row, ", expected 0 to ", B - 1);
  }
  DecoderState result;
  result.position = state.position;
  for (const AttentionState& layer : state.layers) {
    AttentionState chosen;
    for (const HeadsState& heads : layer.groups) {
      chosen.groups.push_back(select_streams(heads, rows));
    }
    result.layers.push_back(std::move(chosen));
  }
  if (state.positions.empty() || rows.empty()) return result;
  for (const int64_t row : rows) result.positions.push_back(state.positions[row]);
  const auto [least, most] = std::minmax_element(result.positions.begin(), result.positions.end());
  result.position = *most;
  if (*least == *most) result.positions.clear();
  for (AttentionState& layer : result.layers) {
    for (HeadsState& heads : layer.groups) set_position(heads, result.position);
  }
  return result;
}

DecoderState join_streams(std::vector<DecoderState> states) {
  FAVOR_CHECK(!states.empty(), "join_streams: states holds no state, expected at least 1");
  if (states.size() == 1) return std::move(states.front());
  const DecoderState& first = states.front();
  const bool equal = std::all_of(states.begin(), states.end(), [&](const DecoderState& state) {
    return state.positions.empty() && state.position == first.position;
  });
  DecoderState result;
  for (const DecoderState& state : states) {
    FAVOR_CHECK(state.streams() > 0 && state.layers.size() == first.layers.size(),
                "join_streams: a state has ", state.streams(), " streams and ", state.layers.size(),
                " layers, expected at least 1 and ", first.layers.size());
    result.position = std::max(result.position, state.position);
    if (equal) continue;
    const std::vector<int64_t> same(static_cast<size_t>(state.streams()), state.position);
    const std::vector<int64_t>& positions = state.positions.empty() ? same : state.positions;
    result.positions.insert(result.positions.end(), positions.begin(), positions.end());
  }
  for (size_t i = 0; i < first.layers.size(); ++i) {
    AttentionState joined = std::move(states[0].layers[i]);
    for (size_t s = 1; s < states.size(); ++s) {
      AttentionState next = std::move(states[s].layers[i]);
      FAVOR_CHECK(next.groups.size() == joined.groups.size(), "join_streams: a layer has ",
                  next.groups.size(), " groups of heads, expected ", joined.groups.size());
      for (size_t g = 0; g < next.groups.size(); ++g) {
        append_streams(joined.groups[g], std::move(next.groups[g]));
      }
    }
    result.layers.push_back(std::move(joined));
  }
  return result;
}

}  // namespace performer
