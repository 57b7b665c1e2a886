// SPDX-License-Identifier: Apache-2.0
#include "cli/train_options.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "favor/check.h"
#include "performer/train/estimate.h"
#include "performer/train/metrics.h"
#include "performer/train/run_folder.h"
#include "performer/train/task.h"

namespace performer::cli {
namespace {

namespace fs = std::filesystem;
using favor::message;

// A number of steps that no run reaches.
constexpr int64_t kNoStepLimit = 1000000000;

struct Resolved {
  TrainConfig config;
  std::set<std::string> given;  // keys set by preset, file or command line
};

struct Sources {
  std::string preset;
  std::string config_file;
  std::map<std::string, std::string> texts;  // key -> value on the command line

  bool has(const std::string& key) const { return texts.count(key) > 0; }
};

void add_field(CLI::App& app, const Field& field, Sources& sources) {
  const std::string dashed = field.option();
  std::string names = dashed;
  if (dashed != "--" + field.key) names += ",--" + field.key;
  CLI::Option* option = nullptr;
  if (field.type.empty()) {
    names += ",!--no-" + dashed.substr(2);
    option = app.add_flag_function(
        names,
        [&sources, key = field.key](int64_t count) {
          sources.texts[key] = count > 0 ? "true" : "false";
        },
        field.help);
  } else {
    if (field.key == "out") names = "-o," + names;
    if (field.key == "data") names = "-i," + names;
    if (field.key == "threads") names = "-t," + names;
    option = app.add_option_function<std::string>(
        names, [&sources, key = field.key](const std::string& text) { sources.texts[key] = text; },
        field.help);
    option->type_name(field.type);
  }
  option->group(field.group);
}

// The last source that names one decides; its own defaults come before all sources.
std::string named_task(const Sources& sources) {
  if (sources.has("task")) return sources.texts.at("task");
  TrainConfig config;
  if (!sources.preset.empty()) apply_preset(config, sources.preset);
  if (!sources.config_file.empty()) {
    apply_json(config, read_json_file(sources.config_file), sources.config_file);
  }
  return config.data.task;
}

Resolved resolve_fresh(const Sources& sources) {
  Resolved resolved;
  TrainConfig& config = resolved.config;
  const Task& task = find_task(named_task(sources));
  config.data.task = task.name;
  config.model.head = task.head;
  task.set_defaults(config);
  if (sources.has("init_from")) {
    config.model = read_model_config(model_folder(sources.texts.at("init_from"))).config;
  }
  if (!sources.preset.empty()) resolved.given = apply_preset(config, sources.preset);
  if (!sources.config_file.empty()) {
    resolved.given.merge(
        apply_json(config, read_json_file(sources.config_file), sources.config_file));
  }
  for (const auto& [key, text] : sources.texts) {
    find_field(key)->parse(config, text);
    resolved.given.insert(key);
  }
  FAVOR_CHECK(task.name == "protein" || !sources.has("vocab_size"),
              "--vocab-size is given, expected none (task ", task.name, " decides it)");
  if (task.settle) task.settle(config);
  // A limit named on the command line replaces the other kind of limit of a preset or file; a time
  // limit alone leaves the steps open.
  if (sources.has("max_steps") && !sources.has("max_minutes")) config.run.max_minutes = 0;
  if (config.run.max_minutes > 0 && !sources.has("max_steps") &&
      (sources.has("max_minutes") || !resolved.given.count("max_steps"))) {
    config.run.max_steps = kNoStepLimit;
  }
  if (!resolved.given.count("projection_seed") && !sources.has("init_from")) {
    config.model.attention.projection_seed = config.run.seed;
  }
  if (!resolved.given.count("max_length") && !sources.has("init_from")) {
    config.model.max_length = config.data.length;
  }
  return resolved;
}

// The stored configuration of a resumed run, with what may change.
TrainConfig resolve_resumed(const Resolved& asked, const std::string& run) {
  const std::string file = (fs::path(run) / "config.json").string();
  TrainConfig config;
  apply_json(config, read_json_file(file), file);
  for (const Field& field : train_fields()) {
    if (field.use == FieldUse::kCall) {
      field.parse(config, field.text(asked.config));
    } else if (!asked.given.count(field.key)) {
      continue;
    } else if (field.use == FieldUse::kFree) {
      field.parse(config, field.text(asked.config));
    } else {
      FAVOR_CHECK(field.text(asked.config) == field.text(config), field.option(), " is ",
                  field.text(asked.config), ", expected ", field.text(config),
                  " as in the run being resumed (leave it out)");
    }
  }
  if (asked.given.count("max_steps") || asked.given.count("max_minutes")) {
    config.run.max_steps = asked.config.run.max_steps;
    config.run.max_minutes = asked.config.run.max_minutes;
  }
  return config;
}

// The run that --resume continues, if there is a checkpoint to continue from.
std::optional<std::string> resumed_run(const TrainConfig& config) {
  if (config.run.resume.empty()) return std::nullopt;
  if (config.run.resume != "auto") {
    const fs::path checkpoint = fs::absolute(config.run.resume).lexically_normal();
    const fs::path folder = checkpoint.has_filename() ? checkpoint.parent_path()
                                                      : checkpoint.parent_path().parent_path();
    return folder.string();
  }
  const auto silent = [](const std::string&) {};
  if (!newest_checkpoint(config.run.out, silent)) return std::nullopt;
  return config.run.out;
}

// A line each: name, help.
template <class Items>
std::string listed(const Items& items) {
  size_t width = 0;
  for (const auto& item : items) width = std::max(width, item.name.size());
  std::string text;
  for (const auto& item : items) {
    text += "  " + item.name + std::string(width + 2 - item.name.size(), ' ') + item.help + "\n";
  }
  return text;
}

}  // namespace

TrainArguments resolve_train(const Command& command, const std::vector<std::string>& arguments) {
  TrainArguments result;
  Sources sources;
  Options options(command);
  std::string preset_words;
  std::string max_memory;
  for (const Preset& preset : presets())
    preset_words += (preset_words.empty() ? "" : "|") + preset.name;
  options.app()
      .add_option("--preset", sources.preset, "values to start from")
      ->type_name(preset_words)
      ->group("Configuration");
  options.app()
      .add_option("--config", sources.config_file, "JSON file of options, as a run's config.json")
      ->type_name("FILE")
      ->group("Configuration");
  for (const Field& field : train_fields()) add_field(options.app(), field, sources);
  options.app()
      .add_flag("--dry-run", result.dry_run,
                "say how many parameters, how much memory and time it would take; write nothing")
      ->group("Run");
  options.app()
      .add_option("--max-memory", max_memory,
                  "bytes (4G): batches are divided, and accumulated, until the estimate fits")
      ->type_name("INT")
      ->group("Run");
  options.app().add_flag("--json", result.json, "print the result as JSON")->group("Run");
  options.app()
      .add_option("--output", result.output, "file for the JSON instead of standard output")
      ->type_name("FILE")
      ->group("Run");
  const bool goes_on = options.parse(arguments);
  try {
    Resolved resolved = resolve_fresh(sources);
    result.config = resolved.config;
    if (!goes_on) {
      for (const Field& field : train_fields()) {
        options.app().get_option(field.option())->default_str(field.text(result.config));
      }
      result.help =
          options.help() + "\nTasks:\n" + listed(tasks()) + "\nPresets:\n" + listed(presets());
      return result;
    }
    const auto run = resumed_run(result.config);
    if (run) {
      if (result.config.run.out.empty()) result.config.run.out = *run;
      FAVOR_CHECK(fs::weakly_canonical(fs::absolute(result.config.run.out)) ==
                      fs::weakly_canonical(fs::absolute(*run)),
                  "--out is ", result.config.run.out, ", expected ", *run,
                  ", the folder of the resumed checkpoint");
      const std::string out = result.config.run.out;
      // What a memory limit made of them is stored in the run.
      if (!max_memory.empty()) {
        for (const char* key : {"batch_tokens", "accumulate"}) resolved.given.erase(key);
      }
      result.config = resolve_resumed(resolved, *run);
      result.config.run.out = out;
    }
    const Task& task = find_task(result.config.data.task);
    FAVOR_CHECK(result.dry_run || task.generated || !result.config.data.data.empty(),
                "--data is missing, expected ", task.input);
    FAVOR_CHECK(result.dry_run || !result.config.run.out.empty(),
                "--out is missing, expected a folder for the run");
    result.config.check();
    // A resumed run keeps its batches.
    if (!max_memory.empty() && !run) {
      int64_t max_bytes = 0;
      parse_value("--max-memory", max_memory, max_bytes);
      fit_batch(result.config, max_bytes, resident_bytes());
    }
  } catch (const favor::Error& error) {
    throw UsageError(message("train: ", error.what()));
  }
  return result;
}

}  // namespace performer::cli
