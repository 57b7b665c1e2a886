// SPDX-License-Identifier: Apache-2.0
#include "favor/state.h"

#include <algorithm>
#include <cmath>

#include "favor/check.h"
#include "favor/isa.h"
#include "favor/plan.h"
#include "favor/plan_checks.h"

namespace favor {
namespace {

/// The sums of one head, as merge sees them.
struct Head {
  int64_t M, E;
  float *c, *S, *z, *S_rest, *z_rest;

  Head(DecodeState& state, int64_t index)
      : M(state.M),
        E(state.E),
        c(state.c.data() + index * M),
        S(state.S.data() + index * M * E),
        z(state.z.data() + index * M),
        S_rest(state.S_rest.data() + index * M * E),
        z_rest(state.z_rest.data() + index * M) {}

  /// Whether feature f has any sum.
  bool sees(int64_t f) const {
    return z[f] != 0 || std::any_of(S + f * E, S + (f + 1) * E, [](float x) { return x != 0; });
  }
  bool is_empty() const {
    for (int64_t f = 0; f < M; ++f) {
      if (sees(f)) return false;
    }
    return true;
  }
  bool is_uniform() const {
    return std::all_of(c, c + M, [this](float x) { return x == c[0]; });
  }
  void copy(const Head& other) const {
    std::copy_n(other.c, M, c);
    std::copy_n(other.z, M, z);
    std::copy_n(other.z_rest, M, z_rest);
    std::copy_n(other.S, M * E, S);
    std::copy_n(other.S_rest, M * E, S_rest);
  }
};

/// value + rest becomes (value + rest) factor + (other + other_rest) other_factor.
void add(float& value, float& rest, double factor, float other, float other_rest,
         double other_factor) {
  const double sum =
      factor * (double{value} + double{rest}) + other_factor * (double{other} + double{other_rest});
  value = static_cast<float>(sum);
  // Beyond the range of float, and for NaN, the sum itself says all.
  rest = std::isfinite(value) ? static_cast<float>(sum - double{value}) : 0.0f;
}

void merge_head(const Head& into, const Head& other) {
  if (other.is_empty()) return;
  if (into.is_empty()) {
    into.copy(other);
    return;
  }
  // Maps with one stabiliser for all features must keep it.
  const bool uniform = into.is_uniform() && other.is_uniform();
  for (int64_t f = 0; f < into.M; ++f) {
    const bool mine = into.sees(f), theirs = other.sees(f);
    const float top = uniform || (mine && theirs) ? std::max(into.c[f], other.c[f])
                      : mine                      ? into.c[f]
                                                  : other.c[f];
    const auto factor = [top](bool counts, float c) {
      return !counts ? 0.0 : c == top ? 1.0 : std::exp(double{c} - double{top});
    };
    const double keep = factor(mine, into.c[f]), take = factor(theirs, other.c[f]);
    into.c[f] = top;
    add(into.z[f], into.z_rest[f], keep, other.z[f], other.z_rest[f], take);
    for (int64_t i = f * into.E; i < (f + 1) * into.E; ++i) {
      add(into.S[i], into.S_rest[i], keep, other.S[i], other.S_rest[i], take);
    }
  }
}

}  // namespace

void make_rests(DecodeState& state) {
  state.S_rest.resize(state.S.size());
  state.z_rest.resize(state.z.size());
}

DecodeState::DecodeState(int64_t batch, int64_t heads, int64_t features, int64_t value_dim)
    : B(batch), H(heads), M(features), E(value_dim) {
  FAVOR_CHECK(B >= 0 && H >= 0 && M >= 0 && E >= 0, "DecodeState: B, H, M, E are ", B, ", ", H,
              ", ", M, ", ", E, ", expected no negative size");
  // Hot rows are longer than those of S by a few elements.
  checked_product("DecodeState", {B, H, M, E});
  const auto rows = static_cast<size_t>(checked_product("DecodeState", {B, H, M}));
  c.assign(rows, 0.0f);
  S.assign(rows * static_cast<size_t>(E), 0.0f);
  z.assign(rows, 0.0f);
}

void check_sizes(const char* op, const char* name, const DecodeState& state) {
  FAVOR_CHECK(state.B >= 0 && state.H >= 0 && state.M >= 0 && state.E >= 0, op, ": ", name,
              " has B, H, M, E = ", state.B, ", ", state.H, ", ", state.M, ", ", state.E,
              ", expected no negative size");
  const auto heads = static_cast<size_t>(state.B * state.H);
  const size_t rows = heads * static_cast<size_t>(state.M);
  const size_t elements = rows * static_cast<size_t>(state.E);
  FAVOR_CHECK(state.c.size() == rows && state.z.size() == rows && state.S.size() == elements, op,
              ": ", name, " has ", state.c.size(), ", ", state.S.size(), ", ", state.z.size(),
              " elements in c, S, z, expected ", rows, ", ", elements, ", ", rows);
  const bool has_rests = !state.S_rest.empty() || !state.z_rest.empty();
  FAVOR_CHECK(!has_rests || (state.S_rest.size() == elements && state.z_rest.size() == rows), op,
              ": ", name, " has ", state.S_rest.size(), ", ", state.z_rest.size(),
              " elements in S_rest, z_rest, expected ", elements, ", ", rows, " or none");
  FAVOR_CHECK(0 <= state.num_hot && state.num_hot < kHotTokens, op, ": ", name,
              " has num_hot = ", state.num_hot, ", expected 0 to ", kHotTokens - 1);
  const bool has_hot =
      state.num_hot > 0 || !state.hot_features.empty() || !state.hot_values.empty();
  const size_t features = heads * static_cast<size_t>(kHotTokens * state.hot_stride());
  const size_t values = heads * static_cast<size_t>(kHotTokens * state.E);
  FAVOR_CHECK(
      !has_hot || (state.hot_features.size() == features && state.hot_values.size() == values), op,
      ": ", name, " has ", state.hot_features.size(), ", ", state.hot_values.size(),
      " elements in hot_features, hot_values, expected ", features, ", ", values,
      state.num_hot > 0 ? "" : " or none");
}

void make_steppable(DecodeState& state) {
  make_rests(state);
  const auto rows = static_cast<size_t>(state.B * state.H * kHotTokens);
  state.hot_features.resize(rows * static_cast<size_t>(state.hot_stride()));
  state.hot_values.resize(rows * static_cast<size_t>(state.E));
}

void flush(DecodeState& state) {
  check_sizes("flush", "state", state);
  if (state.num_hot == 0) return;
  apply_isa_limit();
  make_rests(state);
  flush_kernel(state);
}

void merge(DecodeState& into, const DecodeState& other) {
  const char* op = "merge";
  check_sizes(op, "into", into);
  check_sizes(op, "other", other);
  FAVOR_CHECK(other.B == into.B && other.H == into.H && other.M == into.M && other.E == into.E, op,
              ": other has B, H, M, E = ", other.B, ", ", other.H, ", ", other.M, ", ", other.E,
              ", expected ", into.B, ", ", into.H, ", ", into.M, ", ", into.E, " (as into)");
  DecodeState added = other;
  flush(added);
  flush(into);
  make_rests(added);
  make_rests(into);
  for (int64_t i = 0; i < into.B * into.H; ++i) merge_head(Head(into, i), Head(added, i));
  into.position += added.position;
}

}  // namespace favor
