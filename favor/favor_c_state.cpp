// SPDX-License-Identifier: Apache-2.0
// The C interface: decoding states.
#include <cstring>
#include <string>
#include <string_view>
#include <variant>

#include "favor/c_calls.h"
#include "favor/favor_c.h"
#include "favor/snapshot.h"
#include "favor/state.h"

namespace favor::c {
namespace {

/// The state if it has a window, else null.
const HybridState* with_window(const char* op, const favor_state& state, int64_t head_dim) {
  const auto* hybrid = std::get_if<HybridState>(&state.value);
  FAVOR_CHECK(hybrid == nullptr || head_dim == hybrid->D, op, ": head_dim is ", head_dim,
              ", expected the state's ", hybrid->D);
  return hybrid;
}

}  // namespace
}  // namespace favor::c

using namespace favor;     // NOLINT(google-build-using-namespace): the rest is C
using namespace favor::c;  // NOLINT(google-build-using-namespace)

favor_status favor_state_create(int64_t batch, int64_t key_heads, int64_t num_features,
                                int64_t value_dim, favor_state** state) {
  return guarded([&] {
    favor_state*& made = required("favor_state_create", "state", state);
    made = new favor_state{DecodeState(batch, key_heads, num_features, value_dim)};
  });
}

favor_status favor_state_create_with_window(const favor_options* options, int64_t batch,
                                            int64_t key_heads, int64_t head_dim, int64_t value_dim,
                                            favor_state** state) {
  return guarded([&] {
    const char* op = "favor_state_create_with_window";
    const AttentionParams<float> params = params_of(op, options);
    favor_state*& made = required(op, "state", state);
    made = new favor_state{HybridState(batch, key_heads, params.num_features, head_dim, value_dim,
                                       params.window, params.sinks)};
  });
}

favor_status favor_state_copy(const favor_state* state, favor_state** copy) {
  return guarded([&] {
    const char* op = "favor_state_copy";
    const favor_state& from = required(op, "state", state);
    favor_state*& made = required(op, "copy", copy);
    made = new favor_state(from);
  });
}

void favor_state_free(favor_state* state) {
  delete state;
}

favor_status favor_state_position(const favor_state* state, int64_t* position) {
  return guarded([&] {
    const char* op = "favor_state_position";
    const favor_state& from = required(op, "state", state);
    required(op, "position", position) =
        std::visit([](const auto& value) { return value.position; }, from.value);
  });
}

favor_status favor_state_merge(favor_state* into, const favor_state* other) {
  return guarded([&] {
    const char* op = "favor_state_merge";
    const DecodeState& added = plain(op, "other", required(op, "other", other));
    merge(plain(op, "into", required(op, "into", into)), added);
  });
}

favor_status favor_decode_step(const favor_options* options, favor_tensor q, favor_tensor k,
                               favor_tensor v, favor_state* state, favor_tensor out) {
  return guarded([&] {
    const char* op = "favor_decode_step";
    const AttentionParams<float> params = params_of(op, options);
    favor_state& stream = required(op, "state", state);
    if (auto* hybrid = std::get_if<HybridState>(&stream.value)) {
      const Views<float> view(op);
      hybrid_decode_step(params, view("q", q), view("k", k), view("v", v), *hybrid,
                         view("out", out));
      return;
    }
    DecodeState& value = plain(op, "state", stream);
    with_dtype(op, q, [&](auto element) {
      const Views<decltype(element)> view(op);
      decode_step(params, view("q", q), view("k", k), view("v", v), value, view("out", out));
    });
  });
}

favor_status favor_state_absorb(const favor_options* options, favor_tensor k, favor_tensor v,
                                favor_state* state) {
  return guarded([&] {
    const char* op = "favor_state_absorb";
    const Views<float> view(op);
    const AttentionParams<float> params = params_of(op, options);
    auto* hybrid = std::get_if<HybridState>(&required(op, "state", state).value);
    FAVOR_CHECK(hybrid != nullptr, op, ": state has no window, expected one");
    hybrid_absorb(params, view("k", k), view("v", v), *hybrid);
  });
}

favor_status favor_state_to_bytes(const favor_state* state, const favor_options* options,
                                  int64_t head_dim, void* buffer, size_t capacity, size_t* size) {
  return guarded([&] {
    const char* op = "favor_state_to_bytes";
    size_t& needed = required(op, "size", size);
    const favor_state& from = required(op, "state", state);
    const AttentionParams<float> params = params_of(op, options);
    const HybridState* hybrid = with_window(op, from, head_dim);
    const std::string bytes = hybrid != nullptr
                                  ? state_to_bytes(*hybrid, params)
                                  : state_to_bytes(plain(op, "state", from), params, head_dim);
    FAVOR_CHECK(buffer == nullptr || capacity >= bytes.size(), op, ": capacity is ", capacity,
                ", expected at least ", bytes.size(), " bytes");
    if (buffer != nullptr) std::memcpy(buffer, bytes.data(), bytes.size());
    needed = bytes.size();
  });
}

favor_status favor_state_from_bytes(const void* bytes, size_t size, const favor_options* options,
                                    int64_t head_dim, favor_state** state) {
  return guarded([&] {
    const char* op = "favor_state_from_bytes";
    FAVOR_CHECK(bytes != nullptr, op, ": bytes is a null pointer");
    const std::string_view content(static_cast<const char*>(bytes), size);
    favor_state*& result = required(op, "state", state);
    const AttentionParams<float> params = params_of(op, options);
    result = params.window > 0 ? new favor_state{hybrid_state_from_bytes(content, params, head_dim)}
                               : new favor_state{state_from_bytes(content, params, head_dim)};
  });
}

favor_status favor_state_save(const favor_state* state, const favor_options* options,
                              int64_t head_dim, const char* path) {
  return guarded([&] {
    const char* op = "favor_state_save";
    const favor_state& from = required(op, "state", state);
    const char* to = &required(op, "path", path);
    const AttentionParams<float> params = params_of(op, options);
    if (const HybridState* hybrid = with_window(op, from, head_dim)) {
      save_state(to, *hybrid, params);
    } else {
      save_state(to, plain(op, "state", from), params, head_dim);
    }
  });
}

favor_status favor_state_load(const char* path, const favor_options* options, int64_t head_dim,
                              favor_state** state) {
  return guarded([&] {
    const char* op = "favor_state_load";
    const char* from = &required(op, "path", path);
    favor_state*& result = required(op, "state", state);
    const AttentionParams<float> params = params_of(op, options);
    result = params.window > 0 ? new favor_state{load_hybrid_state(from, params, head_dim)}
                               : new favor_state{load_state(from, params, head_dim)};
  });
}
