// SPDX-License-Identifier: Apache-2.0
// What saves memory changes nothing: gradients of every way to run a model against those of the
// plain one, and what the ways hold.
#include "performer/models/memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include "performer/models/models.h"
#include "performer/nn/autocast.h"
#include "performer/nn/testing.h"
#include "performer/train/step.h"

namespace performer {
namespace {

using torch::Tensor;

ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 11;
  config.dim = 24;
  config.num_layers = 3;
  config.num_heads = 3;
  config.ff_dim = 40;
  config.max_length = 80;
  config.dropout = 0;
  config.attention.num_features = 20;
  return config;
}

// One configuration for each choice that changes what blocks compute.
std::vector<ModelConfig> all_configs(bool causal) {
  std::vector<ModelConfig> all(6, small_config());
  all[1].attention.method = AttentionMethod::kExact;
  all[2].positions = PositionKind::kRotary;
  all[2].ff_glu = true;
  all[3].positions = PositionKind::kSinusoidal;
  all[3].tie_embeddings = true;
  all[3].attention.per_head_projection = true;
  all[4].attention.feature_map = favor::FeatureMapKind::kRelu;
  all[4].attention_bias = true;
  all[5].attention.feature_map = favor::FeatureMapKind::kElu1;
  all[5].attention.use_projection = false;
  all.push_back(small_config());
  all[6].positions = PositionKind::kAxial;
  all[6].axial_rows = 10;
  all[6].axial_columns = 4;
  all[6].axial_channels = 3;
  for (ModelConfig& config : all) config.causal = causal;
  return all;
}

struct Rows {
  Tensor tokens, targets;
  BatchLayout layout;

  BatchTensors batch() const { return {tokens, targets, layout}; }
};

Rows random_rows(int64_t B, int64_t L) {
  Rows rows;
  rows.tokens = torch::randint(0, 11, {B, L}, torch::kLong);
  rows.targets = torch::randint(0, 11, {B, L}, torch::kLong);
  rows.targets.index_put_({0, torch::indexing::Slice(3, 9)}, -1);  // without a target
  return rows;
}

// A single sequence, an empty one, and one that most borders fall into.
BatchLayout packed(int64_t L) {
  return {.cu_seqlens = torch::tensor({int64_t{0}, int64_t{1}, int64_t{9}, int64_t{9}, L - 12, L})};
}

struct Outcome {
  double loss = 0;
  std::vector<Tensor> gradients;
};

// Loss and gradients with some memory options, dropout drawn from the same state each time.
Outcome outcome(LanguageModel& model, const MemoryOptions& memory, const Rows& rows,
                bool bfloat16 = false) {
  model->set_memory(memory);
  model->zero_grad();
  torch::manual_seed(5);
  Outcome result;
  result.loss = add_gradients(model, rows.batch(), 10.0, bfloat16);
  for (const Tensor& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.grad().defined());
    result.gradients.push_back(parameter.grad().clone());
  }
  return result;
}

void expect_same(const Outcome& a, const Outcome& b, double tolerance = 1e-5) {
  EXPECT_NEAR(a.loss, b.loss, tolerance * (1 + std::abs(b.loss)));
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    const double scale = std::max(1.0, b.gradients[i].abs().max().item<double>());
    EXPECT_LT(distance(a.gradients[i], b.gradients[i]), tolerance * scale) << "parameter " << i;
  }
}

MemoryOptions with(ActivationPolicy activation, int64_t ff_chunk = 0, int64_t loss_chunk = 0,
                   int64_t slice_tokens = 0) {
  return {activation, ff_chunk, loss_chunk, slice_tokens};
}

const MemoryOptions kPlain = with(ActivationPolicy::kStore);

std::string name_of(const ModelConfig& config) {
  return favor::message(to_string(config.attention.method), " ", to_string(config.positions), " ",
                        favor::to_string(config.attention.feature_map), " causal ", config.causal,
                        " reversible ", config.reversible, " dropout ", config.dropout);
}

TEST(Memory, CheckpointsAndReversedLayersGiveTheStoredGradients) {
  for (const bool causal : {false, true}) {
    for (ModelConfig config : all_configs(causal)) {
      for (const bool reversible : {false, true}) {
        for (const double dropout : {0.0, 0.3}) {
          config.reversible = reversible;
          config.dropout = dropout;
          SCOPED_TRACE(name_of(config));
          LanguageModel model(config);
          Rows rows = random_rows(2, 37);
          if (!causal) {
            rows.layout.key_padding_mask = torch::zeros({2, 37}, torch::kBool);
            rows.layout.key_padding_mask.index_put_({1, torch::indexing::Slice(30, 37)}, true);
          }
          const Outcome plain = outcome(model, kPlain, rows);
          const Tensor after = random_state();
          const auto check = [&](const MemoryOptions& memory) {
            expect_same(outcome(model, memory, rows), plain);
            // Later draws go on as they would have.
            EXPECT_TRUE(torch::equal(random_state(), after));
          };
          check(with(ActivationPolicy::kCheckpoint));
          check(with(ActivationPolicy::kCheckpoint, 7, 5));
          if (reversible) {
            check(with(ActivationPolicy::kReverse));
            check(with(ActivationPolicy::kAuto, 16, 0));
          }
        }
      }
    }
  }
}

TEST(Memory, PackedRowsGiveTheStoredGradients) {
  for (ModelConfig config : all_configs(true)) {
    config.reversible = true;
    SCOPED_TRACE(name_of(config));
    LanguageModel model(config);
    Rows rows = random_rows(1, 53);
    rows.layout = packed(53);
    const Outcome plain = outcome(model, kPlain, rows);
    expect_same(outcome(model, with(ActivationPolicy::kReverse), rows), plain);
    expect_same(outcome(model, with(ActivationPolicy::kCheckpoint, 4, 9), rows), plain);
  }
}

TEST(Memory, ChunksGiveTheWholeGradients) {
  for (const ModelConfig& config : all_configs(true)) {
    SCOPED_TRACE(name_of(config));
    LanguageModel model(config);
    const Rows rows = random_rows(3, 17);
    const Outcome plain = outcome(model, kPlain, rows);
    for (const int64_t chunk : {1, 7, 50, 51, 1000}) {
      expect_same(outcome(model, with(ActivationPolicy::kStore, chunk, 0), rows), plain);
      expect_same(outcome(model, with(ActivationPolicy::kStore, 0, chunk), rows), plain);
    }
    // Without a gradient, chunks are only chunks.
    const torch::NoGradGuard no_grad;
    model->set_memory(kPlain);
    const Tensor whole = model->forward(rows.tokens);
    model->set_memory(with(ActivationPolicy::kCheckpoint, 7, 7));
    EXPECT_LT(distance(model->forward(rows.tokens), whole), 1e-5);
  }
}

TEST(Memory, SlicesGiveTheWholeGradients) {
  for (ModelConfig config : all_configs(true)) {
    if (config.attention.method != AttentionMethod::kFavor) continue;
    for (const bool reversible : {false, true}) {
      config.reversible = reversible;
      for (const bool is_packed : {false, true}) {
        SCOPED_TRACE(name_of(config) + (is_packed ? " packed" : ""));
        LanguageModel model(config);
        Rows rows = random_rows(2, 77);
        if (is_packed) rows.layout = packed(77);
        const Outcome plain = outcome(model, kPlain, rows);
        for (const int64_t slice : {1, 9, 32, 65, 76}) {
          expect_same(outcome(model, with(ActivationPolicy::kStore, 0, 0, slice), rows), plain);
        }
        expect_same(outcome(model, with(ActivationPolicy::kCheckpoint, 5, 5, 20), rows), plain);
        if (!reversible) continue;
        expect_same(outcome(model, with(ActivationPolicy::kReverse, 0, 0, 20), rows), plain);
      }
    }
  }
}

// Maps whose features have either sign are left out: their denominators pass near 0, where the
// rounding of any two ways to compute them differs by as much as the gradient.
TEST(Memory, EveryPositiveMapGoesThroughSlices) {
  for (const char* map : {"hyperbolic", "relu2", "exp", "sigmoid", "softplus", "abs"}) {
    SCOPED_TRACE(map);
    ModelConfig config = small_config();
    config.attention.feature_map = favor::feature_map_from_string(map);
    LanguageModel model(config);
    const Rows rows = random_rows(2, 41);
    expect_same(outcome(model, with(ActivationPolicy::kStore, 0, 0, 13), rows),
                outcome(model, kPlain, rows));
  }
}

// With dropout a slice draws its own masks: the truth is the same slices recorded in one graph.
TEST(Memory, SlicesReplayTheirDropout) {
  for (const bool reversible : {false, true}) {
    ModelConfig config = small_config();
    config.dropout = 0.3;
    config.reversible = reversible;
    LanguageModel model(config);
    const Rows rows = random_rows(2, 31);
    torch::manual_seed(5);
    model->set_memory(kPlain);
    model->zero_grad();
    std::vector<SliceState> states;
    Tensor loss = torch::zeros({});
    for (int64_t begin = 0; begin < 31; begin += 9) {
      const int64_t end = std::min<int64_t>(begin + 9, 31);
      const Tensor hidden = model->hidden_slice(rows.tokens, {}, begin, end, states);
      loss = loss + output_loss(model, hidden, rows.targets.slice(1, begin, end));
    }
    (loss / 10).backward();
    const Tensor after = random_state();
    Outcome recorded;
    recorded.loss = loss.item<double>();
    for (const Tensor& parameter : model->parameters()) {
      recorded.gradients.push_back(parameter.grad().clone());
    }
    for (const ActivationPolicy policy :
         {ActivationPolicy::kStore, ActivationPolicy::kCheckpoint, ActivationPolicy::kAuto}) {
      expect_same(outcome(model, with(policy, 0, 0, 9), rows), recorded);
      EXPECT_TRUE(torch::equal(random_state(), after));
    }
  }
}

TEST(Memory, GradientsOfSeveralBatchesAddUp) {
  ModelConfig config = small_config();
  config.reversible = true;
  LanguageModel model(config);
  const Rows first = random_rows(2, 33), second = random_rows(1, 40);
  const auto both = [&](const MemoryOptions& memory) {
    model->set_memory(memory);
    model->zero_grad();
    Outcome result;
    result.loss = add_gradients(model, first.batch(), 30.0, false) +
                  add_gradients(model, second.batch(), 30.0, false);
    for (const Tensor& parameter : model->parameters()) {
      result.gradients.push_back(parameter.grad().clone());
    }
    return result;
  };
  const Outcome plain = both(kPlain);
  expect_same(both(with(ActivationPolicy::kReverse, 8, 8, 10)), plain);
  expect_same(both(with(ActivationPolicy::kCheckpoint, 8, 8)), plain);
}

// Both times in bfloat16; what is computed again must not differ by a weight cast without gradient.
TEST(Memory, AutocastIsReplayed) {
  for (const bool reversible : {false, true}) {
    ModelConfig config = small_config();
    config.reversible = reversible;
    LanguageModel model(config);
    const Rows rows = random_rows(2, 37);
    const Outcome plain = outcome(model, kPlain, rows, true);
    // A rounding to 8 bits may fall to the other side.
    expect_same(outcome(model, with(ActivationPolicy::kCheckpoint), rows, true), plain, 1e-5);
    expect_same(outcome(model, with(ActivationPolicy::kAuto, 9, 9), rows, true), plain, 2e-2);
    expect_same(outcome(model, with(ActivationPolicy::kAuto, 0, 0, 10), rows, true), plain, 2e-2);
  }
}

TEST(Memory, ReversibleStreamsDecodeAsTheyRun) {
  for (ModelConfig config : all_configs(true)) {
    config.reversible = true;
    SCOPED_TRACE(name_of(config));
    LanguageModel model(config);
    model->eval();
    const Tensor tokens = torch::randint(0, 11, {2, 19}, torch::kLong);
    const Tensor whole = model->forward(tokens);
    DecoderState state;
    EXPECT_LT(distance(model->decode(tokens.slice(1, 0, 7), state), whole.select(1, 6)), 2e-5);
    for (int64_t t = 7; t < 19; ++t) {
      EXPECT_LT(distance(model->decode(tokens.slice(1, t, t + 1), state), whole.select(1, t)),
                2e-5);
    }
    // The weights of its attention are those of the streams that attention reads.
    model->visit_attention(tokens, {}, [](int64_t, const Tensor& weights) {
      EXPECT_LT(distance(weights.sum(-1), torch::ones({2, weights.size(1), 19})), 1e-4);
    });
    EXPECT_EQ(model->hidden(tokens, {}, 1).sizes(), (std::vector<int64_t>{2, 19, 24}));
  }
}

// A model of the weights of another's first blocks, with a hidden state to be read after the first.
LanguageModel with_weights_of(LanguageModel& from, bool without_feed_forward) {
  ModelConfig config = from->config();
  config.reversible = false;
  config.num_layers = 2;
  LanguageModel model(config);
  const torch::NoGradGuard no_grad;
  const auto parameters = from->named_parameters(), buffers = from->named_buffers();
  for (auto& item : model->named_parameters()) {
    if (parameters.contains(item.key())) item.value().copy_(parameters[item.key()]);
    if (without_feed_forward && item.key().find("feed_forward.down") != std::string::npos) {
      item.value().zero_();
    }
  }
  for (auto& item : model->named_buffers()) {
    if (buffers.contains(item.key())) item.value().copy_(buffers[item.key()]);
  }
  model->eval();
  return model;
}

// Both streams start as x: y1 = x + f(x) is what a plain block without g gives, y1 + g(y1) what
// the plain block gives, and the mean of the streams (y1 + x + g(y1)) / 2.
TEST(Memory, ReversibleLayersAreTheirFormula) {
  ModelConfig config = small_config();
  config.reversible = true;
  config.num_layers = 1;
  LanguageModel model(config);
  model->eval();
  const Tensor tokens = torch::randint(0, 11, {1, 9}, torch::kLong);
  LanguageModel whole = with_weights_of(model, false), attention = with_weights_of(model, true);
  const Tensor x = model->hidden(tokens, {}, 0);
  const Tensor y1 = attention->hidden(tokens, {}, 1);
  const Tensor g = whole->hidden(tokens, {}, 1) - y1;
  const Tensor expected = torch::layer_norm((y1 + x + g) / 2, {24});
  EXPECT_LT(distance(model->hidden(tokens), expected), 2e-5);
}

// Bytes of tensors alive after a forward pass, per token, and the most during a whole step.
struct Held {
  int64_t after_forward = 0, peak = 0;
};

Held held_by(const ModelConfig& config, const MemoryOptions& memory, int64_t L) {
  LanguageModel model(config);
  model->set_memory(memory);
  const Rows rows = random_rows(1, L);
  // Gradients exist before, so that they do not count.
  add_gradients(model, rows.batch(), 1.0, false);
  Held held;
  {
    TensorMemory counter;
    const Tensor hidden = model->hidden(rows.tokens);
    held.after_forward = counter.now();
  }
  TensorMemory counter;
  add_gradients(model, rows.batch(), 1.0, false);
  held.peak = counter.peak();
  return held;
}

TEST(Memory, ReversedLayersHoldTheSameAtAnyDepth) {
  ModelConfig config = small_config();
  config.reversible = true;
  config.dim = 48;
  config.ff_dim = 96;
  const auto of_depth = [&](int64_t layers, ActivationPolicy policy) {
    config.num_layers = layers;
    return held_by(config, with(policy), 80);
  };
  const Held two = of_depth(2, ActivationPolicy::kReverse);
  const Held eight = of_depth(8, ActivationPolicy::kReverse);
  EXPECT_EQ(two.after_forward, eight.after_forward);
  EXPECT_LT(eight.peak, 1.02 * two.peak);
  EXPECT_GT(of_depth(8, ActivationPolicy::kStore).after_forward, 4 * eight.after_forward);
  // Checkpoints hold one stream's input a layer: two here.
  const int64_t input = 4 * 2 * 48 * 80;
  const Held checkpoint = of_depth(8, ActivationPolicy::kCheckpoint);
  EXPECT_NEAR(
      double(checkpoint.after_forward - of_depth(2, ActivationPolicy::kCheckpoint).after_forward),
      6.0 * double(input), 0.1 * 6 * double(input));
}

TEST(Memory, SlicesHoldWhatASliceHolds) {
  ModelConfig config = small_config();
  config.positions = PositionKind::kSinusoidal;
  config.dim = 48;
  config.ff_dim = 192;
  config.attention.num_features = 8;
  const Held whole = held_by(config, kPlain, 4096);
  const Held slices = held_by(config, with(ActivationPolicy::kStore, 0, 0, 256), 4096);
  EXPECT_LT(slices.peak, whole.peak / 8);
  // Twice the length: the slice's activations stay, only states and ids grow.
  const Held longer = held_by(config, with(ActivationPolicy::kStore, 0, 0, 256), 8192);
  EXPECT_LT(longer.peak, 1.2 * slices.peak);
  const Held wider = held_by(config, with(ActivationPolicy::kStore, 0, 0, 512), 4096);
  EXPECT_GT(wider.peak, 1.5 * slices.peak);
}

TEST(Memory, ChunkedLogitsAreNeverWhole) {
  ModelConfig config = small_config();
  config.num_layers = 1;
  config.vocab_size = 3000;
  config.positions = PositionKind::kSinusoidal;
  const int64_t logits = 4 * 1000 * config.vocab_size;
  EXPECT_GT(held_by(config, kPlain, 1000).peak, 2 * logits);
  EXPECT_LT(held_by(config, with(ActivationPolicy::kStore, 0, 50), 1000).peak, logits);
}

TEST(Memory, WhatIsNotDefinedIsRefusedInWords) {
  ModelConfig config = small_config();
  LanguageModel model(config);
  EXPECT_EQ(error_of([&] { model->set_memory(with(ActivationPolicy::kReverse)); }),
            "activation is reverse, expected auto, store or checkpoint with reversible = false "
            "(inputs of a layer follow from its outputs in reversible models only)");
  EXPECT_EQ(error_of([&] { model->set_memory(with(ActivationPolicy::kStore, -1)); }),
            "ff_chunk is -1, expected 0 (all at once) or more tokens");
  config.causal = false;
  EXPECT_EQ(error_of([&] { with(ActivationPolicy::kStore, 0, 0, 64).check(config); }),
            "slice_tokens is 64, expected 0 with causal = false (tokens of an encoder see those of "
            "later slices)");
  config.causal = true;
  config.attention.method = AttentionMethod::kExact;
  EXPECT_EQ(error_of([&] { with(ActivationPolicy::kStore, 0, 0, 64).check(config); }),
            "slice_tokens is 64, expected 0 with attention exact (it has no sums that stand for "
            "the tokens of earlier slices)");
  EXPECT_FALSE(with(ActivationPolicy::kStore, 0, 0, 64).fits(config));
  EXPECT_TRUE(with(ActivationPolicy::kStore, 64, 64).fits(config));
}

TEST(Memory, AReversibleGraphServesOneBackwardPass) {
  ModelConfig config = small_config();
  config.reversible = true;
  LanguageModel model(config);
  const Tensor loss = model->hidden(random_rows(1, 5).tokens).sum();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(loss.backward(), std::logic_error);
}

}  // namespace
}  // namespace performer
