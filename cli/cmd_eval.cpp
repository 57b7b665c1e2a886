// SPDX-License-Identifier: Apache-2.0
// `performer eval`: a model beside the empirical baseline, on a run's own test split or on any
// file.
#include <ATen/Parallel.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "favor/check.h"
#include "performer/data/token_file.h"
#include "performer/train/checkpoint.h"
#include "performer/train/evaluate.h"
#include "performer/train/run_folder.h"

namespace performer::cli {
namespace {

using favor::message;
using nlohmann::json;

const SequenceSet& split_named(const SplitSequences& splits, const std::string& name) {
  if (name == "train") return splits.train;
  if (name == "ood") return splits.ood;
  return name == "valid" ? splits.valid : splits.test;
}

SequenceSet all_of(SplitSequences splits) {
  if (splits.stored) return splits.all;
  SequenceSet all = std::move(splits.train);
  for (const SequenceSet* part : {&splits.valid, &splits.test}) {
    for (int64_t i = 0; i < part->size(); ++i) all.add((*part)[i]);
  }
  return all;
}

std::string score_row(const char* name, const EvalScore& score) {
  char row[160];
  std::snprintf(row, sizeof row, "%-20s %12.4f %12.4f %10.2f %%\n", name, score.loss,
                score.perplexity, 100 * score.accuracy);
  return row;
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
  options.add("-i,--data", data,
              "token file or FASTA file; without it the data of the model's run");
  options.add("--split", split,
              "train, valid, test, all, or ood of a token file; without it test, but all of a "
              "FASTA file given by --data");
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
  if (split.empty()) split = data.empty() || TokenFile::recognises(data) ? "test" : "all";
  try {
    FAVOR_CHECK(!model.empty(), "--model is missing, expected a run, checkpoint or model folder");
    FAVOR_CHECK(
        split == "train" || split == "valid" || split == "test" || split == "ood" || split == "all",
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
  LoadedModel loaded = load_model(model);
  const std::optional<TrainConfig> run = find_run_config(model);

  TrainConfig config = run.value_or(TrainConfig());
  config.model = loaded.model->config();
  if (!run) config.data.length = config.model.max_length;
  if (length > 0) config.data.length = length;
  if (config.model.positions == PositionKind::kLearned &&
      config.data.length > config.model.max_length) {
    throw UsageError(message("eval: --length is ", config.data.length, ", expected at most ",
                             config.model.max_length,
                             " (rows of the model's learned position table)"));
  }
  if (batch_tokens > 0) config.data.batch_tokens = batch_tokens;
  config.data.batch_tokens = std::max(config.data.batch_tokens, config.data.length);
  if (data.empty() && (!run || run->data.data == "-")) {
    throw std::runtime_error(
        message("eval: --data is missing, expected a token file or FASTA file (", model,
                " belongs to no run whose data could be read again)"));
  }
  const auto read = [&](const std::string& path) {
    SplitSequences splits = read_splits(path, loaded.tokenizer, config.split_options());
    if (!quiet) std::fprintf(stderr, "%s: %s\n", path.c_str(), splits.summary().c_str());
    return splits;
  };
  const std::string source = data.empty() ? config.data.data : data;
  SplitSequences splits = read(source);
  SequenceSet chosen = split == "all" ? SequenceSet() : split_named(splits, split);
  // Frequencies come from what the model was trained on, never from the file being scored.
  std::optional<SequenceSet> train;
  std::string no_baseline = "no baseline: the model is not in a run";
  if (run && run->data.data == "-") {
    no_baseline = "no baseline: the run's data was standard input";
  } else if (run) {
    train = source == run->data.data ? splits.train : read(run->data.data).train;
  }
  if (split == "all") chosen = all_of(std::move(splits));
  if (chosen.size() == 0) {
    throw std::runtime_error(
        message("eval: ", source, " has no sequence in ", split, ", expected at least one"));
  }
  if (max_tokens > 0) chosen = chosen.sample(max_tokens, config.data.split_seed);

  const BatchOptions batch_options = config.batch_options();
  const EvalBatches batches(chosen, loaded.tokenizer, batch_options);
  const EvalScore score = evaluate(loaded.model, batches);
  std::optional<EvalScore> baseline;
  if (train) {
    const BaselineScore empirical =
        EmpiricalBaseline(*train, loaded.tokenizer, batch_options.objective).score(batches);
    baseline =
        EvalScore{empirical.num_targets, empirical.loss, empirical.perplexity, empirical.accuracy};
  }
  if (json_wanted) {
    json object = to_json(score);
    object["model"] = loaded.folder;
    object["data"] = source;
    object["split"] = split;
    object["sequences"] = chosen.size();
    object["baseline"] = baseline ? to_json(*baseline) : json();
    object.update(report.resources());
    write_result(output, object.dump(2) + "\n", force);
  } else {
    char head[160];
    std::snprintf(head, sizeof head, "%-20s %12s %12s %12s\n",
                  message(split, ", ", score.num_targets, " targets").c_str(), "loss", "perplexity",
                  "accuracy");
    std::string table = head;
    table += baseline ? score_row("empirical baseline", *baseline) : no_baseline + "\n";
    table += score_row("model", score);
    write_result(output, table, force);
  }
  report.finish();
  return 0;
}

}  // namespace performer::cli
