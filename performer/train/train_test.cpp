// SPDX-License-Identifier: Apache-2.0
// The trainer on tiny models: it learns, stops and goes on without a trace, and says what is wrong.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "favor/check.h"
#include "favor/random.h"
#include "performer/data/safetensors.h"
#include "performer/train/checkpoint.h"
#include "performer/train/evaluate.h"
#include "performer/train/run_folder.h"
#include "performer/train/testing.h"
#include "performer/train/trainer.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST_F(Train, LearnsWhatTheContextTells) {
  for (const bool causal : {true, false}) {
    TrainConfig config =
        tiny(causal ? periodic_fasta(40) : uniform_fasta(120), causal ? "causal" : "masked");
    config.model.causal = causal;
    config.model.dropout = 0;
    config.data.windowing = causal ? Windowing::kConcat : Windowing::kCrop;
    config.optimizer.lr = 5e-3;
    config.optimizer.clip = 0;
    config.run.max_steps = causal ? 150 : 300;
    config.run.eval_interval = 0;
    config.run.save_interval = 0;
    const TrainResult result = train(config);
    ASSERT_TRUE(result.test.has_value());
    // Where a record starts cannot be known, and few letters are masked: far below chance is
    // enough.
    EXPECT_LT(result.test->model.perplexity, 0.25 * result.test->baseline.perplexity) << causal;
    EXPECT_GT(result.test->model.accuracy, 0.6) << causal;
    EXPECT_EQ(result.steps, config.run.max_steps);
  }
}

TEST_F(Train, ResumedRunEqualsStraightRunBitForBit) {
  const std::string data = random_fasta(120);
  for (const Windowing windowing : {Windowing::kConcat, Windowing::kCrop, Windowing::kPacked}) {
    const bool causal = windowing != Windowing::kCrop;
    const std::string kind = to_string(windowing);
    const auto configure = [&](const std::string& run) {
      TrainConfig config = tiny(data, run + kind);
      config.model.causal = causal;
      config.model.dropout = 0.1;
      config.model.attention.redraw_interval = 3;
      config.data.windowing = windowing;
      config.optimizer.accumulate = 2;
      config.optimizer.schedule = ScheduleKind::kCosine;
      return config;
    };
    const TrainConfig straight = configure("straight");
    EXPECT_FALSE(train(straight).interrupted);
    // Once at a step with checkpoint, metrics and evaluation, once between all of them.
    for (const int stop_at : {10, 7}) {
      TrainConfig parts = configure("parts" + std::to_string(stop_at));
      TrainHooks hooks;
      int steps = 0;
      hooks.should_stop = [&] { return ++steps == stop_at; };
      const TrainResult first = train(parts, hooks);
      EXPECT_TRUE(first.interrupted);
      EXPECT_EQ(first.steps, stop_at);
      parts.run.resume = "auto";
      EXPECT_EQ(train(parts).steps, 20);
      expect_same_run(straight.run.out, parts.run.out, 20);
    }
  }
}

TEST_F(Train, PackedRowsScoreAsPaddedOnes) {
  const Tokenizer tokenizer = Tokenizer::protein();
  const SplitSequences data = read_fasta_splits({random_fasta(60)}, tokenizer, {0, 0, 0});
  for (const AttentionMethod method : {AttentionMethod::kFavor, AttentionMethod::kExact}) {
    for (const bool causal : {true, false}) {
      TrainConfig config = tiny("", "run");
      config.model.causal = causal;
      config.model.attention.method = method;
      config.data.length = 48;  // some records are cut
      LanguageModel model(config.model);
      const auto score = [&](Windowing windowing) {
        config.data.windowing = windowing;
        return evaluate(model, EvalBatches(data.train, tokenizer, config.batch_options()));
      };
      const EvalScore packed = score(Windowing::kPacked), padded = score(Windowing::kCrop);
      EXPECT_EQ(packed.num_targets, padded.num_targets);
      EXPECT_NEAR(packed.loss, padded.loss, 1e-5);
      EXPECT_EQ(packed.accuracy, padded.accuracy);
    }
  }
}

TEST_F(Train, Bfloat16StepsAreOtherStepsThatResumeBitForBit) {
  const std::string data = random_fasta(120);
  const auto configure = [&](const std::string& run) {
    TrainConfig config = tiny(data, run);
    config.run.dtype = "bfloat16";
    return config;
  };
  const TrainConfig straight = configure("straight");
  const TrainResult result = train(straight);
  TrainConfig parts = configure("parts");
  TrainHooks hooks;
  int steps = 0;
  hooks.should_stop = [&] { return ++steps == 7; };
  EXPECT_TRUE(train(parts, hooks).interrupted);
  parts.run.resume = "auto";
  EXPECT_EQ(train(parts).steps, 20);
  expect_same_run(straight.run.out, parts.run.out, 20);

  const TrainConfig plain = tiny(data, "plain");
  const TrainResult reference = train(plain);
  EXPECT_NE(result.valid->model.loss, reference.valid->model.loss);
  EXPECT_NEAR(result.valid->model.loss, reference.valid->model.loss, 0.02);
  for (const auto& item : load_model(straight.run.out).model->named_parameters()) {
    EXPECT_EQ(item.value().scalar_type(), torch::kFloat) << item.key();
  }
}

TEST_F(Train, KeepsTheNewestCheckpointsAndTheBest) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.run.save_interval = 2;
  config.run.eval_interval = 2;
  config.run.keep_checkpoints = 2;
  const TrainResult result = train(config);
  std::vector<int64_t> expected = {18, 20};
  if (result.best_step < 18) expected.insert(expected.begin(), result.best_step);
  EXPECT_EQ(checkpoint_steps(config.run.out), expected);
}

TEST_F(Train, DamagedCheckpointIsSkippedAndRefusedByName) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.run.save_interval = 5;
  config.run.keep_checkpoints = 4;
  train(config);
  const std::string newest = checkpoint_path(config.run.out, 20);
  const fs::path model = fs::path(newest) / "model.safetensors";
  fs::resize_file(model, fs::file_size(model) / 2);
  // What a killed process leaves is no checkpoint at all.
  fs::create_directories(fs::path(config.run.out) / ".new-checkpoint-99");

  std::string warning;
  EXPECT_EQ(newest_checkpoint(config.run.out, [&](const std::string& text) { warning = text; }),
            checkpoint_path(config.run.out, 15));
  EXPECT_NE(warning.find(model.string()), std::string::npos) << warning;

  config.run.resume = newest;
  const std::string refusal = error_of([&] { train(config); });
  EXPECT_NE(refusal.find(newest), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("model.safetensors"), std::string::npos) << refusal;

  config.run.resume = "auto";
  EXPECT_EQ(train(config).steps, 20);
  EXPECT_EQ(checkpoint_problem(newest), std::nullopt);
}

TEST_F(Train, CheckpointThatCannotBeContinuedIsSkippedByName) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.run.eval_interval = 0;
  config.run.save_interval = 10;
  config.data.valid_fraction = 0;
  config.data.test_fraction = 0;
  train(config);
  const std::string run = config.run.out;
  const fs::path older = checkpoint_path(run, 10);
  const fs::path newest = checkpoint_path(run, 20);
  const auto expect_skipped = [&](const std::string& file, const std::string& problem) {
    std::string warning;
    EXPECT_EQ(newest_checkpoint(run, [&](const std::string& text) { warning = text; }), older);
    EXPECT_NE(warning.find((newest / file).string() + ": " + problem), std::string::npos)
        << warning;
  };
  const std::string good = read_file(newest / "trainer_state.json");
  const auto damage = [&](const char* key, const json& value) {
    json state = json::parse(good);
    state[key] = value;
    write_file(newest / "trainer_state.json", state.dump());
  };
  write_file(newest / "trainer_state.json", "{}");
  expect_skipped("trainer_state.json", "format_version is missing");
  damage("step", "20");
  expect_skipped("trainer_state.json", "step is string, expected a whole number");
  damage("torch_rng", std::string(2 * kRngBytes, 'z'));
  expect_skipped("trainer_state.json", "torch_rng is not hexadecimal at character 0");
  damage("torch_rng", "00ff");
  expect_skipped("trainer_state.json", "torch_rng has 4 digits, expected 10112");
  write_file(newest / "trainer_state.json", good);
  EXPECT_EQ(checkpoint_problem(newest.string()), std::nullopt);

  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string own = read_file(newest / name);
    write_file(newest / name, read_file(older / name));
    expect_skipped(name, "is of another step than trainer_state.json, expected step 20");
    write_file(newest / name, own);
  }
  {
    const std::string path = (newest / "optimizer.safetensors").string();
    const SafetensorsFile file(path);
    write_safetensors(path, {}, file.metadata());
  }
  expect_skipped("optimizer.safetensors", "tensor exp_avg.");
}

TEST_F(Train, ExistingRunNeedsForceOrResume) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.run.max_steps = 2;
  train(config);
  EXPECT_NE(error_of([&] { train(config); }).find("--force"), std::string::npos);
  config.run.force = true;
  EXPECT_EQ(train(config).steps, 2);
}

TEST_F(Train, ForceReplacesNothingBeforeTheNewRunCanStart) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.run.max_steps = 2;
  train(config);
  config.run.force = true;
  const std::string kept = checkpoint_path(config.run.out, 2);
  TrainConfig no_data = config;
  no_data.data.data = (folder_ / "missing.fasta").string();
  EXPECT_NE(error_of([&] { train(no_data); }).find("missing.fasta"), std::string::npos);
  TrainConfig no_source = config;
  no_source.run.init_from = (folder_ / "nowhere").string();
  EXPECT_NE(error_of([&] { train(no_source); }).find("nowhere"), std::string::npos);
  TrainConfig itself = config;
  for (const std::string& source : {kept, config.run.out}) {
    itself.run.init_from = source;
    const std::string text = error_of([&] { train(itself); });
    EXPECT_EQ(text.find("--init-from: " + source + " lies in --out"), 0u) << text;
  }
  EXPECT_EQ(checkpoint_problem(kept), std::nullopt);
  EXPECT_TRUE(fs::exists(fs::path(config.run.out) / "metrics.jsonl"));
}

TEST_F(Train, ResumingNeedsNoInitialWeightsAndDropsLaterCheckpoints) {
  TrainConfig source = tiny(random_fasta(60), "source");
  source.run.max_steps = 0;
  train(source);
  TrainConfig config = tiny(source.data.data, "run");
  config.run.init_from = source.run.out;
  config.run.eval_interval = 0;
  config.run.save_interval = 5;
  config.run.keep_checkpoints = 4;
  train(config);
  fs::remove_all(source.run.out);
  config.run.resume = checkpoint_path(config.run.out, 5);
  config.run.max_steps = 7;
  EXPECT_EQ(train(config).steps, 7);
  EXPECT_EQ(checkpoint_steps(config.run.out), (std::vector<int64_t>{5, 7}));
}

TEST_F(Train, ResumingRefusesOtherData) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.run.max_steps = 2;
  train(config);
  const std::string saved = read_file(fs::path(config.run.out) / "config.json");
  config.data.data = random_fasta(50);  // the same file, ten records shorter
  config.run.max_steps = 4;
  config.run.resume = "auto";
  const std::string text = error_of([&] { train(config); });
  EXPECT_NE(text.find(" training sequences with fingerprint "), std::string::npos) << text;
  EXPECT_EQ(read_file(fs::path(config.run.out) / "config.json"), saved);
  EXPECT_EQ(checkpoint_steps(config.run.out), (std::vector<int64_t>{2}));
}

TEST_F(Train, DamagedCheckpointsAloneAreNotStartedOver) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.run.max_steps = 2;
  train(config);
  const fs::path model = fs::path(checkpoint_path(config.run.out, 2)) / "model.safetensors";
  fs::resize_file(model, 9);
  config.run.resume = "auto";
  const std::string text = error_of([&] { train(config); });
  EXPECT_EQ(text.find("--resume auto: all checkpoints in "), 0u) << text;
  EXPECT_EQ(fs::file_size(model), 9u);
}

TEST_F(Train, LossThatIsNotFiniteStopsTheRun) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.optimizer.lr = 1e30;
  config.optimizer.warmup_steps = 0;
  config.run.eval_interval = 0;
  config.run.save_interval = 1;
  const std::string text = error_of([&] { train(config); });
  EXPECT_EQ(text.find("train: loss is "), 0u) << text;
  EXPECT_NE(text.find(" in step 2,"), std::string::npos) << text;
  EXPECT_NE(text.find("lr 1e+30"), std::string::npos) << text;
  EXPECT_NE(text.find("last good checkpoint: " + checkpoint_path(config.run.out, 1)),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST_F(Train, ValidationLossThatIsNotFiniteStopsBeforeSaving) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.optimizer.lr = 1e30;
  config.optimizer.warmup_steps = 0;
  config.run.eval_interval = 1;
  config.run.save_interval = 1;
  const std::string text = error_of([&] { train(config); });
  EXPECT_EQ(text.find("train: valid loss is "), 0u) << text;
  EXPECT_NE(text.find(" in step 1,"), std::string::npos) << text;
  EXPECT_NE(text.find("lr 1e+30; last good checkpoint: none"), std::string::npos) << text;
  EXPECT_TRUE(checkpoint_steps(config.run.out).empty());
}

TEST_F(Train, ParametersThatAreNotFiniteAreNeverSaved) {
  TrainConfig config = tiny(random_fasta(60), "source");
  config.run.max_steps = 0;
  train(config);
  const std::string source = checkpoint_path(config.run.out, 0);
  const std::string diverged = (folder_ / "diverged").string();
  fs::copy(source, diverged);
  {
    const SafetensorsFile file(source + "/model.safetensors");
    std::vector<StoredTensor> tensors = file.tensors();
    std::string name;
    std::vector<float> values;
    for (StoredTensor& tensor : tensors) {
      if (tensor.name.ends_with("projection") || !name.empty()) continue;
      name = tensor.name;
      values.assign(tensor.bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
      tensor.data = values.data();
    }
    write_safetensors(diverged + "/model.safetensors", tensors, file.metadata());
  }
  // Without sequences to validate on, nothing but the weights themselves can tell.
  TrainConfig blind = tiny(config.data.data, "blind");
  blind.data.valid_fraction = 0;
  blind.data.test_fraction = 0;
  blind.run.init_from = diverged;
  blind.run.max_steps = 0;
  const std::string text = error_of([&] { train(blind); });
  EXPECT_EQ(text.find("train: parameter "), 0u) << text;
  EXPECT_NE(text.find(" is nan in step 0, expected a finite number"), std::string::npos) << text;
  EXPECT_TRUE(checkpoint_steps(blind.run.out).empty());
}

TEST_F(Train, ZeroStepsEvaluateAndSave) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.run.max_steps = 0;
  const TrainResult result = train(config);
  EXPECT_TRUE(result.test.has_value());
  EXPECT_EQ(checkpoint_problem(checkpoint_path(config.run.out, 0)), std::nullopt);
}

TEST_F(Train, WeightsMoveBetweenMethodsOfAttention) {
  const std::string data = random_fasta(60);
  TrainConfig exact = tiny(data, "exact");
  exact.model.attention.method = AttentionMethod::kExact;
  train(exact);
  TrainConfig favor = tiny(data, "favor");
  favor.run.init_from = exact.run.out;
  favor.run.max_steps = 0;
  train(favor);
  LoadedModel a = load_model(exact.run.out);
  LoadedModel b = load_model(favor.run.out);
  EXPECT_EQ(b.model->config().attention.method, AttentionMethod::kFavor);
  const auto expected = a.model->named_parameters();
  for (const auto& item : b.model->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << item.key();
  }
  EXPECT_TRUE(a.model->named_buffers().is_empty());
  EXPECT_FALSE(b.model->named_buffers().is_empty());
  // And back: the matrices stay behind.
  TrainConfig back = tiny(data, "back");
  back.model.attention.method = AttentionMethod::kExact;
  back.run.init_from = favor.run.out;
  back.run.max_steps = 0;
  EXPECT_NO_THROW(train(back));
  // Other shapes are refused with both of them.
  TrainConfig wide = tiny(data, "wide");
  wide.model.ff_dim = 96;
  wide.run.init_from = exact.run.out;
  const std::string text = error_of([&] { train(wide); });
  EXPECT_NE(text.find("[64, 32], expected F32 [96, 32]"), std::string::npos) << text;
}

TEST_F(Train, LoadedModelNamesMissingMatricesAndBothShapes) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.run.max_steps = 1;
  train(config);
  const fs::path checkpoint = checkpoint_path(config.run.out, 1);
  EXPECT_NO_THROW(load_model(checkpoint.string()));

  const fs::path altered = folder_ / "altered";
  fs::copy(checkpoint, altered);
  json file = json::parse(read_file(altered / "config.json"));
  file["num_features"] = 24;
  write_file(altered / "config.json", file.dump());
  const std::string shapes = error_of([&] { load_model(altered.string()); });
  EXPECT_NE(shapes.find("[1, 16, 16], expected F32 [1, 24, 16]"), std::string::npos) << shapes;

  const fs::path without = folder_ / "without";
  fs::copy(checkpoint, without);
  {
    const SafetensorsFile source((checkpoint / "model.safetensors").string());
    std::vector<StoredTensor> kept;
    for (const StoredTensor& tensor : source.tensors()) {
      if (!tensor.name.ends_with("projection")) kept.push_back(tensor);
    }
    ASSERT_EQ(kept.size() + 2, source.tensors().size());
    write_safetensors((without / "model.safetensors").string(), kept);
  }
  const std::string missing = error_of([&] { load_model(without.string()); });
  for (const char* layer : {"0", "1"}) {
    EXPECT_NE(missing.find(std::string(layer) + ".attention.projection is missing"),
              std::string::npos)
        << missing;
  }
}

TEST_F(Train, RedrawChangesMatricesAfterItsInterval) {
  const std::string data = random_fasta(60);
  TrainConfig still = tiny(data, "still");
  TrainConfig moving = tiny(data, "moving");
  moving.model.attention.redraw_interval = 20;
  train(still);
  train(moving);
  LoadedModel a = load_model(still.run.out);
  LoadedModel b = load_model(moving.run.out);
  for (const auto& item : b.model->named_buffers()) {
    EXPECT_FALSE(torch::equal(item.value(), a.model->named_buffers()[item.key()])) << item.key();
  }
  // The draw follows the last step, so the weights agree.
  for (const auto& item : b.model->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), a.model->named_parameters()[item.key()])) << item.key();
  }
}

}  // namespace
}  // namespace performer
