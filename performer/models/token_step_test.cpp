// SPDX-License-Identifier: Apache-2.0
// The fused step against the modules and against whole passes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "performer/models/models.h"
#include "performer/nn/autocast.h"
#include "performer/nn/testing.h"

namespace performer {
namespace {

using favor::FeatureMapKind;
using torch::Tensor;

ModelConfig base_config() {
  ModelConfig config;
  config.vocab_size = 11;
  config.dim = 24;
  config.num_layers = 2;
  config.num_heads = 3;
  config.ff_dim = 36;
  config.max_length = 64;
  config.attention.num_features = 40;
  return config;
}

// Every choice that changes a step, by name.
std::vector<std::pair<std::string, ModelConfig>> all_configs() {
  std::vector<std::pair<std::string, ModelConfig>> all;
  const auto add = [&](const std::string& name, const auto& change) {
    ModelConfig config = base_config();
    change(config);
    all.emplace_back(name, config);
  };
  add("plain", [](ModelConfig&) {});
  add("rotary", [](ModelConfig& c) { c.positions = PositionKind::kRotary; });
  add("sinusoidal", [](ModelConfig& c) { c.positions = PositionKind::kSinusoidal; });
  add("axial", [](ModelConfig& c) {
    c.positions = PositionKind::kAxial;
    c.axial_rows = 8;
    c.axial_columns = 3;
    c.axial_channels = 3;
  });
  add("glu", [](ModelConfig& c) { c.ff_glu = true; });
  add("tied", [](ModelConfig& c) { c.tie_embeddings = true; });
  add("biases", [](ModelConfig& c) { c.attention_bias = true; });
  add("matrix per head", [](ModelConfig& c) { c.attention.per_head_projection = true; });
  add("no projection", [](ModelConfig& c) {
    c.attention.feature_map = FeatureMapKind::kElu1;
    c.attention.use_projection = false;
  });
  add("hadamard", [](ModelConfig& c) {
    c.attention.projection = favor::ProjectionKind::kHadamard;
    c.positions = PositionKind::kRotary;
    c.ff_glu = true;
  });
  for (const FeatureMapKind map :
       {FeatureMapKind::kHyperbolic, FeatureMapKind::kTrig, FeatureMapKind::kRelu,
        FeatureMapKind::kGelu, FeatureMapKind::kSigmoid}) {
    add(favor::to_string(map), [map](ModelConfig& c) {
      c.attention.feature_map = map;
      c.attention.feature_eps = map == FeatureMapKind::kRelu ? 1e-2 : -1;
    });
  }
  return all;
}

Tensor random_tokens(int64_t B, int64_t L) {
  return torch::randint(0, 11, {B, L}, torch::kLong);
}

// Weights of a trained model: biases and norms that are not zeros and ones.
void stir(LanguageModel& model) {
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : model->parameters()) parameter.add_(torch::randn_like(parameter), 0.05);
}

TEST(TokenStep, EqualsModulesAndWholePasses) {
  torch::manual_seed(1);
  for (const auto& [name, config] : all_configs()) {
    SCOPED_TRACE(name);
    LanguageModel model(config);
    stir(model);
    model->eval();
    for (const int64_t B : {1, 2, 3, 9}) {
      SCOPED_TRACE(B);
      const Tensor tokens = random_tokens(B, 40);
      const Tensor whole = model->forward(tokens);
      DecoderState fused, plain;
      for (DecoderState* state : {&fused, &plain}) model->decode(tokens.slice(1, 0, 5), *state);
      for (int64_t t = 5; t < 40; ++t) {
        const Tensor token = tokens.slice(1, t, t + 1).contiguous();
        model->set_fused_decode(true);
        const Tensor logits = model->decode(token, fused);
        model->set_fused_decode(false);
        const Tensor by_modules = model->decode(token, plain);
        EXPECT_FALSE(logits.requires_grad());
        EXPECT_EQ(fused.position, t + 1);
        // The trigonometric map divides by sums that may be nearly nothing.
        const double limit = config.attention.feature_map == FeatureMapKind::kTrig ? 1e-2 : 2e-5;
        EXPECT_LT(distance(logits, by_modules), limit) << t;
        EXPECT_LT(distance(logits, whole.select(1, t)), limit) << t;
      }
    }
  }
}

// Otherwise the comparison above would compare a path with itself.
TEST(TokenStep, ServesAndIsToldApart) {
  torch::manual_seed(2);
  ModelConfig config = base_config();
  config.dim = 96;
  LanguageModel model(config);
  stir(model);
  const Tensor tokens = random_tokens(1, 30);
  DecoderState fused, plain;
  for (DecoderState* state : {&fused, &plain}) model->decode(tokens, *state);
  double largest = 0;
  for (int64_t t = 0; t < 8; ++t) {
    const Tensor token = random_tokens(1, 1);
    model->set_fused_decode(true);
    const Tensor logits = model->decode(token, fused);
    model->set_fused_decode(false);
    largest = std::max(largest, distance(logits, model->decode(token, plain)));
  }
  EXPECT_GT(largest, 0) << "the sums of both are in different orders";
}

TEST(TokenStep, RowsAtPositionsOfTheirOwn) {
  torch::manual_seed(3);
  for (const PositionKind positions : {PositionKind::kLearned, PositionKind::kSinusoidal,
                                       PositionKind::kRotary, PositionKind::kAxial}) {
    SCOPED_TRACE(to_string(positions));
    ModelConfig config = base_config();
    config.positions = positions;
    config.axial_columns = 4;
    LanguageModel model(config);
    stir(model);
    model->eval();
    const std::vector<Tensor> prompts = {random_tokens(1, 3), random_tokens(1, 17)};
    std::vector<DecoderState> alone(2);
    for (size_t i = 0; i < 2; ++i) model->decode(prompts[i], alone[i]);
    DecoderState joined = join_streams(alone);
    Tensor streams[2] = {prompts[0], prompts[1]};
    for (int64_t t = 0; t < 20; ++t) {
      const Tensor next = random_tokens(2, 1);
      const Tensor logits = model->decode(next, joined);
      for (int64_t i = 0; i < 2; ++i) {
        streams[i] = torch::cat({streams[i], next.slice(0, i, i + 1)}, 1);
        EXPECT_LT(distance(logits.slice(0, i, i + 1), model->forward(streams[i]).select(1, -1)),
                  2e-5);
      }
    }
  }
}

TEST(TokenStep, FollowsWeightsAndMatricesThatChange) {
  torch::manual_seed(4);
  LanguageModel model(base_config());
  model->eval();
  const Tensor tokens = random_tokens(1, 12);
  const auto expect_equal = [&] {
    DecoderState state;
    model->decode(tokens.slice(1, 0, 11), state);
    EXPECT_LT(distance(model->decode(tokens.slice(1, 11, 12).contiguous(), state),
                       model->forward(tokens).select(1, -1)),
              2e-5);
  };
  expect_equal();
  stir(model);
  expect_equal();
  model->redraw(3);
  expect_equal();
  model->to(torch::kDouble);
  model->to(torch::kFloat);
  expect_equal();
}

TEST(TokenStep, LeavesToTheModulesWhatItDoesNotKnow) {
  torch::manual_seed(5);
  LanguageModel model(base_config());
  model->eval();
  const Tensor tokens = random_tokens(2, 63);
  DecoderState state;
  model->decode(tokens, state);
  // Wrong tokens and positions are refused in the words of whole passes, and nothing moves.
  EXPECT_NE(error_of([&] {
              model->decode(torch::full({2, 1}, 11), state);
            }).find("tokens holds id 11, expected 0 to 10"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              model->decode(torch::ones({2, 1}), state);
            }).find("expected int64"),
            std::string::npos);
  EXPECT_EQ(state.position, 63);
  model->decode(random_tokens(2, 1), state);
  EXPECT_NE(error_of([&] { model->decode(random_tokens(2, 1), state); }).find("position 65"),
            std::string::npos);
  EXPECT_EQ(state.position, 64);
  // Under autocast the layers are those of torch, in bfloat16.
  DecoderState half, full;
  const Tensor prompt = random_tokens(1, 9), next = random_tokens(1, 1);
  model->decode(prompt, full);
  half = full;
  const Tensor exact = model->decode(next, full);
  const Autocast autocast(true);
  const Tensor rounded = model->decode(next, half);
  EXPECT_GT(distance(rounded.to(torch::kFloat), exact), 1e-4);
}

}  // namespace
}  // namespace performer
