// SPDX-License-Identifier: Apache-2.0
#include "performer/train/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "favor/check.h"
#include "performer/train/metrics.h"
#include "performer/train/schedule.h"

namespace performer {
namespace {

using nlohmann::json;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const favor::Error& error) {
    return error.what();
  }
  return "no error";
}

void parse(TrainConfig& config, const std::string& key, const std::string& text) {
  find_field(key)->parse(config, text);
}

TEST(TrainConfig, FieldsHaveNamesOfTheirOwn) {
  std::set<std::string> keys;
  for (const Field& field : train_fields()) {
    EXPECT_TRUE(keys.insert(field.key).second) << field.key;
    EXPECT_FALSE(field.help.empty()) << field.key;
    EXPECT_EQ(find_field(field.option().substr(2)), &field) << field.key;
  }
}

// Every field is changed in turn; text and JSON must both carry the change, and nothing else moves.
TEST(TrainConfig, EveryFieldSurvivesTextAndJson) {
  for (const Field& field : train_fields()) {
    TrainConfig changed;
    const std::string before = field.text(changed);
    std::string text = "7";
    if (field.type.empty()) {
      text = before == "true" ? "false" : "true";
    } else if (field.type.find('|') != std::string::npos) {
      const size_t bar = field.type.find('|');
      text = field.type.substr(0, bar) == before ? field.type.substr(bar + 1)
                                                 : field.type.substr(0, bar);
      text = text.substr(0, text.find('|'));
    } else if (field.type == "FLOAT") {
      text = "0.0625";
    }
    ASSERT_NE(text, before) << field.key;
    field.parse(changed, text);
    EXPECT_EQ(field.text(changed), text) << field.key;
    for (const Field& other : train_fields()) {
      if (other.key != field.key) {
        EXPECT_EQ(other.text(changed), other.text(TrainConfig())) << field.key << " " << other.key;
      }
    }
    TrainConfig read;
    field.from_json(read, field.to_json(changed));
    EXPECT_EQ(field.text(read), text) << field.key;
  }
}

TEST(TrainConfig, SavedFileReadsBack) {
  TrainConfig config;
  apply_preset(config, "protein-demo");
  config.run.seed = 18446744073709551615u;
  TrainConfig read;
  apply_json(read, json::parse(to_json(config).dump()), "config.json");
  EXPECT_EQ(to_json(read), to_json(config));
}

TEST(TrainConfig, PresetsAreValidAndTheirShapesAreThePapers) {
  for (const Preset& preset : presets()) {
    TrainConfig config;
    const std::set<std::string> keys = apply_preset(config, preset.name);
    EXPECT_NO_THROW(config.check()) << preset.name;
    EXPECT_EQ(config.model.causal, config.model.head == HeadKind::kTokens) << preset.name;
    EXPECT_FALSE(keys.empty()) << preset.name;
  }
  TrainConfig paper;
  apply_preset(paper, "protein-36");
  EXPECT_EQ(paper.model.num_heads, 8);
  EXPECT_EQ(paper.model.num_layers, 36);
  EXPECT_EQ(paper.model.ff_dim, 1024);
  EXPECT_EQ(paper.model.dim, 512);
  EXPECT_EQ(paper.data.length, 1024);
  TrainConfig unused;
  EXPECT_NE(error_of([&] { apply_preset(unused, "protein-dmo"); }).find("protein-demo"),
            std::string::npos);
}

TEST(TrainConfig, CountsTakeSuffixes) {
  TrainConfig config;
  parse(config, "max_steps", "20K");
  EXPECT_EQ(config.run.max_steps, 20000);
  parse(config, "batch-tokens", "3M");
  EXPECT_EQ(config.data.batch_tokens, 3000000);
  EXPECT_EQ(error_of([&] { parse(config, "max_steps", "20Q"); }),
            "--max-steps is '20Q', expected a whole number (K, M and G are understood)");
  EXPECT_EQ(error_of([&] { parse(config, "max_steps", "K"); }).substr(0, 19),
            "--max-steps is 'K',");
  EXPECT_NE(error_of([&] { parse(config, "max_steps", "9999999999G"); }), "no error");
  EXPECT_NE(error_of([&] { parse(config, "seed", "-1"); }), "no error");
  EXPECT_NE(error_of([&] { parse(config, "lr", "nan"); }), "no error");
}

TEST(TrainConfig, WrongWordsListTheKnownOnes) {
  TrainConfig config;
  EXPECT_EQ(
      error_of([&] { parse(config, "feature_map", "cosine"); }),
      "--feature-map is 'cosine', expected positive or hyperbolic or trig or relu or relu2 or "
      "elu1 or exp or sigmoid or softplus or gelu or abs or tanh or cos or sin or identity");
}

TEST(TrainConfig, UnknownKeyNamesTheNearest) {
  TrainConfig config;
  EXPECT_EQ(error_of([&] {
              apply_json(config, json{{"num_layer", 3}}, "c.json");
            }),
            "c.json: unknown key 'num_layer' (did you mean num_layers?)");
  EXPECT_EQ(error_of([&] {
              apply_json(config, json{{"dim", "wide"}}, "c.json");
            }),
            "c.json: dim is \"wide\", expected a whole number");
  EXPECT_EQ(error_of([&] {
              apply_json(config, json{{"format_version", 9}}, "c.json");
            }),
            "c.json: format_version is 9, expected 1 (written by another version of performer)");
}

TEST(TrainConfig, ChecksNameTheFieldWithBothValues) {
  TrainConfig config;
  config.model.num_heads = 7;
  EXPECT_NE(error_of([&] { config.check(); }).find("num_heads"), std::string::npos);
  config = TrainConfig();
  config.model.attention.num_features = -3;
  EXPECT_NE(error_of([&] { config.check(); }).find("-3"), std::string::npos);
  config = TrainConfig();
  config.data.batch_tokens = 10;
  EXPECT_EQ(error_of([&] { config.check(); }),
            "batch_tokens is 10, expected at least length = 1024");
  config = TrainConfig();
  config.data.length = 2000;
  config.data.batch_tokens = 4000;
  EXPECT_NE(error_of([&] { config.check(); }).find("max_length = 1024"), std::string::npos);
  config.model.positions = PositionKind::kRotary;
  EXPECT_NO_THROW(config.check());
  config.model.positions = PositionKind::kAxial;
  EXPECT_EQ(error_of([&] { config.check(); }),
            "length is 2000, expected at most 1024 (axial positions of 32 rows, 32 columns and 1 "
            "channels)");
  config.model.axial_rows = 63;
  EXPECT_NO_THROW(config.check());
}

TEST(ModelConfigFile, ReadsBackAndRefusesWhatItDoesNotKnow) {
  ModelConfig model;
  model.dim = 96;
  model.num_heads = 3;
  const json file = to_json(model);
  EXPECT_EQ(file["model_type"], "performer");
  EXPECT_EQ(to_json(model_config_from_json(file, "c.json")), file);
  json extra = file;
  extra["lr"] = 1e-3;
  EXPECT_NE(error_of([&] { model_config_from_json(extra, "c.json"); }).find("'lr'"),
            std::string::npos);
  json missing = file;
  missing.erase("num_features");
  EXPECT_NE(error_of([&] { model_config_from_json(missing, "c.json"); }).find("'num_features'"),
            std::string::npos);
}

TEST(LearningRate, WarmsUpThenFollowsTheSchedule) {
  OptimizerConfig optimizer;
  optimizer.lr = 2e-3;
  optimizer.warmup_steps = 4;
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 0, 0), 0.5e-3);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 3, 0.1), 2e-3);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 1000, 0.9), 2e-3);
  optimizer.schedule = ScheduleKind::kCosine;
  optimizer.min_lr_fraction = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 4, 0), 2e-3);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 50, 0.5), 1.1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 100, 1), 0.2e-3);
  optimizer.schedule = ScheduleKind::kRsqrt;
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 0, 0), 0.5e-3);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 3, 0), 2e-3);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 15, 0.5), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 399, 1), 0.2e-3);
}

TEST(LearningRate, ProgressFollowsStepsOrTheClock) {
  RunConfig run;
  run.max_steps = 100;
  EXPECT_DOUBLE_EQ(run_progress(run, 25, 1e9), 0.25);
  run.max_minutes = 2;
  EXPECT_DOUBLE_EQ(run_progress(run, 25, 60), 0.5);
  EXPECT_DOUBLE_EQ(run_progress(run, 75, 60), 0.75);
  EXPECT_DOUBLE_EQ(run_progress(run, 0, 1000), 1);
}

TEST(Metrics, LinesHaveAFixedForm) {
  EXPECT_EQ(to_line(TrainMetrics{10, 4096, 2.5, 0.001, 0.25, 2048, 2, 4000}),
            R"({"step":10,"tokens":4096,"loss":2.5,"lr":0.001,"grad_norm":0.25,)"
            R"("tokens_per_s":2048.0,"elapsed_s":2.0,"peak_memory_bytes":4000})");
  EXPECT_EQ(to_line(EvalMetrics{10, "valid", {100, 2.5, 12.25, 0.125}, {100, 3, 20.5, 0.0625}}),
            R"({"step":10,"split":"valid","targets":100,"loss":2.5,"perplexity":12.25,)"
            R"("accuracy":0.125,"baseline_loss":3.0,"baseline_perplexity":20.5,)"
            R"("baseline_accuracy":0.0625})");
}

}  // namespace
}  // namespace performer
