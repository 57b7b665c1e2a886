// SPDX-License-Identifier: Apache-2.0
// Layers: attention against brute force and between its methods, masks, positions, streams.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "performer/nn/attention.h"
#include "performer/nn/layers.h"
#include "performer/nn/testing.h"

namespace performer {
namespace {

using torch::Tensor;

constexpr int64_t kDim = 12, kHeads = 3, kLength = 9;

MultiHeadAttentionOptions options_of(AttentionMethod method, bool causal) {
  MultiHeadAttentionOptions options;
  options.dim = kDim;
  options.num_heads = kHeads;
  options.causal = causal;
  options.attention.method = method;
  options.attention.num_features = 32;
  return options;
}

std::vector<MultiHeadAttentionOptions> all_options(bool causal) {
  std::vector<MultiHeadAttentionOptions> all(10, options_of(AttentionMethod::kFavor, causal));
  all[1].attention.per_head_projection = true;
  all[2].attention.feature_map = favor::FeatureMapKind::kRelu;
  all[3].attention.feature_map = favor::FeatureMapKind::kRelu;
  all[3].attention.use_projection = false;
  all[3].bias = true;
  all[4] = options_of(AttentionMethod::kExact, causal);
  all[5].attention.feature_map = favor::FeatureMapKind::kHyperbolic;
  all[6].attention.projection = favor::ProjectionKind::kHadamard;
  all[7].attention.window = 2;
  all[7].attention.sinks = 1;
  all[8].attention.local_heads = 2;
  all[8].attention.local_window = 3;
  all[8].attention.per_head_projection = true;
  all[9] = options_of(AttentionMethod::kExact, causal);
  all[9].attention.local_heads = 1;
  all[9].attention.local_window = 2;
  all[9].attention.sinks = 1;
  for (const AttentionMethod method : attention_methods()) {
    if (causal && !has_causal_form(method)) continue;
    // Its rows do not sum to 1, and it has parameters of its own (methods_test.cpp).
    if (method == AttentionMethod::kLinformer) continue;
    all.push_back(options_of(method, causal));
    AttentionOptions& attention = all.back().attention;
    attention.local_window = 2;
    attention.hash_buckets = 2;
    attention.bucket_block = 2;
    attention.num_clusters = 3;
    attention.cluster_top = 2;
    if (method == AttentionMethod::kCentroids) attention.window = 2;
  }
  return all;
}

// Softmax attention written out.
Tensor plain_softmax(MultiHeadAttention& layer, const Tensor& x, const Tensor& mask, bool causal) {
  const auto weights = layer->named_parameters();
  const int64_t B = x.size(0), L = x.size(1);
  const auto heads = [&](int64_t part) {
    return torch::linear(x, weights["qkv.weight"].chunk(3)[part])
        .view({B, L, kHeads, kDim / kHeads})
        .transpose(1, 2);
  };
  Tensor scores = heads(0).matmul(heads(1).transpose(2, 3)) / std::sqrt(kDim / kHeads);
  if (causal) {
    scores = scores.masked_fill(torch::ones({L, L}, torch::kBool).tril().logical_not(), -INFINITY);
  }
  if (mask.defined()) scores = scores.masked_fill(mask.view({B, 1, 1, L}), -INFINITY);
  const Tensor out = torch::nan_to_num(scores.softmax(-1)).matmul(heads(2));
  return torch::linear(out.transpose(1, 2).reshape({B, L, kDim}), weights["out.weight"]);
}

TEST(MultiHeadAttention, ExactIsSoftmaxUnderEveryMask) {
  for (bool causal : {false, true}) {
    MultiHeadAttention layer(options_of(AttentionMethod::kExact, causal));
    const Tensor x = torch::randn({2, kLength, kDim});
    Tensor mask = torch::zeros({2, kLength}, torch::kBool);
    mask[0].slice(0, 6).fill_(true);
    mask[1].slice(0, 0, 3).fill_(true);  // causal rows 0 to 2 have nothing to attend to
    EXPECT_LT(distance(layer->forward(x), plain_softmax(layer, x, {}, causal)), 1e-5);
    EXPECT_LT(distance(layer->forward(x, {.key_padding_mask = mask}),
                       plain_softmax(layer, x, mask, causal)),
              1e-5);
  }
}

TEST(MultiHeadAttention, WeightsTimesValuesAreTheOutput) {
  torch::manual_seed(5);
  const Tensor x = torch::randn({2, 300, kDim}) * 0.5;  // more columns than a block
  const Tensor rotary = rotary_table(0, 300, kDim / kHeads);
  for (const bool causal : {false, true}) {
    for (MultiHeadAttentionOptions options : all_options(causal)) {
      options.bias = false;
      MultiHeadAttention layer(options);
      const torch::NoGradGuard no_grad;
      const auto parameters = layer->named_parameters();
      Tensor(parameters["out.weight"]).copy_(torch::eye(kDim));
      const Tensor weights = layer->weights(x, rotary);
      ASSERT_EQ(weights.sizes(), (std::vector<int64_t>{2, kHeads, 300, 300}));
      EXPECT_LT(distance(weights.sum(-1), torch::ones({2, kHeads, 300})), 1e-4);
      if (causal) {
        EXPECT_EQ(weights.triu(1).abs().max().item<float>(), 0);
      }
      const Tensor values = torch::linear(x, parameters["qkv.weight"].chunk(3)[2])
                                .view({2, 300, kHeads, kDim / kHeads})
                                .transpose(1, 2);
      const Tensor joined = weights.matmul(values).transpose(1, 2).reshape({2, 300, kDim});
      EXPECT_LT(distance(joined, layer->forward(x, {}, rotary)), 1e-4);
    }
  }
}

// The estimator's squared error falls as 1/M: by 64 from M = 64 to 4096, at norms small enough for
// its tails to be light. A quarter of that, over several matrices, leaves room for chance.
TEST(MultiHeadAttention, FavorApproachesExactWithTheSameWeights) {
  for (bool causal : {false, true}) {
    torch::manual_seed(1);
    const Tensor x = torch::randn({2, kLength, kDim}) * 0.4;
    MultiHeadAttention exact(options_of(AttentionMethod::kExact, causal));
    const Tensor expected = exact->forward(x);
    const auto squared_error = [&](int64_t num_features) {
      MultiHeadAttentionOptions options = options_of(AttentionMethod::kFavor, causal);
      options.attention.num_features = num_features;
      MultiHeadAttention layer(options);
      const torch::NoGradGuard no_grad;
      for (const auto& weight : exact->named_parameters()) {
        layer->named_parameters()[weight.key()].copy_(weight.value());
      }
      double sum = 0;
      for (uint32_t draw = 0; draw < 8; ++draw) {
        layer->redraw(draw);
        sum += (layer->forward(x) - expected).square().mean().item<double>() / 8;
      }
      return sum;
    };
    const double few = squared_error(64), many = squared_error(4096);
    EXPECT_LT(many, few / 16);
    EXPECT_LT(many, 0.01 * expected.square().mean().item<double>());
  }
}

TEST(MultiHeadAttention, EvaluatesTheSameBitsWithoutTouchingTheGenerator) {
  for (const MultiHeadAttentionOptions& options : all_options(true)) {
    MultiHeadAttention layer(options);
    layer->eval();
    const Tensor x = torch::randn({2, kLength, kDim});
    const auto generator = at::globalContext().defaultGenerator(torch::kCPU);
    const Tensor before = generator.get_state();
    const Tensor first = layer->forward(x);
    EXPECT_TRUE(torch::equal(first, layer->forward(x)));
    EXPECT_TRUE(torch::equal(before, generator.get_state()));
  }
}

TEST(MultiHeadAttention, ItemsOfABatchDoNotMeet) {
  for (bool causal : {false, true}) {
    for (const MultiHeadAttentionOptions& options : all_options(causal)) {
      MultiHeadAttention layer(options);
      const Tensor x = torch::randn({3, kLength, kDim});
      const Tensor together = layer->forward(x);
      for (int64_t b = 0; b < 3; ++b) {
        EXPECT_LT(distance(layer->forward(x.slice(0, b, b + 1))[0], together[b]), 1e-5);
      }
    }
  }
}

TEST(MultiHeadAttention, PaddingChangesNoOtherRow) {
  for (bool causal : {false, true}) {
    for (MultiHeadAttentionOptions options : all_options(causal)) {
      // The last keys of a row are sinks wherever the padding is.
      if (!causal) options.attention.sinks = 0;
      MultiHeadAttention layer(options);
      const Tensor x = torch::randn({1, kLength, kDim});
      const Tensor padded = torch::cat({x, torch::full({1, 4, kDim}, 50.0)}, 1);
      Tensor mask = torch::zeros({1, kLength + 4}, torch::kBool);
      mask.slice(1, kLength).fill_(true);
      EXPECT_LT(distance(layer->forward(padded, {.key_padding_mask = mask}).slice(1, 0, kLength),
                         layer->forward(x)),
                1e-5);
    }
  }
}

TEST(MultiHeadAttention, DecodingEqualsTheWholePassForAnySplit) {
  const Tensor rotary = rotary_table(0, kLength, kDim / kHeads);
  for (bool turned : {false, true}) {
    for (const MultiHeadAttentionOptions& options : all_options(true)) {
      MultiHeadAttention layer(options);
      const Tensor x = torch::randn({2, kLength, kDim});
      const Tensor whole = layer->forward(x, {}, turned ? rotary : Tensor());
      for (const std::vector<int64_t>& split :
           {std::vector<int64_t>{9}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 1, 1, 3}, {1, 6, 2}}) {
        AttentionState state;
        std::vector<Tensor> rows;
        int64_t at = 0;
        for (int64_t count : split) {
          const Tensor part = turned ? rotary_table(at, count, kDim / kHeads) : Tensor();
          rows.push_back(layer->decode(x.slice(1, at, at + count), state, part));
          at += count;
        }
        EXPECT_LT(distance(torch::cat(rows, 1), whole), 1e-5);
      }
    }
  }
}

TEST(MultiHeadAttention, CopiedStatesForkTheStream) {
  for (const MultiHeadAttentionOptions& options : all_options(true)) {
    MultiHeadAttention layer(options);
    const Tensor x = torch::randn({1, kLength, kDim}), other = torch::randn({1, 3, kDim});
    AttentionState state;
    layer->decode(x.slice(1, 0, 6), state);
    AttentionState fork = state;
    layer->decode(other, fork);
    EXPECT_LT(distance(layer->decode(x.slice(1, 6), state), layer->forward(x).slice(1, 6)), 1e-5);
    EXPECT_LT(distance(layer->decode(other, fork),
                       layer->forward(torch::cat({x.slice(1, 0, 6), other, other}, 1)).slice(1, 9)),
              1e-5);
  }
}

TEST(MultiHeadAttention, MatrixIsABufferThatSeedLayerAndRedrawDecide) {
  const auto matrix = [](uint64_t seed, int64_t layer, uint32_t redraw, bool per_head) {
    MultiHeadAttentionOptions options = options_of(AttentionMethod::kFavor, true);
    options.attention.projection_seed = seed;
    options.attention.per_head_projection = per_head;
    options.layer = layer;
    MultiHeadAttention module(options);
    if (redraw > 0) module->redraw(redraw);
    return module->named_buffers()["projection"].clone();
  };
  const Tensor first = matrix(0, 0, 0, false);
  EXPECT_EQ(first.sizes(), (std::vector<int64_t>{1, 32, kDim / kHeads}));
  EXPECT_TRUE(torch::equal(first, matrix(0, 0, 0, false)));
  EXPECT_FALSE(torch::equal(first, matrix(1, 0, 0, false)));
  EXPECT_FALSE(torch::equal(first, matrix(0, 1, 0, false)));
  EXPECT_FALSE(torch::equal(first, matrix(0, 0, 1, false)));
  const Tensor heads = matrix(0, 0, 0, true);
  EXPECT_EQ(heads.sizes(), (std::vector<int64_t>{kHeads, 32, kDim / kHeads}));
  EXPECT_FALSE(torch::equal(heads[0], heads[1]));
}

TEST(MultiHeadAttention, TheBufferIsWhatTheLayerComputesWith) {
  MultiHeadAttention layer(options_of(AttentionMethod::kFavor, true));
  const Tensor x = torch::randn({1, kLength, kDim});
  const Tensor before = layer->forward(x);
  const Tensor kept = layer->named_buffers()["projection"].clone();
  layer->redraw(3);
  EXPECT_GT(distance(layer->forward(x), before), 1e-4);
  {
    const torch::NoGradGuard no_grad;
    layer->named_buffers()["projection"].copy_(kept);
  }
  EXPECT_TRUE(torch::equal(layer->forward(x), before));
  layer->to(torch::kDouble);
  EXPECT_LT(distance(layer->forward(x.to(torch::kDouble)), before.to(torch::kDouble)), 1e-5);
}

// The layer multiplies by any other rows in the buffer, and transforms where these are its own.
TEST(MultiHeadAttention, HadamardMatricesEqualTheirRows) {
  for (const bool per_head : {false, true}) {
    MultiHeadAttentionOptions options = options_of(AttentionMethod::kFavor, true);
    options.attention.per_head_projection = per_head;
    MultiHeadAttention dense(options);
    options.attention.projection = favor::ProjectionKind::kHadamard;
    MultiHeadAttention layer(options);
    const Tensor x = torch::randn({2, kLength, kDim});
    const torch::NoGradGuard no_grad;
    for (const char* name : {"qkv.weight", "out.weight"}) {
      dense->named_parameters()[name].copy_(layer->named_parameters()[name]);
    }
    Tensor rows = layer->named_buffers()["projection"];
    const Tensor own = rows.clone(), other = dense->named_buffers()["projection"].clone();
    const Tensor out = layer->forward(x);
    EXPECT_GT(distance(out, dense->forward(x)), 1e-4);
    dense->named_buffers()["projection"].copy_(own);
    const Tensor by_rows = dense->forward(x);
    EXPECT_LT(distance(out, by_rows), 1e-5);
    rows.copy_(other);
    EXPECT_GT(distance(layer->forward(x), out), 1e-4);
    rows.copy_(own);
    EXPECT_TRUE(torch::equal(layer->forward(x), out));
    layer->redraw(2);
    EXPECT_GT(distance(layer->forward(x), out), 1e-4);
    // Rows of another draw than the layer's last one are a matrix like any other.
    rows.copy_(own);
    EXPECT_TRUE(torch::equal(layer->forward(x), by_rows));
    layer->redraw(0);
    EXPECT_TRUE(torch::equal(layer->forward(x), out));
  }
}

// The heads of each kind are those of a layer of that kind alone.
TEST(MultiHeadAttention, LocalHeadsAreTheFirstOnes) {
  for (const bool causal : {false, true}) {
    for (const AttentionMethod method : {AttentionMethod::kFavor, AttentionMethod::kExact}) {
      MultiHeadAttentionOptions options = options_of(method, causal);
      options.attention.local_window = 2;
      options.attention.sinks = 1;
      options.attention.local_heads = 2;
      MultiHeadAttention mixed(options);
      options.attention.method = AttentionMethod::kWindow;
      options.attention.local_heads = 0;
      MultiHeadAttention local(options);
      options.attention.method = method;
      options.attention.sinks = 0;
      MultiHeadAttention other(options);
      const torch::NoGradGuard no_grad;
      for (auto& layer : {local, other}) {
        layer->named_parameters()["qkv.weight"].copy_(mixed->named_parameters()["qkv.weight"]);
      }
      for (auto& layer : {mixed, local, other}) {
        layer->named_parameters()["out.weight"].copy_(torch::eye(kDim));
      }
      const Tensor x = torch::randn({2, kLength, kDim});
      const Tensor out = mixed->forward(x);
      const int64_t first = 2 * kDim / kHeads;
      EXPECT_LT(distance(out.narrow(2, 0, first), local->forward(x).narrow(2, 0, first)), 1e-6);
      EXPECT_LT(distance(out.narrow(2, first, kDim - first),
                         other->forward(x).narrow(2, first, kDim - first)),
                1e-6);
    }
  }
}

TEST(MultiHeadAttention, HashesFollowSeedLayerAndRedraw) {
  MultiHeadAttentionOptions options = options_of(AttentionMethod::kLsh, true);
  options.attention.hash_buckets = 4;
  options.attention.bucket_block = 2;
  const auto matrix = [&](uint64_t seed, int64_t layer, uint32_t redraw) {
    options.attention.projection_seed = seed;
    options.layer = layer;
    MultiHeadAttention module(options);
    module->redraw(redraw);
    return module->named_buffers()["projection"].clone();
  };
  const Tensor first = matrix(0, 0, 0);
  EXPECT_EQ(first.sizes(), (std::vector<int64_t>{4, 2, kDim / kHeads}));
  EXPECT_TRUE(torch::equal(first, matrix(0, 0, 0)));
  EXPECT_FALSE(torch::equal(first, matrix(1, 0, 0)));
  EXPECT_FALSE(torch::equal(first, matrix(0, 1, 0)));
  EXPECT_FALSE(torch::equal(first, matrix(0, 0, 1)));
}

TEST(MultiHeadAttention, RotaryTurnsScoresByTheDistanceAlone) {
  for (const MultiHeadAttentionOptions& options : all_options(true)) {
    // Random features are not invariant to rotations; exact scores are.
    if (options.attention.method != AttentionMethod::kExact &&
        options.attention.method != AttentionMethod::kWindow) {
      continue;
    }
    MultiHeadAttention layer(options);
    const Tensor x = torch::randn({1, kLength, kDim});
    const Tensor near = layer->forward(x, {}, rotary_table(0, kLength, kDim / kHeads));
    const Tensor far = layer->forward(x, {}, rotary_table(100, kLength, kDim / kHeads));
    EXPECT_LT(distance(near, far), 1e-4);
    EXPECT_GT(distance(near, layer->forward(x)), 1e-3);
  }
}

TEST(MultiHeadAttention, ErrorsNameArgumentAndExpectation) {
  MultiHeadAttention layer(options_of(AttentionMethod::kFavor, false));
  const Tensor x = torch::randn({2, kLength, kDim});
  EXPECT_EQ(error_of([&] {
              layer->forward(torch::randn({2, kLength, 5}));
            }),
            "MultiHeadAttention: x has shape [2, 9, 5], expected [B, L, 12]");
  EXPECT_EQ(error_of([&] {
              layer->forward(x, {.key_padding_mask = torch::zeros({2, kLength})});
            }),
            "MultiHeadAttention: key_padding_mask is Float of shape [2, 9], expected bool of shape "
            "[2, 9] (true = ignore this key)");
  EXPECT_EQ(error_of([&] {
              AttentionState state;
              layer->decode(x, state);
            }),
            "MultiHeadAttention: causal is false, expected true to decode token by token");
  MultiHeadAttentionOptions wrong = options_of(AttentionMethod::kFavor, false);
  wrong.num_heads = 5;
  EXPECT_EQ(error_of([&] { MultiHeadAttention module(wrong); }),
            "MultiHeadAttention: num_heads is 5, expected a divisor of dim = 12");
  wrong.num_heads = 3;
  wrong.attention.local_heads = 3;
  EXPECT_EQ(error_of([&] { MultiHeadAttention module(wrong); }),
            "MultiHeadAttention: local_heads is 3, expected less than num_heads = 3");
  wrong.attention.local_heads = 0;
  wrong.attention.method = AttentionMethod::kLinformer;
  EXPECT_EQ(error_of([&] { MultiHeadAttention module(wrong); }),
            "MultiHeadAttention: max_length is 0, expected at least 1 with attention linformer "
            "(columns of its mixtures)");
}

TEST(FeedForward, IsGeluOrGatedGelu) {
  const Tensor x = torch::randn({2, 3, kDim});
  for (bool glu : {false, true}) {
    FeedForward layer(kDim, 20, glu);
    const auto w = layer->named_parameters();
    EXPECT_EQ(w["up.weight"].size(0), glu ? 40 : 20);
    const Tensor up = torch::linear(x, w["up.weight"], w["up.bias"]);
    const auto gelu = [](const Tensor& t) {
      return 0.5 * t * (1 + torch::erf(t / std::sqrt(2.0)));
    };
    const Tensor hidden = glu ? gelu(up.slice(2, 20)) * up.slice(2, 0, 20) : gelu(up);
    EXPECT_LT(distance(layer->forward(x), torch::linear(hidden, w["down.weight"], w["down.bias"])),
              1e-5);
    EXPECT_EQ(w["up.bias"].abs().sum().item<double>(), 0);
    // Xavier-uniform: bounded by sqrt(6 / (in + out)) and close to that bound somewhere.
    const double bound = std::sqrt(6.0 / (kDim + 20));
    EXPECT_LE(w["up.weight"].abs().max().item<double>(), bound);
    EXPECT_GT(w["up.weight"].abs().max().item<double>(), 0.9 * bound);
  }
}

TEST(Embedding, StartsNormalWithSinusoidsAndKnowsItsLimits) {
  ModelConfig config;
  config.dim = 64;
  config.num_heads = 4;
  config.vocab_size = 200;
  config.max_length = 50;
  Embedding learned(config);
  const auto w = learned->named_parameters();
  EXPECT_NEAR(w["tokens.weight"].std().item<double>(), 1, 0.05);
  const Tensor table = sinusoids(0, 50, 64);
  EXPECT_TRUE(torch::equal(w["positions"], table));
  EXPECT_NEAR(table[3][0].item<double>(), std::sin(3.0), 1e-6);
  EXPECT_NEAR(table[3][32].item<double>(), std::cos(3.0), 1e-6);
  EXPECT_NEAR(table[49][31].item<double>(), std::sin(49.0 / 10000), 1e-6);
  EXPECT_TRUE(torch::equal(sinusoids(7, 4, 64), table.slice(0, 7, 11)));
  EXPECT_EQ(sinusoids(0, 3, 1).sizes(), (std::vector<int64_t>{3, 1}));
  const auto ids = [](int64_t length) { return torch::zeros({1, length}, torch::kLong); };
  EXPECT_EQ(error_of([&] { learned->forward(ids(51)); }),
            "model: tokens reach position 51, expected at most max_length = 50 (learned "
            "positions; sinusoidal and rotary have no limit)");
  EXPECT_EQ(error_of([&] { learned->forward(ids(2), 49); }).find("position 51"), 20u);
  EXPECT_EQ(error_of([&] { learned->forward(ids(2) + 200); }),
            "model: tokens holds id 200, expected 0 to 199");
  EXPECT_EQ(error_of([&] { learned->forward(ids(2) - 1); }),
            "model: tokens holds id -1, expected 0 to 199");
  EXPECT_EQ(error_of([&] {
              learned->forward(torch::zeros({1, 2}));
            }),
            "model: tokens is Float of shape [1, 2], expected int64 of shape [B, L]");
  config.positions = PositionKind::kSinusoidal;
  Embedding fixed(config);
  EXPECT_EQ(fixed->parameters().size(), 1u);
  EXPECT_LT(
      distance(fixed->forward(ids(80)), fixed->weight()[0].view({1, 1, 64}) + sinusoids(0, 80, 64)),
      1e-6);
}

TEST(Embedding, AxialPositionsAreTheSumOfRowColumnAndChannel) {
  ModelConfig config;
  config.dim = 10;
  config.num_heads = 2;
  config.vocab_size = 7;
  config.positions = PositionKind::kAxial;
  config.axial_rows = 4;
  config.axial_columns = 3;
  config.axial_channels = 5;
  torch::manual_seed(2);
  Embedding axial(config);
  const auto w = axial->named_parameters();
  ASSERT_EQ(w.size(), 4u);
  // The start: sinusoids of each axis in a third of the width.
  EXPECT_TRUE(torch::equal(w["position_rows"].slice(1, 0, 3), sinusoids(0, 4, 3)));
  EXPECT_TRUE(torch::equal(w["position_columns"].slice(1, 3, 6), sinusoids(0, 3, 3)));
  EXPECT_TRUE(torch::equal(w["position_channels"].slice(1, 6, 10), sinusoids(0, 5, 4)));
  EXPECT_EQ(w["position_rows"].slice(1, 3).abs().sum().item<double>(), 0);
  {
    const torch::NoGradGuard no_grad;
    for (Tensor& table : axial->parameters()) table.normal_();
  }
  const Tensor tokens = torch::randint(0, 7, {2, 60}, torch::kLong);
  const auto value = [&](const char* name, int64_t row, int64_t i) {
    return w[name][row][i].item<double>();
  };
  const Tensor vectors = axial->forward(tokens);
  for (int64_t p = 0; p < 60; ++p) {
    for (int64_t i = 0; i < 10; ++i) {
      const double expected = value("tokens.weight", tokens[1][p].item<int64_t>(), i) +
                              value("position_rows", p / 15, i) +
                              value("position_columns", p / 5 % 3, i) +
                              value("position_channels", p % 5, i);
      ASSERT_NEAR(vectors[1][p][i].item<double>(), expected, 1e-5) << p;
    }
  }
  // The other ways to ask for the same.
  EXPECT_TRUE(torch::equal(axial->forward(tokens.slice(1, 17, 40), 17), vectors.slice(1, 17, 40)));
  const Tensor at = torch::tensor({59, 3, 15, 16}, torch::kLong);
  EXPECT_TRUE(torch::equal(axial->forward(tokens.index_select(1, at), at, 60),
                           vectors.index_select(1, at)));
  const Tensor rows = axial->forward_rows(tokens.slice(1, 7, 8), {58, 7});
  EXPECT_LT(distance(rows[1][0], vectors[1][7]), 1e-6);
  EXPECT_EQ(error_of([&] {
              axial->forward(torch::zeros({1, 61}, torch::kLong));
            }),
            "model: tokens reach position 61, expected at most 60 (axial positions of 4 rows, 3 "
            "columns and 5 channels)");
}

TEST(Embedding, AnAxisOfOnePlaceLeavesItsWidthToTheOthers) {
  ModelConfig config;
  config.dim = 8;
  config.positions = PositionKind::kAxial;
  config.axial_rows = 5;
  config.axial_columns = 6;
  Embedding axial(config);
  const auto w = axial->named_parameters();
  EXPECT_TRUE(torch::equal(w["position_rows"].slice(1, 0, 4), sinusoids(0, 5, 4)));
  EXPECT_TRUE(torch::equal(w["position_columns"].slice(1, 4, 8), sinusoids(0, 6, 4)));
  EXPECT_EQ(w["position_channels"].abs().sum().item<double>(), 0);
  EXPECT_EQ(w["position_channels"].size(0), 1);
}

}  // namespace
}  // namespace performer
