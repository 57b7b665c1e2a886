// SPDX-License-Identifier: Apache-2.0
// Steps of hybrid attention from the library's own parts: the exact kernel scores the near keys,
// the decoding state the far ones, and their log-sums join both.
#include "favor/hybrid_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "favor/exact.h"
#include "favor/plan.h"
#include "favor/plan_checks.h"

namespace favor {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void check(const char* op, const AttentionParams<float>& params, const View4<const float>& q,
           const View4<const float>& k, const View4<const float>& v, const HybridState& state) {
  check_call(op, params, q, k, v);
  FAVOR_CHECK(!is_fitted(params.feature_map) || params.map_parameters != nullptr, op,
              ": map_parameters is null, expected those of fit_feature_map (feature_map ",
              to_string(params.feature_map), " would be fitted to later tokens)");
  FAVOR_CHECK(params.window == state.window && params.window >= 1, op, ": window is ",
              params.window, ", expected the state's ", state.window, ", at least 1");
  FAVOR_CHECK(params.sinks == state.sinks, op, ": sinks is ", params.sinks,
              ", expected the state's ", state.sinks);
  FAVOR_CHECK(params.cu_seqlens_q.empty() && params.cu_seqlens_k.empty(), op,
              ": cu_seqlens are given, expected none (one stream per batch item)");
  const int64_t S = k.sizes[2];
  check_shape(op, "k", k, {state.B, state.H, S, state.D}, "[B, H, S, D] of the state");
  check_shape(op, "v", v, {state.B, state.H, S, state.E}, "[B, H, S, E] of the state");
  check_near_keys(op, state);
  FAVOR_CHECK(state.far.B == state.B && state.far.H == state.H && state.far.E == state.E &&
                  state.far.M == params.num_features,
              op, ": state.far has B, H, M, E = ", state.far.B, ", ", state.far.H, ", ",
              state.far.M, ", ", state.far.E, ", expected ", state.B, ", ", state.H, ", ",
              params.num_features, ", ", state.E);
  check_sizes(op, "state.far", state.far);
}

/// `slots` slots of every head from slot `first` on.
View4<const float> slot_view(const std::vector<float>& data, const HybridState& state,
                             int64_t first, int64_t slots, int64_t width) {
  const int64_t all = state.num_slots();
  return {data.data() + first * width,
          {state.B, state.H, slots, width},
          {state.H * all * width, all * width, width, 1}};
}

/// Parameters without what belongs to the tokens of a call.
AttentionParams<float> far_params(const AttentionParams<float>& params) {
  AttentionParams<float> far = params;
  far.key_padding_mask = nullptr;
  far.key_log_weight = nullptr;
  return far;
}

/// Adds the keys of the slots [first, first + window) to the far state and empties the slots.
void forget_block(const AttentionParams<float>& params, int64_t first, HybridState& state) {
  const int64_t w = state.window, slots = state.num_slots();
  AttentionParams<float> far = far_params(params);
  far.window = far.sinks = 0;
  std::vector<float> weights(static_cast<size_t>(state.B * state.H * w));
  std::vector<uint8_t> mask(static_cast<size_t>(state.B * w), 0);
  bool weighted = false;
  for (int64_t b = 0; b < state.B; ++b) {
    for (int64_t h = 0; h < state.H; ++h) {
      for (int64_t j = 0; j < w; ++j) {
        float& from = state.log_weights[static_cast<size_t>((b * state.H + h) * slots + first + j)];
        weights[static_cast<size_t>((b * state.H + h) * w + j)] = from;
        // A mask is enough, and faster, unless heads differ or weights are neither 0 nor 1.
        weighted = weighted || (from != 0.0f && from != -kInfinity);
        uint8_t& masked = mask[static_cast<size_t>(b * w + j)];
        weighted = weighted || (h > 0 && (masked != 0) != (from == -kInfinity));
        masked = from == -kInfinity;
        from = -kInfinity;
      }
    }
  }
  if (weighted) {
    far.key_log_weight = weights.data();
    far.num_key_log_weights = state.H;
  } else {
    far.key_padding_mask = mask.data();
  }
  const View4<const float> keys = slot_view(state.keys, state, first, w, state.D);
  std::vector<float> unused(static_cast<size_t>(state.B * state.H * w * state.E));
  causal_forward<float>(far, keys, keys, slot_view(state.values, state, first, w, state.E),
                        contiguous_view(unused.data(), state.B, state.H, w, state.E), nullptr,
                        &state.far, &state.far);
}

void absorb(const AttentionParams<float>& params, const View4<const float>& k,
            const View4<const float>& v, HybridState& state) {
  const int64_t S = k.sizes[2], w = state.window, slots = state.num_slots();
  for (int64_t t = 0; t < S; ++t, ++state.position) {
    const int64_t position = state.position;
    const int64_t ring = state.sinks + position % (2 * w);
    if (position % w == 0 && position >= 2 * w) forget_block(params, ring, state);
    const int64_t slot = position < state.sinks ? position : ring;
    for (int64_t b = 0; b < state.B; ++b) {
      const bool masked =
          params.key_padding_mask != nullptr && params.key_padding_mask[b * S + t] != 0;
      for (int64_t h = 0; h < state.H; ++h) {
        const float weight = masked ? -kInfinity : key_log_weight(params, b, h, S, t);
        const int64_t index = (b * state.H + h) * slots + slot;
        state.log_weights[static_cast<size_t>(index)] = weight;
        if (weight == -kInfinity) continue;
        std::copy_n(k.row(b, h, t), state.D, state.keys.data() + index * state.D);
        std::copy_n(v.row(b, h, t), state.E, state.values.data() + index * state.E);
      }
    }
  }
}

/// Joins the far keys' answer to the near keys', both normalised.
void join_far(const AttentionParams<float>& params, const View4<const float>& q,
              const std::vector<float>& near_log2, HybridState& state, const View4<float>& out) {
  const int64_t H = q.sizes[1];
  // A step whose token is masked leaves the sums as they are and answers the query.
  AttentionParams<float> far = far_params(params);
  const std::vector<uint8_t> masked(static_cast<size_t>(state.B), 1);
  far.key_padding_mask = masked.data();
  const View4<const float> key = slot_view(state.keys, state, 0, 1, state.D);
  const View4<const float> value = slot_view(state.values, state, 0, 1, state.E);
  std::vector<float> far_out(static_cast<size_t>(state.B * H * state.E));
  std::vector<float> far_log(static_cast<size_t>(state.B * H));
  const View4<float> far_view = contiguous_view(far_out.data(), state.B, H, 1, state.E);
  answer_from_state(far, q, key, value, state.far, far_view, far_log.data());
  for (int64_t b = 0; b < state.B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      const auto row = static_cast<size_t>(b * H + h);
      if (far_log[row] == -kInfinity) continue;
      const double far_sum = far_log[row];
      const double near_sum = near_log2[row] * std::numbers::ln2;
      const double top = std::max(near_sum, far_sum);
      const double near_weight = std::exp(near_sum - top), far_weight = std::exp(far_sum - top);
      const auto near_share = static_cast<float>(near_weight / (near_weight + far_weight));
      const auto far_share = static_cast<float>(far_weight / (near_weight + far_weight));
      float* to = out.row(b, h, 0);
      for (int64_t e = 0; e < state.E; ++e) {
        to[e] = near_share * to[e] + far_share * far_view.row(b, h, 0)[e];
      }
    }
  }
}

}  // namespace

void check_near_keys(const char* op, const HybridState& state) {
  const auto slots = static_cast<size_t>(state.B * state.H * state.num_slots());
  const auto D = static_cast<size_t>(state.D), E = static_cast<size_t>(state.E);
  FAVOR_CHECK(state.keys.size() == slots * D && state.values.size() == slots * E &&
                  state.log_weights.size() == slots,
              op, ": state has ", state.keys.size(), ", ", state.values.size(), ", ",
              state.log_weights.size(), " elements in keys, values, log_weights, expected ",
              slots * D, ", ", slots * E, ", ", slots);
}

HybridState::HybridState(int64_t batch, int64_t heads, int64_t M, int64_t key_dim,
                         int64_t value_dim, int64_t near_window, int64_t near_sinks)
    : B(batch), H(heads), D(key_dim), E(value_dim), window(near_window), sinks(near_sinks) {
  FAVOR_CHECK(window >= 1, "HybridState: window is ", window, ", expected 1 or more tokens");
  FAVOR_CHECK(B >= 0 && H >= 0 && D >= 0 && sinks >= 0, "HybridState: B, H, D, sinks are ", B, ", ",
              H, ", ", D, ", ", sinks, ", expected no negative size");
  far = DecodeState(B, H, M, E);
  checked_product("HybridState", {2, window});
  checked_product("HybridState", {B, H, num_slots(), std::max<int64_t>({D, E, 1})});
  const auto slots = static_cast<size_t>(B * H * num_slots());
  keys.assign(slots * static_cast<size_t>(D), 0.0f);
  values.assign(slots * static_cast<size_t>(E), 0.0f);
  log_weights.assign(slots, -kInfinity);
}

void hybrid_absorb(const AttentionParams<float>& params, View4<const float> k, View4<const float> v,
                   HybridState& state) {
  const char* op = "hybrid_absorb";
  check(op, params, k, k, v, state);
  absorb(params, k, v, state);
}

void hybrid_decode_step(const AttentionParams<float>& params, View4<const float> q,
                        View4<const float> k, View4<const float> v, HybridState& state,
                        View4<float> out) {
  const char* op = "hybrid_decode_step";
  check(op, params, q, k, v, state);
  FAVOR_CHECK(q.sizes[2] == 1 && k.sizes[2] == 1, op, ": q and k have lengths ", q.sizes[2],
              " and ", k.sizes[2], ", expected 1 and 1");
  check_shape(op, "out", out, {state.B, q.sizes[1], 1, state.E}, "[B, H, 1, E]");
  absorb(params, k, v, state);
  ExactParams<float> near;
  near.scale = params.scale;
  near.key_log_weight = state.log_weights.data();
  near.num_key_log_weights = state.H;
  const int64_t slots = state.num_slots();
  std::vector<float> near_log2(static_cast<size_t>(state.B * q.sizes[1]));
  exact_forward<float>(near, q, slot_view(state.keys, state, 0, slots, state.D),
                       slot_view(state.values, state, 0, slots, state.E), out, near_log2.data());
  if (state.position > 2 * state.window) {
    join_far(params, q, near_log2, state, out);
  }
}

}  // namespace favor
