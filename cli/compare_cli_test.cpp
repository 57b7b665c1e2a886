// SPDX-License-Identifier: Apache-2.0
// compare as its users run it.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/testing.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class CompareCli : public Cli {
 protected:
  json grid() const {
    return {{"common",
             {{"data", path("data.fasta")},
              {"dim", 32},
              {"num_layers", 1},
              {"num_heads", 2},
              {"ff_dim", 32},
              {"num_features", 16},
              {"length", 64},
              {"batch_tokens", 256},
              {"valid_fraction", 0.1},
              {"test_fraction", 0.1},
              {"max_steps", 6},
              {"log_interval", 2},
              {"eval_interval", 3},
              {"threads", 1}}},
            {"tasks", {{"proteins", json::object()}}},
            {"methods", {{"favor", json::object()}, {"exact", {{"attention", "exact"}}}}},
            {"seeds", {0, 1}}};
  }
  std::vector<std::string> arguments(const json& config) const {
    std::ofstream(path("grid.json")) << config;
    return {"compare", path("grid.json"), "--out", path("out")};
  }
  Outcome compare(const json& config, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = arguments(config);
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }
};

TEST_F(CompareCli, TrainsTheGridOnceAndShowsIt) {
  const Outcome first = compare(grid(), {"--json"});
  ASSERT_EQ(first.status, 0) << first.err;
  const json methods = json::parse(first.out);
  ASSERT_EQ(methods.size(), 2u);
  EXPECT_EQ(methods[0]["method"], "exact");  // nlohmann's plain objects are sorted
  for (const json& method : methods) {
    EXPECT_EQ(method["seeds"], 2);
    EXPECT_GT(method["loss"]["mean"].get<double>(), 0);
    EXPECT_GT(method["loss"]["deviation"].get<double>(), 0);
    EXPECT_EQ(method["steps"]["mean"], 6);
  }
  for (const char* name : {"comparison.md", "comparison.json", "comparison.svg"}) {
    EXPECT_TRUE(fs::exists(fs::path(path("out")) / name)) << name;
  }
  // The same call again trains nothing and says the same.
  const Outcome second = compare(grid(), {"--json"});
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
  EXPECT_NE(second.err.find("done before"), std::string::npos);
  // The result is that of the run by itself.
  const json settings = json::parse(read_file(path("out/proteins/favor/seed-1/config.json")));
  const Outcome alone = run({"train", "--config", path("out/proteins/favor/seed-1/config.json"),
                             "--out", path("alone"), "--quiet", "--json"});
  ASSERT_EQ(alone.status, 0) << alone.err;
  const json result = json::parse(read_file(path("out/proteins/favor/seed-1/result.json")));
  EXPECT_EQ(json::parse(alone.out)["test"], result["test"]);
  EXPECT_EQ(settings["seed"], 1);
}

TEST_F(CompareCli, FailureOfAMethodIsACellAndLosesNoOther) {
  json config = grid();
  config["seeds"] = {0};
  config["methods"]["lost"] = {{"init_from", path("nowhere")}};
  const Outcome done = compare(config);
  EXPECT_EQ(done.status, 1);
  EXPECT_NE(done.out.find("| favor | 1 |"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("| lost | 0 of 1 | - |"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("lost failed: "), std::string::npos) << done.out;
  EXPECT_NE(done.err.find("1 of 3 runs failed"), std::string::npos) << done.err;
}

TEST_F(CompareCli, OtherSettingsInTheSameFolderAreRefused) {
  json config = grid();
  config["seeds"] = {0};
  ASSERT_EQ(compare(config).status, 0);
  config["common"]["dim"] = 16;
  const Outcome other = compare(config);
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.err.find("was trained with other settings"), std::string::npos) << other.err;
  EXPECT_EQ(compare(config, {"--force"}).status, 0);
}

TEST_F(CompareCli, StoppedComparisonGoesOn) {
  json config = grid();
  config["seeds"] = {0};
  config["common"]["max_steps"] = 100000;
  const pid_t child = start(arguments(config));
  // The first run has begun when it has logged.
  const std::string metrics = path("out/proteins/exact/seed-0/run/metrics.jsonl");
  for (int i = 0; i < 600 && (!fs::exists(metrics) || fs::file_size(metrics) == 0); ++i) {
    ::usleep(100000);
  }
  ::kill(child, SIGTERM);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  EXPECT_FALSE(fs::exists(path("out/proteins/exact/seed-0/result.json")));
  const std::string log = read_file(path("stderr"));
  EXPECT_NE(log.find("the same command continues"), std::string::npos) << log;
}

TEST_F(CompareCli, BadFilesAreOneLine) {
  EXPECT_EQ(run({"compare"}).status, 2);
  EXPECT_EQ(run({"compare", path("none.json"), "-o", path("out")}).status, 1);
  std::ofstream(path("cut.json")) << "{\"tasks\": ";
  const Outcome cut = run({"compare", path("cut.json"), "-o", path("out")});
  EXPECT_EQ(cut.status, 1);
  EXPECT_NE(cut.err.find("cut.json"), std::string::npos);
  json config = grid();
  config["methods"]["favor"]["num_feature"] = 3;
  const Outcome unknown = compare(config);
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.err.find("did you mean num_features?)"), std::string::npos) << unknown.err;
  EXPECT_FALSE(fs::exists(path("out")));
}

}  // namespace
}  // namespace performer
