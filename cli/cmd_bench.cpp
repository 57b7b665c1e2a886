// SPDX-License-Identifier: Apache-2.0
// `performer bench`: how fast this machine trains, encodes, generates or embeds, and with how much
// memory.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/command.h"
#include "favor/check.h"
#include "performer/infer/embed_workload.h"
#include "performer/train/freed_memory.h"
#include "performer/train/metrics.h"
#include "performer/train/step_profile.h"
#include "performer/train/workload.h"

namespace performer::cli {
namespace {

using favor::message;
using nlohmann::ordered_json;

struct Timing {
  double wall_s = 0;
  double cpu_s = 0;
  int64_t tokens = 0;
};

// `work` returns the number of its tokens.
Timing timed(const std::function<int64_t()>& work) {
  const auto start = std::chrono::steady_clock::now();
  const double cpu_before = cpu_seconds();
  const int64_t tokens = work();
  const double cpu_after = cpu_seconds();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  return {wall.count(), cpu_after - cpu_before, tokens};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_rate(const std::vector<Timing>& timings, double Timing::*clock) {
  std::vector<double> rates;
  for (const Timing& timing : timings) rates.push_back(double(timing.tokens) / (timing.*clock));
  return median(rates);
}

void print_line(const ordered_json& object) {
  std::printf("%s\n", object.dump().c_str());
  std::fflush(stdout);
}

}  // namespace

int run_bench(const Command& command, const std::vector<std::string>& arguments) {
  WorkOptions work;
  work.model.ff_dim = 1024;
  work.model.dropout = 0;
  work.model.causal = false;
  EmbedWorkOptions embed;
  std::string mode = "train";
  std::string attention = "favor";
  std::string projection = to_string(work.model.attention.projection);
  std::string dtype = "float32";
  int64_t threads = 0;
  std::string activation = "auto";
  double min_time = 5;
  int64_t repeats = 3;
  bool stepwise = false;
  bool single = false;
  bool profile = false;
  Options options(command);
  options.add("--mode", mode, "train, encode, generate or embed");
  options.add("--length", work.length,
              "tokens per row; of generation, tokens already in the state");
  options.add("--batch", work.batch, "rows");
  options.add("--data", embed.data, "to embed: a FASTA file of at least --proteins records");
  options.add("--proteins", embed.count, "to embed: records, of which a repeat takes one group");
  options.add("--groups", embed.groups, "to embed: groups of records");
  options.add("--batch-tokens", embed.batch_tokens, "to embed: tokens per pass");
  options.add("--attention", attention, "method");
  options.add("--causal", work.model.causal, "a decoder");
  options.add("--dtype", dtype, "float32 or bfloat16 (autocast)");
  options.add("--vocab-size", work.model.vocab_size, "tokens of the vocabulary");
  options.add("--dim", work.model.dim, "width of the residual stream");
  options.add("--num-layers", work.model.num_layers, "blocks");
  options.add("--num-heads", work.model.num_heads, "attention heads");
  options.add("--ff-dim", work.model.ff_dim, "hidden width of the feed-forward block");
  options.add("--num-features", work.model.attention.num_features, "random features");
  options.add("--projection", projection, "random rows");
  options.add("--reversible", work.model.reversible, "reversible layers");
  options.add("--activation", activation,
              "what training keeps of a block: auto, store, checkpoint or reverse");
  options.add("--ff-chunk", work.memory.ff_chunk, "tokens in the feed-forward at a time; 0: all");
  options.add("--loss-chunk", work.memory.loss_chunk,
              "tokens whose logits are held at a time; 0: all");
  options.add("--slice-tokens", work.memory.slice_tokens,
              "tokens of a row that go through all layers at a time; 0: all");
  options.add("-t,--threads", threads, "0: all cores");
  options.add("--min-time", min_time, "seconds to repeat for");
  options.add("--repeats", repeats, "times to repeat at least");
  options.add("--single", single, "once, without a first run to allocate memory");
  options.add("--stepwise", stepwise,
              "run once per line of standard input, until it ends: for measuring in turn with "
              "another program");
  options.add("--profile", profile,
              "print where the time goes, by parts of the model and by operators");
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  const bool embeds = mode == "embed";
  try {
    FAVOR_CHECK(embeds || mode == "train" || mode == "encode" || mode == "generate", "--mode is '",
                mode, "', expected train, encode, generate or embed");
    if (!embeds) work.kind = work_kind_from_string(mode);
    work.model.attention.method = attention_method_from_string(attention);
    work.model.attention.projection = favor::projection_kind_from_string(projection);
    work.memory.activation = activation_policy_from_string(activation);
    FAVOR_CHECK(!single || !stepwise, "--single is given, expected none with --stepwise");
    FAVOR_CHECK(!profile || (!single && !stepwise),
                "--profile is given, expected none with --single or --stepwise");
    FAVOR_CHECK(dtype == "float32" || dtype == "bfloat16", "--dtype is '", dtype,
                "', expected float32 or bfloat16");
    FAVOR_CHECK(threads >= 0 && threads <= 1024, "--threads is ", threads,
                ", expected 0 (all cores) to 1024");
    FAVOR_CHECK(repeats >= 1, "--repeats is ", repeats, ", expected at least 1");
    FAVOR_CHECK(min_time >= 0, "--min-time is ", min_time, ", expected at least 0 seconds");
    work.bfloat16 = dtype == "bfloat16";
    work.model.causal = work.model.causal || work.kind == WorkKind::kGenerate;
    work.model.positions = PositionKind::kSinusoidal;
    work.model.max_length = work.length;  // of linformer
    embed.model = work.model;
    embed.bfloat16 = work.bfloat16;
    embeds ? embed.check() : work.check();
  } catch (const favor::Error& error) {
    throw UsageError(message("bench: ", error.what()));
  }
  warn_if_emulated(dtype);
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  const int64_t idle_bytes = resident_bytes();
  std::unique_ptr<Workload> workload;
  std::unique_ptr<EmbedWorkload> embedding;
  if (embeds) {
    embedding = std::make_unique<EmbedWorkload>(embed);
  } else {
    workload = std::make_unique<Workload>(work);
  }
  HoleTrimmer trimmer;  // passes differ in length
  const auto run = [&] {
    if (embeds) {
      const int64_t residues = embedding->run();
      trimmer.step();
      return residues;
    }
    workload->run();
    return workload->tokens();
  };
  // Allocates and starts threads.
  const Timing first = single ? Timing() : timed(run);
  if (profile) {
    const double count = std::clamp(min_time / std::max(first.wall_s, 1e-6), 3.0, 1e6);
    const StepProfile found = profile_steps(run, static_cast<int64_t>(std::ceil(count)));
    std::fputs(to_text(found, 30).c_str(), stdout);
    return 0;
  }
  std::vector<Timing> timings;
  if (stepwise) {
    print_line({{"ready", true}});
    for (std::string line; std::getline(std::cin, line);) {
      timings.push_back(timed(run));
      print_line({{"wall_s", timings.back().wall_s},
                  {"cpu_s", timings.back().cpu_s},
                  {"tokens", timings.back().tokens}});
    }
    FAVOR_CHECK(!timings.empty(), "bench: standard input is empty, expected a line per repeat");
  } else if (single) {
    timings.push_back(timed(run));
  } else {
    const auto start = std::chrono::steady_clock::now();
    while (std::ssize(timings) < repeats ||
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
               min_time) {
      timings.push_back(timed(run));
    }
  }
  ordered_json result = {
      {"impl", attention == "favor" ? "performer" : "performer (" + attention + ")"},
      {"mode", mode},
      {"causal", work.model.causal},
      {"dtype", dtype},
      {"threads", at::get_num_threads()},
      {"L", work.length},
      {"batch", work.batch},
      {"num_layers", work.model.num_layers},
      {"tokens_per_s", median_rate(timings, &Timing::wall_s)},
      {"tokens_per_cpu_s", median_rate(timings, &Timing::cpu_s)},
      {"peak_bytes", std::max<int64_t>(0, peak_memory_bytes() - idle_bytes)},
      {"repeats", timings.size()}};
  // What a token takes against what it must take: reading weights and state.
  if (work.kind == WorkKind::kGenerate) result["bound_s"] = workload->read_s();
  print_line(result);
  return 0;
}

}  // namespace performer::cli
