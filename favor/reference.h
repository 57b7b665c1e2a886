// SPDX-License-Identifier: Apache-2.0
// The algorithm in its plainest form: loops over one token at a time, nothing clever. In double it
// is the truth that every kernel is judged by, and what serves double tensors; in float its error
// is the budget of the kernels. Arguments are taken to be right: attention.h checks them.
//
// Reading order: FeatureMap (reference_map.h) turns a row into features, HeadState
// (reference_state.h) sums keys and answers queries, and the entry points walk over heads and
// segments (reference_pieces.h) and over tokens. Formulas: docs/math.md.
#ifndef FAVOR_REFERENCE_H_
#define FAVOR_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "favor/attention.h"
#include "favor/reference_hybrid.h"
#include "favor/reference_pieces.h"
#include "favor/reference_state.h"
#include "favor/slices.h"

namespace favor::reference {

/// Adds all allowed keys of a piece to `state`.
template <class T>
void absorb_keys(const AttentionParams<T>& params, View4<const T> k, View4<const T> v,
                 const Piece<T>& p, HeadState<T>& state) {
  Features<T> a(p.map.M);
  for (int64_t j = p.k0; j < p.k1; ++j) {
    if (!allowed(params, p.b, p.g, k.sizes[2], j)) continue;
    const T weight = key_log_weight(params, p.b, p.g, k.sizes[2], j);
    p.map.apply(k.row(p.b, p.g, j), Side::kKey, weight, a);
    state.absorb(a, v.row(p.b, p.g, j));
  }
}

template <class T>
void bidirectional_forward(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                           View4<const T> v, View4<T> out, Saved<T>* saved = nullptr) {
  if (params.window > 0) return hybrid_forward(params, false, q, k, v, out, saved);
  const int64_t H = q.sizes[1], L = q.sizes[2];
  for_each_piece(params, q, k, [&](const Piece<T>& p) {
    HeadState<T> state(p.map, v.sizes[3]);
    state.renormalize = params.renormalize;
    Features<T> a(p.map.M);
    std::vector<T> e(p.map.M);
    absorb_keys(params, k, v, p, state);
    for (int64_t h = p.first_head; h < p.last_head; ++h) {
      for (int64_t i = p.q0; i < p.q1; ++i) {
        p.map.apply(q.row(p.b, h, i), Side::kQuery, T{0}, a);
        const T normalizer = answer(state, a, e.data(), out.row(p.b, h, i));
        if (saved != nullptr && saved->normalizer != nullptr) {
          saved->normalizer[(p.b * H + h) * L + i] = normalizer;
        }
      }
    }
  });
}

/// What the backward passes keep for one row at a time.
template <class T>
struct RowGradients {
  Features<T> a;
  std::vector<T> e, slope, dlog, dvalue, row;

  RowGradients(int64_t M, int64_t E) : a(M), e(M), slope(M), dlog(M), dvalue(M), row(E) {}
};

/// dout.out, which renormalisation takes from each gradient of a weight.
template <class T>
T row_delta(const AttentionParams<T>& params, const T* dout, const T* out, int64_t E) {
  return params.renormalize ? inner(dout, out, E) : T{0};
}

/// dk and dv of key j, whose gradients `sums` holds at stabilisers c.
template <class T>
void write_key_gradient(const AttentionParams<T>& params, const Piece<T>& p, View4<const T> k,
                        View4<const T> v, int64_t j, const HeadState<T>& sums, const T* c,
                        RowGradients<T>& row, View4<T> dk, View4<T> dv) {
  const T weight = key_log_weight(params, p.b, p.g, k.sizes[2], j);
  p.map.apply(k.row(p.b, p.g, j), Side::kKey, weight, row.a);
  key_gradient(sums, c, v.row(p.b, p.g, j), row.a, row.dlog.data(), row.dvalue.data(),
               dv.row(p.b, p.g, j));
  p.map.backward(k.row(p.b, p.g, j), Side::kKey, row.dlog.data(), row.dvalue.data(),
                 dk.row(p.b, p.g, j));
}

template <class T>
void bidirectional_backward(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                            View4<const T> v, View4<const T> out, View4<const T> dout,
                            const Saved<T>& /*saved*/, View4<T> dq, View4<T> dk, View4<T> dv) {
  if (params.window > 0) return hybrid_backward(params, false, q, k, v, out, dout, dq, dk, dv);
  const int64_t E = v.sizes[3];
  set_zero(dq);
  set_zero(dk);
  set_zero(dv);
  for_each_piece(params, q, k, [&](const Piece<T>& p) {
    HeadState<T> state(p.map, E), sums(p.map, E);
    state.renormalize = params.renormalize;
    RowGradients<T> row(p.map.M, E);
    absorb_keys(params, k, v, p, state);
    for (int64_t h = p.first_head; h < p.last_head; ++h) {
      for (int64_t i = p.q0; i < p.q1; ++i) {
        const T* g = dout.row(p.b, h, i);
        if (is_zero(g, E)) continue;
        p.map.apply(q.row(p.b, h, i), Side::kQuery, T{0}, row.a);
        const T normalizer = answer(state, row.a, row.e.data(), row.row.data());
        if (!attends(state, normalizer)) continue;
        weights(state, state.c.data(), normalizer, row.a, row.e.data(), row.slope.data());
        const T delta = row_delta(params, g, out.row(p.b, h, i), E);
        query_gradient(state, g, delta, row.e.data(), row.slope.data(), row.dlog.data(),
                       row.dvalue.data());
        p.map.backward(q.row(p.b, h, i), Side::kQuery, row.dlog.data(), row.dvalue.data(),
                       dq.row(p.b, h, i));
        absorb_gradient(sums, g, delta, row.e.data());
      }
    }
    for (int64_t j = p.k0; j < p.k1; ++j) {
      if (!allowed(params, p.b, p.g, k.sizes[2], j)) continue;
      write_key_gradient(params, p, k, v, j, sums, state.c.data(), row, dk, dv);
    }
  });
}

template <class T, class State = DecodeState>
void causal_forward(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                    View4<const T> v, View4<T> out, Saved<T>* saved = nullptr,
                    const State* initial = nullptr, State* final_state = nullptr) {
  if (params.window > 0) return hybrid_forward(params, true, q, k, v, out, saved);
  const int64_t B = q.sizes[0], H = q.sizes[1], L = q.sizes[2];
  const int64_t G = k.sizes[1], S = k.sizes[2], E = v.sizes[3];
  // Apart from *final_state, which may be the same object as *initial.
  State result;
  if (final_state != nullptr) {
    result = State(B, G, has_projection(params) ? params.num_features : q.sizes[3], E);
    result.position = (initial != nullptr ? initial->position : 0) + S;
  }
  for_each_piece(params, q, k, [&](const Piece<T>& p) {
    HeadState<T> state(p.map, E);
    state.renormalize = params.renormalize;
    if (initial != nullptr) load(*initial, p.b * G + p.g, state);
    Features<T> a(p.map.M);
    std::vector<T> e(p.map.M);
    for (int64_t t = 0; t < p.num_queries(); ++t) {
      const int64_t i = p.q0 + t, j = p.k0 + t;
      if (j < p.k1 && allowed(params, p.b, p.g, S, j)) {
        p.map.apply(k.row(p.b, p.g, j), Side::kKey, key_log_weight(params, p.b, p.g, S, j), a);
        state.absorb(a, v.row(p.b, p.g, j));
      }
      for (int64_t h = p.first_head; h < p.last_head; ++h) {
        p.map.apply(q.row(p.b, h, i), Side::kQuery, T{0}, a);
        const T normalizer = answer(state, a, e.data(), out.row(p.b, h, i));
        if (saved != nullptr && saved->normalizer != nullptr) {
          saved->normalizer[(p.b * H + h) * L + i] = normalizer;
        }
      }
    }
    if (final_state != nullptr) store(state, p.b * G + p.g, result);
  });
  if (final_state != nullptr) *final_state = std::move(result);
}

/// Gradients between two states; null pointers leave them out.
template <class T, class State = DecodeState, class Gradient = StateGradient>
void causal_slice_backward(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                           View4<const T> v, View4<const T> out, View4<const T> dout,
                           const State* initial, const Gradient* dfinal, View4<T> dq, View4<T> dk,
                           View4<T> dv, Gradient* dinitial) {
  const int64_t G = k.sizes[1], S = k.sizes[2], E = v.sizes[3];
  set_zero(dq);
  set_zero(dk);
  set_zero(dv);
  for_each_piece(params, q, k, [&](const Piece<T>& p) {
    const int64_t M = p.map.M, steps = p.num_queries(), heads = p.last_head - p.first_head;
    const int64_t index = p.b * G + p.g;
    HeadState<T> state(p.map, E);
    state.renormalize = params.renormalize;
    if (initial != nullptr) load(*initial, index, state);
    const bool continues = !state.empty();
    RowGradients<T> row(M, E);
    std::vector<T> c(steps * M);                // the stabilisers after each token
    std::vector<T> normalizers(steps * heads);  // of each token's rows
    std::vector<bool> asks(steps * heads);      // the row has a gradient and something to attend to
    // First sweep: the state grows as in the forward pass and gives dq.
    for (int64_t t = 0; t < steps; ++t) {
      const int64_t i = p.q0 + t, j = p.k0 + t;
      if (j < p.k1 && allowed(params, p.b, p.g, S, j)) {
        p.map.apply(k.row(p.b, p.g, j), Side::kKey, key_log_weight(params, p.b, p.g, S, j), row.a);
        state.absorb(row.a, v.row(p.b, p.g, j));
      }
      std::copy(state.c.begin(), state.c.end(), c.begin() + t * M);
      for (int64_t h = p.first_head; h < p.last_head; ++h) {
        const int64_t r = t * heads + h - p.first_head;
        const T* g = dout.row(p.b, h, i);
        if (is_zero(g, E)) continue;
        p.map.apply(q.row(p.b, h, i), Side::kQuery, T{0}, row.a);
        normalizers[r] = answer(state, row.a, row.e.data(), row.row.data());
        asks[r] = attends(state, normalizers[r]);
        if (!asks[r]) continue;
        weights(state, state.c.data(), normalizers[r], row.a, row.e.data(), row.slope.data());
        const T delta = row_delta(params, g, out.row(p.b, h, i), E);
        query_gradient(state, g, delta, row.e.data(), row.slope.data(), row.dlog.data(),
                       row.dvalue.data());
        p.map.backward(q.row(p.b, h, i), Side::kQuery, row.dlog.data(), row.dvalue.data(),
                       dq.row(p.b, h, i));
      }
    }
    // Second sweep: the gradients of all later rows, held at the stabilisers of the token at hand.
    // These only fall on the way back, so no factor exceeds 1.
    HeadState<T> sums(p.map, E);
    if (dfinal != nullptr) take_up(*dfinal, index, state, sums);
    for (int64_t t = steps - 1; t >= 0; --t) {
      const int64_t i = p.q0 + t, j = p.k0 + t;
      const T* c_t = c.data() + t * M;
      if (c_t[0] == -std::numeric_limits<T>::infinity()) break;  // no keys so far
      for (int64_t f = 0; t + 1 < steps && f < M; ++f)
        sums.rescale(f, std::exp(c_t[f] - c_t[M + f]));
      for (int64_t h = p.first_head; h < p.last_head; ++h) {
        const int64_t r = t * heads + h - p.first_head;
        if (!asks[r]) continue;
        const T* g = dout.row(p.b, h, i);
        p.map.apply(q.row(p.b, h, i), Side::kQuery, T{0}, row.a);
        weights(state, c_t, normalizers[r], row.a, row.e.data(), row.slope.data());
        absorb_gradient(sums, g, row_delta(params, g, out.row(p.b, h, i), E), row.e.data());
      }
      if (j < p.k1 && allowed(params, p.b, p.g, S, j)) {
        write_key_gradient(params, p, k, v, j, sums, c_t, row, dk, dv);
      }
    }
    if (dinitial == nullptr || !continues) return;
    leave(sums, steps > 0 ? c.data() : state.c.data(), index, *dinitial);
  });
}

template <class T>
void causal_backward(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                     View4<const T> v, View4<const T> out, View4<const T> dout,
                     const Saved<T>& /*saved*/, View4<T> dq, View4<T> dk, View4<T> dv) {
  if (params.window > 0) return hybrid_backward(params, true, q, k, v, out, dout, dq, dk, dv);
  causal_slice_backward<T, DecodeState, StateGradient>(params, q, k, v, out, dout, nullptr, nullptr,
                                                       dq, dk, dv, nullptr);
}

template <class T, class State = DecodeState>
void decode_step(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                 View4<const T> v, State& state, View4<T> out) {
  State next;
  causal_forward<T, State>(params, q, k, v, out, nullptr, &state, &next);
  state = std::move(next);
}

}  // namespace favor::reference

#endif  // FAVOR_REFERENCE_H_
