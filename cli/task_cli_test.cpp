// SPDX-License-Identifier: Apache-2.0
// Tasks other than proteins, from the command line: training, evaluation, and what commands say to
// a model that is not theirs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/testing.h"
#include "performer/train/run_folder.h"

namespace performer {
namespace {

using nlohmann::json;

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class TaskCli : public Cli {
 protected:
  // A model of next to no size; `more` comes after and wins.
  // Options in `more` replace those of all tests.
  std::vector<std::string> task_arguments(const std::string& task, const std::string& run,
                                          const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"train", "--task", task, "--out", path(run)};
    const std::vector<std::pair<std::string, std::string>> common = {
        {"--dim", "16"},           {"--num-layers", "1"},     {"--num-heads", "2"},
        {"--ff-dim", "32"},        {"--num-features", "8"},   {"--train-examples", "60"},
        {"--test-examples", "20"}, {"--batch-tokens", "400"}, {"--save-interval", "4"},
        {"--log-interval", "2"},   {"--threads", "2"}};
    for (const auto& [option, value] : common) {
      if (std::count(more.begin(), more.end(), option) > 0) continue;
      arguments.insert(arguments.end(), {option, value});
    }
    arguments.push_back("--quiet");
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(TaskCli, AGeneratedTaskTrainsAndIsEvaluatedWithoutData) {
  const std::vector<std::string> size = {"--length", "40", "--num-pairs", "4", "--max-steps", "6"};
  std::vector<std::string> arguments = task_arguments("recall", "run", size);
  arguments.push_back("--json");
  const Outcome trained = run(arguments);
  ASSERT_EQ(trained.status, 0) << trained.err;
  const json result = json::parse(trained.out);
  EXPECT_EQ(result["test"]["targets"], 20 * 4);
  EXPECT_GT(result["test"]["baseline"]["loss"], 3);

  const json model = read_json_file(path("run") + "/checkpoint-6/config.json");
  EXPECT_EQ(model["task"], "recall");
  EXPECT_EQ(model["vocabulary"], "symbols");
  EXPECT_EQ(model["vocab_size"], 64 + 4);
  EXPECT_EQ(read_json_file(path("run") + "/config.json")["task"], "recall");

  const Outcome table = run({"eval", "--model", path("run"), "--quiet"});
  ASSERT_EQ(table.status, 0) << table.err;
  EXPECT_NE(table.out.find("test, 80 targets"), std::string::npos) << table.out;
  const Outcome scored = run({"eval", "--model", path("run"), "--json", "--quiet"});
  EXPECT_EQ(json::parse(scored.out)["loss"], result["test"]["loss"]);
  EXPECT_EQ(json::parse(scored.out)["task"], "recall");
}

TEST_F(TaskCli, TextIsTrainedScoredInBitsPerByteAndContinued) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "the quick brown fox " + std::to_string(i % 7) + "\n";
  write_file(path("corpus.txt"), text);
  for (const std::string vocabulary : {"bytes", "characters", "pieces"}) {
    SCOPED_TRACE(vocabulary);
    const std::string folder = "run-" + vocabulary;
    // Blocks of this text are equal, so no side can be held out by their hash.
    const Outcome trained = run(
        task_arguments("text", folder,
                       {"--data", path("corpus.txt"), "--vocabulary", vocabulary, "--num-pieces",
                        "300", "--length", "40", "--max-steps", "4", "--positions", "rotary",
                        "--valid-fraction", "0", "--test-fraction", "0"}));
    if (vocabulary == "pieces") {
      // There is less to learn in seven lines than 300 pieces hold.
      expect_error(trained, 1, {"num_pieces is 300: SentencePiece refuses: "});
      continue;
    }
    ASSERT_EQ(trained.status, 0) << trained.err;
    const Outcome scored = run({"eval", "--model", path(folder), "--split", "train", "--max-tokens",
                                "2000", "--json", "--quiet"});
    ASSERT_EQ(scored.status, 0) << scored.err;
    const json score = json::parse(scored.out);
    EXPECT_NEAR(score["bits_per_byte"].get<double>(), score["loss"].get<double>() / std::log(2.0),
                0.02);
    EXPECT_TRUE(score["baseline"].contains("bits_per_byte"));
    EXPECT_EQ(score.contains("bits_per_character"), vocabulary == "characters");
    const Outcome table = run(
        {"eval", "--model", path(folder), "--split", "train", "--max-tokens", "500", "--quiet"});
    EXPECT_NE(table.out.find("bits per byte"), std::string::npos) << table.out;

    const std::vector<std::string> generate = {"generate", "--model",      path(folder), "--prompt",
                                               "the q",    "--max-length", "30",         "--seed",
                                               "3",        "--ignore-eos", "--quiet"};
    const Outcome plain = run(generate);
    ASSERT_EQ(plain.status, 0) << plain.err;
    EXPECT_TRUE(plain.out.starts_with("the q")) << plain.out;
    std::vector<std::string> lines = generate;
    lines.insert(lines.end(), {"--json", "--count", "2", "--batch", "1"});
    const Outcome both = run(lines);
    ASSERT_EQ(both.status, 0) << both.err;
    const json first = json::parse(both.out.substr(0, both.out.find('\n')));
    EXPECT_EQ(first["tokens"], 25);
    EXPECT_FALSE(first["ended"]);
    if (vocabulary == "characters") {
      EXPECT_EQ(first["text"].get<std::string>() + "\n", plain.out);
      expect_error(run({"generate", "--model", path(folder), "--prompt", "the \xff", "--quiet"}), 1,
                   {"encode: byte 4 begins no valid UTF-8"});
    }
    expect_error(
        run({"generate", "--model", path(folder), "--prompts", path("data.fasta"), "--quiet"}), 2,
        {"--prompts is given, expected none with a model of task text"});
  }
}

TEST_F(TaskCli, ClassifiersTrainOnGeneratedExamplesAndOnFiles) {
  const Outcome listops =
      run(task_arguments("listops", "listops", {"--length", "24", "--max-steps", "3", "--json"}));
  ASSERT_EQ(listops.status, 0) << listops.err;
  EXPECT_EQ(json::parse(listops.out)["test"]["targets"], 20);
  const json model = read_json_file(path("listops") + "/checkpoint-3/config.json");
  EXPECT_EQ(model["head"], "classes");
  EXPECT_EQ(model["num_classes"], 10);
  EXPECT_EQ(model["architectures"][0], "PerformerForSequenceClassification");
  EXPECT_EQ(run({"eval", "--model", path("listops"), "--quiet"}).status, 0);
  expect_error(run({"generate", "--model", path("listops"), "--quiet"}), 1,
               {"is a model of task listops, expected one of task protein, text or pixels"});

  const Outcome pathfinder = run(task_arguments("pathfinder", "pathfinder",
                                                {"--image-size", "24", "--contour-length", "5",
                                                 "--max-steps", "2", "--batch-tokens", "3000"}));
  EXPECT_EQ(pathfinder.status, 0) << pathfinder.err;

  std::string pairs;
  for (int i = 0; i < 20; ++i) pairs += std::to_string(i % 2) + "\ta\tb\tsome text\tother text\n";
  for (const char* side : {"train", "eval", "test"}) {
    write_file(path(std::string("new_aan_pairs.") + side + ".tsv"), pairs);
  }
  const Outcome retrieval =
      run(task_arguments("retrieval", "retrieval",
                         {"--data", folder_.string(), "--length", "16", "--max-steps", "3",
                          "--pooling", "mean", "--json"}));
  ASSERT_EQ(retrieval.status, 0) << retrieval.err;
  EXPECT_EQ(json::parse(retrieval.out)["test"]["targets"], 20);
}

TEST_F(TaskCli, AResumedRunEndsInTheSameBits) {
  const std::vector<std::string> size = {"--length", "21", "--max-steps"};
  const auto steps = [&](const std::string& run, const std::string& count) {
    std::vector<std::string> more = size;
    more.push_back(count);
    return task_arguments("copy", run, more);
  };
  ASSERT_EQ(run(steps("straight", "12")).status, 0);
  ASSERT_EQ(run(steps("stopped", "8")).status, 0);
  std::vector<std::string> again = steps("stopped", "12");
  again.insert(again.end(), {"--resume", "auto"});
  const Outcome resumed = run(again);
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_TRUE(read_file(path("straight") + "/checkpoint-12/model.safetensors") ==
              read_file(path("stopped") + "/checkpoint-12/model.safetensors"));
}

TEST_F(TaskCli, CommandsOnProteinsRefuseOtherModelsInWords) {
  ASSERT_EQ(run(task_arguments("copy", "run", {"--length", "21", "--max-steps", "1"})).status, 0);
  const std::vector<std::string> words = {"checkpoint-1: is a model of task copy",
                                          "expected one of task protein"};
  expect_error(run({"embed", "--model", path("run"), "--data", path("data.fasta"), "--out",
                    path("vectors"), "--quiet"}),
               1, words);
  expect_error(run({"score", "--model", path("run"), "--data", path("data.fasta"), "--quiet"}), 1,
               words);
}

TEST_F(TaskCli, AModelOfOtherTokensIsNoStart) {
  train_model();
  const Outcome outcome = run({"train", "--task", "copy", "--length", "21", "--init-from",
                               path("run"), "--out", path("other"), "--quiet"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("num_symbols is 64, expected 25 (the model's vocabulary)"),
            std::string::npos)
      << outcome.err;
}

TEST_F(TaskCli, WrongOptionsAreUsageErrors) {
  expect_error(run(task_arguments("cpoy", "run")), 2, {"task is 'cpoy'", "did you mean copy?"});
  expect_error(run(task_arguments("copy", "run", {"--data", path("data.fasta")})), 2,
               {"data is", "expected none (task copy generates its examples)"});
  expect_error(run(task_arguments("copy", "run", {"--vocab-size", "9"})), 2,
               {"--vocab-size is given, expected none (task copy decides it)"});
  expect_error(run({"train", "--out", path("run"), "--quiet"}), 2,
               {"--data is missing, expected a token file or a FASTA file"});
}

}  // namespace
}  // namespace performer
