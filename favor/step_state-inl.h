// SPDX-License-Identifier: Apache-2.0
// One head of a decoding state, as steps read it and add to it.

// clang-format off
#if defined(FAVOR_STEP_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_STEP_STATE_INL_H_
#undef FAVOR_STEP_STATE_INL_H_
#else
#define FAVOR_STEP_STATE_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>

#include "favor/row_products-inl.h"
#include "favor/state.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

struct HeadOfState {
  int64_t M, E, stride;
  float *c, *z, *z_rest, *S, *S_rest;
  float* features;  ///< [kHotTokens, stride]
  float* values;    ///< [kHotTokens, E]

  HeadOfState(DecodeState& state, int64_t index)
      : M(state.M),
        E(state.E),
        stride(state.hot_stride()),
        c(state.c.data() + index * M),
        z(state.z.data() + index * M),
        z_rest(state.z_rest.data() + index * M),
        S(state.S.data() + index * M * E),
        S_rest(state.S_rest.data() + index * M * E),
        features(state.hot_features.data() + index * kHotTokens * stride),
        values(state.hot_values.data() + index * kHotTokens * E) {}

  /// Adds the first n hot tokens to the sums.
  HWY_NOINLINE void flush(int64_t n) const {
    const FloatTag d;
    const hn::CappedTag<float, 1> one;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d));
    add_products(d, features, stride, values, n, M, E, S, S_rest);
    int64_t f = 0;
    for (; f + N <= M; f += N) {
      Vector sum = hn::Zero(d);
      for (int64_t j = 0; j < n; ++j) sum = hn::Add(sum, hn::LoadU(d, features + j * stride + f));
      add_exactly(d, sum, z + f, z_rest + f);
    }
    for (; f < M; ++f) {
      float sum = 0.0f;
      for (int64_t j = 0; j < n; ++j) sum += features[j * stride + f];
      add_exactly(one, hn::Set(one, sum), z + f, z_rest + f);
    }
  }

  /// Multiplies the sums of feature f and what the first n hot tokens have of it.
  void scale(int64_t f, int64_t n, float factor) const {
    z[f] *= factor;
    z_rest[f] *= factor;
    for (int64_t e = f * E; e < (f + 1) * E; ++e) S[e] *= factor;
    for (int64_t e = f * E; e < (f + 1) * E; ++e) S_rest[e] *= factor;
    for (int64_t j = 0; j < n; ++j) features[j * stride + f] *= factor;
  }

  /// Whether no sum and none of the first n hot tokens holds anything.
  bool is_empty(int64_t n) const {
    const auto is_zero = [](float x) { return x == 0.0f; };
    return std::all_of(z, z + M, is_zero) && std::all_of(S, S + M * E, is_zero) &&
           std::all_of(features, features + n * stride, is_zero);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_STEP_STATE_INL_H_
