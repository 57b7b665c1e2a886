// SPDX-License-Identifier: Apache-2.0
// Rows of decoding states: taken out, forked and put together.
#include <torch/torch.h>

#include <algorithm>

#include "favor/check.h"
#include "performer/models/models.h"

namespace performer {
namespace {

using torch::Tensor;

// Rows of an array [B, ...]; an empty one stays empty.
std::vector<float> take_rows(const std::vector<float>& values, int64_t B,
                             const std::vector<int64_t>& rows) {
  std::vector<float> result;
  if (values.empty()) return result;
  const int64_t width = std::ssize(values) / B;
  result.reserve(rows.size() * static_cast<size_t>(width));
  for (const int64_t row : rows) {
    const auto begin = values.begin() + row * width;
    result.insert(result.end(), begin, begin + width);
  }
  return result;
}

favor::DecodeState take_rows(const favor::DecodeState& state, const std::vector<int64_t>& rows) {
  favor::DecodeState result;
  result.B = std::ssize(rows);
  result.H = state.H;
  result.M = state.M;
  result.E = state.E;
  result.position = state.position;
  result.num_hot = state.num_hot;
  result.step_rows = state.step_rows;
  for (const auto member : {&favor::DecodeState::c, &favor::DecodeState::S, &favor::DecodeState::z,
                            &favor::DecodeState::S_rest, &favor::DecodeState::z_rest,
                            &favor::DecodeState::hot_features, &favor::DecodeState::hot_values}) {
    result.*member = take_rows(state.*member, state.B, rows);
  }
  return result;
}

// Appends the rows of `other`. Both are without hot tokens, which rows share the number of.
void append(favor::DecodeState& into, const favor::DecodeState& other) {
  FAVOR_CHECK(other.H == into.H && other.M == into.M && other.E == into.E,
              "join_streams: a state has H, M, E = ", other.H, ", ", other.M, ", ", other.E,
              ", expected ", into.H, ", ", into.M, ", ", into.E, " (as the first)");
  const bool rests = !into.S_rest.empty() || !other.S_rest.empty();
  const auto add = [](std::vector<float>& to, const std::vector<float>& from, size_t size) {
    to.insert(to.end(), from.begin(), from.end());
    to.resize(size);  // rests that are not there are zeros
  };
  if (rests) {
    into.S_rest.resize(into.S.size());
    into.z_rest.resize(into.z.size());
    add(into.S_rest, other.S_rest, into.S.size() + other.S.size());
    add(into.z_rest, other.z_rest, into.z.size() + other.z.size());
  }
  into.c.insert(into.c.end(), other.c.begin(), other.c.end());
  into.S.insert(into.S.end(), other.S.begin(), other.S.end());
  into.z.insert(into.z.end(), other.z.begin(), other.z.end());
  into.B += other.B;
  into.position = std::max(into.position, other.position);
}

// Without hot tokens.
void settle(favor::DecodeState& state) {
  favor::flush(state);
  state.hot_features.clear();
  state.hot_values.clear();
}

}  // namespace

int64_t DecoderState::streams() const {
  if (!layers.empty()) return layers.front().B;
  return keys.empty() ? 0 : keys.front().size(0);
}

DecoderState select_streams(const DecoderState& state, const std::vector<int64_t>& rows) {
  const int64_t B = state.streams();
  for (const int64_t row : rows) {
    FAVOR_CHECK(row >= 0 && row < B, "select_streams: row is ", row, ", expected 0 to ", B - 1);
  }
  DecoderState result;
  result.position = state.position;
  for (const favor::DecodeState& layer : state.layers) {
    result.layers.push_back(take_rows(layer, rows));
  }
  const Tensor index = torch::tensor(rows, torch::kInt64);
  for (const Tensor& keys : state.keys) result.keys.push_back(keys.index_select(0, index));
  for (const Tensor& values : state.values) result.values.push_back(values.index_select(0, index));
  if (state.positions.empty() || rows.empty()) return result;
  for (const int64_t row : rows) result.positions.push_back(state.positions[row]);
  const auto [least, most] = std::minmax_element(result.positions.begin(), result.positions.end());
  result.position = *most;
  if (*least == *most) result.positions.clear();
  for (favor::DecodeState& layer : result.layers) layer.position = result.position;
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
    FAVOR_CHECK(state.streams() > 0 && state.layers.size() == first.layers.size() &&
                    state.keys.size() == first.keys.size(),
                "join_streams: a state has ", state.streams(), " streams, ", state.layers.size(),
                " FAVOR and ", state.keys.size(), " exact layers, expected at least 1, ",
                first.layers.size(), " and ", first.keys.size());
    FAVOR_CHECK(first.keys.empty() || state.position == first.position,
                "join_streams: a stream of exact attention is at ", "position ", state.position,
                ", expected ", first.position, " (as the first)");
    result.position = std::max(result.position, state.position);
    if (equal) continue;
    const std::vector<int64_t> same(static_cast<size_t>(state.streams()), state.position);
    const std::vector<int64_t>& positions = state.positions.empty() ? same : state.positions;
    result.positions.insert(result.positions.end(), positions.begin(), positions.end());
  }
  for (size_t i = 0; i < first.layers.size(); ++i) {
    favor::DecodeState joined = std::move(states[0].layers[i]);
    settle(joined);
    for (size_t s = 1; s < states.size(); ++s) {
      favor::DecodeState& next = states[s].layers[i];
      settle(next);
      append(joined, next);
      next = favor::DecodeState();
    }
    result.layers.push_back(std::move(joined));
  }
  for (size_t i = 0; i < first.keys.size(); ++i) {
    std::vector<Tensor> keys, values;
    for (const DecoderState& state : states) {
      keys.push_back(state.keys[i]);
      values.push_back(state.values[i]);
    }
    result.keys.push_back(torch::cat(keys));
    result.values.push_back(torch::cat(values));
  }
  return result;
}

}  // namespace performer
