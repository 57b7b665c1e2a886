// SPDX-License-Identifier: Apache-2.0
// What the folder of a run tells about it, read back for comparison.
#ifndef PERFORMER_REPORT_RUN_RECORD_H_
#define PERFORMER_REPORT_RUN_RECORD_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "performer/report/chart.h"

namespace performer {

/// The lines of metrics.jsonl, in order, by what they tell of.
struct RunRecord {
  std::string name;       ///< the folder as it was given
  nlohmann::json config;  ///< config.json
  nlohmann::json run;     ///< run.json: version, revision, command line; or null

  std::vector<nlohmann::json> training;     ///< keys step, loss, lr, tokens_per_s, ...
  std::vector<nlohmann::json> evaluations;  ///< keys step, split, loss, perplexity, ...
  std::vector<nlohmann::json> layers;       ///< keys step, layer, and diagnostics of that layer
  int64_t damaged_lines = 0;                ///< left out: no JSON object with a step

  std::vector<std::string> pictures;  ///< PNG and SVG files of its folder attention/, sorted

  /// y over x of the lines that have both as numbers.
  static std::vector<Point> points(const std::vector<nlohmann::json>& lines, const std::string& x,
                                   const std::string& y);
  /// Evaluations of one set, in order.
  std::vector<nlohmann::json> evaluations_of(const std::string& split) const;
  /// Points over ascending steps as points over seconds of the run: evaluations carry a step only,
  /// and have the time of the training line before them.
  std::vector<Point> over_seconds(std::vector<Point> points) const;
  /// Every set that was evaluated, in the order of its first line.
  std::vector<std::string> splits() const;
};

/// Throws std::runtime_error naming the file that is missing or unreadable.
RunRecord read_run_record(const std::string& folder);

}  // namespace performer

#endif  // PERFORMER_REPORT_RUN_RECORD_H_
