// SPDX-License-Identifier: Apache-2.0
// The algorithm in its plainest form: loops over one token at a time, nothing clever. In double it
// is the truth that every kernel is judged by, and what serves double tensors; in float its error
// is the budget of the kernels. Arguments are taken to be right: attention.h checks them.
//
// Reading order: FeatureMap (reference_map.h) turns a row into features, HeadState sums keys and
// answers queries, and the entry points walk over heads and segments (reference_pieces.h) and over
// tokens. Formulas: docs/math.md.
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

namespace favor::reference {

/// The keys of one head seen so far: S_f = sum_j p_jf v_j and z_f = sum_j p_jf, where p_jf is
/// phi_f(k_j) exp(-c_f) and c_f the largest logarithm of feature f so far, -inf before the first
/// key.
template <class T>
struct HeadState {
  bool log_linear;
  bool renormalize = true;
  int64_t M, E;
  std::vector<T> c, S, z;

  HeadState(const FeatureMap<T>& map, int64_t value_dim)
      : log_linear(map.log_linear), M(map.M), E(value_dim), c(M), S(M * E), z(M) {
    clear();
  }

  void clear() {
    std::fill(c.begin(), c.end(), -std::numeric_limits<T>::infinity());
    std::fill(S.begin(), S.end(), T{0});
    std::fill(z.begin(), z.end(), T{0});
  }

  bool empty() const { return c[0] == -std::numeric_limits<T>::infinity(); }

  /// Adds the key with features `a` and value v[E].
  void absorb(const Features<T>& a, const T* v) {
    for (int64_t f = 0; f < M; ++f) {
      const T c_new = std::max(c[f], a.log[f]);
      rescale(f, std::exp(c[f] - c_new));
      c[f] = c_new;
      const T p = a.value[f] * std::exp(a.log[f] - c_new);
      z[f] += p;
      for (int64_t i = 0; i < E; ++i) S[f * E + i] += p * v[i];
    }
  }

  /// Multiplies the sums of feature f.
  void rescale(int64_t f, T factor) {
    z[f] *= factor;
    for (int64_t i = 0; i < E; ++i) S[f * E + i] *= factor;
  }
};

/// Writes the output row of a query with features b; e[M] is scratch. Returns its normalizer: the
/// logarithm of the denominator sum_f phi_f exp(c_f) z_f of log-linear maps, -inf without keys; the
/// denominator of the others relative to the stabilisers of query and keys, 0 without keys. Without
/// renormalisation the denominator is 1, and the others keep 1.
template <class T>
T answer(const HeadState<T>& state, const Features<T>& b, T* e, T* out) {
  const T none = -std::numeric_limits<T>::infinity();
  std::fill(out, out + state.E, T{0});
  if (state.empty()) return state.log_linear ? none : T{0};
  T r = none;  // the largest exponent
  for (int64_t f = 0; f < state.M; ++f) r = std::max(r, b.log[f] + state.c[f]);
  T denominator = 0;
  for (int64_t f = 0; f < state.M; ++f) {
    e[f] = b.value[f] * std::exp(b.log[f] + state.c[f] - r);
    denominator += e[f] * state.z[f];
    for (int64_t i = 0; i < state.E; ++i) out[i] += e[f] * state.S[f * state.E + i];
  }
  if (!state.renormalize) {
    for (int64_t i = 0; i < state.E; ++i) out[i] *= std::exp(r);
    return state.log_linear ? T{0} : T{1};
  }
  for (int64_t i = 0; i < state.E; ++i) out[i] = denominator == 0 ? T{0} : out[i] / denominator;
  return state.log_linear ? r + std::log(denominator) : denominator;
}

/// Weights of the features of a query, divided by its denominator: the output is sum_f e_f S_f with
/// e_f = value_f slope_f. c: the state's stabilisers.
template <class T>
void weights(const HeadState<T>& state, const T* c, T normalizer, const Features<T>& b, T* e,
             T* slope) {
  for (int64_t f = 0; f < state.M; ++f) {
    if (state.log_linear) {
      slope[f] = std::exp(b.log[f] + c[f] - normalizer);
    } else {
      slope[f] = state.renormalize ? 1 / normalizer : std::exp(b.log[f] + c[f]);
    }
    e[f] = b.value[f] * slope[f];
  }
}

/// Whether a row with this normalizer had anything to attend to.
template <class T>
bool attends(const HeadState<T>& state, T normalizer) {
  return state.log_linear ? normalizer != -std::numeric_limits<T>::infinity() : normalizer != 0;
}

/// Gradients of the query's features: slope_f (dout.S_f - delta z_f) of the values, times the value
/// of the logarithms. delta = dout.out; 0 without renormalisation.
template <class T>
void query_gradient(const HeadState<T>& state, const T* dout, T delta, const T* e, const T* slope,
                    T* dlog, T* dvalue) {
  for (int64_t f = 0; f < state.M; ++f) {
    const T gradient = inner(dout, &state.S[f * state.E], state.E) - delta * state.z[f];
    dlog[f] = e[f] * gradient;
    dvalue[f] = slope[f] * gradient;
  }
}

/// Adds a row to the gradients dS_f += e_f dout and dz_f -= e_f delta, which `sums` holds in S, z.
template <class T>
void absorb_gradient(HeadState<T>& sums, const T* dout, T delta, const T* e) {
  for (int64_t f = 0; f < sums.M; ++f) {
    sums.z[f] -= e[f] * delta;
    for (int64_t i = 0; i < sums.E; ++i) sums.S[f * sums.E + i] += e[f] * dout[i];
  }
}

/// Gradients of a key's features and of its value: those of the logarithms are p_f (dS_f.v + dz_f),
/// dv = sum_f p_f dS_f. c is the stabiliser that `sums` is held at.
template <class T>
void key_gradient(const HeadState<T>& sums, const T* c, const T* v, const Features<T>& a, T* dlog,
                  T* dvalue, T* dv) {
  std::fill(dv, dv + sums.E, T{0});
  for (int64_t f = 0; f < sums.M; ++f) {
    const T* dS = &sums.S[f * sums.E];
    const T slope = std::exp(a.log[f] - c[f]);
    const T gradient = inner(dS, v, sums.E) + sums.z[f];
    dvalue[f] = slope * gradient;
    dlog[f] = a.value[f] * dvalue[f];
    for (int64_t i = 0; i < sums.E; ++i) dv[i] += a.value[f] * slope * dS[i];
  }
}

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

/// DecodeState in any precision.
template <class T>
struct BasicDecodeState {
  int64_t B = 0, H = 0, M = 0, E = 0;
  int64_t position = 0;
  std::vector<T> c, S, z;

  BasicDecodeState() = default;
  BasicDecodeState(int64_t b, int64_t h, int64_t m, int64_t e)
      : B(b), H(h), M(m), E(e), c(b * h * m), S(b * h * m * e), z(b * h * m) {}
};

/// Copies head `index` = b * H + h of a DecodeState.
template <class T, class State>
void load(const State& from, int64_t index, HeadState<T>& to) {
  const T none = -std::numeric_limits<T>::infinity();
  const int64_t M = to.M, ME = to.M * to.E;
  std::copy_n(from.c.begin() + index * M, M, to.c.begin());
  std::copy_n(from.S.begin() + index * ME, ME, to.S.begin());
  std::copy_n(from.z.begin() + index * M, M, to.z.begin());
  if (!to.log_linear && is_zero(to.S.data(), ME) && is_zero(to.z.data(), M)) to.clear();
  for (int64_t f = 0; to.log_linear && f < M; ++f) {
    if (to.z[f] == 0) to.c[f] = none;
  }
}

template <class T, class State>
void store(const HeadState<T>& from, int64_t index, State& to) {
  using U = typename decltype(to.c)::value_type;
  const auto convert = [](T x) { return static_cast<U>(x); };
  const int64_t M = from.M, ME = from.M * from.E;
  std::transform(from.S.begin(), from.S.end(), to.S.begin() + index * ME, convert);
  std::transform(from.z.begin(), from.z.end(), to.z.begin() + index * M, convert);
  for (int64_t f = 0; f < M; ++f) {
    to.c[index * M + f] = from.empty() ? U{0} : static_cast<U>(from.c[f]);
  }
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

template <class T>
void causal_backward(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                     View4<const T> v, View4<const T> out, View4<const T> dout,
                     const Saved<T>& /*saved*/, View4<T> dq, View4<T> dk, View4<T> dv) {
  if (params.window > 0) return hybrid_backward(params, true, q, k, v, out, dout, dq, dk, dv);
  const int64_t S = k.sizes[2], E = v.sizes[3];
  set_zero(dq);
  set_zero(dk);
  set_zero(dv);
  for_each_piece(params, q, k, [&](const Piece<T>& p) {
    const int64_t M = p.map.M, steps = p.num_queries(), heads = p.last_head - p.first_head;
    HeadState<T> state(p.map, E);
    state.renormalize = params.renormalize;
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
  });
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
