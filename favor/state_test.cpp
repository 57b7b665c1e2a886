// SPDX-License-Identifier: Apache-2.0
// Decoding states as values: joining, forking and flushing them, and their accuracy after a million
// tokens.
#include "favor/state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::Problem;
using test::ProjectionUse;

constexpr int64_t kB = 2, kH = 2, kL = 150, kD = 9, kE = 5, kM = 19;

Problem make_stream(FeatureMapKind map, double norm = 1) {
  Case c;
  c.causal = true;
  c.feature_map = map;
  c.B = kB;
  c.H = kH;
  c.L = c.S = kL;
  c.D = kD;
  c.E = kE;
  c.M = kM;
  c.norm = norm;
  return test::make_problem(c);
}

template <class T>
View4<const T> tokens(const std::vector<T>& x, int64_t width, int64_t begin, int64_t end) {
  View4<const T> view = contiguous_view<const T>(x.data() + begin * width, kB, kH, kL, width);
  view.sizes[2] = end - begin;
  return view;
}

// Which way tokens enter a state.
enum class Way { kPass, kSteps, kFlushedSteps };

DecodeState state_of(const Problem& p, int64_t begin, int64_t end, Way way) {
  const AttentionParams<float> params = test::make_params(p, p.projection);
  DecodeState state(kB, kH, kM, kE);
  std::vector<float> out(kB * kH * kL * kE);
  const auto run = [&](int64_t from, int64_t to) {
    const auto q = tokens(p.q, kD, from, to), k = tokens(p.k, kD, from, to);
    const auto v = tokens(p.v, kE, from, to);
    const View4<float> rows = contiguous_view(out.data(), kB, kH, to - from, kE);
    if (way == Way::kPass) {
      causal_forward<float>(params, q, k, v, rows, nullptr, &state, &state);
    } else {
      decode_step(params, q, k, v, state, rows);
    }
  };
  for (int64_t t = begin; t < end; t += way == Way::kPass ? end - begin : 1) {
    run(t, way == Way::kPass ? end : t + 1);
    if (way == Way::kFlushedSteps && t % 7 == 0) flush(state);
  }
  return state;
}

reference::BasicDecodeState<double> true_state(const Problem& p, int64_t begin, int64_t end) {
  const std::vector<double> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end()),
      v(p.v.begin(), p.v.end()), w(p.projection.begin(), p.projection.end());
  reference::BasicDecodeState<double> state;
  std::vector<double> out(kB * kH * kL * kE);
  reference::causal_forward<double, reference::BasicDecodeState<double>>(
      test::make_params(p, w), tokens(q, kD, begin, end), tokens(k, kD, begin, end),
      tokens(v, kE, begin, end), contiguous_view(out.data(), kB, kH, end - begin, kE), nullptr,
      nullptr, &state);
  return state;
}

// The sums of `state` at the stabilisers of the true one, which is what can be compared: at most
// `allowed` off, relative to z.
void expect_state(const DecodeState& state, const reference::BasicDecodeState<double>& truth,
                  double allowed) {
  ASSERT_EQ(state.num_hot, 0);
  EXPECT_EQ(state.position, truth.position);
  for (size_t i = 0; i < truth.z.size(); ++i) {
    const double factor = std::exp(double{state.c[i]} - truth.c[i]);
    ASSERT_NEAR(factor * state.z[i], truth.z[i], allowed * truth.z[i]) << "feature " << i;
    for (size_t e = 0; e < kE; ++e) {
      // Values are of unit variance.
      ASSERT_NEAR(factor * state.S[i * kE + e], truth.S[i * kE + e], 4 * allowed * truth.z[i])
          << "feature " << i;
    }
  }
}

DecodeState merged(DecodeState into, const DecodeState& other) {
  merge(into, other);
  return into;
}

constexpr FeatureMapKind kMaps[] = {FeatureMapKind::kPositive, FeatureMapKind::kRelu};

TEST(Merge, PartsMakeTheWhole) {
  for (const FeatureMapKind map : kMaps) {
    for (const double norm : {1.0, 4.0}) {
      SCOPED_TRACE(message(to_string(map), " norm ", norm));
      const Problem p = make_stream(map, norm);
      const auto truth = true_state(p, 0, kL);
      // Logits, sums of kD products, reach 10 norm^2 and are rounded in their last place.
      const double allowed = 1e-6 * (1 + norm * norm);
      test::for_each_isa([&](const char* isa) {
        SCOPED_TRACE(isa);
        for (const Way way : {Way::kPass, Way::kSteps, Way::kFlushedSteps}) {
          SCOPED_TRACE(static_cast<int>(way));
          const DecodeState a = state_of(p, 0, 1, way), b = state_of(p, 1, 97, way),
                            c = state_of(p, 97, kL, way);
          expect_state(merged(merged(a, b), c), truth, allowed);
          expect_state(merged(a, merged(b, c)), truth, allowed);
          expect_state(merged(merged(c, a), b), truth, allowed);
        }
      });
    }
  }
}

TEST(Merge, IsAssociative) {
  for (const FeatureMapKind map : kMaps) {
    SCOPED_TRACE(to_string(map));
    const Problem p = make_stream(map, 4);
    const DecodeState a = state_of(p, 0, 50, Way::kSteps), b = state_of(p, 50, 100, Way::kPass),
                      c = state_of(p, 100, kL, Way::kSteps);
    const DecodeState left = merged(merged(a, b), c), right = merged(a, merged(b, c));
    EXPECT_EQ(left.position, right.position);
    EXPECT_EQ(left.c, right.c);
    for (size_t i = 0; i < left.z.size(); ++i) EXPECT_FLOAT_EQ(left.z[i], right.z[i]);
    for (size_t i = 0; i < left.S.size(); ++i) {
      // Sums and rests together hold twice the digits of a float.
      EXPECT_NEAR(double{left.S[i]} + left.S_rest[i], double{right.S[i]} + right.S_rest[i],
                  1e-11 * left.z[i / kE]);
    }
  }
}

TEST(Merge, TheEmptyStateIsTheIdentity) {
  for (const FeatureMapKind map : kMaps) {
    SCOPED_TRACE(to_string(map));
    const Problem p = make_stream(map);
    DecodeState state = state_of(p, 0, 40, Way::kSteps);
    flush(state);
    DecodeState empty(kB, kH, kM, kE);
    for (const DecodeState& result : {merged(state, empty), merged(empty, state)}) {
      EXPECT_EQ(result.position, 40);
      EXPECT_EQ(result.c, state.c);
      EXPECT_EQ(result.S, state.S);
      EXPECT_EQ(result.z, state.z);
      EXPECT_EQ(result.S_rest, state.S_rest);
      EXPECT_EQ(result.z_rest, state.z_rest);
    }
    EXPECT_EQ(merged(empty, empty).z, empty.z);
  }
}

TEST(Merge, WithItselfCountsEveryTokenTwice) {
  DecodeState state = state_of(make_stream(FeatureMapKind::kPositive), 0, 40, Way::kSteps);
  DecodeState twice = state;
  merge(twice, twice);
  flush(state);
  EXPECT_EQ(twice.position, 80);
  EXPECT_EQ(twice.c, state.c);
  for (size_t i = 0; i < state.S.size(); ++i) EXPECT_FLOAT_EQ(twice.S[i], 2 * state.S[i]);
  for (size_t i = 0; i < state.z.size(); ++i) EXPECT_FLOAT_EQ(twice.z[i], 2 * state.z[i]);
}

TEST(Merge, StatesFarApartKeepTheLargerOne) {
  DecodeState small(1, 1, 2, 1), large(1, 1, 2, 1);
  small.c = {-2000, 3};
  small.z = {1, 1};
  small.S = {5, 5};
  large.c = {2000, 1};
  large.z = {2, 0};  // feature 1 has seen nothing, whatever c holds
  large.S = {3, 0};
  large.c[1] = 1e30f;
  for (const DecodeState& result : {merged(small, large), merged(large, small)}) {
    EXPECT_EQ(result.c, (std::vector<float>{2000, 3}));
    EXPECT_EQ(result.z, (std::vector<float>{2, 1}));
    EXPECT_EQ(result.S, (std::vector<float>{3, 5}));
  }
}

TEST(Merge, KeepsOneStabiliserWhereThereIsOne) {
  // Features of both signs share a stabiliser; a feature without sums must not leave it.
  DecodeState a(1, 1, 2, 1), b(1, 1, 2, 1);
  a.c = {1, 1};
  a.z = {-1, 0};
  a.S = {1, 0};
  b.c = {0, 0};
  b.z = {0, 2};
  b.S = {0, 2};
  const DecodeState result = merged(a, b);
  EXPECT_EQ(result.c, (std::vector<float>{1, 1}));
  EXPECT_EQ(result.z, (std::vector<float>{-1, static_cast<float>(2 * std::exp(-1.0))}));
}

TEST(DecodeState, ACopyForksTheStream) {
  const Problem p = make_stream(FeatureMapKind::kPositive);
  const AttentionParams<float> params = test::make_params(p, p.projection);
  const auto step = [&](DecodeState& state, int64_t t) {
    std::vector<float> out(kB * kH * kE);
    decode_step(params, tokens(p.q, kD, t, t + 1), tokens(p.k, kD, t, t + 1),
                tokens(p.v, kE, t, t + 1), state, contiguous_view(out.data(), kB, kH, 1, kE));
    return out;
  };
  DecodeState state = state_of(p, 0, 40, Way::kSteps);
  ASSERT_GT(state.num_hot, 0);
  DecodeState fork = state;
  for (int64_t t = 100; t < kL; ++t) step(fork, t);
  DecodeState again = state_of(p, 0, 40, Way::kSteps);
  for (int64_t t = 40; t < 100; ++t) ASSERT_EQ(step(state, t), step(again, t)) << "token " << t;
}

TEST(DecodeState, AFlushChangesNoOutput) {
  for (const FeatureMapKind map : kMaps) {
    const Problem p = make_stream(map);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      DecodeState state = state_of(p, 0, 140, Way::kSteps);
      DecodeState flushed = state;
      flush(flushed);
      EXPECT_EQ(flushed.num_hot, 0);
      EXPECT_EQ(flushed.position, 140);
      const DecodeState before = flushed;
      flush(flushed);
      EXPECT_EQ(flushed.S, before.S) << "there is nothing left to flush";
      for (DecodeState* each : {&state, &flushed}) {
        std::vector<float> out(kB * kH * kE);
        const auto q = tokens(p.q, kD, 140, 141), k = tokens(p.k, kD, 140, 141);
        decode_step(test::make_params(p, p.projection), q, k, tokens(p.v, kE, 140, 141), *each,
                    contiguous_view(out.data(), kB, kH, 1, kE));
        const auto truth = test::run_reference<double>(p, test::Passes::kForward).out;
        for (int64_t head = 0; head < kB * kH; ++head) {
          for (int64_t e = 0; e < kE; ++e) {
            ASSERT_NEAR(out[head * kE + e], truth[(head * kL + 140) * kE + e], 3e-6);
          }
        }
      }
    });
  }
}

// Every key is larger than all before it in some features, by far at times: the sums of S and of
// the hot part are rescaled all the time.
TEST(DecodeState, KeepsAccuracyWhileKeysGrow) {
  Problem p = make_stream(FeatureMapKind::kPositive);
  for (int64_t i = 0; i < kB * kH * kL; ++i) {
    const double t = static_cast<double>(i % kL);
    for (int64_t d = 0; d < kD; ++d) {
      p.k[i * kD + d] *= static_cast<float>(0.05 * t);
    }
  }
  const std::vector<double> truth = test::run_reference<double>(p, test::Passes::kForward).out;
  const std::vector<float> naive = test::run_reference<float>(p, test::Passes::kForward).out;
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    DecodeState state(kB, kH, kM, kE);
    std::vector<float> out(kB * kH * kL * kE, std::nanf(""));
    for (int64_t t = 0; t < kL; ++t) {
      View4<float> row = contiguous_view(out.data() + t * kE, kB, kH, kL, kE);
      row.sizes[2] = 1;
      decode_step(test::make_params(p, p.projection), tokens(p.q, kD, t, t + 1),
                  tokens(p.k, kD, t, t + 1), tokens(p.v, kE, t, t + 1), state, row);
    }
    EXPECT_LE(test::error_ratio(out, naive, truth).ratio, 1);
  });
}

// One million keys with features that do not change, and values that float cannot hold exactly: the
// worst case for rounding, which here always goes the same way.
TEST(DecodeState, AMillionTokensKeepTheirAverage) {
  constexpr int64_t M = 3, D = 2, E = 3, kTokens = 1'000'000, kPart = 1000;
  ProjectionSpec spec;
  spec.num_features = M;
  spec.head_dim = D;
  const std::vector<float> w = draw_projection(spec);
  AttentionParams<float> params;
  params.projection = w.data();
  params.num_features = M;
  const std::vector<float> q(kPart * D, 0.3f), k(kPart * D, 0.4f);
  std::vector<float> v(kPart * E), out(kPart * E);
  for (int64_t i = 0; i < kPart * E; ++i) v[i] = i % E == 0 ? 0.7f : i % E == 1 ? 1e-3f : -1.1f;
  for (const FeatureMapKind map : kMaps) {
    params.feature_map = map;
    for (const bool steps : {false, true}) {
      SCOPED_TRACE(message(to_string(map), steps ? " steps" : " passes"));
      DecodeState state(1, 1, M, E);
      const auto view = [](auto& x, int64_t length, int64_t width) {
        return contiguous_view(x.data(), 1, 1, length, width);
      };
      for (int64_t t = 0; t < kTokens; t += steps ? 1 : kPart) {
        const int64_t n = steps ? 1 : kPart;
        if (steps) {
          decode_step(params, view(q, n, D), view(k, n, D), view(v, n, E), state, view(out, n, E));
        } else {
          causal_forward<float>(params, view(q, n, D), view(k, n, D), view(v, n, E),
                                view(out, n, E), nullptr, &state, &state);
        }
      }
      // S and z are sums over blocks of n <= 64 tokens, each off by n / 2 roundings at most, 2e-6.
      for (int64_t e = 0; e < E; ++e) {
        EXPECT_NEAR(out[e] / double{v[e]}, 1, 4e-6) << "column " << e;
        EXPECT_NEAR(state.S[e] / (double{state.z[0]} * v[e]), 1, 4e-6) << "column " << e;
      }
      if (map == FeatureMapKind::kPositive) {
        flush(state);
        EXPECT_EQ(state.z[0], kTokens);
      }
    }
  }
}

std::string error_of(const std::function<void(DecodeState&)>& change,
                     const std::function<void(DecodeState&)>& run) {
  DecodeState state(1, 2, 3, 4);
  change(state);
  return test::error_of([&] { run(state); });
}

TEST(DecodeState, ErrorsNameTheMember) {
  const auto none = [](DecodeState&) {};
  const auto merge_other = [](DecodeState& state) {
    DecodeState into(1, 2, 3, 4);
    merge(into, state);
  };
  const auto flush_it = [](DecodeState& state) { flush(state); };
  EXPECT_EQ(error_of([](DecodeState& s) { s = DecodeState(1, 2, 3, 5); }, merge_other),
            "merge: other has B, H, M, E = 1, 2, 3, 5, expected 1, 2, 3, 4 (as into)");
  EXPECT_EQ(error_of([](DecodeState& s) { s.S.pop_back(); }, merge_other),
            "merge: other has 6, 23, 6 elements in c, S, z, expected 6, 24, 6");
  EXPECT_EQ(error_of([](DecodeState& s) { s.S.pop_back(); },
                     [](DecodeState& s) { merge(s, DecodeState(1, 2, 3, 4)); }),
            "merge: into has 6, 23, 6 elements in c, S, z, expected 6, 24, 6");
  EXPECT_EQ(error_of([](DecodeState& s) { s.M = -1; }, flush_it),
            "flush: state has B, H, M, E = 1, 2, -1, 4, expected no negative size");
  EXPECT_EQ(error_of([](DecodeState& s) { s.z_rest.resize(6); }, flush_it),
            "flush: state has 0, 6 elements in S_rest, z_rest, expected 24, 6 or none");
  EXPECT_EQ(error_of([](DecodeState& s) { s.num_hot = kHotTokens; }, flush_it),
            "flush: state has num_hot = 16, expected 0 to 15");
  EXPECT_EQ(error_of([](DecodeState& s) { s.num_hot = 1; }, flush_it),
            "flush: state has 0, 0 elements in hot_features, hot_values, expected 1024, 128");
  EXPECT_EQ(error_of([](DecodeState& s) { s.hot_values.resize(1); }, flush_it),
            "flush: state has 0, 1 elements in hot_features, hot_values, expected 1024, 128 or "
            "none");
  EXPECT_EQ(error_of(none, merge_other), "no error");
}

}  // namespace
}  // namespace favor
