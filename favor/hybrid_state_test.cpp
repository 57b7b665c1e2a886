// SPDX-License-Identifier: Apache-2.0
#include "favor/hybrid_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "favor/expect_parity.h"
#include "favor/snapshot.h"
#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::Problem;
using test::Results;

// A causal problem taken token by token.
class Stream {
 public:
  explicit Stream(const Problem& problem)
      : c_(problem.spec),
        q_(problem.q),
        k_(problem.k),
        v_(problem.v),
        mask_(problem.mask),
        weights_(problem.key_log_weight),
        owned_(problem),
        structured_(problem.structured),
        state(c_.B, c_.G(), c_.M, c_.D, c_.E, c_.window, c_.sinks) {
    out.resize(c_.B * c_.H * c_.L * c_.E);
  }

  // Tokens [begin, end) without answers.
  void absorb(int64_t begin, int64_t end) {
    hybrid_absorb(params(begin, end), rows(k_, c_.G(), c_.S, c_.D, begin, end),
                  rows(v_, c_.G(), c_.S, c_.E, begin, end), state);
  }

  void step(int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      hybrid_decode_step(params(t, t + 1), rows(q_, c_.H, c_.L, c_.D, t, t + 1),
                         rows(k_, c_.G(), c_.S, c_.D, t, t + 1),
                         rows(v_, c_.G(), c_.S, c_.E, t, t + 1), state,
                         rows(out, c_.H, c_.L, c_.E, t, t + 1));
    }
  }

 private:
  View4<float> rows(std::vector<float>& x, int64_t heads, int64_t length, int64_t width,
                    int64_t begin, int64_t end) const {
    View4<float> view = contiguous_view(x.data(), c_.B, heads, length, width);
    view.data += begin * width;
    view.sizes[2] = end - begin;
    return view;
  }

  // The masks and weights of tokens [begin, end).
  const AttentionParams<float>& params(int64_t begin, int64_t end) {
    AttentionParams<float>& p = owned_.value;
    if (!structured_.empty()) {
      p.projection = nullptr;
      p.structured = structured_.data();
    }
    token_mask_.clear();
    token_weights_.clear();
    const auto part = [&](const auto& from, int64_t count, auto& to) {
      for (int64_t row = 0; row < count; ++row) {
        to.insert(to.end(), from.begin() + row * c_.S + begin, from.begin() + row * c_.S + end);
      }
    };
    if (!mask_.empty()) part(mask_, c_.B, token_mask_);
    if (!weights_.empty()) part(weights_, c_.B * p.num_key_log_weights, token_weights_);
    p.key_padding_mask = mask_.empty() ? nullptr : token_mask_.data();
    p.key_log_weight = weights_.empty() ? nullptr : token_weights_.data();
    return p;
  }

  Case c_;
  std::vector<float> q_, k_, v_;
  std::vector<uint8_t> mask_, token_mask_;
  std::vector<float> weights_, token_weights_;
  test::Params<float> owned_;
  std::vector<StructuredProjection> structured_;

 public:
  HybridState state;
  std::vector<float> out;  // [B, H, L, E]
};

Case stream_case(int64_t window, int64_t sinks) {
  Case c;
  c.causal = true;
  c.window = window;
  c.sinks = sinks;
  c.B = 2;
  c.H = 4;
  c.group = 2;
  c.L = c.S = 70;
  c.D = 5;
  c.E = 9;
  c.M = 19;
  return c;
}

TEST(HybridState, StepsAreTheRowsOfCausalAttention) {
  for (const int64_t window : {1, 3, 8, 40}) {
    for (const int64_t sinks : {0, 2, 11}) {
      for (const auto mask : {test::MaskKind::kNone, test::MaskKind::kRandom}) {
        for (const auto weights : {test::WeightKind::kNone, test::WeightKind::kPerHead}) {
          Case c = stream_case(window, sinks);
          c.mask = mask;
          c.weights = weights;
          const Problem p = test::make_problem(c);
          const test::Judge judge(p, test::Passes::kForward);
          test::for_each_isa([&](const char* isa) {
            SCOPED_TRACE(c.name() + " " + isa);
            Stream stream(p);
            stream.step(0, c.L);
            Results<float> r;
            r.out = stream.out;
            EXPECT_EQ(judge.verdict(r), "");
            EXPECT_EQ(stream.state.position, c.L);
          });
        }
      }
    }
  }
}

TEST(HybridState, StepsOfEveryMapAreTheRowsOfCausalAttention) {
  using enum FeatureMapKind;
  for (const auto map : {kHyperbolic, kOptimalPositive, kFavorSharpDiagonal, kFavorSharp}) {
    for (const auto projection : {test::ProjectionUse::kShared, test::ProjectionUse::kPerHead}) {
      for (const bool structured : {false, true}) {
        Case c = stream_case(4, 3);
        c.feature_map = map;
        c.M = 20;
        c.L = c.S = 40;
        c.projection = projection;
        c.structured = structured;
        c.norm = 0.5;
        c.mask = test::MaskKind::kRandom;
        const Problem p = test::make_problem(c);
        const test::Judge judge(p, test::Passes::kForward);
        test::for_each_isa([&](const char* isa) {
          SCOPED_TRACE(c.name() + " " + isa);
          Stream stream(p);
          stream.step(0, c.L);
          Results<float> r;
          r.out = stream.out;
          EXPECT_EQ(judge.verdict(r), "");
        });
      }
    }
  }
}

TEST(HybridState, AbsorbedTokensCountLikeSteps) {
  const Case c = stream_case(8, 3);
  const Problem p = test::make_problem(c);
  Stream stepped(p), absorbed(p);
  stepped.step(0, c.L);
  absorbed.absorb(0, 1);
  absorbed.absorb(1, 37);
  absorbed.step(37, c.L);
  for (int64_t row = 0; row < c.B * c.H; ++row) {
    const auto tail = [&](const Stream& s) {
      const auto begin = s.out.begin() + row * c.L * c.E;
      return std::vector<float>(begin + 37 * c.E, begin + c.L * c.E);
    };
    const std::vector<float> a = tail(stepped), b = tail(absorbed);
    // Far sums of the steps have been flushed at other tokens: a rounding of each.
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5f);
  }
}

TEST(HybridState, ACopyIsAStreamOfItsOwn) {
  const Case c = stream_case(4, 1);
  const Problem p = test::make_problem(c);
  Stream whole(p), fork(p);
  whole.step(0, 30);
  fork.step(0, 30);
  const HybridState kept = fork.state;
  fork.step(40, 60);
  fork.state = kept;
  whole.step(30, c.L);
  fork.step(30, c.L);
  EXPECT_TRUE(test::same_bits(whole.out, fork.out));
}

TEST(HybridState, ASnapshotGoesOnInTheSameBits) {
  for (const int64_t count : {0, 1, 9, 37}) {
    Case c = stream_case(4, 3);
    c.feature_map = FeatureMapKind::kFavorSharp;
    c.mask = test::MaskKind::kRandom;
    const Problem p = test::make_problem(c);
    Stream whole(p), resumed(p);
    whole.step(0, c.L);
    resumed.step(0, count);
    const test::Params<float> owned(p);
    const std::string bytes = state_to_bytes(resumed.state, owned.value);
    resumed.state = hybrid_state_from_bytes(bytes, owned.value, c.D);
    EXPECT_EQ(resumed.state.position, count);
    resumed.step(count, c.L);
    EXPECT_TRUE(test::same_bits(whole.out, resumed.out)) << count;
  }
}

TEST(HybridState, ASnapshotOfAnotherStreamIsRefused) {
  const Case c = stream_case(4, 1);
  const Problem p = test::make_problem(c);
  Stream stream(p);
  stream.step(0, 20);
  test::Params<float> owned(p);
  AttentionParams<float> params = owned.value;
  const std::string bytes = state_to_bytes(stream.state, params);
  const auto refusal = [&](const std::function<void(AttentionParams<float>&)>& change,
                           const std::string& from) -> std::string {
    AttentionParams<float> other = params;
    change(other);
    try {
      hybrid_state_from_bytes(from, other, c.D);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  };
  using P = AttentionParams<float>;
  EXPECT_EQ(refusal([](P&) {}, bytes), "no error");
  EXPECT_EQ(refusal([](P& other) { other.window = 5; }, bytes),
            "snapshot: window is 4, expected 5");
  EXPECT_EQ(refusal([](P& other) { other.sinks = 2; }, bytes), "snapshot: sinks is 1, expected 2");
  EXPECT_EQ(refusal([](P& other) { other.window = 0; }, bytes),
            "hybrid_state_from_bytes: window and sinks are 0 and 1, expected at least 1 and 0");
  std::vector<float> matrix = owned.projection;
  matrix[0] += 1;
  EXPECT_EQ(refusal([&](P& other) { other.projection = matrix.data(); }, bytes).substr(0, 24),
            "snapshot: matrix_hash is");
  EXPECT_NE(refusal([](P&) {}, bytes.substr(0, bytes.size() - 1)), "no error");
  EXPECT_EQ(refusal([](P&) {}, state_to_bytes(stream.state.far, params, c.D)),
            "snapshot: no snapshot of a stream with a window: it has no near_keys");
  try {
    state_from_bytes(bytes, params, c.D);
    FAIL() << "the sums alone were read";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(),
                 "snapshot: snapshot of a stream with a window, expected one of sums alone");
  }
  const auto write_error = [&](const std::function<void(HybridState&)>& spoil) -> std::string {
    HybridState state = stream.state;
    spoil(state);
    try {
      state_to_bytes(state, params);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(write_error([](HybridState& s) { s.window = 3; }),
            "state_to_bytes: state has window 3 and sinks 1, expected 4 and 1 (as in params)");
  EXPECT_EQ(write_error([](HybridState& s) { s.values.clear(); }),
            "state_to_bytes: state has 180, 0, 36 elements in keys, values, log_weights, expected "
            "180, 324, 36");
  EXPECT_EQ(write_error([](HybridState& s) { s.position = -1; }),
            "state_to_bytes: state has position -1, expected 0 or more");
  EXPECT_EQ(write_error([&](HybridState& s) { s.far = DecodeState(1, 2, c.M, c.E); }),
            "state_to_bytes: state.far has B, H, E = 1, 2, 9, expected 2, 2, 9 (as state)");
}

TEST(HybridState, AFileHoldsTheStream) {
  const Case c = stream_case(4, 1);
  const Problem p = test::make_problem(c);
  Stream stream(p);
  stream.step(0, 20);
  const test::Params<float> owned(p);
  const std::string path =
      (std::filesystem::temp_directory_path() / ("hybrid" + std::to_string(::getpid()))).string();
  save_state(path, stream.state, owned.value);
  const HybridState loaded = load_hybrid_state(path, owned.value, c.D);
  std::filesystem::remove(path);
  EXPECT_EQ(state_to_bytes(loaded, owned.value), state_to_bytes(stream.state, owned.value));
}

TEST(HybridState, SaysWhatIsWrong) {
  const Case c = stream_case(4, 1);
  const Problem p = test::make_problem(c);
  const auto error_of = [&](const std::function<void(AttentionParams<float>&, HybridState&)>& spoil,
                            int64_t length) -> std::string {
    test::Params<float> owned(p);
    HybridState state(c.B, c.G(), c.M, c.D, c.E, 4, 1);
    spoil(owned.value, state);
    std::vector<float> x(c.B * c.H * length * 32), out(c.B * c.H * length * c.E);
    const std::string error = test::error_of([&] {
      hybrid_decode_step(owned.value, contiguous_view(x.data(), c.B, c.H, length, c.D),
                         contiguous_view(x.data(), c.B, c.G(), length, c.D),
                         contiguous_view(x.data(), c.B, c.G(), length, c.E), state,
                         contiguous_view(out.data(), c.B, c.H, length, c.E));
    });
    EXPECT_EQ(state.position, error == "no error" ? 1 : 0);
    return error;
  };
  using P = AttentionParams<float>;
  EXPECT_EQ(error_of([](P&, HybridState&) {}, 1), "no error");
  EXPECT_EQ(error_of([](P&, HybridState&) {}, 2),
            "hybrid_decode_step: q and k have lengths 2 and 2, expected 1 and 1");
  EXPECT_EQ(error_of([](P& params, HybridState&) { params.window = 5; }, 1),
            "hybrid_decode_step: window is 5, expected the state's 4, at least 1");
  EXPECT_EQ(error_of([](P& params, HybridState&) { params.sinks = 2; }, 1),
            "hybrid_decode_step: sinks is 2, expected the state's 1");
  EXPECT_EQ(error_of([](P& params,
                        HybridState&) { params.feature_map = FeatureMapKind::kOptimalPositive; },
                     1),
            "hybrid_decode_step: map_parameters is null, expected those of fit_feature_map "
            "(feature_map optimal_positive would be fitted to later tokens)");
  EXPECT_EQ(
      error_of([](P& params, HybridState&) { params.feature_map = FeatureMapKind::kRelu; }, 1),
      "hybrid_decode_step: window is 4, expected 0 (feature_map relu has no scores to join "
      "exact ones)");
  EXPECT_EQ(error_of([](P& params, HybridState&) { params.num_features = 7; }, 1),
            "hybrid_decode_step: state.far has B, H, M, E = 2, 2, 19, 9, expected 2, 2, 7, 9");
  EXPECT_EQ(error_of([](P&, HybridState& state) { state.keys.pop_back(); }, 1),
            "hybrid_decode_step: state has 179, 324, 36 elements in keys, values, log_weights, "
            "expected 180, 324, 36");
  EXPECT_EQ(error_of([](P&, HybridState& state) { state.B = 1; }, 1),
            "hybrid_decode_step: k has shape [2, 2, 1, 5], expected [1, 2, 1, 5] ([B, H, S, D] of "
            "the state)");
  static const std::vector<int64_t> offsets{0, 1};
  EXPECT_EQ(
      error_of([](P& params, HybridState&) { params.cu_seqlens_q = params.cu_seqlens_k = offsets; },
               1),
      "hybrid_decode_step: cu_seqlens are given, expected none (one stream per batch item)");
  EXPECT_THROW(HybridState(1, 1, 8, 4, 4, 0, 0), Error);
  EXPECT_THROW(HybridState(1, -1, 8, 4, 4, 2, 0), Error);
}

}  // namespace
}  // namespace favor
