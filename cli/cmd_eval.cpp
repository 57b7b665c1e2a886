// SPDX-License-Identifier: Apache-2.0
// `performer eval`: a model beside the empirical baseline, on a run's own test split or on any
// file.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "favor/check.h"
#include "performer/data/token_file.h"
#include "performer/train/checkpoint.h"
#include "performer/train/evaluate.h"
#include "performer/train/run_folder.h"
#include "performer/train/task.h"

namespace performer::cli {
namespace {

using favor::message;
using nlohmann::json;

constexpr int kUnitWidth = 20;

// A row of the table: loss, then the task's units or the perplexity, accuracy.
std::string score_row(const std::string& name, const EvalScore& score) {
  char cell[64];
  std::snprintf(cell, sizeof cell, "%-20s %12.4f", name.c_str(), score.loss);
  std::string row = cell;
  const auto add = [&](double value) {
    std::snprintf(cell, sizeof cell, " %*.4f", kUnitWidth, value);
    row += cell;
  };
  if (score.units.empty()) add(score.perplexity);
  for (const UnitValue& unit : score.units) add(unit.value);
  std::snprintf(cell, sizeof cell, " %10.2f %%\n", 100 * score.accuracy);
  return row + cell;
}

std::string table_of(const std::string& title, const EvalScore& score,
                     const std::optional<EvalScore>& baseline, const std::string& no_baseline) {
  char cell[160];
  std::snprintf(cell, sizeof cell, "%-20s %12s", title.c_str(), "loss");
  std::string head = cell;
  const auto add = [&](const std::string& name) {
    std::snprintf(cell, sizeof cell, " %*s", kUnitWidth, name.c_str());
    head += cell;
  };
  if (score.units.empty()) add("perplexity");
  for (UnitValue unit : score.units) {
    std::replace(unit.name.begin(), unit.name.end(), '_', ' ');
    add(unit.name);
  }
  std::snprintf(cell, sizeof cell, " %12s\n", "accuracy");
  return head + cell +
         (baseline ? score_row("empirical baseline", *baseline) : no_baseline + "\n") +
         score_row("model", score);
}

// All of another file of sequences or text; of everything else what is held out for testing.
std::string default_split(const std::string& task, const std::string& data) {
  const bool one_set = task == "text" || (task == "protein" && !TokenFile::recognises(data));
  return !data.empty() && one_set ? "all" : "test";
}

}  // namespace

int run_eval(const Command& command, const std::vector<std::string>& arguments) {
  std::string model;
  std::string data;
  std::string split;
  std::string output;
  int64_t length = 0;
  int64_t max_tokens = 0;
  int64_t batch_tokens = 0;
  int64_t threads = 0;
  bool json_wanted = false;
  bool force = false;
  bool quiet = false;
  Options options(command);
  options.add("--model", model, "run, checkpoint or model folder");
  options.add(
      "-i,--data", data,
      "token file, FASTA file, or what the model's task reads; without it the data of its run");
  options.add("--split", split,
              "train, valid, test, all, or ood of a token file; without it test, but all of a "
              "FASTA or text file given by --data");
  options.add("--max-tokens", max_tokens,
              "whole sequences drawn until there are so many tokens; 0: all");
  options.add("--length", length, "tokens per row; 0: as in training");
  options.add("--batch-tokens", batch_tokens, "tokens per forward pass; 0: as in training");
  options.add("-t,--threads", threads, "0: all cores");
  options.add("-o,--output", output, "file instead of standard output");
  options.add("--json", json_wanted, "JSON instead of a table");
  options.add("--force", force, "replace an existing file");
  options.add("--quiet", quiet, "no log");
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  try {
    FAVOR_CHECK(!model.empty(), "--model is missing, expected a run, checkpoint or model folder");
    FAVOR_CHECK(split.empty() || split == "train" || split == "valid" || split == "test" ||
                    split == "ood" || split == "all",
                "--split is '", split, "', expected train, valid, test, ood or all");
    FAVOR_CHECK(max_tokens >= 0, "--max-tokens is ", max_tokens, ", expected at least 0");
    FAVOR_CHECK(threads >= 0 && threads <= 1024, "--threads is ", threads,
                ", expected 0 (all cores) to 1024");
    FAVOR_CHECK(length == 0 || length >= 2, "--length is ", length, ", expected 0 or at least 2");
    FAVOR_CHECK(batch_tokens >= 0, "--batch-tokens is ", batch_tokens, ", expected at least 0");
  } catch (const favor::Error& error) {
    throw UsageError(message("eval: ", error.what()));
  }
  check_writable(output, force);
  RunReport report(command, arguments, quiet);
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  LoadedModel loaded = load_model(model, /*task=*/"");
  const std::optional<TrainConfig> run = find_run_config(model);

  TrainConfig config = run.value_or(TrainConfig());
  // Rows may be as long as in training. Below a run there may be models that take no slices.
  if (run && run->run.memory.fits(loaded.model->config())) {
    loaded.model->set_memory(run->run.memory);
  }
  const Task& task = find_task(loaded.task);
  if (!run) {
    config.data.task = task.name;
    task.set_defaults(config);
  }
  config.model = loaded.model->config();
  if (!run) config.data.length = config.model.max_length;
  if (length > 0) config.data.length = length;
  if (config.data.length > config.model.max_positions()) {
    throw UsageError(message("eval: --length is ", config.data.length, ", expected at most ",
                             config.model.max_positions_text()));
  }
  if (batch_tokens > 0) config.data.batch_tokens = batch_tokens;
  config.data.batch_tokens = std::max(config.data.batch_tokens, config.data.length);
  const bool was_stdin = run && run->data.data == "-";
  if (data.empty() && !task.generated && (!run || was_stdin)) {
    throw std::runtime_error(message("eval: --data is missing, expected ", task.input, " (", model,
                                     " belongs to no run whose data could be read again)"));
  }
  if (split.empty()) split = default_split(task.name, data);
  // Without shares to hold out, the training set of a text is all of it.
  const bool whole_text = split == "all" && task.name == "text";
  const auto read = [&](const std::string& path, bool whole = false) {
    TrainConfig one = config;
    one.data.data = path;
    if (whole) one.data.valid_fraction = one.data.test_fraction = 0;
    std::unique_ptr<TaskData> opened = open_task(one, loaded.vocabulary);
    if (!quiet) {
      const std::string name = path.empty() ? "task " + task.name : path;
      std::fprintf(stderr, "%s: %s\n", name.c_str(), opened->summary().c_str());
    }
    return opened;
  };
  const std::string source = data.empty() ? config.data.data : data;
  const std::unique_ptr<TaskData> opened = read(source, whole_text);
  const EvalSet set = opened->eval_set(whole_text ? "train" : split, max_tokens);
  if (set.size == 0) {
    throw std::runtime_error(message("eval: ", source.empty() ? "task " + task.name : source,
                                     " has no sequence in ", split, ", expected at least one"));
  }
  const EvalScore score = evaluate(loaded.model, *set.batches, set.units);
  // Frequencies come from what the model was trained on, never from the file being scored.
  std::optional<EvalScore> baseline;
  std::string no_baseline = "no baseline: the model is not in a run";
  if (was_stdin) {
    no_baseline = "no baseline: the run's data was standard input";
  } else if (run) {
    const EmpiricalBaseline frequencies = source == run->data.data && !whole_text
                                              ? opened->baseline()
                                              : read(run->data.data)->baseline();
    const BaselineScore empirical = frequencies.score(*set.batches);
    baseline = EvalScore{
        empirical.num_targets, empirical.loss, empirical.perplexity, empirical.accuracy, {}};
    convert_units(set.units, score, *baseline);
  }
  if (json_wanted) {
    json object = to_json(score);
    object["model"] = loaded.folder;
    object["task"] = task.name;
    object["data"] = source;
    object["split"] = split;
    object["sequences"] = set.size;
    object["baseline"] = baseline ? to_json(*baseline) : json();
    object.update(report.resources());
    write_result(output, object.dump(2) + "\n", force);
  } else {
    const std::string title = message(split, ", ", score.num_targets, " targets");
    write_result(output, table_of(title, score, baseline, no_baseline), force);
  }
  report.finish();
  return 0;
}

}  // namespace performer::cli
