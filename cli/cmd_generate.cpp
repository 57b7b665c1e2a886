// SPDX-License-Identifier: Apache-2.0
// `performer generate`: sequences sampled from a causal model, as FASTA, plain text, JSON lines or
// pictures.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "cli/command.h"
#include "cli/generate_pictures.h"
#include "cli/generate_plain.h"
#include "cli/generated_text.h"
#include "favor/check.h"
#include "performer/data/fasta.h"
#include "performer/infer/generate.h"
#include "performer/infer/records.h"
#include "performer/infer/stream_file.h"
#include "performer/models/large_pages.h"
#include "performer/train/checkpoint.h"
#include "performer/train/run_folder.h"

namespace performer::cli {
namespace {

using favor::message;

constexpr int64_t kDefaultLength = 512;
// A single sequence with more letters to come is written as it is drawn.
constexpr int64_t kWhole = 8192;

struct GenerateOptions {
  SamplingOptions sampling;
  TextOptions text;
  std::string model, prompt, prompts, output, state_in, state_out, pictures, data;
  int64_t count = 1;
  int64_t keep_rows = 0;
  int64_t max_length = 0;
  int64_t batch = kStreamsPerBatch;
  int64_t threads = 0;
  uint64_t seed = 0;
  bool force = false;
  bool quiet = false;

  void add_to(Options& options);
  void check(bool seeded);
};

void GenerateOptions::add_to(Options& options) {
  options.add("--model", model, "run, checkpoint or model folder");
  options.add("--count", count, "sequences, of each prompt");
  options.add("--prompt", prompt, "residues each sequence starts with, or the text");
  options.add("--prompts", prompts, "FASTA file of prompts, .gz or not; - is standard input");
  options.add("--temperature", sampling.temperature, "divides the logits; 0: the most probable");
  options.add("--top-k", sampling.top_k, "only the k most probable tokens; 0: all");
  options.add("--top-p", sampling.top_p, "only the most probable tokens of this share");
  options.add("--repetition-penalty", sampling.repetition_penalty,
              "above 1: recent residues are less likely; 1: none");
  options.add("--penalty-window", sampling.penalty_window, "residues back that are penalised");
  options.add("--ignore-eos", sampling.ignore_end, "never draw the end token");
  options.add(
      "--max-length", max_length,
      "residues (or tokens) per sequence, prompt included; 0: 512, or what the model reaches");
  options.add("--seed", seed, "of the sampling");
  options.add("--batch", batch, "sequences decoded together");
  options.add("--state-in", state_in, "file of --state-out: go on where it was saved");
  options.add("--state-out", state_out, "file for the state after a single sequence");
  options.add("-t,--threads", threads, "0: all cores");
  options.add("-o,--output", output, "file instead of standard output");
  options.add("--json", text.json, "JSON lines instead of FASTA or plain text");
  options.add("--log-probs", text.log_probs,
              "log-probability of each residue drawn (JSON), or their mean (FASTA header)");
  options.add("--pictures", pictures, "PNG file for what a model of pixels draws");
  options.add("--keep-rows", keep_rows,
              "with --pictures: rows of test pictures that are given and completed; 0: none");
  options.add("-i,--data", data, "with --keep-rows: pictures; without it the data of the run");
  options.add("--force", force, "replace an existing file");
  options.add("--quiet", quiet, "no log");
}

void GenerateOptions::check(bool seeded) {
  FAVOR_CHECK(!model.empty(), "--model is missing, expected a run, checkpoint or model folder");
  FAVOR_CHECK(count >= 1, "--count is ", count, ", expected at least 1");
  FAVOR_CHECK(batch >= 1 && batch <= 4096, "--batch is ", batch, ", expected 1 to 4096");
  FAVOR_CHECK(threads >= 0 && threads <= 1024, "--threads is ", threads,
              ", expected 0 (all cores) to 1024");
  FAVOR_CHECK(max_length >= 0, "--max-length is ", max_length, ", expected at least 0");
  FAVOR_CHECK(keep_rows >= 0, "--keep-rows is ", keep_rows, ", expected at least 0");
  FAVOR_CHECK(keep_rows == 0 || !pictures.empty(),
              "--keep-rows is given without --pictures, expected a PNG file");
  FAVOR_CHECK(data.empty() || keep_rows > 0, "--data is ", data,
              ", expected none without "
              "--keep-rows");
  FAVOR_CHECK(prompts.empty() || prompt.empty(),
              "--prompts and --prompt are both given, expected one of them");
  FAVOR_CHECK(prompts.empty() || state_in.empty(),
              "--prompts and --state-in are both given, expected one of them");
  FAVOR_CHECK(state_out.empty() || (count == 1 && prompts.empty()), "--state-out is given with ",
              prompts.empty() ? "--count above 1" : "--prompts", ", expected a single sequence");
  FAVOR_CHECK(state_out != "-" && (state_out.empty() || state_out != output), "--state-out is ",
              state_out, ", expected a file of its own");
  // Forks of a stream tell themselves apart by their random numbers.
  FAVOR_CHECK(state_in.empty() || count == 1 || seeded,
              "--state-in is given with --count above 1 and no --seed, expected a seed for the ",
              "forks");
  sampling.max_length = max_length > 0 ? max_length : kDefaultLength;
  sampling.check();
}

/// What is to be generated: starts outlive the jobs that point to them.
struct Work {
  std::vector<StreamStart> starts;
  std::vector<StreamJob> jobs;
  std::vector<GeneratedText> texts;

  void add(const StreamStart& start, RandomPlace random, std::string name, int64_t begin,
           const std::string& prompt) {
    jobs.push_back({&start, random});
    texts.push_back({std::move(name), begin, std::ssize(prompt), prompt, {}, {}});
  }
};

std::string numbered(const std::string& name, int64_t i, int64_t count) {
  return count == 1 ? name : name + "-" + std::to_string(i + 1);
}

Work work_of_state(const GenerateOptions& options, LoadedModel& loaded, bool seeded) {
  SavedStream saved = load_stream(options.state_in, loaded.model);
  if (saved.ended) {
    throw std::runtime_error(message(options.state_in,
                                     ": the stream has ended with the end token, "
                                     "expected one that goes on (--ignore-eos never draws it)"));
  }
  Work work;
  const int64_t begin = saved.start.length + 1;
  extend_stream(saved.start, loaded.tokenizer, options.prompt);
  work.starts.push_back(std::move(saved.start));
  for (int64_t i = 0; i < options.count; ++i) {
    const RandomPlace random =
        seeded ? random_place(options.seed, options.prompt, i) : saved.random;
    work.add(work.starts[0], random, "generated-" + std::to_string(i + 1), begin, options.prompt);
  }
  return work;
}

Work work_of_prompts(const GenerateOptions& options, const LoadedModel& loaded) {
  Work work;
  if (options.prompts.empty()) {
    work.starts.push_back(start_stream(loaded.tokenizer, loaded.start_token, options.prompt));
    for (int64_t i = 0; i < options.count; ++i) {
      work.add(work.starts[0], random_place(options.seed, options.prompt, i),
               "generated-" + std::to_string(i + 1), 1, options.prompt);
    }
    return work;
  }
  const Records records = read_records(options.prompts, loaded.tokenizer);
  work.starts.reserve(static_cast<size_t>(records.size()));
  for (int64_t r = 0; r < records.size(); ++r) {
    const std::string prompt = loaded.tokenizer.decode(records.sequences[r]);
    if (std::ssize(prompt) > options.sampling.max_length) {
      throw std::runtime_error(
          message(options.prompts, ": ", records.label(r), " has ", prompt.size(),
                  " residues, expected at most max_length = ", options.sampling.max_length));
    }
    work.starts.push_back(start_stream(loaded.tokenizer, loaded.start_token, prompt));
    const std::string& given = records.names[r];
    const std::string name = given.empty() ? "prompt-" + std::to_string(r + 1) : given;
    for (int64_t i = 0; i < options.count; ++i) {
      work.add(work.starts.back(), random_place(options.seed, prompt, i),
               numbered(name, i, options.count), 1, prompt);
    }
  }
  if (!options.quiet) {
    std::fprintf(stderr, "%s: %s\n", options.prompts.c_str(), records.counts.summary().c_str());
  }
  return work;
}

/// Letters per second at the beginning of a run and at its end, over kLetters each.
class Pace {
 public:
  void count() {
    if (++letters_ % kLetters != 0) return;
    const auto now = Clock::now();
    const double rate = kLetters / std::chrono::duration<double>(now - mark_).count();
    mark_ = now;
    if (first_ == 0) first_ = rate;
    last_ = rate;
  }
  int64_t letters() const { return letters_; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void print() const {
    const double spent = seconds();
    std::fprintf(stderr, "%lld residues in %.2f s (%.0f per second)\n",
                 static_cast<long long>(letters_), spent, double(letters_) / std::max(spent, 1e-9));
    if (letters_ < 2 * kLetters) return;
    std::fprintf(stderr, "first %d residues: %.0f per second, last %d: %.0f per second\n", kLetters,
                 first_, kLetters, last_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kLetters = 10000;
  Clock::time_point start_ = Clock::now(), mark_ = start_;
  int64_t letters_ = 0;
  double first_ = 0, last_ = 0;
};

// A folder without a model is said to be one later.
bool is_of_proteins(const std::string& model) {
  try {
    return read_model_config(model_folder(model)).task == "protein";
  } catch (const std::exception&) {
    return true;
  }
}

using OptionList = std::vector<std::pair<const char*, bool>>;

// Options that are given and have no meaning for the model.
void refuse(const LoadedModel& loaded, const OptionList& options, const char* why) {
  for (const auto& [name, is_given] : options) {
    if (!is_given) continue;
    throw UsageError(message("generate: ", name, " is given, expected none with a model of task ",
                             loaded.task, why));
  }
}

int run_pictures(const GenerateOptions& given, LoadedModel& loaded, const RunReport& report) {
  refuse(loaded,
         {{"--prompt", !given.prompt.empty()},
          {"--prompts", !given.prompts.empty()},
          {"--state-in", !given.state_in.empty()},
          {"--state-out", !given.state_out.empty()},
          {"--output", !given.output.empty()},
          {"--max-length", given.max_length > 0},
          {"--json", given.text.json},
          {"--log-probs", given.text.log_probs}},
         " (--pictures takes what it draws)");
  if (given.pictures.empty()) {
    throw UsageError(
        message("generate: --pictures is missing, expected a PNG file (a model of task ",
                loaded.task, ")"));
  }
  const Pace pace;
  const DrawnPictures drawn =
      generate_pictures(loaded, {given.sampling, given.model, given.data, given.pictures,
                                 given.count, given.keep_rows, given.batch, given.seed});
  if (!given.quiet) {
    std::fprintf(stderr,
                 "%lld pictures of %lld x %lld x %lld; %lld values drawn in %.2f s, of "
                 "%.3f bits each\n",
                 static_cast<long long>(given.count), static_cast<long long>(drawn.height),
                 static_cast<long long>(drawn.width), static_cast<long long>(drawn.channels),
                 static_cast<long long>(drawn.values), pace.seconds(), drawn.bits_per_dim);
  }
  report.finish();
  return 0;
}

int run_plain(const GenerateOptions& given, LoadedModel& loaded, const RunReport& report) {
  refuse(loaded,
         {{"--prompts", !given.prompts.empty()},
          {"--state-in", !given.state_in.empty()},
          {"--state-out", !given.state_out.empty()}},
         " (--prompt is a text)");
  const Pace pace;
  const int64_t tokens =
      generate_plain(loaded, {given.sampling, given.prompt, given.output, given.count, given.batch,
                              given.seed, given.text.json, given.text.log_probs});
  if (!given.quiet) {
    std::fprintf(stderr, "%lld tokens in %.2f s\n", static_cast<long long>(tokens), pace.seconds());
  }
  report.finish();
  return 0;
}

}  // namespace

int run_generate(const Command& command, const std::vector<std::string>& arguments) {
  GenerateOptions given;
  Options options(command);
  given.add_to(options);
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  const bool seeded = options.app().count("--seed") > 0;
  FastaCounts changes;
  try {
    given.check(seeded);
    // Text is taken as it is.
    if (is_of_proteins(given.model)) given.prompt = clean_residues(given.prompt, changes);
  } catch (const favor::Error& error) {
    throw UsageError(message("generate: ", error.what()));
  }
  check_writable(given.output, given.force);
  check_writable(given.state_out, given.force);
  check_writable(given.pictures, given.force);
  const std::string changed = changes.changes();
  RunReport report(command, arguments, given.quiet);
  if (!given.quiet && !changed.empty()) {
    std::fprintf(stderr, "prompt: %s; used as %s\n", changed.c_str(), given.prompt.c_str());
  }
  if (given.threads > 0) at::set_num_threads(static_cast<int>(given.threads));
  LoadedModel loaded = load_model(given.model, /*task=*/"");
  move_to_large_pages(*loaded.model);
  const ModelConfig& config = loaded.model->config();
  SamplingOptions& sampling = given.sampling;
  if (loaded.task == "pixels") return run_pictures(given, loaded, report);
  refuse(loaded, {{"--pictures", !given.pictures.empty()}}, " (only task pixels draws them)");
  if (loaded.task != "protein") {
    if (given.max_length == 0) {
      sampling.max_length = std::min(sampling.max_length, config.max_positions());
    }
    return run_plain(given, loaded, report);
  }
  Work work = given.state_in.empty() ? work_of_prompts(given, loaded)
                                     : work_of_state(given, loaded, seeded);
  if (given.max_length == 0 && !given.state_in.empty()) {
    sampling.max_length += work.starts[0].length;
  }
  if (given.max_length == 0) {
    sampling.max_length = std::min(sampling.max_length, config.max_positions());
  }

  const int64_t jobs = std::ssize(work.jobs);
  std::vector<int64_t> left;
  for (const StreamJob& job : work.jobs) left.push_back(sampling.max_length - job.start->length);
  const bool pieces = jobs == 1 && left[0] > kWhole;
  Sink sink(given.output);
  GeneratedWriter writer(sink, given.text, std::move(work.texts), pieces);
  for (int64_t job = 0; job < jobs; ++job) {
    if (left[job] == 0) writer.complete(job);
  }
  Pace pace;
  SavedStream last;
  generate(
      loaded.model, loaded.tokenizer, work.jobs, sampling, given.batch,
      [&](int64_t job, int64_t id, double log_prob) {
        if (id == loaded.tokenizer.eos()) {
          writer.end(job, log_prob);
          return writer.complete(job);
        }
        writer.add(job, loaded.tokenizer.decode(std::span<const int64_t>(&id, 1))[0], log_prob);
        pace.count();
        if (--left[job] == 0) writer.complete(job);
      },
      given.state_out.empty() ? nullptr : &last);
  sink.commit();
  if (!given.state_out.empty()) save_stream(given.state_out, last, loaded.model);
  if (!given.quiet) {
    pace.print();
    if (given.text.log_probs) {
      std::fprintf(stderr, "mean log-probability of %lld tokens: %.4f\n",
                   static_cast<long long>(writer.drawn()), writer.mean_log_prob());
    }
  }
  report.finish();
  return 0;
}

}  // namespace performer::cli
