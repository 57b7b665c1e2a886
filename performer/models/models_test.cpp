// SPDX-License-Identifier: Apache-2.0
// The language model: shapes, masks, causality, streams, redraws, and that it learns.
#include "performer/models/models.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "performer/nn/testing.h"

namespace performer {
namespace {

using torch::Tensor;

ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 11;
  config.dim = 24;
  config.num_layers = 2;
  config.num_heads = 3;
  config.ff_dim = 32;
  config.max_length = 64;
  config.attention.num_features = 40;
  return config;
}

// One configuration for each choice that changes what is computed.
std::vector<ModelConfig> all_configs(bool causal) {
  std::vector<ModelConfig> all(6, small_config());
  all[1].attention.method = AttentionMethod::kExact;
  all[2].positions = PositionKind::kRotary;
  all[2].ff_glu = true;
  all[3].attention.method = AttentionMethod::kExact;
  all[3].positions = PositionKind::kRotary;
  all[4].positions = PositionKind::kSinusoidal;
  all[4].tie_embeddings = true;
  all[4].attention.per_head_projection = true;
  all[5].attention.feature_map = favor::FeatureMapKind::kRelu;
  all[5].attention_bias = true;
  all.resize(8, small_config());
  all[6].attention.window = 4;
  all[6].attention.sinks = causal ? 2 : 0;  // the last keys of a row are sinks, padding or not
  all[7].attention.local_heads = 1;
  all[7].attention.local_window = 5;
  all[7].positions = PositionKind::kRotary;
  all.push_back(small_config());
  all.back().positions = PositionKind::kAxial;
  all.back().axial_rows = 8;
  all.back().axial_columns = 3;
  all.back().axial_channels = 3;
  for (const AttentionMethod method : attention_methods()) {
    if (causal && !has_causal_form(method)) continue;
    // Its rows do not sum to 1, and it has parameters of its own.
    if (method == AttentionMethod::kLinformer) continue;
    all.push_back(small_config());
    AttentionOptions& attention = all.back().attention;
    attention.method = method;
    attention.local_window = 3;
    attention.hash_buckets = 4;
    attention.bucket_block = 3;
    attention.num_clusters = 4;
  }
  for (ModelConfig& config : all) config.causal = causal;
  return all;
}

Tensor random_tokens(int64_t B, int64_t L) {
  return torch::randint(0, 11, {B, L}, torch::kLong);
}

TEST(LanguageModel, MapsTokensToLogitsOfUsefulSize) {
  for (bool causal : {false, true}) {
    for (const ModelConfig& config : all_configs(causal)) {
      LanguageModel model(config);
      model->eval();
      const Tensor logits = model->forward(random_tokens(2, 13));
      EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{2, 13, 11}));
      // Logits of about unit size: the first loss is near log(vocab), tied output or not.
      const double spread = logits.std().item<double>();
      EXPECT_GT(spread, 0.3);
      EXPECT_LT(spread, 3);
      EXPECT_EQ(model->hidden(random_tokens(1, 5)).sizes(), (std::vector<int64_t>{1, 5, 24}));
    }
  }
}

TEST(LanguageModel, EvaluationRepeatsItsBitsAndChangesNothing) {
  for (const ModelConfig& config : all_configs(true)) {
    LanguageModel model(config);
    model->eval();
    const Tensor tokens = random_tokens(2, 13);
    const auto generator = at::globalContext().defaultGenerator(torch::kCPU);
    const Tensor before = generator.get_state();
    const Tensor first = model->forward(tokens);
    EXPECT_TRUE(torch::equal(first, model->forward(tokens)));
    EXPECT_TRUE(torch::equal(before, generator.get_state()));
    EXPECT_EQ(model->redraw_index(), 0u);
    // Dropout is on in training only.
    model->train();
    EXPECT_GT(distance(first, model->forward(tokens)), 1e-3);
  }
}

TEST(LanguageModel, ItemsAndPaddingDoNotMatterToARow) {
  for (bool causal : {false, true}) {
    for (const ModelConfig& config : all_configs(causal)) {
      LanguageModel model(config);
      model->eval();
      const Tensor tokens = random_tokens(2, 17);
      Tensor mask = torch::zeros({2, 17}, torch::kBool);
      mask[1].slice(0, 9).fill_(true);
      const Tensor together = model->forward(tokens, {.key_padding_mask = mask});
      EXPECT_LT(distance(together[0], model->forward(tokens.slice(0, 0, 1))[0]), 1e-5);
      EXPECT_LT(distance(together[1].slice(0, 0, 9),
                         model->forward(tokens.slice(0, 1, 2).slice(1, 0, 9))[0]),
                1e-5);
    }
  }
}

TEST(LanguageModel, TheFutureDoesNotReachThePast) {
  for (const ModelConfig& config : all_configs(true)) {
    LanguageModel model(config);
    model->eval();
    const Tensor tokens = random_tokens(1, 20);
    Tensor changed = tokens.clone();
    changed[0].slice(0, 12).copy_((tokens[0].slice(0, 12) + 1) % 11);
    const Tensor a = model->forward(tokens), b = model->forward(changed);
    EXPECT_LT(distance(a.slice(1, 0, 12), b.slice(1, 0, 12)), 1e-5);
    EXPECT_GT(distance(a.slice(1, 12), b.slice(1, 12)), 1e-2);
  }
  for (const ModelConfig& config : all_configs(false)) {
    // A query sees near keys, or those of its own hash.
    if (config.attention.method == AttentionMethod::kWindow) continue;
    if (config.attention.method == AttentionMethod::kLsh) continue;
    LanguageModel model(config);
    model->eval();
    const Tensor tokens = random_tokens(1, 20);
    Tensor changed = tokens.clone();
    changed[0][19] = (tokens[0][19] + 1) % 11;
    EXPECT_GT(distance(model->forward(tokens)[0][0], model->forward(changed)[0][0]), 1e-5);
  }
}

TEST(LanguageModel, DecodingEqualsTheLastRowForAnySplit) {
  for (const ModelConfig& config : all_configs(true)) {
    LanguageModel model(config);
    model->eval();
    const Tensor tokens = random_tokens(2, 19);
    const Tensor whole = model->forward(tokens);
    for (const std::vector<int64_t>& split :
         {std::vector<int64_t>{19}, std::vector<int64_t>(19, 1), {7, 1, 1, 10}, {1, 16, 2}}) {
      DecoderState state;
      int64_t at = 0;
      for (int64_t count : split) {
        const Tensor logits = model->decode(tokens.slice(1, at, at + count), state);
        at += count;
        EXPECT_EQ(state.position, at);
        EXPECT_LT(distance(logits, whole.select(1, at - 1)), 1e-5);
      }
    }
  }
}

TEST(LanguageModel, DecodingIsInertAndWithoutDropout) {
  LanguageModel model(small_config());
  const Tensor tokens = random_tokens(1, 8);
  model->train();
  DecoderState state;
  const Tensor in_training = model->decode(tokens, state);
  EXPECT_FALSE(in_training.requires_grad());
  model->eval();
  EXPECT_LT(distance(in_training, model->forward(tokens).select(1, -1)), 1e-5);
}

TEST(LanguageModel, CopiedStatesForkTheStream) {
  for (const ModelConfig& config : all_configs(true)) {
    LanguageModel model(config);
    model->eval();
    const Tensor prefix = random_tokens(2, 9), left = random_tokens(2, 3);
    const Tensor right = random_tokens(2, 4);
    DecoderState state;
    model->decode(prefix, state);
    DecoderState fork = state;
    const Tensor right_logits = model->decode(right, fork);
    const Tensor left_logits = model->decode(left, state);
    EXPECT_LT(distance(left_logits, model->forward(torch::cat({prefix, left}, 1)).select(1, -1)),
              1e-5);
    EXPECT_LT(distance(right_logits, model->forward(torch::cat({prefix, right}, 1)).select(1, -1)),
              1e-5);
  }
}

TEST(LanguageModel, RedrawChangesEveryMatrixAndNothingElse) {
  torch::manual_seed(2);
  LanguageModel model(small_config());
  model->eval();
  const Tensor tokens = random_tokens(1, 10);
  const Tensor first = model->forward(tokens);
  std::vector<Tensor> weights, matrices;
  for (const Tensor& weight : model->parameters()) weights.push_back(weight.detach().clone());
  for (const Tensor& matrix : model->buffers()) matrices.push_back(matrix.clone());
  const auto generator = at::globalContext().defaultGenerator(torch::kCPU);
  const Tensor before = generator.get_state();
  model->redraw(4);
  EXPECT_EQ(model->redraw_index(), 4u);
  EXPECT_TRUE(torch::equal(before, generator.get_state()));
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(torch::equal(weights[i], model->parameters()[i]));
  }
  ASSERT_EQ(matrices.size(), 2u);
  EXPECT_FALSE(torch::equal(matrices[0], matrices[1]));
  for (size_t i = 0; i < 2; ++i) EXPECT_FALSE(torch::equal(matrices[i], model->buffers()[i]));
  EXPECT_GT(distance(first, model->forward(tokens)), 1e-4);
  model->redraw(0);
  EXPECT_TRUE(torch::equal(first, model->forward(tokens)));
}

TEST(LanguageModel, MatricesAreNamedBuffersThatTheSeedDecides) {
  ModelConfig config = small_config();
  LanguageModel model(config);
  const auto buffers = model->named_buffers();
  ASSERT_TRUE(buffers.contains("layers.0.attention.projection"));
  ASSERT_TRUE(buffers.contains("layers.1.attention.projection"));
  config.attention.projection_seed = 1;
  LanguageModel other(config);
  EXPECT_FALSE(torch::equal(buffers["layers.0.attention.projection"],
                            other->named_buffers()["layers.0.attention.projection"]));
}

TEST(LanguageModel, BothMethodsHaveTheSameParameters) {
  ModelConfig config = small_config();
  LanguageModel favor_model(config);
  config.attention.method = AttentionMethod::kExact;
  LanguageModel exact(config);
  EXPECT_EQ(exact->buffers().size(), 0u);
  const auto a = favor_model->named_parameters(), b = exact->named_parameters();
  ASSERT_EQ(a.size(), b.size());
  for (const auto& item : a) {
    ASSERT_TRUE(b.contains(item.key())) << item.key();
    EXPECT_EQ(item.value().sizes(), b[item.key()].sizes()) << item.key();
  }
  const std::set<std::string> names = [&] {
    std::set<std::string> result;
    for (const auto& item : a) result.insert(item.key());
    return result;
  }();
  for (const char* name :
       {"embed.tokens.weight", "embed.positions", "layers.1.attention.qkv.weight",
        "layers.1.attention.out.weight", "layers.0.norm1.weight", "layers.0.norm2.bias",
        "layers.0.feed_forward.up.weight", "layers.0.feed_forward.down.bias", "norm.weight",
        "output.weight", "output.bias"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
  config.tie_embeddings = true;
  LanguageModel tied(config);
  EXPECT_FALSE(tied->named_parameters().contains("output.weight"));
}

TEST(LanguageModel, ErrorsNameArgumentAndExpectation) {
  ModelConfig config = small_config();
  LanguageModel model(config);
  EXPECT_EQ(error_of([&] { model->forward(random_tokens(1, 65)); }),
            "model: tokens reach position 65, expected at most max_length = 64 (learned "
            "positions; sinusoidal and rotary have no limit)");
  DecoderState state;
  model->decode(random_tokens(2, 60), state);
  EXPECT_NE(error_of([&] { model->decode(random_tokens(2, 5), state); }).find("position 65"),
            std::string::npos);
  EXPECT_EQ(state.position, 60);
  EXPECT_EQ(error_of([&] { model->decode(random_tokens(3, 1), state); }),
            "decode: tokens has shape [3, 1], expected 2 rows (as the state)");
  // A state of another model is refused before any of its layers moves on.
  ModelConfig other_config = small_config();
  other_config.num_heads *= 2;
  LanguageModel other(other_config);
  const DecoderState before = state;
  EXPECT_NE(error_of([&] {
              other->decode(random_tokens(2, 1), state);
            }).find("decode: layer 0 of the state has B, H, M, E = 2, "),
            std::string::npos);
  EXPECT_EQ(state.position, before.position);
  for (size_t i = 0; i < before.layers.size(); ++i) {
    const auto sums = [i](const DecoderState& of) {
      return std::get<favor::DecodeState>(of.layers[i].groups[0]).S;
    };
    EXPECT_EQ(sums(state), sums(before));
  }
  model->decode(random_tokens(2, 1), state);
  EXPECT_EQ(error_of([&] { model->decode(random_tokens(2, 0), state); }),
            "decode: tokens has shape [2, 0], expected [B, T] with T >= 1");
  config.attention.method = AttentionMethod::kExact;
  LanguageModel exact(config);
  EXPECT_EQ(error_of([&] { exact->decode(random_tokens(2, 1), state); }),
            "decode: layer 0 of the state is of another method of attention");
  config.attention.method = AttentionMethod::kFavor;
  config.attention.window = 8;
  LanguageModel hybrid(config);
  EXPECT_EQ(error_of([&] { hybrid->decode(random_tokens(2, 1), state); }),
            "decode: layer 0 of the state is of another method of attention, expected sums of "
            "features with near keys");
  config.attention.local_heads = 1;
  LanguageModel mixed(config);
  EXPECT_EQ(error_of([&] { mixed->decode(random_tokens(2, 1), state); }),
            "decode: layer 0 of the state has 1 groups of heads, expected 2");
  config.causal = false;
  LanguageModel encoder(config);
  EXPECT_EQ(error_of([&] { encoder->decode(random_tokens(2, 1), state); }),
            "decode: causal is false, expected true (an encoder has no stream)");
  config.num_heads = 5;
  EXPECT_EQ(error_of([&] { LanguageModel wrong(config); }),
            "config: num_heads is 5, expected a divisor of dim = 24");
}

// Eight letters, a separator, the same eight letters: the second half can only be told by looking
// back.
TEST(LanguageModel, VisitsTheAttentionOfTheNamedLayers) {
  torch::manual_seed(4);
  const Tensor tokens = random_tokens(2, 13);
  for (bool causal : {false, true}) {
    for (const ModelConfig& config : all_configs(causal)) {
      LanguageModel model(config);
      std::vector<int64_t> seen;
      std::vector<Tensor> maps;
      const auto visit = [&](int64_t layer, const Tensor& weights) {
        seen.push_back(layer);
        maps.push_back(weights);
        EXPECT_EQ(weights.sizes(), (std::vector<int64_t>{2, 3, 13, 13}));
        EXPECT_LT(distance(weights.sum(-1), torch::ones({2, 3, 13})), 1e-4);
        EXPECT_FALSE(weights.requires_grad());
      };
      model->visit_attention(tokens, {}, visit);
      EXPECT_TRUE(model->is_training());
      EXPECT_EQ(seen, (std::vector<int64_t>{0, 1}));
      model->visit_attention(tokens, {-1}, visit);
      EXPECT_EQ(seen.back(), 1);
      EXPECT_EQ(distance(maps[1], maps[2]), 0);
      EXPECT_GT(distance(maps[0], maps[1]), 1e-4);
      if (causal) {
        EXPECT_EQ(maps[0].triu(1).abs().max().item<float>(), 0);
      }
    }
  }
  LanguageModel model(small_config());
  EXPECT_EQ(error_of([&] { model->visit_attention(tokens, {2}, {}); }),
            "model: layer is 2, expected -2 to 1");
}

TEST(LanguageModel, LearnsToCopy) {
  torch::manual_seed(5);
  // Too small to share: on a busy machine threads would wait for each other most of the time.
  const int threads = torch::get_num_threads();
  torch::set_num_threads(1);
  ModelConfig config = small_config();
  config.dim = 64;
  config.num_heads = 4;
  config.ff_dim = 128;
  config.dropout = 0;
  config.attention.num_features = 64;
  LanguageModel model(config);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  // Few enough sequences to learn by heart within the time of a test.
  const Tensor letters = torch::randint(0, 10, {16, 8}, torch::kLong);
  const Tensor tokens = torch::cat({letters, torch::full({16, 1}, 10, torch::kLong), letters}, 1);
  const Tensor inputs = tokens.slice(1, 0, 16), targets = tokens.slice(1, 9).flatten();
  double loss_value = 0;
  for (int step = 0; step < 150; ++step) {
    optimizer.zero_grad();
    const Tensor logits = model->forward(inputs).slice(1, 8).reshape({-1, 11});
    const Tensor loss = torch::nn::functional::cross_entropy(logits, targets);
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
    if (step == 0) {
      EXPECT_GT(loss_value, 1.5);
    }
  }
  torch::set_num_threads(threads);
  EXPECT_LT(loss_value, 0.1);
}

}  // namespace
}  // namespace performer
