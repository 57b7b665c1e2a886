// SPDX-License-Identifier: Apache-2.0
// Internal: one head's sums over keys in the plain form, what queries get from them, and the
// gradients of both.
#ifndef FAVOR_REFERENCE_STATE_H_
#define FAVOR_REFERENCE_STATE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "favor/reference_map.h"
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

/// Sets the sums over later rows to head `index` of a gradient of `state`, brought to its
/// stabilisers.
template <class T, class Gradient>
void take_up(const Gradient& from, int64_t index, const HeadState<T>& state, HeadState<T>& sums) {
  if (state.empty()) return;
  const int64_t M = sums.M, ME = sums.M * sums.E;
  std::copy_n(from.S.begin() + index * ME, ME, sums.S.begin());
  std::copy_n(from.z.begin() + index * M, M, sums.z.begin());
  for (int64_t f = 0; f < M; ++f) {
    sums.rescale(f, std::exp(state.c[f] - static_cast<T>(from.c[index * M + f])));
  }
}

/// Writes sums held at stabilisers c as head `index` of a gradient, whose own stabilisers stand in
/// it.
template <class T, class Gradient>
void leave(HeadState<T>& sums, const T* c, int64_t index, Gradient& to) {
  using U = typename decltype(to.c)::value_type;
  const auto convert = [](T x) { return static_cast<U>(x); };
  const int64_t M = sums.M, ME = sums.M * sums.E;
  for (int64_t f = 0; f < M; ++f) {
    sums.rescale(f, std::exp(static_cast<T>(to.c[index * M + f]) - c[f]));
  }
  std::transform(sums.S.begin(), sums.S.end(), to.S.begin() + index * ME, convert);
  std::transform(sums.z.begin(), sums.z.end(), to.z.begin() + index * M, convert);
}

}  // namespace favor::reference

#endif  // FAVOR_REFERENCE_STATE_H_
