// SPDX-License-Identifier: Apache-2.0
// Which runs a comparison consists of: every method on every task with every seed.
#ifndef PERFORMER_REPORT_COMPARISON_PLAN_H_
#define PERFORMER_REPORT_COMPARISON_PLAN_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace performer {

struct PlannedRun {
  std::string task;
  std::string method;
  uint64_t seed = 0;
  std::string preset;       ///< what the settings are laid over; empty: the defaults
  nlohmann::json settings;  ///< options of training as in a run's config.json, the seed among them

  /// "task/method/seed-0", where the run lies in the folder of the comparison.
  std::string folder() const;
};

struct ComparisonPlan {
  std::string title;
  std::vector<PlannedRun> runs;  ///< task by task, in the order of the file
};

/// Reads an object of `title` (text), `common` (options of all runs), `tasks` and `methods`
/// (objects of named options, each laid over the ones before; `preset` is one more option), `seeds`
/// (list, [0] where missing). Throws favor::Error, naming `source` and the place, for anything
/// else, for options that do not make a configuration, and for methods of one task with unequal
/// limits of steps or time.
ComparisonPlan comparison_plan(const nlohmann::ordered_json& file, const std::string& source);

}  // namespace performer

#endif  // PERFORMER_REPORT_COMPARISON_PLAN_H_
