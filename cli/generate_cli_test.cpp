// SPDX-License-Identifier: Apache-2.0
// generate as its users run it.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/testing.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

class GenerateCli : public Cli {
 protected:
  Outcome generate(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"generate",  "--model", path("run"),
                                          "--threads", "1",       "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
};

TEST_F(GenerateCli, PromptsKeepTheirNamesAndDoNotMatterToEachOther) {
  train_model({"--positions", "rotary"});
  std::ofstream(path("prompts.fasta")) << ">first one\nMKTAYIAKQR\n>\nac\n>empty\n>last\nMK\n";
  const std::vector<std::string> common = {"--max-length", "80",         "--seed", "3",
                                           "--json",       "--log-probs"};
  std::vector<std::string> arguments = {"--prompts", path("prompts.fasta"), "--count", "2"};
  arguments.insert(arguments.end(), common.begin(), common.end());
  const Outcome done = generate(arguments);
  ASSERT_EQ(done.status, 0) << done.err;
  const std::vector<json> lines = lines_of(done.out);
  ASSERT_EQ(lines.size(), 8u);
  const std::vector<std::string> names = {"first-1", "first-2", "prompt-2-1", "prompt-2-2",
                                          "empty-1", "empty-2", "last-1",     "last-2"};
  const std::vector<std::string> prompts = {"MKTAYIAKQR", "AC", "", "MK"};
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["name"], names[i]);
    EXPECT_TRUE(lines[i]["sequence"].get<std::string>().starts_with(prompts[i / 2]));
    EXPECT_EQ(lines[i]["prompt_length"], prompts[i / 2].size());
    const size_t drawn = lines[i]["sequence"].get<std::string>().size() - prompts[i / 2].size();
    ASSERT_EQ(lines[i]["log_probs"].size(), drawn);
    EXPECT_EQ(lines[i]["ended"].get<bool>(), lines[i].contains("end_log_prob"));
    double sum = lines[i].value("end_log_prob", 0.0);
    for (const double value : lines[i]["log_probs"]) sum += value;
    EXPECT_NEAR(lines[i]["mean_log_prob"].get<double>(),
                sum / static_cast<double>(drawn + (lines[i]["ended"].get<bool>() ? 1 : 0)), 1e-9);
  }
  // The prompt alone gives the same.
  for (const size_t p : {0u, 3u}) {
    arguments = {"--prompt", prompts[p], "--count", "2"};
    arguments.insert(arguments.end(), common.begin(), common.end());
    const std::vector<json> alone = lines_of(generate(arguments).out);
    ASSERT_EQ(alone.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(alone[i]["sequence"], lines[2 * p + i]["sequence"]);
    }
  }
  // In FASTA, to a file.
  const Outcome fasta = generate({"--prompts", path("prompts.fasta"), "--max-length", "80",
                                  "--seed", "3", "--log-probs", "-o", path("out.fasta")});
  ASSERT_EQ(fasta.status, 0) << fasta.err;
  const std::string text = read_file(path("out.fasta"));
  EXPECT_TRUE(text.starts_with(">first length=")) << text;
  EXPECT_NE(text.find(" mean_log_prob=-"), std::string::npos) << text;
  EXPECT_NE(text.find("\n>last length="), std::string::npos) << text;
}

TEST_F(GenerateCli, SavedStreamsGoOnAsIfNeverInterrupted) {
  train_model({"--positions", "sinusoidal"});
  const std::vector<std::string> common = {"--ignore-eos", "--json", "--log-probs",
                                           "--repetition-penalty", "1.1"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), common.begin(), common.end());
    const Outcome done = generate(arguments);
    EXPECT_EQ(done.status, 0) << done.err;
    return json::parse(done.out.empty() ? "{}" : done.out);
  };
  const json whole = with({"--prompt", "MK", "--seed", "8", "--max-length", "150"});
  const json first =
      with({"--prompt", "MK", "--seed", "8", "--max-length", "70", "--state-out", path("a.state")});
  const json second =
      with({"--state-in", path("a.state"), "--max-length", "100", "--state-out", path("b.state")});
  const json third = with({"--state-in", path("b.state"), "--max-length", "150"});
  EXPECT_EQ(second["begin"], 71);
  EXPECT_EQ(third["begin"], 101);
  EXPECT_EQ(first["sequence"].get<std::string>() + second["sequence"].get<std::string>() +
                third["sequence"].get<std::string>(),
            whole["sequence"]);
  json log_probs = first["log_probs"];
  for (const json* part : {&second, &third}) {
    for (const json& value : (*part)["log_probs"]) log_probs.push_back(value);
  }
  EXPECT_EQ(log_probs, whole["log_probs"]);
  // Forks.
  std::vector<std::string> fork = {"--state-in", path("a.state"), "--count", "3",        "--seed",
                                   "1",          "--max-length",  "100",     "--prompt", "GG"};
  fork.insert(fork.end(), common.begin(), common.end());
  const std::vector<json> forks = lines_of(generate(fork).out);
  ASSERT_EQ(forks.size(), 3u);
  for (const json& line : forks) {
    EXPECT_TRUE(line["sequence"].get<std::string>().starts_with("GG"));
    EXPECT_EQ(line["sequence"].get<std::string>().size(), 30u);
  }
  EXPECT_NE(forks[0]["sequence"], forks[1]["sequence"]);

  expect_error(generate({"--state-in", path("a.state"), "--max-length", "69"}), 1,
               {"a sequence starts with 70 letters, expected at most max_length = 69"});
  expect_error(generate({"--state-in", path("a.state"), "--state-out", path("b.state")}), 1,
               {"b.state", "--force"});
  fs::resize_file(path("a.state"), fs::file_size(path("a.state")) - 5);
  expect_error(generate({"--state-in", path("a.state")}), 1, {path("a.state") + ": "});
  expect_error(generate({"--state-in", path("absent")}), 1, {path("absent")});
}

TEST_F(GenerateCli, StreamsThatHaveEndedAreNotContinued) {
  train_model({"--positions", "rotary"});
  std::string out;
  for (int seed = 0; seed < 20 && out.find("end=stop") == std::string::npos; ++seed) {
    const Outcome done = generate({"--seed", std::to_string(seed), "--max-length", "400", "--force",
                                   "--state-out", path("x.state")});
    ASSERT_EQ(done.status, 0) << done.err;
    out = done.out;
  }
  ASSERT_NE(out.find("end=stop"), std::string::npos);
  expect_error(generate({"--state-in", path("x.state")}), 1,
               {path("x.state"), "the stream has ended with the end token", "--ignore-eos"});
}

// Longer than what is held back: both forms say the same as two shorter runs.
TEST_F(GenerateCli, LongSequencesAreWrittenInPieces) {
  train_model({"--positions", "rotary"});
  const std::vector<std::string> common = {"--ignore-eos", "--seed", "2", "--max-length"};
  const auto with = [&](const std::string& length, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = common;
    arguments.push_back(length);
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome done = generate(arguments);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.out;
  };
  const std::string fasta = with("9000", {});
  ASSERT_TRUE(fasta.starts_with(">generated-1\n")) << fasta.substr(0, 100);
  std::string letters;
  size_t longest = 0;
  std::istringstream in(fasta.substr(fasta.find('\n') + 1));
  for (std::string line; std::getline(in, line);) {
    longest = std::max(longest, line.size());
    EXPECT_TRUE(line.size() == 60 || letters.size() + line.size() == 9000u);
    letters += line;
  }
  EXPECT_EQ(letters.size(), 9000u);
  EXPECT_EQ(longest, 60u);
  const json start = json::parse(with("200", {"--json"}));
  EXPECT_EQ(start["sequence"], letters.substr(0, 200));
  std::string pieces;
  const std::vector<json> lines = lines_of(with("9000", {"--json", "--log-probs"}));
  for (const json& line : lines) {
    EXPECT_EQ(line["begin"], pieces.size() + 1);
    EXPECT_EQ(line["log_probs"].size(), line["sequence"].get<std::string>().size());
    pieces += line["sequence"].get<std::string>();
    EXPECT_EQ(line.contains("ended"), &line == &lines.back());
  }
  EXPECT_EQ(pieces, letters);
  EXPECT_EQ(lines.back()["ended"], false);
  EXPECT_LT(lines.back()["mean_log_prob"].get<double>(), 0);
}

TEST_F(GenerateCli, SaysWhatIsWrong) {
  const auto usage = [&](std::vector<std::string> more, const std::string& part) {
    more.insert(more.begin(), {"generate", "--model", "m"});
    expect_error(run(more), 2, {"generate: ", part});
  };
  usage({"--repetition-penalty", "0"}, "repetition_penalty is 0, expected a number above 0");
  usage({"--penalty-window", "5000"}, "penalty_window is 5000, expected 1 to 4096");
  usage({"--batch", "0"}, "--batch is 0, expected 1 to 4096");
  usage({"--prompts", "x", "--prompt", "MK"}, "--prompts and --prompt are both given");
  usage({"--prompts", "x", "--state-in", "y"}, "--prompts and --state-in are both given");
  usage({"--prompts", "x", "--state-out", "y"}, "--state-out is given with --prompts");
  usage({"--count", "2", "--state-out", "y"}, "--state-out is given with --count above 1");
  usage({"--state-out", "-"}, "--state-out is -, expected a file of its own");
  usage({"--state-out", "y", "-o", "y"}, "--state-out is y, expected a file of its own");
  usage({"--state-in", "y", "--count", "2"}, "expected a seed for the forks");
  train_model({"--positions", "learned"});
  expect_error(generate({"--max-length", "1000000"}), 1,
               {"max_length is 1000000, expected at most 64 (rows of the model's learned position "
                "table)"});
  std::ofstream(path("p.fasta")) << ">a\nMK\n>b\nMKMKMK\n";
  expect_error(generate({"--prompts", path("p.fasta"), "--max-length", "5"}), 1,
               {"p.fasta: sequence 2 (b) has 6 residues, expected at most max_length = 5"});
  expect_error(generate({"--prompts", path("absent.fasta")}), 1, {"absent.fasta"});
}

}  // namespace
}  // namespace performer
