// SPDX-License-Identifier: Apache-2.0
#include "performer/report/run_record.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "favor/check.h"
#include "performer/train/run_folder.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using favor::message;
using nlohmann::json;

void read_metrics(const fs::path& path, RunRecord& record) {
  std::ifstream in(path);
  if (!in) {
    throw std::runtime_error(message(path.string(), ": cannot be opened: ", std::strerror(errno)));
  }
  for (std::string text; std::getline(in, text);) {
    const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
    // A killed run leaves half a line at the end.
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number()) {
      record.damaged_lines += !text.empty();
    } else if (line.contains("layer") && line["layer"].is_number_integer()) {
      record.layers.push_back(line);
    } else if (line.contains("split") && line["split"].is_string()) {
      record.evaluations.push_back(line);
    } else {
      record.training.push_back(line);
    }
  }
}

std::vector<std::string> pictures_in(const fs::path& folder) {
  std::vector<std::string> pictures;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".png" || extension == ".svg") pictures.push_back(entry.path().string());
  }
  std::sort(pictures.begin(), pictures.end());
  return pictures;
}

}  // namespace

RunRecord read_run_record(const std::string& folder) {
  if (!fs::is_directory(folder)) {
    throw std::runtime_error(message(folder, " is no folder, expected the folder of a run"));
  }
  const fs::path path = folder;
  RunRecord record;
  record.name = folder;
  while (record.name.size() > 1 && record.name.ends_with('/')) record.name.pop_back();
  record.config = read_json_file((path / "config.json").string());
  if (fs::exists(path / "run.json")) record.run = read_json_file((path / "run.json").string());
  read_metrics(path / "metrics.jsonl", record);
  record.pictures = pictures_in(path / "attention");
  return record;
}

std::vector<Point> RunRecord::points(const std::vector<json>& lines, const std::string& x,
                                     const std::string& y) {
  std::vector<Point> points;
  for (const json& line : lines) {
    if (line.contains(x) && line.contains(y) && line[x].is_number() && line[y].is_number()) {
      points.push_back({line[x].get<double>(), line[y].get<double>()});
    }
  }
  return points;
}

std::vector<json> RunRecord::evaluations_of(const std::string& split) const {
  std::vector<json> chosen;
  for (const json& line : evaluations) {
    if (line["split"] == split) chosen.push_back(line);
  }
  return chosen;
}

std::vector<Point> RunRecord::over_seconds(std::vector<Point> points) const {
  const std::vector<Point> elapsed = RunRecord::points(training, "step", "elapsed_s");
  size_t next = 0;
  for (Point& p : points) {
    while (next < elapsed.size() && elapsed[next].x <= p.x) ++next;
    p.x = next > 0 ? elapsed[next - 1].y : 0;
  }
  return points;
}

std::vector<std::string> RunRecord::splits() const {
  std::vector<std::string> names;
  for (const json& line : evaluations) {
    const std::string split = line["split"];
    if (std::find(names.begin(), names.end(), split) == names.end()) names.push_back(split);
  }
  return names;
}

}  // namespace performer
