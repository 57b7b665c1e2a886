// SPDX-License-Identifier: Apache-2.0
// `performer generate`: sequences sampled from a causal model, as FASTA.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "favor/check.h"
#include "performer/data/fasta.h"
#include "performer/infer/generate.h"
#include "performer/train/checkpoint.h"

namespace performer::cli {
namespace {

constexpr int64_t kDefaultLength = 512;

std::string fasta_text(const std::string& name, const GeneratedSequence& sequence) {
  std::string text = favor::message(">", name, " length=", sequence.letters.size(),
                                    sequence.ended ? " end=stop\n" : " end=max_length\n");
  constexpr size_t kColumns = 60;
  for (size_t at = 0; at < sequence.letters.size(); at += kColumns) {
    text += sequence.letters.substr(at, kColumns) + "\n";
  }
  return text;
}

}  // namespace

int run_generate(const Command& command, const std::vector<std::string>& arguments) {
  SamplingOptions sampling;
  std::string model;
  std::string prompt;
  std::string output;
  int64_t count = 1;
  int64_t threads = 0;
  bool json = false;
  bool force = false;
  bool quiet = false;
  int64_t max_length = 0;
  Options options(command);
  options.add("--model", model, "run, checkpoint or model folder");
  options.add("--count", count, "sequences");
  options.add("--prompt", prompt, "residues each sequence starts with");
  options.add("--temperature", sampling.temperature, "divides the logits; 0: the most probable");
  options.add("--top-k", sampling.top_k, "only the k most probable tokens; 0: all");
  options.add("--top-p", sampling.top_p, "only the most probable tokens of this share");
  options.add("--max-length", max_length,
              "residues per sequence, prompt included; 0: 512, or what the model reaches");
  options.add("--seed", sampling.seed, "of the sampling");
  options.add("-t,--threads", threads, "0: all cores");
  options.add("-o,--output", output, "file instead of standard output");
  options.add("--json", json, "JSON lines instead of FASTA");
  options.add("--force", force, "replace an existing file");
  options.add("--quiet", quiet, "no log");
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  FastaCounts changes;
  try {
    FAVOR_CHECK(!model.empty(), "--model is missing, expected a run, checkpoint or model folder");
    FAVOR_CHECK(count >= 1, "--count is ", count, ", expected at least 1");
    FAVOR_CHECK(threads >= 0 && threads <= 1024, "--threads is ", threads,
                ", expected 0 (all cores) to 1024");
    FAVOR_CHECK(max_length >= 0, "--max-length is ", max_length, ", expected at least 0");
    sampling.max_length = max_length > 0 ? max_length : kDefaultLength;
    sampling.check();
    prompt = clean_residues(prompt, changes);
  } catch (const favor::Error& error) {
    throw UsageError(favor::message("generate: ", error.what()));
  }
  check_writable(output, force);
  const std::string changed = changes.changes();
  RunReport report(command, arguments, quiet);
  if (!quiet && !changed.empty()) {
    std::fprintf(stderr, "prompt: %s; used as %s\n", changed.c_str(), prompt.c_str());
  }
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  LoadedModel loaded = load_model(model);
  const ModelConfig& config = loaded.model->config();
  if (max_length == 0 && config.positions == PositionKind::kLearned) {
    sampling.max_length = std::min(sampling.max_length, config.max_length);
  }
  const auto start = std::chrono::steady_clock::now();
  const std::vector<GeneratedSequence> sequences =
      generate(loaded.model, loaded.tokenizer, loaded.start_token, prompt, count, 0, sampling);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  std::string text;
  int64_t letters = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const std::string name = "generated-" + std::to_string(i + 1);
    letters += std::ssize(sequences[i].letters);
    if (json) {
      const nlohmann::ordered_json object = {
          {"name", name}, {"sequence", sequences[i].letters}, {"ended", sequences[i].ended}};
      text += object.dump() + "\n";
    } else {
      text += fasta_text(name, sequences[i]);
    }
  }
  write_result(output, text, force);
  if (!quiet) {
    std::fprintf(stderr, "%lld residues in %.2f s (%.0f per second)\n",
                 static_cast<long long>(letters), spent.count(),
                 double(letters) / std::max(spent.count(), 1e-9));
  }
  report.finish();
  return 0;
}

}  // namespace performer::cli
