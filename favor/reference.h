// SPDX-License-Identifier: Apache-2.0
// The algorithm in its plainest form: loops over one token at a time, nothing clever. In double it
// is the truth that every kernel is judged by, and what serves double tensors; in float its error
// is the budget of the kernels. Arguments are taken to be right: attention.h checks them.
//
// Reading order: FeatureMap turns a row into features, HeadState sums keys and answers queries, and
// the entry points below walk over heads, segments and tokens. Formulas: docs/math.md.
#ifndef FAVOR_REFERENCE_H_
#define FAVOR_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "favor/attention.h"

namespace favor::reference {

enum class Side { kQuery, kKey };

/// Features of one row and their derivative. Positive features are kept as logarithms a_f.
template <class T>
struct FeatureMap {
  const T* w;  // [M, D], or null: the features are those of x itself
  int64_t M, D;
  T root_scale, eps;
  bool positive;

  FeatureMap(const AttentionParams<T>& params, int64_t head, int64_t head_dim)
      : w(params.projection),
        M(params.projection == nullptr ? head_dim : params.num_features),
        D(head_dim),
        root_scale(static_cast<T>(std::sqrt(resolve_scale(params, head_dim)))),
        eps(static_cast<T>(resolve_feature_eps(params))),
        positive(params.feature_map == FeatureMapKind::kPositive) {
    if (w != nullptr && params.num_projections > 1) w += head * M * D;
  }

  /// Positive: a_f = w_f.x - |x|^2 / 2 with x = root_scale * row; a query leaves |x|^2 out, because
  /// it cancels between numerator and denominator. Relu: relu(w_f.x) + eps.
  void apply(const T* row, Side side, T* a) const {
    T half_square = 0;
    for (int64_t i = 0; i < D; ++i) half_square += root_scale * row[i] * root_scale * row[i] / 2;
    for (int64_t f = 0; f < M; ++f) {
      const T u = project(row, f);
      if (!positive) {
        a[f] = std::max(u, T{0}) + eps;
      } else {
        a[f] = side == Side::kKey ? u - half_square : u;
      }
    }
  }

  /// The gradient of `row` from that of its features, da_f, or dphi_f for relu: W^T da, and under
  /// the positive map less x sum_f da_f for a key.
  void backward(const T* row, Side side, const T* da, T* drow) const {
    std::fill(drow, drow + D, T{0});
    T total = 0;
    for (int64_t f = 0; f < M; ++f) {
      if (!positive && !(project(row, f) > 0)) continue;
      total += da[f];
      if (w == nullptr) drow[f] += da[f];
      for (int64_t i = 0; w != nullptr && i < D; ++i) drow[i] += da[f] * w[f * D + i];
    }
    for (int64_t i = 0; i < D; ++i) {
      if (positive && side == Side::kKey) drow[i] -= total * (root_scale * row[i]);
      drow[i] *= root_scale;
    }
  }

 private:
  T project(const T* row, int64_t f) const {
    if (w == nullptr) return root_scale * row[f];
    T u = 0;
    for (int64_t i = 0; i < D; ++i) u += w[f * D + i] * (root_scale * row[i]);
    return u;
  }
};

/// The keys of one head seen so far: S_f = sum_j p_jf v_j and z_f = sum_j p_jf, where p_jf is
/// exp(a_jf - c_f) under the positive map, with c_f the largest a_jf so far (-inf before the first
/// key), and phi_jf under relu, with c = 0.
template <class T>
struct HeadState {
  bool positive;
  int64_t M, E;
  std::vector<T> c, S, z;

  HeadState(const FeatureMap<T>& map, int64_t value_dim)
      : positive(map.positive), M(map.M), E(value_dim), c(M), S(M * E), z(M) {
    clear();
  }

  void clear() {
    std::fill(c.begin(), c.end(), positive ? -std::numeric_limits<T>::infinity() : T{0});
    std::fill(S.begin(), S.end(), T{0});
    std::fill(z.begin(), z.end(), T{0});
  }

  /// Adds the key with features a[M] and value v[E].
  void absorb(const T* a, const T* v) {
    for (int64_t f = 0; f < M; ++f) {
      T p = a[f];
      if (positive) {
        const T c_new = std::max(c[f], a[f]);
        rescale(f, std::exp(c[f] - c_new));
        c[f] = c_new;
        p = std::exp(a[f] - c_new);
      }
      z[f] += p;
      for (int64_t i = 0; i < E; ++i) S[f * E + i] += p * v[i];
    }
  }

  /// Multiplies the sums of feature f.
  void rescale(int64_t f, T factor) {
    z[f] *= factor;
    for (int64_t i = 0; i < E; ++i) S[f * E + i] *= factor;
  }

  /// Weights e_f of the features for a query with features b[M]: exp(b_f + c_f - r) with r the
  /// largest exponent, or b itself under relu, with r = 0. Returns r; -inf if no key has been seen.
  T weights(const T* b, T* e) const {
    if (!positive) {
      std::copy(b, b + M, e);
      return 0;
    }
    const T none = -std::numeric_limits<T>::infinity();
    T r = none;
    for (int64_t f = 0; f < M; ++f) r = std::max(r, b[f] + c[f]);
    for (int64_t f = 0; f < M; ++f) e[f] = c[f] == none ? T{0} : std::exp(b[f] + c[f] - r);
    return r;
  }

  /// sum_f e_f z_f: at least 1 under the positive map once a key has been seen; 0 means that the
  /// row has nothing to attend to.
  T denominator(const T* e) const {
    T sum = 0;
    for (int64_t f = 0; f < M; ++f) sum += e[f] * z[f];
    return sum;
  }

  void numerator(const T* e, T* n) const {
    std::fill(n, n + E, T{0});
    for (int64_t f = 0; f < M; ++f) {
      for (int64_t i = 0; i < E; ++i) n[i] += e[f] * S[f * E + i];
    }
  }
};

/// Writes the output row of a query with features b. Returns its normalizer: the denominator, under
/// the positive map as a logarithm and without the query's own |x|^2 / 2.
template <class T>
T answer(const HeadState<T>& state, const T* b, T* e, T* out) {
  const T r = state.weights(b, e);
  const T denominator = state.denominator(e);
  state.numerator(e, out);
  for (int64_t i = 0; i < state.E; ++i) out[i] = denominator == 0 ? T{0} : out[i] / denominator;
  return state.positive ? r + std::log(denominator) : denominator;
}

/// Replaces the features b of a query by its weights divided by the denominator, so that the
/// output is sum_f e_f S_f.
template <class T>
void normalize(const HeadState<T>& state, const T* c, T normalizer, T* b) {
  for (int64_t f = 0; f < state.M; ++f) {
    b[f] = state.positive ? std::exp(b[f] + c[f] - normalizer) : b[f] / normalizer;
  }
}

/// Whether a row with this normalizer had anything to attend to.
template <class T>
bool attends(const HeadState<T>& state, T normalizer) {
  return state.positive ? normalizer != -std::numeric_limits<T>::infinity() : normalizer != 0;
}

template <class T>
T inner(const T* a, const T* b, int64_t n) {
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// Gradient of the query's features, e_f (dout.S_f - delta z_f) with delta = dout.out; under relu
/// the factor is 1 / denominator instead of e_f.
template <class T>
void query_gradient(const HeadState<T>& state, const T* dout, T delta, T normalizer, const T* e,
                    T* db) {
  for (int64_t f = 0; f < state.M; ++f) {
    const T slope = inner(dout, &state.S[f * state.E], state.E) - delta * state.z[f];
    db[f] = state.positive ? e[f] * slope : slope / normalizer;
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

/// Gradients of a key and its value: da_f = p_f (dS_f.v + dz_f), without p_f under relu, and
/// dv = sum_f p_f dS_f. `a` holds the key's features and becomes their gradient; c is the
/// stabiliser that `sums` is held at.
template <class T>
void key_gradient(const HeadState<T>& sums, const T* c, const T* v, T* a, T* dv) {
  std::fill(dv, dv + sums.E, T{0});
  for (int64_t f = 0; f < sums.M; ++f) {
    const T* dS = &sums.S[f * sums.E];
    const T p = sums.positive ? std::exp(a[f] - c[f]) : a[f];
    a[f] = inner(dS, v, sums.E) + sums.z[f];
    if (sums.positive) a[f] *= p;
    for (int64_t i = 0; i < sums.E; ++i) dv[i] += p * dS[i];
  }
}

/// Rows [q0, q1) attend to keys [k0, k1).
struct Segment {
  int64_t q0, q1, k0, k1;
};

template <class T>
std::vector<Segment> segments(const AttentionParams<T>& params, int64_t L, int64_t S) {
  if (params.cu_seqlens_q.empty()) return {{0, L, 0, S}};
  std::vector<Segment> result;
  for (size_t n = 0; n + 1 < params.cu_seqlens_q.size(); ++n) {
    result.push_back({params.cu_seqlens_q[n], params.cu_seqlens_q[n + 1], params.cu_seqlens_k[n],
                      params.cu_seqlens_k[n + 1]});
  }
  return result;
}

template <class T>
bool allowed(const AttentionParams<T>& params, int64_t b, int64_t S, int64_t j) {
  return params.key_padding_mask == nullptr || params.key_padding_mask[b * S + j] == 0;
}

template <class T>
bool is_zero(const T* row, int64_t n) {
  return std::all_of(row, row + n, [](T x) { return x == 0; });
}

template <class T>
void set_zero(View4<T> view) {
  for (int64_t b = 0; b < view.sizes[0]; ++b) {
    for (int64_t h = 0; h < view.sizes[1]; ++h) {
      for (int64_t l = 0; l < view.sizes[2]; ++l) {
        std::fill_n(view.row(b, h, l), view.sizes[3], T{0});
      }
    }
  }
}

/// Calls body(b, h, segment) for every independent piece of work.
template <class T, class Body>
void for_each_piece(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                    const Body& body) {
  for (int64_t b = 0; b < q.sizes[0]; ++b) {
    for (int64_t h = 0; h < q.sizes[1]; ++h) {
      for (const Segment& s : segments(params, q.sizes[2], k.sizes[2])) body(b, h, s);
    }
  }
}

template <class T>
void bidirectional_forward(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                           View4<const T> v, View4<T> out, Saved<T>* saved = nullptr) {
  const int64_t H = q.sizes[1], L = q.sizes[2], S = k.sizes[2];
  for_each_piece(params, q, k, [&](int64_t b, int64_t h, Segment segment) {
    const FeatureMap<T> map(params, h, q.sizes[3]);
    HeadState<T> state(map, v.sizes[3]);
    std::vector<T> a(map.M), e(map.M);
    for (int64_t j = segment.k0; j < segment.k1; ++j) {
      if (!allowed(params, b, S, j)) continue;
      map.apply(k.row(b, h, j), Side::kKey, a.data());
      state.absorb(a.data(), v.row(b, h, j));
    }
    for (int64_t i = segment.q0; i < segment.q1; ++i) {
      map.apply(q.row(b, h, i), Side::kQuery, a.data());
      const T normalizer = answer(state, a.data(), e.data(), out.row(b, h, i));
      if (saved != nullptr && saved->normalizer != nullptr) {
        saved->normalizer[(b * H + h) * L + i] = normalizer;
      }
    }
  });
}

template <class T>
void bidirectional_backward(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                            View4<const T> v, View4<const T> out, View4<const T> dout,
                            const Saved<T>& /*saved*/, View4<T> dq, View4<T> dk, View4<T> dv) {
  const int64_t S = k.sizes[2], E = v.sizes[3];
  set_zero(dq);
  set_zero(dk);
  set_zero(dv);
  for_each_piece(params, q, k, [&](int64_t b, int64_t h, Segment segment) {
    const FeatureMap<T> map(params, h, q.sizes[3]);
    HeadState<T> state(map, E), sums(map, E);
    std::vector<T> a(map.M), e(map.M), da(map.M);
    for (int64_t j = segment.k0; j < segment.k1; ++j) {
      if (!allowed(params, b, S, j)) continue;
      map.apply(k.row(b, h, j), Side::kKey, a.data());
      state.absorb(a.data(), v.row(b, h, j));
    }
    std::vector<T> row(E);
    for (int64_t i = segment.q0; i < segment.q1; ++i) {
      const T* g = dout.row(b, h, i);
      if (is_zero(g, E)) continue;
      map.apply(q.row(b, h, i), Side::kQuery, a.data());
      const T normalizer = answer(state, a.data(), e.data(), row.data());
      if (!attends(state, normalizer)) continue;
      normalize(state, state.c.data(), normalizer, a.data());
      const T delta = inner(g, out.row(b, h, i), E);
      query_gradient(state, g, delta, normalizer, a.data(), da.data());
      map.backward(q.row(b, h, i), Side::kQuery, da.data(), dq.row(b, h, i));
      absorb_gradient(sums, g, delta, a.data());
    }
    for (int64_t j = segment.k0; j < segment.k1; ++j) {
      if (!allowed(params, b, S, j)) continue;
      map.apply(k.row(b, h, j), Side::kKey, a.data());
      key_gradient(sums, state.c.data(), v.row(b, h, j), a.data(), dv.row(b, h, j));
      map.backward(k.row(b, h, j), Side::kKey, a.data(), dk.row(b, h, j));
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

/// Copies head `index` = b * H + h of a DecodeState. There z = 0 marks an unseen feature.
template <class T, class State>
void load(const State& from, int64_t index, HeadState<T>& to) {
  const int64_t M = to.M, ME = to.M * to.E;
  std::copy_n(from.c.begin() + index * M, M, to.c.begin());
  std::copy_n(from.S.begin() + index * ME, ME, to.S.begin());
  std::copy_n(from.z.begin() + index * M, M, to.z.begin());
  for (int64_t f = 0; f < M; ++f) {
    if (to.positive && to.z[f] == 0) to.c[f] = -std::numeric_limits<T>::infinity();
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
    to.c[index * M + f] = from.z[f] == 0 ? U{0} : static_cast<U>(from.c[f]);
  }
}

template <class T, class State = DecodeState>
void causal_forward(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                    View4<const T> v, View4<T> out, Saved<T>* saved = nullptr,
                    const State* initial = nullptr, State* final_state = nullptr) {
  const int64_t B = q.sizes[0], H = q.sizes[1], L = q.sizes[2], S = k.sizes[2], E = v.sizes[3];
  // Apart from *final_state, which may be the same object as *initial.
  State result;
  if (final_state != nullptr) {
    result = State(B, H, FeatureMap<T>(params, 0, q.sizes[3]).M, E);
    result.position = (initial != nullptr ? initial->position : 0) + S;
  }
  for_each_piece(params, q, k, [&](int64_t b, int64_t h, Segment segment) {
    const FeatureMap<T> map(params, h, q.sizes[3]);
    HeadState<T> state(map, E);
    if (initial != nullptr) load(*initial, b * H + h, state);
    std::vector<T> a(map.M), e(map.M);
    for (int64_t t = 0; t < segment.q1 - segment.q0; ++t) {
      const int64_t i = segment.q0 + t, j = segment.k0 + t;
      if (j < segment.k1 && allowed(params, b, S, j)) {
        map.apply(k.row(b, h, j), Side::kKey, a.data());
        state.absorb(a.data(), v.row(b, h, j));
      }
      map.apply(q.row(b, h, i), Side::kQuery, a.data());
      const T normalizer = answer(state, a.data(), e.data(), out.row(b, h, i));
      if (saved != nullptr && saved->normalizer != nullptr) {
        saved->normalizer[(b * H + h) * L + i] = normalizer;
      }
    }
    if (final_state != nullptr) store(state, b * H + h, result);
  });
  if (final_state != nullptr) *final_state = std::move(result);
}

template <class T>
void causal_backward(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                     View4<const T> v, View4<const T> out, View4<const T> dout,
                     const Saved<T>& /*saved*/, View4<T> dq, View4<T> dk, View4<T> dv) {
  const int64_t S = k.sizes[2], E = v.sizes[3];
  set_zero(dq);
  set_zero(dk);
  set_zero(dv);
  for_each_piece(params, q, k, [&](int64_t b, int64_t h, Segment segment) {
    const FeatureMap<T> map(params, h, q.sizes[3]);
    const int64_t M = map.M, steps = segment.q1 - segment.q0;
    HeadState<T> state(map, E);
    std::vector<T> a(M), e(M), da(M), row(E);
    std::vector<T> c(steps * M);  // the stabilisers after each token
    std::vector<T> normalizers(steps);
    std::vector<bool> asks(steps);  // the row has a gradient and something to attend to
    // First sweep: the state grows as in the forward pass and gives dq.
    for (int64_t t = 0; t < steps; ++t) {
      const int64_t i = segment.q0 + t, j = segment.k0 + t;
      if (j < segment.k1 && allowed(params, b, S, j)) {
        map.apply(k.row(b, h, j), Side::kKey, a.data());
        state.absorb(a.data(), v.row(b, h, j));
      }
      std::copy(state.c.begin(), state.c.end(), c.begin() + t * M);
      const T* g = dout.row(b, h, i);
      if (is_zero(g, E)) continue;
      map.apply(q.row(b, h, i), Side::kQuery, a.data());
      normalizers[t] = answer(state, a.data(), e.data(), row.data());
      asks[t] = attends(state, normalizers[t]);
      if (!asks[t]) continue;
      normalize(state, state.c.data(), normalizers[t], a.data());
      query_gradient(state, g, inner(g, out.row(b, h, i), E), normalizers[t], a.data(), da.data());
      map.backward(q.row(b, h, i), Side::kQuery, da.data(), dq.row(b, h, i));
    }
    // Second sweep: the gradients of all later rows, held at the stabilisers of the token at hand.
    // These only fall on the way back, so no factor exceeds 1.
    HeadState<T> sums(map, E);
    for (int64_t t = steps - 1; t >= 0; --t) {
      const int64_t i = segment.q0 + t, j = segment.k0 + t;
      const T* c_t = c.data() + t * M;
      if (map.positive && c_t[0] == -std::numeric_limits<T>::infinity()) break;  // no keys so far
      if (map.positive && t + 1 < steps) {
        for (int64_t f = 0; f < M; ++f) sums.rescale(f, std::exp(c_t[f] - c_t[M + f]));
      }
      if (asks[t]) {
        const T* g = dout.row(b, h, i);
        map.apply(q.row(b, h, i), Side::kQuery, a.data());
        normalize(state, c_t, normalizers[t], a.data());
        absorb_gradient(sums, g, inner(g, out.row(b, h, i), E), a.data());
      }
      if (j < segment.k1 && allowed(params, b, S, j)) {
        map.apply(k.row(b, h, j), Side::kKey, a.data());
        key_gradient(sums, c_t, v.row(b, h, j), a.data(), dv.row(b, h, j));
        map.backward(k.row(b, h, j), Side::kKey, a.data(), dk.row(b, h, j));
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
