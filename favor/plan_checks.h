// SPDX-License-Identifier: Apache-2.0
// Internal: the argument checks that all operations share. Each throws favor::Error.
#ifndef FAVOR_PLAN_CHECKS_H_
#define FAVOR_PLAN_CHECKS_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "favor/check.h"
#include "favor/isa.h"
#include "favor/parallel.h"
#include "favor/plan.h"
#include "favor/tensor_view.h"

namespace favor {

/// The product of sizes, which are not negative. Throws if it overflows.
inline int64_t checked_product(const char* op, std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) {
    FAVOR_CHECK(!__builtin_mul_overflow(product, size, &product), op,
                ": the product of the sizes overflows 64 bits, expected less than 2^63 elements");
  }
  return product;
}

template <class T>
void check_view(const char* op, const char* name, const View4<T>& view) {
  for (int64_t size : view.sizes) {
    FAVOR_CHECK(size >= 0, op, ": ", name, " has shape ", shape_string(view),
                ", expected no negative size");
  }
  FAVOR_CHECK(view.strides[3] == 1 || view.sizes[3] <= 1, op, ": ", name, " has stride ",
              view.strides[3], " in its last dimension, expected 1 (contiguous)");
  const bool empty = view.sizes[0] == 0 || view.sizes[1] == 0 || view.sizes[2] == 0;
  FAVOR_CHECK(view.data != nullptr || empty, op, ": ", name,
              " is a null pointer, expected data of shape ", shape_string(view));
}

template <class T>
void check_shape(const char* op, const char* name, const View4<T>& view,
                 std::array<int64_t, 4> expected, const char* why) {
  View4<const T> wanted{nullptr, expected, {}};
  FAVOR_CHECK(view.sizes == expected, op, ": ", name, " has shape ", shape_string(view),
              ", expected ", shape_string(wanted), " (", why, ")");
  check_view(op, name, view);
}

inline void check_offsets(const char* op, const char* name, std::span<const int64_t> offsets,
                          int64_t length) {
  FAVOR_CHECK(offsets.size() >= 2, op, ": ", name, " has ", offsets.size(),
              " offsets, expected at least 2 (the first is 0, the last the length)");
  FAVOR_CHECK(offsets.front() == 0, op, ": ", name, "[0] is ", offsets.front(), ", expected 0");
  FAVOR_CHECK(offsets.back() == length, op, ": the last offset of ", name, " is ", offsets.back(),
              ", expected ", length, " (the length)");
  for (size_t i = 1; i < offsets.size(); ++i) {
    FAVOR_CHECK(offsets[i - 1] <= offsets[i], op, ": ", name, "[", i, "] is ", offsets[i],
                ", expected at least ", offsets[i - 1], " (offsets ascend)");
  }
}

/// The segments that params.cu_seqlens_q and params.cu_seqlens_k cut the sequences into.
template <class Params>
std::vector<Segment> make_segments(const char* op, const Params& params, int64_t L, int64_t S) {
  const auto& cq = params.cu_seqlens_q;
  const auto& ck = params.cu_seqlens_k;
  FAVOR_CHECK(cq.empty() == ck.empty(), op, ": cu_seqlens_", cq.empty() ? "q" : "k",
              " is missing, expected both cu_seqlens_q and cu_seqlens_k or neither");
  if (cq.empty()) {
    return {{0, L, 0, S}};
  }
  FAVOR_CHECK(cq.size() == ck.size(), op, ": cu_seqlens_k has ", ck.size(), " offsets, expected ",
              cq.size(), " (as cu_seqlens_q)");
  check_offsets(op, "cu_seqlens_q", cq, L);
  check_offsets(op, "cu_seqlens_k", ck, S);
  std::vector<Segment> segments;
  for (size_t i = 1; i < cq.size(); ++i) {
    segments.push_back({cq[i - 1], cq[i], ck[i - 1], ck[i]});
  }
  return segments;
}

/// q [B, H, L, D], k [B, G, S, D] and v [B, G, S, E] with G a divisor of H.
template <class T>
void check_inputs(const char* op, const View4<const T>& q, const View4<const T>& k,
                  const View4<const T>& v) {
  const int64_t B = q.sizes[0], H = q.sizes[1], D = q.sizes[3], G = k.sizes[1], S = k.sizes[2];
  check_view(op, "q", q);
  FAVOR_CHECK(D >= 1, op, ": q has shape ", shape_string(q), ", expected a head dim D >= 1");
  FAVOR_CHECK(G == H || (G > 0 && H % G == 0), op, ": k has shape ", shape_string(k),
              ", expected a number of heads that divides q's ", H);
  check_shape(op, "k", k, {B, G, S, D}, "same B and D as q");
  FAVOR_CHECK(v.sizes[3] >= 1, op, ": v has shape ", shape_string(v),
              ", expected a value dim E >= 1");
  check_shape(op, "v", v, {B, G, S, v.sizes[3]}, "same B, heads and S as k");
}

/// params.key_log_weight, if given: [B, 1 or G, S], no element is NaN or +inf.
template <class Params>
void check_key_log_weight(const char* op, const Params& params, int64_t B, int64_t G, int64_t S) {
  if (params.key_log_weight == nullptr) {
    return;
  }
  using T = std::remove_cvref_t<decltype(*params.key_log_weight)>;
  FAVOR_CHECK(params.num_key_log_weights == 1 || params.num_key_log_weights == G, op,
              ": num_key_log_weights is ", params.num_key_log_weights, ", expected 1 or ", G,
              " (key heads)");
  const int64_t count = B * params.num_key_log_weights * S;
  for (int64_t i = 0; i < count; ++i) {
    FAVOR_CHECK(params.key_log_weight[i] < std::numeric_limits<T>::infinity(), op,
                ": key_log_weight has the element ", params.key_log_weight[i],
                ", expected finite numbers or -inf");
  }
}

/// Checks the tensors of a call and enters their sizes.
template <class T>
void enter_tensors(const char* op, const View4<const T>& q, const View4<const T>& k,
                   const View4<const T>& v, AttentionCall<Compute<T>>& call) {
  apply_isa_limit();
  check_inputs(op, q, k, v);
  call.B = q.sizes[0];
  call.H = q.sizes[1];
  call.L = q.sizes[2];
  call.D = q.sizes[3];
  call.G = k.sizes[1];
  call.S = k.sizes[2];
  call.E = v.sizes[3];
  call.q = q;
  call.k = k;
  call.v = v;
}

template <class Params, class T>
void enter_scale(const char* op, const Params& params, AttentionCall<T>& call) {
  call.scale = resolve_scale(params, call.D);
  FAVOR_CHECK(std::isfinite(call.scale) && call.scale > 0, op, ": scale is ", call.scale,
              ", expected a finite number above 0");
}

/// Checks and enters which keys a call's queries see. `without_window` says what becomes of keys
/// where there is no window.
template <class Params, class T>
void enter_keys(const char* op, const Params& params, const char* without_window,
                AttentionCall<T>& call) {
  num_threads();  // a wrong FAVOR_NUM_THREADS is reported before any work
  check_key_log_weight(op, params, call.B, call.G, call.S);
  FAVOR_CHECK(params.window >= 0, op, ": window is ", params.window, ", expected 0 or more tokens");
  FAVOR_CHECK(params.sinks >= 0, op, ": sinks is ", params.sinks, ", expected 0 or more tokens");
  FAVOR_CHECK(params.window > 0 || params.sinks == 0, op, ": sinks is ", params.sinks,
              ", expected 0 (without a window every key ", without_window, ")");
  call.key_padding_mask = params.key_padding_mask;
  call.key_log_weight = params.key_log_weight;
  call.num_key_log_weights = params.num_key_log_weights;
  call.window = params.window;
  call.sinks = params.sinks;
  call.segments = make_segments(op, params, call.L, call.S);
}

/// Checks what a backward pass is given beside the call.
template <class T>
void check_gradients(const char* op, const AttentionCall<Compute<T>>& call,
                     const View4<const T>& out, const View4<const T>& dout, const View4<T>& dq,
                     const View4<T>& dk, const View4<T>& dv) {
  check_shape(op, "out", out, {call.B, call.H, call.L, call.E}, "[B, H, L, E]");
  check_shape(op, "dout", dout, {call.B, call.H, call.L, call.E}, "as out");
  check_shape(op, "dq", dq, {call.B, call.H, call.L, call.D}, "as q");
  check_shape(op, "dk", dk, {call.B, call.G, call.S, call.D}, "as k");
  check_shape(op, "dv", dv, {call.B, call.G, call.S, call.E}, "as v");
}

}  // namespace favor

#endif  // FAVOR_PLAN_CHECKS_H_
