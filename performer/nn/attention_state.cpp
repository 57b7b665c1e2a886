// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/attention_state.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "favor/check.h"

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

std::monostate take(const std::monostate&, const std::vector<int64_t>&) {
  return {};
}

favor::DecodeState take(const favor::DecodeState& state, const std::vector<int64_t>& rows) {
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

favor::HybridState take(const favor::HybridState& state, const std::vector<int64_t>& rows) {
  favor::HybridState result;
  result.B = std::ssize(rows);
  result.H = state.H;
  result.D = state.D;
  result.E = state.E;
  result.window = state.window;
  result.sinks = state.sinks;
  result.position = state.position;
  result.far = take(state.far, rows);
  for (const auto member :
       {&favor::HybridState::keys, &favor::HybridState::values, &favor::HybridState::log_weights}) {
    result.*member = take_rows(state.*member, state.B, rows);
  }
  return result;
}

KeyCache take(const KeyCache& state, const std::vector<int64_t>& rows) {
  const Tensor index = torch::tensor(rows, torch::kInt64);
  KeyCache result = {
      state.keys.index_select(0, index), state.values.index_select(0, index), {}, state.position};
  if (state.hashes.defined()) result.hashes = state.hashes.index_select(0, index);
  return result;
}

// Without hot tokens, which rows share the number of.
void settle(favor::DecodeState& state) {
  favor::flush(state);
  state.hot_features.clear();
  state.hot_values.clear();
}

void join(std::monostate&, std::monostate) {}

void join(favor::DecodeState& into, favor::DecodeState other) {
  FAVOR_CHECK(other.H == into.H && other.M == into.M && other.E == into.E,
              "join_streams: a state has H, M, E = ", other.H, ", ", other.M, ", ", other.E,
              ", expected ", into.H, ", ", into.M, ", ", into.E, " (as the first)");
  settle(into);
  settle(other);
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

void check_positions(int64_t position, int64_t expected) {
  FAVOR_CHECK(position == expected, "join_streams: a stream that keeps keys is at position ",
              position, ", expected ", expected, " (as the first)");
}

void join(favor::HybridState& into, favor::HybridState other) {
  check_positions(other.position, into.position);
  FAVOR_CHECK(other.D == into.D && other.window == into.window && other.sinks == into.sinks,
              "join_streams: a state has D, window, sinks = ", other.D, ", ", other.window, ", ",
              other.sinks, ", expected ", into.D, ", ", into.window, ", ", into.sinks,
              " (as the first)");
  join(into.far, std::move(other.far));
  for (const auto member :
       {&favor::HybridState::keys, &favor::HybridState::values, &favor::HybridState::log_weights}) {
    const std::vector<float>& added = other.*member;
    (into.*member).insert((into.*member).end(), added.begin(), added.end());
  }
  into.B += other.B;
}

void join(KeyCache& into, KeyCache other) {
  check_positions(other.position, into.position);
  into.keys = torch::cat({into.keys, other.keys});
  into.values = torch::cat({into.values, other.values});
  if (into.hashes.defined()) into.hashes = torch::cat({into.hashes, other.hashes});
}

void list_sums(favor::DecodeState& state, std::vector<StateArray>& arrays) {
  const int64_t B = state.B, H = state.H, M = state.M, E = state.E;
  const auto add = [&](const char* name, std::vector<int64_t> shape, std::vector<float>& values,
                       bool optional) {
    arrays.push_back({name, std::move(shape), &values, nullptr, optional});
  };
  add("c", {B, H, M}, state.c, false);
  add("S", {B, H, M, E}, state.S, false);
  add("z", {B, H, M}, state.z, false);
  add("S_rest", {B, H, M, E}, state.S_rest, true);
  add("z_rest", {B, H, M}, state.z_rest, true);
  add("hot_features", {B, H, favor::kHotTokens, state.hot_stride()}, state.hot_features, true);
  add("hot_values", {B, H, favor::kHotTokens, E}, state.hot_values, true);
}

}  // namespace

int64_t num_streams(const HeadsState& state) {
  if (const auto* sums = std::get_if<favor::DecodeState>(&state)) return sums->B;
  if (const auto* hybrid = std::get_if<favor::HybridState>(&state)) return hybrid->B;
  if (const auto* cache = std::get_if<KeyCache>(&state)) return cache->keys.size(0);
  return 0;
}

int64_t position_of(const HeadsState& state) {
  if (const auto* sums = std::get_if<favor::DecodeState>(&state)) return sums->position;
  if (const auto* hybrid = std::get_if<favor::HybridState>(&state)) return hybrid->position;
  if (const auto* cache = std::get_if<KeyCache>(&state)) return cache->position;
  return 0;
}

HeadsState select_streams(const HeadsState& state, const std::vector<int64_t>& rows) {
  return std::visit([&](const auto& value) { return HeadsState(take(value, rows)); }, state);
}

void append_streams(HeadsState& into, HeadsState other) {
  FAVOR_CHECK(into.index() == other.index(),
              "join_streams: states are of unlike methods, expected those of one model");
  std::visit(
      [&](auto& value) {
        join(value, std::move(std::get<std::remove_reference_t<decltype(value)>>(other)));
      },
      into);
}

void set_position(HeadsState& state, int64_t position) {
  if (auto* sums = std::get_if<favor::DecodeState>(&state)) sums->position = position;
}

std::vector<StateArray> state_arrays(HeadsState& state) {
  std::vector<StateArray> arrays;
  if (auto* sums = std::get_if<favor::DecodeState>(&state)) {
    list_sums(*sums, arrays);
  } else if (auto* hybrid = std::get_if<favor::HybridState>(&state)) {
    list_sums(hybrid->far, arrays);
    const int64_t B = hybrid->B, H = hybrid->H, slots = hybrid->num_slots();
    arrays.push_back({"near_keys", {B, H, slots, hybrid->D}, &hybrid->keys, nullptr, false});
    arrays.push_back({"near_values", {B, H, slots, hybrid->E}, &hybrid->values, nullptr, false});
    arrays.push_back({"near_log_weights", {B, H, slots}, &hybrid->log_weights, nullptr, false});
  } else if (auto* cache = std::get_if<KeyCache>(&state)) {
    arrays.push_back({"keys", cache->keys.sizes().vec(), nullptr, &cache->keys, false});
    arrays.push_back({"values", cache->values.sizes().vec(), nullptr, &cache->values, false});
    if (cache->hashes.defined()) {
      arrays.push_back({"hashes", cache->hashes.sizes().vec(), nullptr, &cache->hashes, false});
    }
  }
  return arrays;
}

int64_t* hot_tokens(HeadsState& state) {
  if (auto* sums = std::get_if<favor::DecodeState>(&state)) return &sums->num_hot;
  if (auto* hybrid = std::get_if<favor::HybridState>(&state)) return &hybrid->far.num_hot;
  return nullptr;
}

}  // namespace performer
