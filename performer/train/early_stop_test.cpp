// SPDX-License-Identifier: Apache-2.0
// Evaluation of named sets, and the end of a run that no longer improves.
#include <gtest/gtest.h>

#include "favor/check.h"
#include "performer/train/run_folder.h"
#include "performer/train/testing.h"
#include "performer/train/trainer.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class EarlyStop : public Train {
 protected:
  // Letters at random: the validation loss soon rises again.
  TrainConfig overfitting(const std::string& data, const std::string& run) const {
    TrainConfig config = tiny(data, run);
    config.model.dropout = 0;
    config.optimizer.lr = 2e-2;
    config.run.max_steps = 400;
    config.run.eval_interval = 4;
    config.run.save_interval = 6;
    config.run.patience = 3;
    return config;
  }
};

TEST_F(EarlyStop, PatienceEndsTheRunAndNamesTheBestCheckpoint) {
  const TrainConfig config = overfitting(random_fasta(40), "run");
  const TrainResult result = train(config);
  EXPECT_TRUE(result.stopped_early);
  EXPECT_FALSE(result.interrupted);
  EXPECT_TRUE(result.test.has_value());
  EXPECT_EQ(result.steps, result.best_step + 3 * 4);
  EXPECT_LT(result.steps, 400);
  EXPECT_EQ(result.best_checkpoint, checkpoint_path(config.run.out, result.best_step));
  EXPECT_FALSE(checkpoint_problem(result.best_checkpoint).has_value());
  // The losses say the same.
  double best = 1e9;
  int64_t best_step = -1;
  for (const json& line : timeless_metrics(config.run.out)) {
    if (line.value("split", "") != "valid" || line["loss"].get<double>() >= best) continue;
    best = line["loss"].get<double>();
    best_step = line["step"].get<int64_t>();
  }
  EXPECT_EQ(best_step, result.best_step);
}

TEST_F(EarlyStop, ResumedRunIsAsPatientAsAStraightOne) {
  const std::string data = random_fasta(40);
  const TrainConfig straight = overfitting(data, "straight");
  const TrainResult whole = train(straight);
  ASSERT_TRUE(whole.stopped_early);
  ASSERT_GT(whole.best_step, 4);
  // Stopped before the best step, and twice while patience is running out.
  const int64_t stops[] = {whole.best_step - 2, whole.best_step + 5, whole.best_step + 8};
  TrainConfig parts = overfitting(data, "parts");
  int64_t done = 0;
  for (const int64_t stop : stops) {
    TrainHooks hooks;
    hooks.should_stop = [&] { return ++done == stop; };
    EXPECT_TRUE(train(parts, hooks).interrupted);
    parts.run.resume = "auto";
  }
  const TrainResult last = train(parts);
  EXPECT_TRUE(last.stopped_early);
  EXPECT_EQ(last.steps, whole.steps);
  EXPECT_EQ(last.best_step, whole.best_step);
  expect_same_run(straight.run.out, parts.run.out, whole.steps);
  // More patience goes on where less gave up.
  parts.run.patience = 5;
  EXPECT_GT(train(parts).steps, whole.steps);
}

TEST_F(EarlyStop, NamedSetsAreEvaluatedBesideValid) {
  TrainConfig config = tiny(random_fasta(120), "run");
  config.run.eval_sets = "train,valid";
  config.run.eval_interval = 10;
  const TrainResult result = train(config);
  ASSERT_EQ(result.others.size(), 1u);
  EXPECT_EQ(result.others[0].split, "train");
  EXPECT_EQ(result.others[0].step, 20);
  std::vector<std::string> seen;
  for (const json& line : timeless_metrics(config.run.out)) {
    if (line.contains("split")) seen.push_back(line["split"].get<std::string>());
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"train", "valid", "train", "valid", "test"}));
}

TEST_F(EarlyStop, TestSetIsWholeUnlessItsTokensAreLimited) {
  TrainConfig config = tiny(random_fasta(120), "run");
  config.run.max_steps = 2;
  const TrainResult whole = train(config);
  config.run.test_tokens = whole.test->model.num_targets / 2;
  config.run.out += "-part";
  const TrainResult part = train(config);
  EXPECT_GT(part.test->model.num_targets, 0);
  EXPECT_LT(part.test->model.num_targets, whole.test->model.num_targets);
}

TEST_F(EarlyStop, WhatCannotBeIsNamed) {
  TrainConfig config = tiny(random_fasta(60), "run");
  config.run.eval_sets = "valid,ood";
  EXPECT_EQ(error_of([&] { train(config); }),
            "eval_sets names ood, expected a set that " + config.data.data +
                " has (`performer data prepare` can hold out an ood set)");
  config.run.eval_sets = "valid,test";
  EXPECT_EQ(error_of([&] { train(config); }),
            "eval_sets names 'test', expected valid, ood or train");
  config.run.eval_sets = "valid";
  config.run.patience = 2;
  config.run.eval_interval = 0;
  EXPECT_EQ(error_of([&] { train(config); }),
            "patience is 2, expected 0 with eval_interval = 0 (there is nothing to wait for)");
  config.run.eval_interval = 5;
  config.data.valid_fraction = 0;
  EXPECT_EQ(error_of([&] { train(config); }),
            "patience is 2, expected 0 without a sequence to validate on");
}

}  // namespace
}  // namespace performer
