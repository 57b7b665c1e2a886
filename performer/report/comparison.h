// SPDX-License-Identifier: Apache-2.0
// What came out of a comparison: means and spreads over seeds, as a table and as one picture.
#ifndef PERFORMER_REPORT_COMPARISON_H_
#define PERFORMER_REPORT_COMPARISON_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "performer/report/chart.h"
#include "performer/report/comparison_plan.h"

namespace performer {

/// One run of the plan, over or failed.
struct ComparedRun {
  PlannedRun plan;
  nlohmann::json result;        ///< what `performer train --json` printed; null where it failed
  std::string failure;          ///< why there is no result
  std::vector<Point> progress;  ///< validation loss over seconds of training, by evaluation
};

/// Of one number over the seeds of a method.
struct Spread {
  double mean = 0;
  std::optional<double> deviation;  ///< sample standard deviation; none of a single seed
};
Spread spread_of(const std::vector<double>& values);

/// What the seeds of one method on one task have in common.
struct ComparedMethod {
  std::string task;
  std::string method;
  int64_t planned = 0;  ///< seeds
  int64_t done = 0;
  std::vector<std::string> failures;  ///< each once
  /// Numbers of the test set (of the validation set where there is none), in the order in which
  /// the runs give them; those of `eval_sets`, as ood_loss; then steps, tokens_per_s,
  /// peak_memory_bytes, elapsed_s.
  std::vector<std::pair<std::string, Spread>> numbers;
  std::vector<std::pair<std::string, double>> baseline;  ///< of the first seed, on the same sets
  std::vector<Spread> times, losses;  ///< the common first evaluations of all seeds

  std::optional<Spread> number(const std::string& key) const;
};

/// Groups the runs by task and method, in their order.
std::vector<ComparedMethod> compared_methods(const std::vector<ComparedRun>& runs);

/// Markdown, a table a task: the baseline and every method, with deviations after "±".
std::string comparison_table(const std::vector<ComparedMethod>& methods);

/// A list of objects, one a method: `task, method, seeds, failures, <number>: {mean, deviation}`.
nlohmann::ordered_json comparison_json(const std::vector<ComparedMethod>& methods);

/// An SVG file. A row a task: validation loss over time; test loss over peak memory and over speed.
std::string comparison_picture(const std::string& title,
                               const std::vector<ComparedMethod>& methods);

}  // namespace performer

#endif  // PERFORMER_REPORT_COMPARISON_H_
