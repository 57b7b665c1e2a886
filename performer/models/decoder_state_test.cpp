// SPDX-License-Identifier: Apache-2.0
// Rows of decoding states, against streams that decode alone.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "favor/check.h"
#include "performer/infer/testing.h"

namespace performer {
namespace {

using torch::Tensor;

Tensor tokens_of(int64_t seed, int64_t B, int64_t T) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  return torch::randint(25, {B, T}, torch::kInt64);
}

// Every kind of state there is.
std::vector<ModelConfig> all_configs(PositionKind positions) {
  std::vector<ModelConfig> all(5, tiny_model(/*causal=*/true, positions)->config());
  all[1].attention.window = 3;
  all[1].attention.sinks = 2;
  all[2].attention.method = AttentionMethod::kLsh;
  all[2].attention.hash_buckets = 2;
  all[2].attention.bucket_block = 4;
  all[3].attention.local_heads = 1;
  all[3].attention.local_window = 4;
  all[4].attention.method = AttentionMethod::kExact;
  return all;
}

void expect_same_bits(LanguageModel& model) {
  // Torch's own attention promises no bits for a row among others.
  const AttentionOptions& attention = model->config().attention;
  const bool by_torch = attention.method == AttentionMethod::kExact || attention.local_heads > 0;
  DecoderState state;
  model->decode(tokens_of(1, 4, 6), state);
  for (int64_t i = 0; i < 3; ++i) model->decode(tokens_of(10 + i, 4, 1), state);
  EXPECT_EQ(state.streams(), 4);
  const std::vector<int64_t> rows = {2, 0, 2, 1};  // as many rows: the same products
  DecoderState some = select_streams(state, rows);
  EXPECT_EQ(some.streams(), 4);
  const Tensor index = torch::tensor(rows);
  for (int64_t i = 0; i < 20; ++i) {
    const Tensor next = tokens_of(20 + i, 4, 1);
    const Tensor all = model->decode(next, state);
    const Tensor chosen = model->decode(next.index_select(0, index), some);
    const Tensor expected = all.index_select(0, index);
    EXPECT_TRUE(by_torch ? torch::allclose(chosen, expected, 1e-4, 1e-5)
                         : torch::equal(chosen, expected))
        << i;
  }
}

TEST(DecoderState, SelectedRowsGoOnInTheSameBits) {
  for (const ModelConfig& config : all_configs(PositionKind::kRotary)) {
    SCOPED_TRACE(to_string(config.attention.method));
    LanguageModel model(config);
    model->eval();
    expect_same_bits(model);
  }
}

TEST(DecoderState, JoinedStreamsAtOnePositionEqualThemselvesAlone) {
  for (const ModelConfig& config : all_configs(PositionKind::kLearned)) {
    SCOPED_TRACE(to_string(config.attention.method));
    LanguageModel model(config);
    model->eval();
    DecoderState a, b;
    model->decode(tokens_of(1, 1, 9), a);
    model->decode(tokens_of(2, 2, 9), b);
    DecoderState joined = join_streams({b, a});
    EXPECT_EQ(joined.streams(), 3);
    for (int64_t i = 0; i < 12; ++i) {
      const Tensor next = tokens_of(20 + i, 3, 1);
      const Tensor together = model->decode(next, joined);
      const Tensor apart =
          torch::cat({model->decode(next.slice(0, 0, 2), b), model->decode(next.slice(0, 2), a)});
      EXPECT_TRUE(torch::allclose(together, apart, 1e-4, 1e-5)) << i;
    }
  }
}

TEST(DecoderState, JoinedStreamsEqualThemselvesAlone) {
  for (const PositionKind positions : {PositionKind::kLearned, PositionKind::kSinusoidal,
                                       PositionKind::kRotary, PositionKind::kAxial}) {
    SCOPED_TRACE(to_string(positions));
    LanguageModel model = tiny_model(/*causal=*/true, positions);
    const std::vector<int64_t> lengths = {5, 1, 17, 9};
    std::vector<DecoderState> alone(lengths.size());
    for (size_t i = 0; i < lengths.size(); ++i) {
      model->decode(tokens_of(static_cast<int64_t>(i), 1, lengths[i]), alone[i]);
    }
    // One of them is amid its hot tokens.
    model->decode(tokens_of(9, 1, 1), alone[1]);
    model->decode(tokens_of(9, 1, 1), alone[1]);
    DecoderState joined = join_streams(alone);
    EXPECT_EQ(joined.positions, (std::vector<int64_t>{5, 3, 17, 9}));
    std::vector<int64_t> rows = {0, 1, 2, 3};
    for (int64_t step = 0; step < 30; ++step) {
      if (step == 8) {
        joined = select_streams(joined, {3, 1});
        rows = {3, 1};
      }
      if (step == 20) {
        joined = select_streams(joined, {1});
        EXPECT_TRUE(joined.positions.empty());
        rows = {1};
        EXPECT_EQ(joined.position, alone[1].position);
      }
      const Tensor next = tokens_of(100 + step, std::ssize(rows), 1);
      const Tensor together = model->decode(next, joined);
      for (int64_t r = 0; r < std::ssize(rows); ++r) {
        const Tensor row = model->decode(next.slice(0, r, r + 1), alone[rows[r]]);
        EXPECT_TRUE(torch::allclose(together[r], row[0], 1e-4, 1e-5)) << step << " " << r;
      }
    }
  }
}

TEST(DecoderState, ErrorsSayWhatWasExpected) {
  const auto text = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const favor::Error& error) {
      return error.what();
    }
    return "no error";
  };
  LanguageModel model = tiny_model(/*causal=*/true);
  DecoderState a, b;
  model->decode(tokens_of(1, 1, 4), a);
  model->decode(tokens_of(2, 1, 6), b);
  EXPECT_EQ(text([&] { select_streams(a, {1}); }), "select_streams: row is 1, expected 0 to 0");
  EXPECT_EQ(text([&] { join_streams({}); }),
            "join_streams: states holds no state, expected at least 1");
  EXPECT_EQ(text([&] {
              join_streams({a, DecoderState()});
            }),
            "join_streams: a state has 0 streams and 0 layers, expected at least 1 and 2");
  DecoderState wide = b;
  wide.layers[0].groups[0] = favor::DecodeState(1, 2, 8, 16);
  EXPECT_NE(text([&] {
              join_streams({a, wide});
            }).find("H, M, E = 2, 8, 16, expected 2, 16, 16"),
            std::string::npos);
  DecoderState joined = join_streams({a, b});
  EXPECT_NE(text([&] {
              model->decode(tokens_of(3, 2, 3), joined);
            }).find("expected [2, 1] and 2 (rows with positions of their own)"),
            std::string::npos);

  ModelConfig config = model->config();
  config.attention.method = AttentionMethod::kExact;
  LanguageModel exact(config);
  exact->eval();
  DecoderState c, d;
  exact->decode(tokens_of(1, 1, 4), c);
  exact->decode(tokens_of(2, 1, 6), d);
  EXPECT_EQ(text([&] {
              join_streams({c, d});
            }),
            "join_streams: a stream that keeps keys is at position 6, expected 4 (as the first)");
  EXPECT_EQ(text([&] {
              join_streams({a, c});
            }),
            "join_streams: states are of unlike methods, expected those of one model");
}

}  // namespace
}  // namespace performer
