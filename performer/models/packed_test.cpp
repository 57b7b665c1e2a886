// SPDX-License-Identifier: Apache-2.0
// Packed sequences: a model sees each of them as if it stood alone, forward and backward.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "performer/models/models.h"
#include "performer/nn/testing.h"

namespace performer {
namespace {

using torch::Tensor;

// Empty, single and longer than a block of the kernels.
const std::vector<int64_t> kLengths = {5, 1, 0, 70, 17};

ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 11;
  config.dim = 24;
  config.num_layers = 2;
  config.num_heads = 3;
  config.ff_dim = 32;
  config.max_length = 70;  // below the packed row: positions must restart
  config.attention.num_features = 40;
  return config;
}

std::vector<ModelConfig> all_configs(bool causal) {
  std::vector<ModelConfig> all(6, small_config());
  all[1].positions = PositionKind::kRotary;
  all[2].positions = PositionKind::kSinusoidal;
  all[3].attention.feature_map = favor::FeatureMapKind::kRelu;
  all[4].attention.method = AttentionMethod::kExact;
  all[5].attention.method = AttentionMethod::kExact;
  all[5].positions = PositionKind::kRotary;
  all.push_back(small_config());
  all.back().positions = PositionKind::kAxial;
  all.back().axial_rows = 12;
  all.back().axial_columns = 2;
  all.back().axial_channels = 3;
  for (const AttentionMethod method : attention_methods()) {
    if (causal && !has_causal_form(method)) continue;
    all.push_back(small_config());
    AttentionOptions& attention = all.back().attention;
    attention.method = method;
    attention.local_window = 6;
    attention.hash_buckets = 4;
    attention.bucket_block = 5;
    attention.num_clusters = 4;
    attention.cluster_top = 3;
  }
  for (ModelConfig& config : all) config.causal = causal;
  return all;
}

Tensor offsets() {
  std::vector<int64_t> ends = {0};
  for (const int64_t length : kLengths) ends.push_back(ends.back() + length);
  return torch::tensor(ends);
}

Tensor random_row(int64_t L) {
  return torch::randint(0, 11, {1, L}, torch::kLong);
}

// The loss must tell the places apart, or a wrong order of gradients would not show.
Tensor loss_of(const Tensor& logits, const Tensor& weights) {
  return (logits.log_softmax(-1) * weights).sum();
}

TEST(PackedModel, EqualsSingleRuns) {
  for (const bool causal : {false, true}) {
    for (const ModelConfig& config : all_configs(causal)) {
      SCOPED_TRACE(to_string(config.attention.method) + " " + to_string(config.positions) +
                   (causal ? " causal" : ""));
      LanguageModel model(config);
      model->eval();
      const int64_t L = 93;
      const Tensor tokens = random_row(L), weights = torch::randn({1, L, 11});
      const Tensor packed = model->forward(tokens, {.cu_seqlens = offsets()});
      loss_of(packed, weights).backward();
      std::vector<Tensor> packed_gradients;
      for (const Tensor& parameter : model->parameters()) {
        packed_gradients.push_back(parameter.grad().clone());
        parameter.grad().zero_();
      }
      int64_t begin = 0;
      for (const int64_t length : kLengths) {
        if (length == 0) continue;
        const Tensor alone = model->forward(tokens.slice(1, begin, begin + length));
        EXPECT_LT(distance(alone, packed.slice(1, begin, begin + length)), 2e-5);
        loss_of(alone, weights.slice(1, begin, begin + length)).backward();
        begin += length;
      }
      for (size_t i = 0; i < packed_gradients.size(); ++i) {
        const Tensor expected = model->parameters()[i].grad();
        const double scale = 1 + expected.abs().max().item<double>();
        EXPECT_LT(distance(packed_gradients[i], expected), 2e-5 * scale);
      }
    }
  }
}

TEST(PackedModel, OtherSequencesDoNotMatter) {
  for (const bool causal : {false, true}) {
    for (const ModelConfig& config : all_configs(causal)) {
      LanguageModel model(config);
      model->eval();
      const torch::NoGradGuard no_grad;
      const Tensor tokens = random_row(93);
      Tensor changed = tokens.clone();
      changed.slice(1, 6, 76) = (changed.slice(1, 6, 76) + 1) % 11;
      const Tensor a = model->forward(tokens, {.cu_seqlens = offsets()});
      const Tensor b = model->forward(changed, {.cu_seqlens = offsets()});
      EXPECT_LT(distance(a.slice(1, 0, 6), b.slice(1, 0, 6)), 1e-6);
      EXPECT_LT(distance(a.slice(1, 76), b.slice(1, 76)), 1e-6);
      EXPECT_GT(distance(a.slice(1, 6, 76), b.slice(1, 6, 76)), 1e-3);
    }
  }
}

TEST(PackedModel, TakesMasksAndSeveralRows) {
  for (const ModelConfig& config : all_configs(false)) {
    LanguageModel model(config);
    model->eval();
    const torch::NoGradGuard no_grad;
    const Tensor tokens = random_row(24).view({2, 12});
    Tensor mask = torch::zeros({2, 12}, torch::kBool);
    mask[1].slice(0, 3, 5).fill_(true);  // the end of the first sequence
    const Tensor packed = model->forward(tokens, {mask, torch::tensor({0, 5, 12}, torch::kInt)});
    EXPECT_LT(
        distance(packed[1].slice(0, 0, 3), model->forward(tokens.slice(0, 1).slice(1, 0, 3))[0]),
        1e-5);
    EXPECT_LT(distance(packed.slice(1, 5), model->forward(tokens.slice(1, 5))), 1e-5);
  }
}

TEST(PackedModel, RefusesOffsetsThatDoNotFit) {
  LanguageModel model(small_config());
  const auto run = [&](const Tensor& ends, int64_t L = 9) {
    return error_of([&] { model->forward(random_row(L), {.cu_seqlens = ends}); });
  };
  EXPECT_EQ(run(torch::tensor({0, 5})),
            "model: cu_seqlens goes from 0 to 5, expected 0 to 9 (tokens of a row)");
  EXPECT_EQ(run(torch::tensor({1, 9})),
            "model: cu_seqlens goes from 1 to 9, expected 0 to 9 (tokens of a row)");
  EXPECT_EQ(run(torch::tensor({0, 7, 5, 9})),
            "model: cu_seqlens falls from 7 to 5, expected ascending offsets");
  EXPECT_EQ(run(torch::tensor({0})),
            "model: cu_seqlens is Long of shape [1], expected int32 or int64 of shape [N + 1] "
            "with N >= 1");
  EXPECT_EQ(run(torch::tensor({0.0, 9.0})),
            "model: cu_seqlens is Float of shape [2], expected int32 or int64 of shape [N + 1] "
            "with N >= 1");
  // The table of positions bounds a sequence, not a row.
  EXPECT_EQ(run(torch::tensor({0, 71, 93}), 93),
            "model: tokens reach position 71, expected at most max_length = 70 (learned "
            "positions; sinusoidal and rotary have no limit)");
}

}  // namespace
}  // namespace performer
