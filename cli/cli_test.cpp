// SPDX-License-Identifier: Apache-2.0
// The program as its users run it: statuses, streams, messages, and a run killed at any moment.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "cli/testing.h"
#include "favor/random.h"
#include "performer/train/run_folder.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST_F(Cli, WrongUsageIsOneLineAndStatusTwo) {
  expect_error(run({}), 2, {"no command given"});
  expect_error(run({"trian"}), 2, {"'trian'", "did you mean train?"});
  expect_error(train("run", {"--num-layer", "3"}), 2,
               {"--num-layer", "did you mean --num-layers?"});
  expect_error(run({"generate", "--temprature", "1"}), 2, {"did you mean --temperature?"});
  expect_error(train("run", {"--preset", "protein-dem"}), 2, {"did you mean protein-demo?"});
  expect_error(run({"generate", "--count", "many"}), 2, {"--count is 'many'", "whole number"});
  expect_error(run({"eval", "--length", "64", "--length", "32"}), 2,
               {"eval: --length is given 2 times, expected once (performer eval --help"});
  expect_error(run({"generate", "--model"}), 2,
               {"generate: --model is given without a value, expected TEXT ("});
  expect_error(run({"train", "-o"}), 2, {"train: --out is given without a value, expected "});
  expect_error(train("run", {"--dim", "64"}), 2, {"--dim is given 2 times, expected once"});
  expect_error(run({"generate", "--model", "m", "--max-length", "-1"}), 2,
               {"--max-length is -1, expected at least 0"});
  expect_error(run({"tokenize", "a.fasta", "b.fasta"}), 2, {"unexpected argument 'b.fasta'"});
  expect_error(run({"train", "--out", path("run")}), 2, {"--data is missing"});
  EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(Cli, ConfigurationsThatCannotBeAreNamedWithBothValues) {
  const auto with = [&](const std::string& option, const std::string& value) {
    return run({"train", "--data", path("data.fasta"), "--out", path("run"), option, value});
  };
  expect_error(with("--num-heads", "7"), 2, {"num_heads", "7", "512"});
  expect_error(with("--num-features", "-5"), 2, {"num_features", "-5", "expected"});
  expect_error(with("--feature-map", "cosine"), 2, {"--feature-map is 'cosine'", "or identity"});
  expect_error(with("--dtype", "float8"), 2, {"dtype is 'float8'", "expected float32"});
  expect_error(with("--vocab-size", "30"), 2, {"vocab_size", "30", "29"});
  EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(Cli, ReportIsOnePageOfSeveralRuns) {
  ASSERT_EQ(train("a", {}).status, 0);
  ASSERT_EQ(train("b", {"--lr", "0.002"}).status, 0);
  expect_error(run({"report"}), 2, {"RUN is missing"});
  expect_error(run({"report", path("a"), path("b")}), 2, {"--output is missing"});
  expect_error(run({"report", path("a"), path("a/"), "-o", path("x.html")}), 2, {"given twice"});
  expect_error(run({"report", path("none"), "-o", path("x.html")}), 1, {"none is no folder"});
  ASSERT_EQ(run({"report", path("a"), path("b"), "-o", path("x.html")}).status, 0);
  const std::string page = read_file(path("x.html"));
  EXPECT_NE(page.find("Loss over time"), std::string::npos);
  EXPECT_NE(page.find("<code>lr</code>"), std::string::npos);
  EXPECT_NE(page.find("</html>"), std::string::npos);
  expect_error(run({"report", path("a"), path("b"), "-o", path("x.html")}), 1, {"--force"});
  ASSERT_EQ(run({"report", path("a")}).status, 0);
  EXPECT_TRUE(fs::exists(path("a/report.html")));
}

TEST_F(Cli, FailuresOfTheOutsideWorldAreStatusOne) {
  expect_error(run({"tokenize", path("none.fasta")}), 1, {"none.fasta"});
  expect_error(run({"eval", "--model", path("none"), "--quiet"}), 1, {"none: is not a folder"});
  expect_error(run({"tokenize", path("data.fasta"), "-o", path("no/where.tsv")}), 1,
               {"no/where.tsv", "cannot be written"});
  std::ofstream(path("taken.tsv")) << "mine";
  expect_error(run({"tokenize", path("data.fasta"), "-o", path("taken.tsv")}), 1,
               {"taken.tsv exists", "--force"});
  EXPECT_EQ(read_file(path("taken.tsv")), "mine");
  std::ofstream(path("file")) << "";
  expect_error(run({"train", "--data", path("data.fasta"), "--out", path("file"), "--quiet"}), 1,
               {"is a file, expected a folder"});
  std::ofstream(path("c.json")) << R"({"dimm": 64})";
  expect_error(run({"train", "--data", path("data.fasta"), "--out", path("run"), "--config",
                    path("c.json")}),
               2, {"unknown key 'dimm'", "did you mean dim?"});
}

TEST_F(Cli, HelpShowsCurrentDefaults) {
  const Outcome general = run({"--help"});
  EXPECT_EQ(general.status, 0);
  for (const char* name :
       {"info", "train", "eval", "generate", "embed", "score", "variants", "tokenize"}) {
    EXPECT_NE(general.out.find(std::string("\n  ") + name), std::string::npos) << name;
    EXPECT_EQ(run({name, "--help"}).status, 0) << name;
  }
  const std::string plain = run({"train", "--help"}).out;
  EXPECT_NE(plain.find("width [512]"), std::string::npos) << plain;
  for (const Field& field : train_fields()) {
    std::string name = field.option();
    if (field.type.empty()) name.insert(2, "[no-]");
    EXPECT_NE(plain.find(name), std::string::npos) << name;
  }
  TrainConfig demo;
  apply_preset(demo, "protein-demo");
  const std::string preset =
      run({"train", "--preset", "protein-demo", "--num-layers", "9", "--help"}).out;
  EXPECT_NE(preset.find("width [" + std::to_string(demo.model.dim) + "]"), std::string::npos);
  EXPECT_NE(preset.find("depth [9]"), std::string::npos);
}

TEST_F(Cli, TokenizeWritesDataToStandardOutputAlone) {
  std::ofstream(path("small.fasta")) << ">a desc\r\nmkt\r\nAYI*\r\n>b\nACD\n";
  const Outcome tsv = run({"tokenize", path("small.fasta")});
  EXPECT_EQ(tsv.status, 0);
  EXPECT_EQ(tsv.out, "name\tlength\tids\na\t6\t10 8 16 0 19 7\nb\t3\t0 1 2\n");
  EXPECT_NE(tsv.err.find("2 records"), std::string::npos) << tsv.err;
  const Outcome lines = run({"tokenize", "--json", "--quiet", path("small.fasta")});
  EXPECT_EQ(lines.out,
            "{\"name\":\"a\",\"length\":6,\"ids\":[10,8,16,0,19,7]}\n"
            "{\"name\":\"b\",\"length\":3,\"ids\":[0,1,2]}\n");
  EXPECT_EQ(lines.err, "");
  // Before the first record nothing is written.
  std::ofstream(path("no.fasta")) << "ACD\n";
  std::ofstream(path("none.fasta")) << "";
  expect_error(run({"tokenize", path("no.fasta")}), 1, {"no.fasta:1: data before the first '>'"});
  expect_error(run({"tokenize", path("none.fasta")}), 1, {"holds no record"});
  // A file that turns out to be wrong leaves nothing behind.
  std::ofstream(path("bad.fasta")) << ">a\nACD\n>b\nAC#D\n";
  EXPECT_EQ(run({"tokenize", path("bad.fasta"), "-o", path("bad.tsv")}).status, 1);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("bad.tsv")) << entry.path();
  }
}

TEST_F(Cli, TokenizeReadsGzipAndStandardInput) {
  const std::string text = ">a\nACD\n>b \xce\xb1\nMKT\n";
  const std::string expected = "name\tlength\tids\na\t3\t0 1 2\nb\t3\t10 8 16\n";
  gzFile zipped = gzopen(path("small.fasta.gz").c_str(), "wb");
  ASSERT_EQ(gzwrite(zipped, text.data(), static_cast<unsigned>(text.size())),
            static_cast<int>(text.size()));
  ASSERT_EQ(gzclose(zipped), Z_OK);
  const Outcome from_file = run({"tokenize", path("small.fasta.gz")});
  EXPECT_EQ(from_file.status, 0) << from_file.err;
  EXPECT_EQ(from_file.out, expected);
  input_ = path("small.fasta.gz");
  EXPECT_EQ(run({"tokenize", "-"}).out, expected);
  std::ofstream(path("small.fasta")) << text;
  input_ = path("small.fasta");
  EXPECT_EQ(run({"tokenize", "-i", "-"}).out, expected);
}

TEST_F(Cli, ConfigurationFileSetsWhatTheCommandLineDoesNot) {
  std::ofstream(path("c.json")) << R"({"max_steps": 3, "dim": 64, "causal": true})";
  std::vector<std::string> arguments = train_arguments("run");
  const auto steps = std::find(arguments.begin(), arguments.end(), "--max-steps");
  arguments.erase(steps, steps + 2);
  arguments.insert(arguments.end(), {"--config", path("c.json"), "--json", "--no-causal"});
  const Outcome trained = run(arguments);
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(json::parse(trained.out)["steps"], 3);
  const json info = json::parse(run({"info", path("run"), "--json"}).out);
  EXPECT_EQ(info["config"]["dim"], 32);
  EXPECT_EQ(info["config"]["causal"], false);
  // The run's own file is such a file, and describes the same model.
  const Outcome again =
      run({"train", "--config", path("run/config.json"), "--out", path("again"), "--quiet"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_TRUE(read_file(checkpoint_path(path("again"), 3) + "/model.safetensors") ==
              read_file(checkpoint_path(path("run"), 3) + "/model.safetensors"));
}

TEST_F(Cli, TrainEvalGenerateAndInfoWorkTogether) {
  const Outcome trained = train("run", {"--json"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const json result = json::parse(trained.out);
  EXPECT_EQ(result["steps"], 30);
  EXPECT_GT(result["peak_memory_bytes"].get<int64_t>(), 1000000);

  const Outcome evaluated = run({"eval", "--model", path("run"), "--json", "--quiet"});
  ASSERT_EQ(evaluated.status, 0) << evaluated.err;
  const json score = json::parse(evaluated.out);
  EXPECT_EQ(score["targets"], result["test"]["targets"]);
  EXPECT_DOUBLE_EQ(score["loss"].get<double>(), result["test"]["loss"].get<double>());
  EXPECT_EQ(score["baseline"], result["test"]["baseline"]);
  const Outcome table = run({"eval", "--model", path("run"), "--data", path("data.fasta")});
  EXPECT_EQ(table.status, 0);
  EXPECT_NE(table.out.find("empirical baseline"), std::string::npos);

  const std::vector<std::string> generate = {"generate", "--model",  path("run"),    "--count",
                                             "3",        "--prompt", "mk",           "--seed",
                                             "5",        "--quiet",  "--max-length", "50"};
  const Outcome sampled = run(generate);
  EXPECT_EQ(sampled.status, 0) << sampled.err;
  EXPECT_TRUE(sampled.out.starts_with(">generated-1 ")) << sampled.out;
  EXPECT_NE(sampled.out.find("\nMK"), std::string::npos) << sampled.out;
  EXPECT_EQ(run(generate).out, sampled.out);

  const json info = json::parse(run({"info", path("run"), "--json"}).out);
  EXPECT_EQ(info["num_parameters"], result["num_parameters"]);
  EXPECT_EQ(info["config"]["dim"], 32);
  EXPECT_NE(run({"info"}).out.find("torch"), std::string::npos);

  expect_error(train("run"), 1, {"holds a run already", "--force"});
}

TEST_F(Cli, DataIsPreparedShownAndWrittenBack) {
  std::ofstream(path("clusters.tsv")) << "r3\tr3\nr3\tr4\nr3\tr5\nr6\tr6\n";
  const std::vector<std::string> prepare = {"data",
                                            "prepare",
                                            path("data.fasta"),
                                            "-o",
                                            path("x.tokens"),
                                            "--ood-clusters",
                                            path("clusters.tsv"),
                                            "--ood-min-cluster",
                                            "3",
                                            "--valid-fraction",
                                            "0.1",
                                            "--test-fraction",
                                            "0.1"};
  const Outcome made = run(prepare);
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_NE(made.out.find("120 records"), std::string::npos) << made.out;
  EXPECT_NE(made.out.find("1 of 2 clusters are held out, 116 sequences are in no cluster"),
            std::string::npos)
      << made.out;
  EXPECT_NE(made.err.find("peak memory"), std::string::npos) << made.err;
  expect_error(run(prepare), 1, {"x.tokens exists"});

  const Outcome stats = run({"data", "stats", path("x.tokens")});
  EXPECT_EQ(stats.out, made.out);
  const json shown = json::parse(run({"data", "stats", path("x.tokens"), "--json"}).out);
  EXPECT_EQ(shown["sets"]["all"]["sequences"], 120);
  EXPECT_EQ(shown["sets"]["ood"]["sequences"], 3);

  const Outcome ood = run({"data", "export", path("x.tokens"), "--split", "ood"});
  EXPECT_TRUE(ood.out.starts_with(">r3\n")) << ood.out;
  EXPECT_EQ(std::count(ood.out.begin(), ood.out.end(), '>'), 3);
  ASSERT_EQ(run({"data", "export", path("x.tokens"), "-o", path("back.fasta")}).status, 0);
  ASSERT_EQ(run({"data", "prepare", path("back.fasta"), "-o", path("y.tokens"), "--quiet"}).status,
            0);
  const json again = json::parse(run({"data", "stats", path("y.tokens"), "--json"}).out);
  EXPECT_EQ(again["sets"]["all"], shown["sets"]["all"]);
}

TEST_F(Cli, DataNamesWhatIsWrong) {
  expect_error(run({"data"}), 2, {"no command given, expected prepare, stats or export"});
  expect_error(run({"data", "prepair"}), 2, {"'prepair'", "did you mean prepare?"});
  expect_error(run({"data", "prepare", "-o", path("x")}), 2, {"data prepare: INPUT is missing"});
  expect_error(run({"data", "prepare", path("data.fasta")}), 2, {"--output is missing"});
  expect_error(
      run({"data", "prepare", path("data.fasta"), "-o", path("x"), "--ood-fraction", "0.5"}), 2,
      {"without --ood-clusters"});
  expect_error(
      run({"data", "prepare", path("data.fasta"), "-o", path("x"), "--valid-fraction", "2"}), 2,
      {"valid_fraction is 2"});
  expect_error(run({"data", "prepare", path("data.fasta"), "-o", path("x"), "--ood-go", "GO:1"}), 2,
               {"'GO:1' is no term"});
  expect_error(run({"data", "stats"}), 2, {"data stats: FILE is missing"});
  expect_error(run({"data", "export"}), 2, {"data export: FILE is missing"});
  expect_error(run({"data", "stats", path("data.fasta")}), 1, {"byte 0: ", "a token file"});
  expect_error(run({"data", "export", path("data.fasta"), "--split", "old"}), 2,
               {"'old', expected train | valid | test | ood | all"});
  ASSERT_EQ(run({"data", "prepare", path("data.fasta"), "-o", path("x")}).status, 0);
  fs::resize_file(path("x"), fs::file_size(path("x")) - 1);
  expect_error(run({"data", "stats", path("x")}), 1, {"x: byte 16: the file has ", "(cut off?)"});
  expect_error(run({"train", "--data", path("x"), "--out", path("run"), "--quiet"}), 1,
               {"(cut off?)"});
}

TEST_F(Cli, TokenFilesTrainAsTheirFastaDoes) {
  ASSERT_EQ(run({"data", "prepare", path("data.fasta"), "-o", path("x.tokens"), "--valid-fraction",
                 "0.1", "--test-fraction", "0.1"})
                .status,
            0);
  ASSERT_EQ(train("fasta").status, 0);
  std::vector<std::string> arguments = train_arguments("tokens");
  arguments[2] = path("x.tokens");
  // Fractions of a run do not touch a division that is stored.
  const auto valid = std::find(arguments.begin(), arguments.end(), "--valid-fraction");
  *(valid + 1) = "0.4";
  arguments.pop_back();  // --quiet
  const Outcome tokens = run(arguments);
  ASSERT_EQ(tokens.status, 0) << tokens.err;
  EXPECT_NE(tokens.err.find("token file of 120 sequences"), std::string::npos) << tokens.err;
  EXPECT_NE(tokens.err.find("valid_fraction, test_fraction and split_seed do not apply"),
            std::string::npos);
  EXPECT_EQ(read_file(path("fasta/checkpoint-30/model.safetensors")),
            read_file(path("tokens/checkpoint-30/model.safetensors")));

  const auto eval = [&](const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"eval", "--model", path(model), "--json", "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return json::parse(run(words).out);
  };
  const json expected = eval("fasta", {});
  for (const json& result : {eval("tokens", {}), eval("fasta", {"--data", path("x.tokens")})}) {
    EXPECT_EQ(result["split"], "test");
    EXPECT_EQ(result["loss"], expected["loss"]);
  }
  EXPECT_EQ(eval("tokens", {"--split", "all"})["sequences"], 120);
  const json some = eval("tokens", {"--split", "train", "--max-tokens", "200"});
  EXPECT_LT(some["targets"].get<int>(), 220);
  expect_error(run({"eval", "--model", path("tokens"), "--split", "ood", "--quiet"}), 1,
               {"has no sequence in ood"});
}

TEST_F(Cli, GenerateReachesAsFarAsTheModelAndReportsChangesToThePrompt) {
  ASSERT_EQ(train("run", {"--positions", "learned"}).status, 0);
  const Outcome sampled = run({"generate", "--model", path("run"), "--prompt", "mk-J", "--json"});
  ASSERT_EQ(sampled.status, 0) << sampled.err;
  const json line = json::parse(sampled.out);
  EXPECT_LE(line["sequence"].get<std::string>().size(), 64u);
  EXPECT_TRUE(line["sequence"].get<std::string>().starts_with("MKX")) << sampled.out;
  EXPECT_NE(sampled.err.find("prompt: 2 lower-case letters raised, 1 gaps removed, 1 unknown "
                             "letters (J) made X; used as MKX\n"),
            std::string::npos)
      << sampled.err;
  const Outcome plain = run({"generate", "--model", path("run"), "--prompt", "MKX"});
  EXPECT_EQ(plain.err.find("prompt: "), std::string::npos) << plain.err;
  expect_error(run({"generate", "--model", path("run"), "--max-length", "65", "--quiet"}), 1,
               {"max_length is 65, expected at most 64"});
  // Told before the data is read: the file is not there.
  expect_error(
      run({"eval", "--model", path("run"), "--length", "65", "--data", path("absent"), "--quiet"}),
      2, {"--length is 65, expected at most 64"});
}

TEST_F(Cli, ModelOutsideARunIsScoredWithoutABaseline) {
  ASSERT_EQ(train("run").status, 0);
  fs::create_directory(path("elsewhere"));
  fs::copy(checkpoint_path(path("run"), 30), path("elsewhere/model"), fs::copy_options::recursive);
  const std::vector<std::string> eval = {"eval",   "--model",          path("elsewhere/model"),
                                         "--data", path("data.fasta"), "--quiet"};
  const Outcome table = run(eval);
  ASSERT_EQ(table.status, 0) << table.err;
  EXPECT_NE(table.out.find("\nno baseline: the model is not in a run\nmodel "), std::string::npos)
      << table.out;
  std::vector<std::string> with_json = eval;
  with_json.push_back("--json");
  const Outcome lines = run(with_json);
  ASSERT_EQ(lines.status, 0) << lines.err;
  const json score = json::parse(lines.out);
  EXPECT_TRUE(score.at("baseline").is_null()) << lines.out;
  EXPECT_GT(score["targets"].get<int64_t>(), 1000);
}

TEST_F(Cli, ResumedRunKeepsItsConfiguration) {
  ASSERT_EQ(train("run").status, 0);
  expect_error(run({"train", "--out", path("run"), "--resume", "auto", "--dim", "64"}), 2,
               {"--dim is 64, expected 32 as in the run being resumed"});
  const Outcome longer = run({"train", "--out", path("run"), "--resume", "auto", "--max-steps",
                              "35", "--json", "--quiet"});
  ASSERT_EQ(longer.status, 0) << longer.err;
  EXPECT_EQ(json::parse(longer.out)["steps"], 35);
}

TEST_F(Cli, InterruptAndTerminationSaveAndEndWithSuccess) {
  for (const int signal : {SIGINT, SIGTERM}) {
    SCOPED_TRACE(strsignal(signal));
    const std::string name = "run-" + std::to_string(signal);
    std::vector<std::string> arguments = train_arguments(name);
    arguments.insert(arguments.end(), {"--json"});
    for (std::string& argument : arguments) {
      if (argument == "30") argument = "1000000";
    }
    const pid_t child = start(arguments);
    // The first checkpoint tells that the loop is running.
    for (int i = 0; i < 6000 && checkpoint_steps(path(name)).empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_FALSE(checkpoint_steps(path(name)).empty()) << read_file(path("stderr"));
    ::kill(child, signal);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    const json result = json::parse(read_file(path("stdout")));
    EXPECT_TRUE(result["interrupted"].get<bool>());
    EXPECT_EQ(result["checkpoint"], checkpoint_path(path(name), result["steps"].get<int64_t>()));
  }
}

// Killed by SIGKILL while it computes and while it writes a checkpoint, the run goes on from its
// newest complete checkpoint and ends with the bytes of a run that nobody disturbed.
TEST_F(Cli, KilledRunEndsWithTheSameBytes) {
  const std::vector<std::string> resume = {"--resume", "auto"};
  std::vector<std::string> arguments = train_arguments("killed");
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--save-interval") arguments[i + 1] = "1";
  }
  arguments.insert(arguments.end(), resume.begin(), resume.end());
  ASSERT_EQ(train("straight").status, 0);

  int killed = 0;
  int killed_while_writing = 0;
  const auto half_written = [&] {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(path("killed"), ignored)) {
      if (entry.path().filename().string().starts_with(".new-")) return true;
    }
    return false;
  };
  const auto last_step = [&] {
    const auto steps = checkpoint_steps(path("killed"));
    return steps.empty() ? int64_t{0} : steps.back();
  };
  // An attempt is killed some steps after where it began, in turn at a random moment of a step and
  // as soon as a folder of a checkpoint being written appears.
  std::random_device seed;
  favor::RandomStream random(seed(), 0);
  for (int attempt = 0; attempt < 6; ++attempt) {
    const int64_t begin = last_step();
    const int64_t wanted = begin + 1 + static_cast<int64_t>(random.below(3));
    const pid_t child = start(arguments);
    int status = 0;
    bool ended = false;
    const auto over = [&] { return ended = ended || ::waitpid(child, &status, WNOHANG) == child; };
    while (!over() && last_step() < wanted) ::usleep(200);
    if (attempt % 2 == 0) {
      ::usleep(static_cast<useconds_t>(random.below(30000)));
    } else {
      while (!over() && !half_written()) {
      }
    }
    if (over()) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << read_file(path("stderr"));
      continue;
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) ++killed;
    if (half_written()) ++killed_while_writing;
  }
  EXPECT_GE(killed, 3);
  EXPECT_GE(killed_while_writing, 1);
  const Outcome last = run(arguments);
  ASSERT_EQ(last.status, 0) << last.err;
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    EXPECT_TRUE(read_file(folder_ / "killed" / "checkpoint-30" / file) ==
                read_file(folder_ / "straight" / "checkpoint-30" / file))
        << file;
  }
  EXPECT_FALSE(half_written());
}

}  // namespace
}  // namespace performer
