// SPDX-License-Identifier: Apache-2.0
// embed, score and variants as their users run them.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/testing.h"
#include "performer/data/safetensors.h"
#include "performer/data/table.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using Fields = std::vector<std::string>;

class InferCli : public Cli {
 protected:
  // Runs a command on the model, with one thread.
  Outcome infer(std::vector<std::string> arguments) const {
    for (const char* word : {"--model", "RUN", "--threads", "1", "--quiet"}) {
      arguments.push_back(std::string(word) == "RUN" ? path("run") : word);
    }
    return run(arguments);
  }
};

TEST_F(InferCli, EmbedWritesIndexAndSafeNames) {
  train_model({"--positions", "rotary", "--no-causal"});
  std::ofstream(path("odd.fasta"))
      << ">sp|P1/X ../\"odd\"\nMKTAYIAK\n>\nAC\n>sp|P1/X again\nmkw-\n";
  const Outcome done = infer({"embed", "--data", path("odd.fasta"), "--out", path("out"), "--pool",
                              "mean,bos", "--per-residue"});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "");
  const Table index = read_table(path("out/index.tsv"));
  ASSERT_EQ(index.rows.size(), 3u);
  EXPECT_EQ(index.rows[0].fields,
            (Fields{"1", "sp_P1_X", "8", "ok", "0", "0", "sp|P1/X ../\"odd\""}));
  EXPECT_EQ(index.rows[1].fields[1], "record");
  EXPECT_EQ(index.rows[2].fields,
            (Fields{"3", "sp_P1_X-2", "3", "ok", "2", "10", "sp|P1/X again"}));
  const SafetensorsFile file(path("out/embeddings.safetensors"));
  EXPECT_EQ(file.at("mean").shape, (std::vector<int64_t>{3, 32}));
  EXPECT_EQ(file.at("bos").shape, (std::vector<int64_t>{3, 32}));
  EXPECT_EQ(file.at("residues/sp_P1_X").shape, (std::vector<int64_t>{8, 32}));
  EXPECT_EQ(file.at("residues/sp_P1_X-2").shape, (std::vector<int64_t>{3, 32}));
  const json settings = json::parse(read_file(path("out/embeddings.json")));
  EXPECT_EQ(settings["layer"], 2);
  // A second run needs to be told what to do with the first one's results.
  expect_error(infer({"embed", "--data", path("odd.fasta"), "--out", path("out")}), 1,
               {"is not empty", "--resume", "--force"});
  EXPECT_EQ(infer({"embed", "--data", path("odd.fasta"), "--out", path("out"), "--force"}).status,
            0);
  expect_error(infer({"embed", "--data", path("odd.fasta"), "--out", path("out"), "--resume",
                      "--layer", "0"}),
               1, {"--resume: layer is 0, expected 2"});
}

TEST_F(InferCli, LongSequencesPassWholeOrSayWhyNot) {
  const std::string letters(2500, 'A');
  std::ofstream(path("long.fasta")) << ">short\nMKT\n>long\n" << letters << "\n";
  train_model({"--positions", "sinusoidal"});
  const std::vector<std::string> embed = {"embed",     "--data",        path("long.fasta"), "--out",
                                          path("out"), "--per-residue", "--format",         "npy"};
  const Outcome whole = infer(embed);
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_NE(read_file(path("out/residues/long.npy")).find("(2500, 32)"), std::string::npos);
  const Outcome scored =
      infer({"score", "--data", path("long.fasta"), "--per-residue", path("residues.tsv")});
  ASSERT_EQ(scored.status, 0) << scored.err;
  EXPECT_EQ(read_table(path("residues.tsv")).rows.size(), 2503u);
}

TEST_F(InferCli, LearnedPositionsLimitTheLengthInOneLine) {
  const std::string letters(100, 'A');
  std::ofstream(path("long.fasta")) << ">long\n" << letters << "\n>short\nMKT\n";
  train_model();  // a learned table of 64 positions
  const Outcome failed = infer({"embed", "--data", path("long.fasta"), "--out", path("out")});
  EXPECT_EQ(failed.status, 1);
  EXPECT_EQ(failed.err,
            "failed: sequence 1 (long): 102 tokens, expected at most 64 (rows of the model's "
            "learned position table)\nperformer: error: embed: 1 of 2 sequences failed; the others "
            "are in " +
                path("out") + " (--chunk N passes long ones through in windows)\n");
  const Table index = read_table(path("out/index.tsv"));
  EXPECT_EQ(index.rows.at(0).fields[4], "");
  EXPECT_EQ(index.rows.at(1).fields[3], "ok");
  const Outcome cut = infer({"embed", "--data", path("long.fasta"), "--out", path("cut"),
                             "--per-residue", "--joined", "--format", "npy", "--chunk", "64"});
  ASSERT_EQ(cut.status, 0) << cut.err;
  EXPECT_NE(read_file(path("cut/residues.npy")).find("(103, 32)"), std::string::npos);
  const Outcome scored = infer({"score", "--data", path("long.fasta")});
  EXPECT_EQ(scored.status, 1);
  EXPECT_TRUE(
      scored.out.starts_with("name\tlength\tlog_likelihood\tperplexity\t"
                             "end_log_likelihood\nlong\t100\t\t\t\nshort\t3\t-"))
      << scored.out;
  EXPECT_NE(scored.err.find("failed: sequence 1 (long): 101 tokens"), std::string::npos);
}

// Killed while it works, the run goes on and ends with the bytes of one that nobody disturbed.
TEST_F(InferCli, KilledEmbedGoesOnWithTheSameBytes) {
  train_model({"--positions", "rotary"});
  const auto embed = [&](const std::string& out) {
    return std::vector<std::string>{
        "embed",     "--data",    path("data.fasta"), "--out",          path(out),
        "--model",   path("run"), "--per-residue",    "--batch-tokens", "1",
        "--threads", "1",         "--quiet"};
  };
  ASSERT_EQ(run(embed("straight")).status, 0);
  std::vector<std::string> arguments = embed("killed");
  arguments.push_back("--resume");
  int killed = 0;
  int status = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const pid_t child = start(arguments);
    // The beginnings of the run are there; what it does next is cut off somewhere.
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (!fs::exists(path("killed/.partial/embeddings.json"))) continue;
      ::usleep(10000 * static_cast<useconds_t>(1 + attempt));
      ::kill(child, SIGKILL);
    }
    killed += WIFSIGNALED(status) ? 1 : 0;
    if (!WIFSIGNALED(status)) break;
    EXPECT_FALSE(fs::exists(path("killed/embeddings.safetensors")) &&
                 fs::exists(path("killed/index.tsv")) &&
                 !fs::exists(path("killed/.partial/embeddings.json")));
  }
  EXPECT_GE(killed, 1);
  const Outcome last = run(arguments);
  ASSERT_EQ(last.status, 0) << last.err;
  for (const char* name : {"embeddings.safetensors", "index.tsv", "embeddings.json"}) {
    EXPECT_TRUE(read_file(path("killed/") + name) == read_file(path("straight/") + name)) << name;
  }
}

TEST_F(InferCli, WhatDoesNotFitIntoMemoryIsListedAndTheRestKept) {
  train_model({"--positions", "sinusoidal"});
  std::ofstream fasta(path("two.fasta"));
  fasta << ">huge\n" << std::string(3000000, 'A') << "\n>small\nMKTAYIAKQR\n";
  fasta.close();
  const Outcome done =
      infer({"embed", "--data", path("two.fasta"), "--out", path("out"), "--max-memory", "500M"});
  EXPECT_EQ(done.status, 1) << done.err;
  EXPECT_NE(done.err.find("failed: sequence 1 (huge): out of memory\n"), std::string::npos)
      << done.err;
  const Table index = read_table(path("out/index.tsv"));
  EXPECT_EQ(index.rows.at(1).fields[3], "ok");
  EXPECT_EQ(SafetensorsFile(path("out/embeddings.safetensors")).at("mean").shape[0], 1);
}

TEST_F(InferCli, ScoreAgreesWithEval) {
  train_model({"--windowing", "crop"});
  const Outcome scored =
      infer({"score", "--data", path("data.fasta"), "-o", path("s.tsv"), "--chunk", "64"});
  ASSERT_EQ(scored.status, 0) << scored.err;
  const Table table = read_table(path("s.tsv"));
  ASSERT_EQ(table.rows.size(), 120u);
  double sum = 0;
  double targets = 0;
  for (const TableRow& row : table.rows) {
    const double length = std::stod(row.fields[1]);
    EXPECT_NEAR(std::stod(row.fields[3]), std::exp(-std::stod(row.fields[2]) / length), 1e-3);
    sum -= std::stod(row.fields[2]) + std::stod(row.fields[4]);
    targets += length + 1;
  }
  EXPECT_EQ(table.rows[7].fields[0], "r7");
  EXPECT_NE(
      infer({"score", "--data", path("data.fasta"), "--direction", "reverse", "--chunk", "64"}).out,
      read_file(path("s.tsv")));
  // Longer sequences than the table are cut as evaluation cuts them; here there are some.
  const Outcome evaluated = infer({"eval", "--data", path("data.fasta"), "--json"});
  ASSERT_EQ(evaluated.status, 0) << evaluated.err;
  EXPECT_NEAR(sum / targets, json::parse(evaluated.out)["loss"].get<double>(), 1e-4);
}

TEST_F(InferCli, MaskedModelsScoreByPseudoPerplexity) {
  train_model({"--no-causal"});
  std::ofstream(path("small.fasta")) << ">a\nMKTAYIAKQR\n>b\nA\n";
  const Outcome scored = infer({"score", "--data", path("small.fasta"), "--batch-tokens", "30"});
  ASSERT_EQ(scored.status, 0) << scored.err;
  const Table table = parse_table("stdout", scored.out);
  EXPECT_EQ(table.columns,
            (Fields{"name", "length", "pseudo_log_likelihood", "pseudo_perplexity"}));
  EXPECT_EQ(table.rows.size(), 2u);
  expect_error(infer({"score", "--data", path("small.fasta"), "--direction", "mean"}), 2,
               {"--direction is mean, expected it with a causal model"});
}

TEST_F(InferCli, VariantsKeepColumnsOrderAndBadRows) {
  train_model({"--no-causal"});
  const std::string wild = "MKTAYIAKQR";
  std::ofstream(path("wild.fasta")) << ">w\n" << wild << "\n";
  std::ofstream(path("v.csv")) << "mutant,\"note, quoted\",score\r\n"
                                  "K2R,\"a \"\"b\"\"\",1\r\n"
                                  "A2G,wrong letter,2\r\n"
                                  "K2del,,3\r\n"
                                  "K2R:M1V,x\r\n"
                                  "WT,last,5\r\n";
  const Outcome done =
      infer({"variants", "--data", path("v.csv"), "--wild-type", path("wild.fasta")});
  EXPECT_EQ(done.status, 1);
  const Table table = parse_table("stdout", done.out);
  EXPECT_EQ(table.columns,
            (Fields{"mutant", "note, quoted", "score", "performer_score", "performer_score_by"}));
  ASSERT_EQ(table.rows.size(), 5u);
  EXPECT_EQ(table.rows[0].fields[1], "a \"b\"");
  EXPECT_NE(table.rows[0].fields[3], "");
  EXPECT_EQ(table.rows[0].fields[4], "masked-marginals");
  EXPECT_EQ(table.rows[1].fields, (Fields{"A2G", "wrong letter", "2", "", ""}));
  EXPECT_EQ(table.rows[2].fields[4], "rescore");
  EXPECT_EQ(table.rows[3].fields, (Fields{"K2R:M1V", "x", "", "", ""}));
  EXPECT_EQ(table.rows[4].fields, (Fields{"WT", "last", "5", "0.000000", "masked-marginals"}));
  EXPECT_EQ(done.err,
            "failed: " + path("v.csv") +
                ":3: row 2, column mutant: 'A2G': position 2 is A, expected K as in the wild type\n"
                "failed: " +
                path("v.csv") +
                ":5: row 4, has 2 fields, expected 3\n"
                "performer: error: variants: 2 of 5 rows failed; their scores are empty\n");
  // The same number from the other ways to say it.
  std::ofstream(path("w.tsv")) << "id\tmutated_sequence\n1\tMRTAYIAKQR\n";
  const Outcome by_sequence = infer({"variants", "--data", path("w.tsv"), "--sequence", wild});
  ASSERT_EQ(by_sequence.status, 0) << by_sequence.err;
  EXPECT_EQ(by_sequence.out,
            "id\tmutated_sequence\tperformer_score\tperformer_score_by\n"
            "1\tMRTAYIAKQR\t" +
                table.rows[0].fields[3] + "\tmasked-marginals\n");
  std::ofstream(path("o.csv")) << "mutant\nK102R\n";
  EXPECT_EQ(infer({"variants", "--data", path("o.csv"), "--sequence", wild, "--offset", "100"}).out,
            "mutant,performer_score,performer_score_by\nK102R," + table.rows[0].fields[3] +
                ",masked-marginals\n");
}

TEST_F(InferCli, StrictStopsAndLeavesNothing) {
  train_model();
  std::ofstream(path("v.csv")) << "mutant\nK2R\nK2J\nA9G\n";
  const std::vector<std::string> arguments = {"variants",    "--data",     path("v.csv"), "-o",
                                              path("o.csv"), "--sequence", "MKTAYIAKQR"};
  std::vector<std::string> strict = arguments;
  strict.push_back("--strict");
  expect_error(infer(strict), 1,
               {path("v.csv") + ":3: row 2, column mutant: 'K2J': letter 3 is 'J'"});
  EXPECT_FALSE(fs::exists(path("o.csv")));
  EXPECT_EQ(infer(arguments).status, 1);
  EXPECT_EQ(read_table(path("o.csv")).rows.at(0).fields[2], "rescore");
}

TEST_F(InferCli, WrongUsageIsOneLine) {
  train_model();
  const std::string fasta = path("data.fasta");
  const std::string out = path("out");
  std::ofstream(path("v.csv")) << "mutation,performer_score\nK2R,1\n";
  const std::string table = path("v.csv");
  expect_error(run({"embed", "--data", fasta, "--out", out}), 2, {"embed: --model is missing"});
  expect_error(infer({"embed", "--out", out}), 2, {"embed: --data is missing"});
  expect_error(infer({"embed", "--data", fasta}), 2, {"embed: --out is missing"});
  expect_error(infer({"embed", "--data", fasta, "--out", out, "--pool", "cls"}), 2,
               {"pool is 'cls', expected mean | max | bos | eos"});
  expect_error(infer({"embed", "--data", fasta, "--out", out, "--pool", ""}), 2,
               {"--pool is empty"});
  expect_error(infer({"embed", "--data", fasta, "--out", out, "--layer", "3"}), 2,
               {"--layer is 3, expected -3 to 2"});
  expect_error(infer({"embed", "--data", fasta, "--out", out, "--format", "csv"}), 2,
               {"format is 'csv'"});
  expect_error(infer({"embed", "--data", fasta, "--out", out, "--joined"}), 2,
               {"--joined", "--per-residue"});
  expect_error(infer({"embed", "--data", fasta, "--out", out, "--resume", "--force"}), 2,
               {"--resume and --force exclude each other"});
  expect_error(infer({"embed", "--data", fasta, "--out", out, "--max-memory", "lots"}), 2,
               {"--max-memory is 'lots'"});
  expect_error(infer({"embed", "--data", fasta, "--out", out, "--chunk", "100"}), 2,
               {"--chunk is 100, expected at most 64"});
  expect_error(infer({"embed", "--data", fasta, "--out", out, "--batch-tokens", "0"}), 2,
               {"--batch-tokens is 0"});
  EXPECT_FALSE(fs::exists(out));
  expect_error(infer({"score", "--data", path("none.fasta")}), 1, {"none.fasta", "cannot open"});
  expect_error(infer({"score", "--data", fasta, "--direction", "up"}), 2, {"direction is 'up'"});
  expect_error(infer({"score", "--data", fasta, "--per-residue", "-"}), 2, {"--per-residue is -"});
  expect_error(infer({"variants", "--data", table}), 2, {"--sequence and --wild-type"});
  expect_error(infer({"variants", "--data", table, "--sequence", "MK"}), 1,
               {"has columns mutation, performer_score, expected mutant or mutated_sequence"});
  expect_error(
      infer({"variants", "--data", table, "--sequence", "MK", "--mutant-column", "mutation"}), 1,
      {"has a column performer_score already"});
  expect_error(infer({"variants", "--data", table, "--sequence", "mk"}), 2,
               {"--sequence: 2 lower-case letters raised"});
  expect_error(infer({"variants", "--data", table, "--wild-type", fasta}), 1,
               {"data.fasta:3: a second record, expected the wild type alone"});
  expect_error(infer({"variants", "--data", table, "--sequence", "MK", "--scoring", "wt-marginals",
                      "--mutant-column", "mutation", "--score-column", "s"}),
               2, {"--scoring is wt-marginals, expected rescore"});
  expect_error(infer({"variants", "--data", table, "--sequence", "MK", "--chunk", "9"}), 2,
               {"--chunk is 9, expected 0"});
}

}  // namespace
}  // namespace performer
