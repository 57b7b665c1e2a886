// SPDX-License-Identifier: Apache-2.0
// `performer train`: what it says before a run, and what the outside world does to one.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/testing.h"
#include "performer/train/run_folder.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class TrainCli : public Cli {
 protected:
  // A run of `steps` whose rate does not depend on their number.
  std::vector<std::string> steps_arguments(const std::string& run, const std::string& steps) const {
    std::vector<std::string> arguments = train_arguments(run);
    *std::find(arguments.begin(), arguments.end(), "cosine") = "constant";
    *(std::find(arguments.begin(), arguments.end(), "--max-steps") + 1) = steps;
    return arguments;
  }

  std::vector<std::string> resumed(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--resume", "auto"});
    return arguments;
  }

  void expect_same_weights(const std::string& a, const std::string& b) const {
    EXPECT_TRUE(read_file(path(a) + "/checkpoint-30/model.safetensors") ==
                read_file(path(b) + "/checkpoint-30/model.safetensors"));
  }
};

TEST_F(TrainCli, DryRunSaysWhatARunWouldTakeAndWritesNothing) {
  std::vector<std::string> arguments = train_arguments("run");
  arguments.insert(arguments.end(), {"--dry-run", "--json"});
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_FALSE(fs::exists(path("run")));
  const json said = json::parse(outcome.out);
  EXPECT_EQ(said["memory_bytes"]["weights"], 4 * said["parameters"]["total"].get<int64_t>());
  EXPECT_EQ(said["tokens_per_step"], 256);
  EXPECT_GT(said["step_s"], 0);
  EXPECT_GT(said["steps_per_epoch"], 10);
  EXPECT_GT(said["epoch_s"], said["step_s"]);

  // The model alone, for people.
  const Outcome text =
      run({"train", "--preset", "protein-demo", "--batch-tokens", "512", "--dry-run", "--quiet"});
  ASSERT_EQ(text.status, 0) << text.err;
  for (const char* part : {"parameters", "embedding", "feed-forward", "optimiser", "tokens/s"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << text.out;
  }
  EXPECT_EQ(text.out.find("epoch"), std::string::npos);
  EXPECT_EQ(text.err, "");
}

TEST_F(TrainCli, MemoryLimitDividesBatches) {
  const auto trial = [&](const std::string& limit) {
    return run({"train", "--preset", "protein-demo", "--batch-tokens", "65536", "--length", "512",
                "--max-memory", limit, "--dry-run", "--json", "--quiet"});
  };
  const Outcome outcome = trial("700M");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json said = json::parse(outcome.out);
  EXPECT_EQ(said["tokens_per_step"].get<int64_t>() % 65536, 0);
  EXPECT_LT(said["memory_bytes"]["total"], 700e6);
  expect_error(trial("1M"), 2, {"train: max_memory is 1000000 bytes, expected at least"});
  expect_error(trial("much"), 2, {"--max-memory is 'much', expected a whole number"});

  // The command that began a run resumes it, with the batches it has.
  std::vector<std::string> arguments = resumed(steps_arguments("run", "10"));
  *(std::find(arguments.begin(), arguments.end(), "--batch-tokens") + 1) = "65536";
  arguments.insert(arguments.end(), {"--max-memory", "700M"});
  ASSERT_EQ(run(arguments).status, 0);
  const auto batch_tokens = [&] {
    return json::parse(read_file(path("run/config.json")))["batch_tokens"].get<int64_t>();
  };
  const int64_t began_with = batch_tokens();
  EXPECT_LE(began_with, 65536);
  arguments.back() = "600M";
  ASSERT_EQ(run(arguments).status, 0);
  EXPECT_EQ(batch_tokens(), began_with);
}

// No file may grow beyond what the model takes, which its optimiser exceeds: as a full disk.
TEST_F(TrainCli, FullDiskIsOneLineAndTheRunGoesOnFromItsLastCheckpoint) {
  ASSERT_EQ(run(steps_arguments("straight", "30")).status, 0);
  ASSERT_EQ(run(steps_arguments("full", "10")).status, 0);
  file_limit_ = fs::file_size(path("full/checkpoint-10/model.safetensors")) + 1000;
  expect_error(run(resumed(steps_arguments("full", "30"))), 1,
               {"optimizer.safetensors", "File too large"});
  EXPECT_EQ(checkpoint_steps(path("full")), std::vector<int64_t>{10});
  // Not even the lines of metrics fit.
  file_limit_ = 300;
  expect_error(run(resumed(steps_arguments("full", "30"))), 1, {"File too large"});
  file_limit_ = 0;
  const Outcome last = run(resumed(steps_arguments("full", "30")));
  ASSERT_EQ(last.status, 0) << last.err;
  expect_same_weights("full", "straight");
}

TEST_F(TrainCli, FolderThatCannotBeWrittenIsOneLine) {
  for (const std::string& folder : {path("data.fasta") + "/run", std::string("/proc/run")}) {
    std::vector<std::string> arguments = train_arguments("run");
    *(std::find(arguments.begin(), arguments.end(), "--out") + 1) = folder;
    expect_error(run(arguments), 1, {"--out: " + folder, "cannot be created"});
  }
  fs::create_directories(path("locked"));
  if (::geteuid() == 0) return;  // whom permissions do not stop
  fs::permissions(path("locked"), fs::perms::owner_read | fs::perms::owner_exec);
  expect_error(run(train_arguments("locked")), 1, {path("locked")});
  fs::permissions(path("locked"), fs::perms::owner_all);
}

TEST_F(TrainCli, TruncatedCheckpointIsNamedAndTheOneBeforeItContinued) {
  ASSERT_EQ(run(steps_arguments("straight", "30")).status, 0);
  ASSERT_EQ(run(steps_arguments("cut", "20")).status, 0);
  for (const char* file : {"optimizer.safetensors", "model.safetensors", "trainer_state.json"}) {
    SCOPED_TRACE(file);
    fs::remove_all(path("again"));
    fs::copy(path("cut"), path("again"), fs::copy_options::recursive);
    const std::string damaged = path("again/checkpoint-20/") + file;
    fs::resize_file(damaged, fs::file_size(damaged) / 2);
    std::vector<std::string> arguments = resumed(steps_arguments("again", "30"));
    std::erase(arguments, "--quiet");
    const Outcome outcome = run(arguments);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const size_t warning = outcome.err.find("warning: ");
    ASSERT_NE(warning, std::string::npos) << outcome.err;
    const std::string line = outcome.err.substr(warning, outcome.err.find('\n', warning) - warning);
    EXPECT_NE(line.find("checkpoint-20"), std::string::npos) << line;
    EXPECT_NE(line.find(file), std::string::npos) << line;
    EXPECT_NE(outcome.err.find("resumed from " + path("again/checkpoint-10")), std::string::npos);
    expect_same_weights("again", "straight");
  }
}

TEST_F(TrainCli, WrongKeyInTheConfigurationOfARunIsNamed) {
  ASSERT_EQ(run(steps_arguments("run", "10")).status, 0);
  json config = json::parse(read_file(path("run/config.json")));
  config["num_layer"] = 2;
  std::ofstream(path("run/config.json")) << config.dump();
  expect_error(run(resumed(steps_arguments("run", "30"))), 2,
               {path("run/config.json"), "unknown key 'num_layer'", "did you mean num_layers?"});
}

TEST_F(TrainCli, OtherSetsOfTokenFilesAreEvaluatedAndPatienceIsReported) {
  std::ofstream clusters(path("clusters.tsv"));
  for (int i = 0; i < 120; ++i) clusters << "c" << i / 3 << "\tr" << i << "\n";
  clusters.close();
  const Outcome prepared = run({"data", "prepare", path("data.fasta"), "-o", path("x.tokens"),
                                "--ood-clusters", path("clusters.tsv"), "--ood-min-cluster", "2",
                                "--ood-fraction", "0.3", "--valid-fraction", "0.1"});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  std::vector<std::string> arguments = steps_arguments("run", "200");
  *(std::find(arguments.begin(), arguments.end(), "--data") + 1) = path("x.tokens");
  *(std::find(arguments.begin(), arguments.end(), "--eval-interval") + 1) = "2";
  std::erase(arguments, "--quiet");
  arguments.insert(arguments.end(), {"--eval-sets", "valid,ood", "--patience", "3", "--lr", "0.03",
                                     "--diagnostics-interval", "0", "--json"});
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_TRUE(result["stopped_early"].get<bool>());
  EXPECT_EQ(result["ood"]["step"], result["steps"]);
  EXPECT_GT(result["ood"]["targets"], 0);
  EXPECT_NE(
      outcome.err.find("the best checkpoint is " + result["best_checkpoint"].get<std::string>()),
      std::string::npos)
      << outcome.err;
  EXPECT_TRUE(fs::exists(result["best_checkpoint"].get<std::string>() + "/model.safetensors"));
}

}  // namespace
}  // namespace performer
