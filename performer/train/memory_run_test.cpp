// SPDX-License-Identifier: Apache-2.0
// Runs that save memory: they learn what plain runs learn, resume in the same bits, and their
// models are read back like any other.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>

#include "favor/check.h"
#include "performer/data/safetensors.h"
#include "performer/train/checkpoint.h"
#include "performer/train/evaluate.h"
#include "performer/train/run_folder.h"
#include "performer/train/testing.h"
#include "performer/train/trainer.h"

namespace performer {
namespace {

// Weights after a few accumulated steps. AdamW divides by the size of each gradient, which makes
// steps of lr out of gradients that are rounding alone, so that few weights go further apart.
void expect_near_weights(const std::string& a, const std::string& b) {
  LoadedModel x = load_model(a), y = load_model(b);
  const auto expected = y.model->named_parameters();
  for (const auto& item : x.model->named_parameters()) {
    const torch::Tensor difference = (item.value() - expected[item.key()]).abs();
    EXPECT_LT(difference.mean().item<double>(), 2e-5) << item.key();
  }
}

TEST_F(Train, SavingMemoryLearnsTheSame) {
  const std::string data = random_fasta(120);
  for (const Windowing windowing : {Windowing::kConcat, Windowing::kPacked}) {
    for (const bool reversible : {false, true}) {
      const std::string kind = to_string(windowing) + (reversible ? "-reversible" : "");
      const auto configure = [&](const std::string& run) {
        TrainConfig config = tiny(data, run + kind);
        config.model.dropout = 0;
        config.model.reversible = reversible;
        config.data.windowing = windowing;
        config.optimizer.accumulate = 2;
        config.run.max_steps = 4;
        config.run.eval_interval = 0;
        return config;
      };
      TrainConfig plain = configure("plain");
      plain.run.memory.activation = ActivationPolicy::kStore;
      train(plain);
      const MemoryOptions ways[] = {
          {.slice_tokens = 24},
          {.activation = ActivationPolicy::kCheckpoint, .ff_chunk = 50, .loss_chunk = 30},
          {.ff_chunk = 7, .loss_chunk = 7, .slice_tokens = 40},
      };
      for (size_t i = 0; i < std::size(ways); ++i) {
        SCOPED_TRACE(kind + " way " + std::to_string(i));
        TrainConfig saving = configure("saving" + std::to_string(i));
        saving.run.memory = ways[i];
        train(saving);
        expect_near_weights(saving.run.out, plain.run.out);
      }
    }
  }
}

TEST_F(Train, EvaluationInSlicesScoresTheSame) {
  const Tokenizer tokenizer = Tokenizer::protein();
  const SplitSequences data = read_fasta_splits({random_fasta(60)}, tokenizer, {0, 0, 0});
  for (const Windowing windowing : {Windowing::kConcat, Windowing::kPacked, Windowing::kCrop}) {
    TrainConfig config = tiny("", "run");
    config.data.windowing = windowing;
    LanguageModel model(config.model);
    const auto score = [&](const MemoryOptions& memory) {
      model->set_memory(memory);
      return evaluate(model, EvalBatches(data.train, tokenizer, config.batch_options()));
    };
    const EvalScore whole = score({});
    for (const MemoryOptions& memory :
         {MemoryOptions{.slice_tokens = 24}, MemoryOptions{.loss_chunk = 30},
          MemoryOptions{.loss_chunk = 7, .slice_tokens = 40}}) {
      const EvalScore pieces = score(memory);
      EXPECT_EQ(pieces.num_targets, whole.num_targets);
      EXPECT_NEAR(pieces.loss, whole.loss, 1e-5);
      EXPECT_EQ(pieces.accuracy, whole.accuracy);
    }
  }
}

TEST_F(Train, ReversibleSlicesWithDropoutResumeBitForBit) {
  const std::string data = random_fasta(120);
  const auto configure = [&](const std::string& run) {
    TrainConfig config = tiny(data, run);
    config.model.dropout = 0.1;
    config.model.reversible = true;
    config.run.memory.slice_tokens = 24;
    config.run.memory.ff_chunk = 33;
    return config;
  };
  const TrainConfig straight = configure("straight");
  train(straight);
  TrainConfig parts = configure("parts");
  TrainHooks hooks;
  int steps = 0;
  hooks.should_stop = [&] { return ++steps == 7; };
  EXPECT_TRUE(train(parts, hooks).interrupted);
  parts.run.resume = "auto";
  train(parts);
  expect_same_run(straight.run.out, parts.run.out, 20);
  EXPECT_TRUE(load_model(parts.run.out).model->config().reversible);
}

TEST_F(Train, RefusesSlicesWhereTheyAreNotDefined) {
  TrainConfig config = tiny(random_fasta(20), "run");
  config.run.memory.slice_tokens = 16;
  config.model.causal = false;
  EXPECT_NE(error_of([&] { train(config); }).find("slice_tokens is 16, expected 0 with causal"),
            std::string::npos);
}

// Models from before there were reversible ones do not say what they are.
TEST(ModelConfigFile, ReversibleMayBeMissing) {
  ModelConfig model;
  nlohmann::json object = to_json(model);
  object.erase("reversible");
  EXPECT_FALSE(model_config_from_json(object, "config.json").reversible);
  object.erase("dim");
  EXPECT_THROW(model_config_from_json(object, "config.json"), favor::Error);
}

}  // namespace
}  // namespace performer
