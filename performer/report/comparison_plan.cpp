// SPDX-License-Identifier: Apache-2.0
#include "performer/report/comparison_plan.h"

#include <algorithm>
#include <set>

#include "favor/check.h"
#include "performer/train/config.h"

namespace performer {
namespace {

using favor::message;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kKeys[] = {"title", "common", "tasks", "methods", "seeds"};

// Set by the comparison itself, so that runs stay in their folders and differ by what they say.
const std::set<std::string> kReserved = {"out", "resume", "force", "quiet", "seed"};

std::string type_of(const ordered_json& value) {
  return value.type_name();
}

const ordered_json& object_at(const ordered_json& file, const std::string& key,
                              const std::string& source) {
  static const ordered_json none = ordered_json::object();
  if (!file.contains(key)) return none;
  FAVOR_CHECK(file[key].is_object(), source, ": ", key, " is ", type_of(file[key]),
              ", expected an object");
  return file[key];
}

// The names become folders and table cells.
bool is_name(const std::string& text) {
  return !text.empty() && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '+';
         });
}

void lay_over(const ordered_json& options, const std::string& place, PlannedRun& run) {
  FAVOR_CHECK(options.is_object(), place, " is ", type_of(options), ", expected an object");
  for (const auto& [key, value] : options.items()) {
    if (key == "preset") {
      FAVOR_CHECK(value.is_string(), place, ": preset is ", type_of(value), ", expected a name");
      run.preset = value.get<std::string>();
      continue;
    }
    FAVOR_CHECK(!kReserved.contains(key), place, ": ", key,
                " is set by the comparison, expected other options");
    run.settings[key] = value;
  }
}

// What the run will resolve its options to.
TrainConfig resolved(const PlannedRun& run, const std::string& source) {
  TrainConfig config;
  if (!run.preset.empty()) apply_preset(config, run.preset);
  apply_json(config, run.settings, source);
  // As at the command line: a time limit alone leaves the steps open.
  if (config.run.max_minutes > 0 && !run.settings.contains("max_steps")) config.run.max_steps = 0;
  return config;
}

std::string limits(const TrainConfig& config) {
  return message("max_steps ", config.run.max_steps, " and max_minutes ",
                 value_text(config.run.max_minutes));
}

std::vector<uint64_t> seeds_of(const ordered_json& file, const std::string& source) {
  if (!file.contains("seeds")) return {0};
  const ordered_json& list = file["seeds"];
  FAVOR_CHECK(list.is_array() && !list.empty(), source, ": seeds is ", list.dump(),
              ", expected a list of whole numbers");
  std::vector<uint64_t> seeds;
  for (const ordered_json& seed : list) {
    FAVOR_CHECK(seed.is_number_integer() && (seed.is_number_unsigned() || seed.get<int64_t>() >= 0),
                source, ": seeds holds ", seed.dump(), ", expected whole numbers from 0 on");
    seeds.push_back(seed.get<uint64_t>());
    FAVOR_CHECK(std::count(seeds.begin(), seeds.end(), seeds.back()) == 1, source, ": seeds holds ",
                seeds.back(), " twice, expected it once");
  }
  return seeds;
}

}  // namespace

std::string PlannedRun::folder() const {
  return message(task, "/", method, "/seed-", seed);
}

ComparisonPlan comparison_plan(const ordered_json& file, const std::string& source) {
  FAVOR_CHECK(file.is_object(), source, " holds ", type_of(file), ", expected an object");
  for (const auto& [key, value] : file.items()) {
    const bool known = std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
    FAVOR_CHECK(known, source, ": unknown key '", key, "' (did you mean ",
                nearest_name(key, {std::begin(kKeys), std::end(kKeys)}), "?)");
  }
  ComparisonPlan plan;
  if (file.contains("title")) {
    FAVOR_CHECK(file["title"].is_string(), source, ": title is ", type_of(file["title"]),
                ", expected text");
    plan.title = file["title"].get<std::string>();
  }
  const ordered_json& common = object_at(file, "common", source);
  const ordered_json& tasks = object_at(file, "tasks", source);
  const ordered_json& methods = object_at(file, "methods", source);
  FAVOR_CHECK(!tasks.empty(), source, ": tasks is empty, expected a named object of options each");
  FAVOR_CHECK(!methods.empty(), source,
              ": methods is empty, expected a named object of options each");
  for (const ordered_json* names : {&tasks, &methods}) {
    for (const auto& [name, options] : names->items()) {
      FAVOR_CHECK(is_name(name), source, ": name is '", name,
                  "', expected letters, digits, - _ + and dots, none in front");
    }
  }
  const std::vector<uint64_t> seeds = seeds_of(file, source);
  for (const auto& [task, task_options] : tasks.items()) {
    std::string first, first_limits;
    for (const auto& [method, method_options] : methods.items()) {
      PlannedRun run{task, method, 0, {}, json::object()};
      lay_over(common, source + ": common", run);
      lay_over(task_options, source + ": tasks: " + task, run);
      lay_over(method_options, source + ": methods: " + method, run);
      const std::string its_limits =
          limits(resolved(run, message(source, ": ", task, " with ", method)));
      if (first.empty()) first = method, first_limits = its_limits;
      FAVOR_CHECK(its_limits == first_limits, source, ": ", task, " has ", its_limits, " with ",
                  method, ", expected ", first_limits, " as with ", first);
      for (const uint64_t seed : seeds) {
        run.seed = seed;
        run.settings["seed"] = seed;
        plan.runs.push_back(run);
      }
    }
  }
  return plan;
}

}  // namespace performer
