// SPDX-License-Identifier: Apache-2.0
#include "performer/report/comparison.h"

#include <gtest/gtest.h>

#include "favor/check.h"

namespace performer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json grid() {
  return ordered_json::parse(R"({
    "title": "small",
    "common": {"data": "a.fasta", "max_steps": 20, "dim": 64},
    "tasks": {"proteins": {}, "long": {"length": 2048, "dim": 32}},
    "methods": {"favor": {}, "exact": {"attention": "exact"}, "tiny": {"preset": "protein-small"}},
    "seeds": [3, 1]})");
}

std::string error_of(const ordered_json& file) {
  try {
    comparison_plan(file, "grid.json");
  } catch (const favor::Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ComparisonPlan, IsEveryMethodOnEveryTaskWithEverySeedInTheirOrder) {
  const ComparisonPlan plan = comparison_plan(grid(), "grid.json");
  EXPECT_EQ(plan.title, "small");
  std::vector<std::string> folders;
  for (const PlannedRun& run : plan.runs) folders.push_back(run.folder());
  EXPECT_EQ(folders, (std::vector<std::string>{
                         "proteins/favor/seed-3", "proteins/favor/seed-1", "proteins/exact/seed-3",
                         "proteins/exact/seed-1", "proteins/tiny/seed-3", "proteins/tiny/seed-1",
                         "long/favor/seed-3", "long/favor/seed-1", "long/exact/seed-3",
                         "long/exact/seed-1", "long/tiny/seed-3", "long/tiny/seed-1"}));
  EXPECT_EQ(plan.runs[3].settings, json::parse(R"({"data": "a.fasta", "max_steps": 20, "dim": 64,
                                                   "attention": "exact", "seed": 1})"));
  EXPECT_EQ(plan.runs[6].settings["dim"], 32);
  EXPECT_EQ(plan.runs[4].preset, "protein-small");
  EXPECT_TRUE(plan.runs[4].settings.find("preset") == plan.runs[4].settings.end());
}

TEST(ComparisonPlan, SaysWhatIsWrongAndWhere) {
  const auto with = [](const std::string& pointer, const ordered_json& value) {
    ordered_json file = grid();
    file[ordered_json::json_pointer(pointer)] = value;
    return error_of(file);
  };
  EXPECT_EQ(with("/method", ordered_json::object()),
            "grid.json: unknown key 'method' (did you mean methods?)");
  EXPECT_EQ(with("/common/dims", 3),
            "grid.json: proteins with favor: unknown key 'dims' (did you mean dim?)");
  EXPECT_EQ(with("/methods/favor/seed", 3),
            "grid.json: methods: favor: seed is set by the comparison, expected other options");
  EXPECT_EQ(with("/methods", ordered_json::object()),
            "grid.json: methods is empty, expected a named object of options each");
  EXPECT_EQ(with("/methods/favor", 7), "grid.json: methods: favor is number, expected an object");
  EXPECT_EQ(with("/tasks/..", ordered_json::object()),
            "grid.json: name is '..', expected letters, digits, - _ + and dots, none in front");
  EXPECT_EQ(with("/seeds", {1, -1}), "grid.json: seeds holds -1, expected whole numbers from 0 on");
  EXPECT_EQ(with("/seeds", {1, 1}), "grid.json: seeds holds 1 twice, expected it once");
  EXPECT_EQ(with("/seeds", 1), "grid.json: seeds is 1, expected a list of whole numbers");
  EXPECT_EQ(with("/methods/exact/max_steps", 30),
            "grid.json: proteins has max_steps 30 and max_minutes 0 with exact, expected max_steps "
            "20 and max_minutes 0 as with favor");
  EXPECT_EQ(error_of(ordered_json::array()), "grid.json holds array, expected an object");
}

TEST(Comparison, SpreadIsMeanAndSampleDeviation) {
  const Spread spread = spread_of({1, 2, 4});
  EXPECT_NEAR(spread.mean, 7.0 / 3, 1e-15);
  EXPECT_NEAR(*spread.deviation, 1.5275252316519465, 1e-14);
  EXPECT_FALSE(spread_of({5}).deviation);
}

std::vector<ComparedRun> finished_runs() {
  const auto run = [](const std::string& method, uint64_t seed, double loss, double speed) {
    ComparedRun one;
    one.plan = {"proteins", method, seed, "", json::object()};
    one.result = {{"steps", 20},
                  {"tokens_per_s", speed},
                  {"peak_memory_bytes", 300000000},
                  {"test",
                   {{"step", 20},
                    {"targets", 99},
                    {"loss", loss},
                    {"accuracy", 0.125},
                    {"baseline", {{"targets", 99}, {"loss", 2.9}, {"accuracy", 0.09}}}}}};
    one.progress = {{1.0, loss + 1}, {2.0, loss}};
    return one;
  };
  std::vector<ComparedRun> runs = {run("favor", 0, 2.5, 1000), run("favor", 1, 2.7, 1200),
                                   run("exact", 0, 2.6, 500)};
  runs[1].progress.push_back({3.0, 2.0});
  runs.push_back({{"proteins", "exact", 1, "", json::object()}, nullptr, "out of luck", {}});
  return runs;
}

TEST(Comparison, TableHasBaselineMeansDeviationsAndFailures) {
  EXPECT_EQ(comparison_table(compared_methods(finished_runs())),
            "| proteins | seeds | accuracy, % | loss | steps | tokens/s | peak memory, MB |\n"
            "| --- | --- | --- | --- | --- | --- | --- |\n"
            "| baseline | | 9 | 2.9 | | | |\n"
            "| favor | 2 | 12.5 ± 0 | 2.6 ± 0.14 | 20 ± 0 | 1100 ± 141 | 300 ± 0 |\n"
            "| exact | 1 of 2 | 12.5 | 2.6 | 20 | 500 | 300 |\n"
            "\nexact failed: out of luck\n");
}

TEST(Comparison, OtherEvaluatedSetsAreColumns) {
  std::vector<ComparedRun> runs = finished_runs();
  runs.resize(1);
  runs[0].result["ood"] = {{"step", 20}, {"loss", 3.0}, {"baseline", {{"loss", 3.5}}}};
  EXPECT_EQ(comparison_table(compared_methods(runs)),
            "| proteins | seeds | accuracy, % | loss | ood loss | steps | tokens/s | peak memory, "
            "MB |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
            "| baseline | | 9 | 2.9 | 3.5 | | | |\n"
            "| favor | 1 | 12.5 | 2.5 | 3 | 20 | 1000 | 300 |\n");
}

TEST(Comparison, JsonHasFullPrecision) {
  const ordered_json list = comparison_json(compared_methods(finished_runs()));
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["loss"]["mean"].get<double>(), 2.6);
  EXPECT_NEAR(list[0]["loss"]["deviation"].get<double>(), 0.14142135623730964, 1e-14);
  EXPECT_TRUE(list[1]["loss"]["deviation"].is_null());
  EXPECT_EQ(list[1]["failures"][0], "out of luck");
  EXPECT_EQ(list[0]["baseline_loss"].get<double>(), 2.9);
}

TEST(Comparison, JoinsTheEvaluationsThatAllSeedsHad) {
  const std::vector<ComparedMethod> methods = compared_methods(finished_runs());
  ASSERT_EQ(methods[0].losses.size(), 2u);
  EXPECT_NEAR(methods[0].losses[1].mean, 2.6, 1e-15);
  EXPECT_EQ(methods[0].times[1].mean, 2);
  EXPECT_EQ(methods[1].losses.size(), 2u);
}

TEST(Comparison, PictureStandsAloneAndHasErrorBars) {
  const std::string svg = comparison_picture("a < b", compared_methods(finished_runs()));
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find(">favor</text>"), std::string::npos);
  EXPECT_NE(svg.find(">exact</text>"), std::string::npos);
  EXPECT_NE(svg.find("stroke-width=\"1.2\""), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace performer
