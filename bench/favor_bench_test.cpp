// SPDX-License-Identifier: Apache-2.0
// The benchmark as it is run: the keys of its lines, its refusal to time a wrong kernel, its
// statuses.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class FavorBench : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("favor-bench-" + std::string(info->name()) + "-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    std::ofstream(folder_ / "shapes.txt")
        << "# a comment\n"
        << "tiny op=bidirectional,causal map=positive,relu,relu-identity,relu-hadamard "
           "threads=1,2 H=2 L=70 S=75 D=8 E=12 M=20\n"
        << "cycle op=bidirectional,causal map=positive H=1 L=90 D=8 E=4 M=16 period=30\n"
        << "step op=decode_step map=positive,positive-hadamard H=2 L=9 D=8 E=8 M=16\n"
        << "late op=decode_step map=positive,relu H=2 L=9 D=8 E=8 M=16 position=1000000\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string text(const std::string& name) const {
    std::ifstream in(folder_ / name);
    std::ostringstream all;
    all << in.rdbuf();
    return all.str();
  }

  /// Runs the benchmark on the tiny list; returns its exit status, -1 if a signal ended it.
  int run(const std::string& arguments) const {
    const std::string command = "'" FAVOR_BENCH_BINARY "' --repeats 2 --min-time 0 --shapes '" +
                                path("shapes.txt") + "' --json '" + path("bench.jsonl") + "' " +
                                arguments + " >'" + path("out") + "' 2>'" + path("err") + "'";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::vector<json> records() const {
    std::vector<json> lines;
    std::ifstream in(folder_ / "bench.jsonl");
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }

 private:
  fs::path folder_;
};

TEST_F(FavorBench, WritesEveryKeyOfEveryMeasurement) {
  ASSERT_EQ(run(""), 0) << text("err");
  const std::vector<json> lines = records();
  // 2 operations, 4 maps, 2 passes, 2 numbers of threads; 2 operations and 2 passes of inputs that
  // repeat; and decode_step with 2 maps, at the first position and at a later one.
  ASSERT_EQ(lines.size(), 2u * 4 * 2 * 2 + 2 * 2 + 2 * 2) << text("out");
  std::set<std::string> kinds, matrices;
  for (const json& line : lines) {
    for (const char* key : {"op", "pass", "feature_map", "isa", "dtype", "cpu", "compiler"}) {
      ASSERT_TRUE(line.at(key).is_string()) << key;
    }
    for (const char* key : {"threads", "B", "H", "L", "S", "D", "E", "M"}) {
      ASSERT_GT(line.at(key).get<int64_t>(), 0) << key;
    }
    for (const char* key : {"median_s", "gflops", "peak_gflops", "peak_fraction"}) {
      ASSERT_GT(line.at(key).get<double>(), 0) << key;
    }
    EXPECT_LE(line.at("error_ratio").get<double>(), 1);
    EXPECT_TRUE(line.at("extra_bytes").is_null() || line.at("extra_bytes").get<int64_t>() > 0);
    EXPECT_EQ(line.at("causal").get<bool>(), line["op"] != "bidirectional");
    EXPECT_NEAR(line["peak_fraction"].get<double>(),
                line["gflops"].get<double>() / line["peak_gflops"].get<double>(), 1e-9);
    kinds.insert(line["op"].get<std::string>() + "/" + line["pass"].get<std::string>());
    matrices.insert(line.at("projection").get<std::string>());
    if (line["name"] != "tiny") continue;
    const bool projected = line.at("projection") != "none";
    EXPECT_EQ(line["M"], projected ? 20 : 8);
    const double products = (70 + 75) * (projected ? 20 * (8 + 12) : 8 * 12) * 2.0 * 2;
    EXPECT_NEAR(line["gflops"].get<double>() * line["median_s"].get<double>() * 1e9,
                products * (line["pass"] == "backward" ? 2 : 1), 1e-3 * products);
  }
  EXPECT_EQ(kinds,
            (std::set<std::string>{"bidirectional/backward", "bidirectional/forward",
                                   "causal/backward", "causal/forward", "decode_step/forward"}));
  EXPECT_EQ(matrices, (std::set<std::string>{"hadamard", "none", "orthogonal"}));
}

TEST_F(FavorBench, RefusesToTimeAWrongKernel) {
  ASSERT_EQ(run("--perturb 0.01 --threads 1"), 1);
  EXPECT_TRUE(records().empty());
  const std::string errors = text("err");
  for (const char* name : {"bidirectional/forward/positive/tiny", "causal/backward/relu/tiny",
                           "bidirectional/backward/positive/cycle", "causal/forward/positive/cycle",
                           "decode_step/forward/positive/step", "decode_step/forward/relu/late"}) {
    EXPECT_NE(errors.find(name), std::string::npos) << name << " not in:\n" << errors;
  }
}

TEST_F(FavorBench, FiltersByName) {
  ASSERT_EQ(run("--filter 'causal/backward/relu/.*threads2'"), 0) << text("err");
  const std::vector<json> lines = records();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["op"], "causal");
  EXPECT_EQ(lines[0]["pass"], "backward");
  EXPECT_EQ(lines[0]["threads"], 2);
}

TEST_F(FavorBench, RunsOnTheInstructionSetAskedFor) {
  ASSERT_EQ(run("--isa nonsense"), 2);
  const std::string errors = text("err");
  const size_t start = errors.find("expected ");
  ASSERT_NE(start, std::string::npos) << errors;
  std::istringstream words(errors.substr(start + 9));
  int sets = 0;
  for (std::string word; words >> word;) {
    if (word == "|") continue;
    ASSERT_EQ(run("--filter tiny/threads1 --isa " + word), 0) << text("err");
    ASSERT_FALSE(records().empty());
    for (const json& line : records()) EXPECT_EQ(line["isa"], word);
    ++sets;
  }
  EXPECT_GT(sets, 0);
}

TEST_F(FavorBench, RefusesWrongArguments) {
  EXPECT_EQ(run("--nonsense"), 2);
  EXPECT_EQ(run("--repeats 0"), 2);
  EXPECT_EQ(run("--filter nothing-has-this-name"), 2);
  EXPECT_EQ(run("--filter '('"), 2);
  std::ofstream(path("shapes.txt"), std::ios::app) << "bad op=causal map=positive L=0\n";
  EXPECT_EQ(run(""), 1);
  EXPECT_NE(text("err").find("shapes.txt:6: L is '0'"), std::string::npos) << text("err");
  std::ofstream(path("shapes.txt")) << "bad op=causal map=positive L=90 period=40\n";
  EXPECT_EQ(run(""), 1);
  EXPECT_NE(text("err").find("shapes.txt:1: period is 40, expected a part of L = S"),
            std::string::npos)
      << text("err");
  for (const char* line : {"op=decode_step position=750", "op=causal position=500"}) {
    std::ofstream(path("shapes.txt")) << "bad map=positive " << line << "\n";
    EXPECT_EQ(run(""), 1);
    EXPECT_NE(text("err").find("expected a multiple of 500 with op=decode_step"), std::string::npos)
        << text("err");
  }
}

}  // namespace
