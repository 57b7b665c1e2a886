// SPDX-License-Identifier: Apache-2.0
// Times the kernels of favor: each is checked against the double reference first, a wrong one is
// not timed. Prints a table and writes one JSON line per measurement. See docs/performance.md.
#include <hwy/targets.h>
#include <regex.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "bench/memory.h"
#include "bench/peak.h"
#include "bench/problems.h"
#include "bench/traffic.h"
#include "bench/workload.h"
#include "favor/favor.h"
#include "favor/isa.h"

namespace favor::bench {
namespace {

/// The command line was wrong: exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Options {
  std::string filter;
  int threads = 0;
  std::string isa;
  int repeats = 20;
  double min_time_s = 0.3;
  std::string json = "build/bench.jsonl";
  std::string shapes = FAVOR_BENCH_SHAPES;
  bool list = false;
  float perturb = 0;
};

// A kernel so slow that its repeats would take longer than this is content with kFewRepeats.
constexpr double kMaxTimeS = 4;
constexpr size_t kFewRepeats = 7;

struct Timing {
  double median_s = 0, p10_s = 0, p90_s = 0;
  double peak_gflops = 0;
  double traffic_s = 0;  ///< of one decoding step
  size_t repeats = 0;
};

// The smallest value that at least `share` of the samples do not exceed.
double quantile(std::vector<double> samples, double share) {
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(samples.size())));
  return samples[std::clamp<size_t>(rank, 1, samples.size()) - 1];
}

// The peak is sampled before, between and after the calls, so that whatever slows the machine slows
// both; medians of both leave out what hit a few samples only.
template <class Call>
Timing measure(const Options& options, int threads, const Call& call, Traffic* traffic,
               int64_t steps) {
  call();
  std::vector<double> samples, peaks{sample_peak(threads)}, traffics;
  double total = 0;
  const auto enough = [&] {
    if (samples.size() < kFewRepeats && samples.size() < static_cast<size_t>(options.repeats)) {
      return false;
    }
    return total >= kMaxTimeS ||
           (samples.size() >= static_cast<size_t>(options.repeats) && total >= options.min_time_s);
  };
  while (!enough()) {
    const double start = now_s(threads);
    call();
    samples.push_back(now_s(threads) - start);
    total += samples.back();
    peaks.push_back(sample_peak(threads));
    if (traffic != nullptr) traffics.push_back(traffic->sample(steps));
  }
  return {quantile(samples, 0.5),
          quantile(samples, 0.1),
          quantile(samples, 0.9),
          quantile(peaks, 0.5),
          traffics.empty() ? 0 : quantile(traffics, 0.5),
          samples.size()};
}

// A POSIX extended regular expression; an empty one is found everywhere. Not std::regex, which g++
// 12 warns about under the sanitizers.
class Filter {
 public:
  explicit Filter(const std::string& text) : is_empty_(text.empty()) {
    if (!is_empty_ && regcomp(&pattern_, text.c_str(), REG_EXTENDED | REG_NOSUB) != 0) {
      throw UsageError(message("--filter is '", text, "', expected a regular expression"));
    }
  }
  Filter(const Filter&) = delete;
  Filter& operator=(const Filter&) = delete;
  ~Filter() {
    if (!is_empty_) regfree(&pattern_);
  }

  bool operator()(const std::string& name) const {
    return is_empty_ || regexec(&pattern_, name.c_str(), 0, nullptr, 0) == 0;
  }

 private:
  bool is_empty_;
  regex_t pattern_{};
};

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

/// Walks over the list, checks, times and reports.
class Bench {
 public:
  Bench(const Options& options, std::string isa) : options_(options), isa_(std::move(isa)) {
    json_.open(options.json);
    if (!json_) throw std::runtime_error(message(options.json, ": cannot be written"));
  }

  void print_header() const {
    std::printf("%s, %s, %s, revision %s\n", cpu_name().c_str(), isa_.c_str(),
                compiler_name().c_str(), FAVOR_BENCH_REVISION);
    std::printf(
        "Times: CPU time of the thread for one thread, wall time for more. %%peak: GFLOP/s over "
        "the\n"
        "median of the multiply-add peaks sampled before, between and after the calls. extra: "
        "heap\n"
        "of one call beyond inputs, outputs and Saved. error: at most 1 is right.\n\n");
    std::printf("%-52s %10s %10s %10s %8s %6s %9s %6s\n", "problem", "median ms", "p10", "p90",
                "GFLOP/s", "%peak", "extra KiB", "error");
  }

  void run(const std::vector<Shape>& shapes, const Filter& wanted) {
    for (const Shape& shape : shapes) {
      std::optional<Inputs> inputs;
      for (const Op op : shape.ops) {
        for (const Map map : shape.maps) run_map(shape, op, map, wanted, inputs);
      }
    }
    FAVOR_CHECK(json_.flush().good(), options_.json, ": write failed");
  }

  int num_wrong() const { return num_wrong_; }
  int num_measured() const { return num_measured_; }

 private:
  void run_map(const Shape& shape, Op op, Map map, const Filter& wanted,
               std::optional<Inputs>& inputs) {
    std::optional<test::Judge> judge;
    for (const int threads : shape.threads) {
      const bool forward = wanted(label(shape, op, Pass::kForward, map, threads));
      const bool backward =
          op != Op::kDecodeStep && wanted(label(shape, op, Pass::kBackward, map, threads));
      if (!forward && !backward) continue;
      if (!inputs) inputs.emplace(shape);
      if (!judge) {
        judge.emplace(inputs->last_head(op, map),
                      op == Op::kDecodeStep ? test::Passes::kForward : test::Passes::kBoth);
      }
      set_num_threads(threads);
      Workload workload(*inputs, op, map);
      workload.prepare(Pass::kForward);
      workload.run(Pass::kForward);
      if (forward) run_pass(shape, op, Pass::kForward, map, threads, *judge, workload);
      if (!backward) continue;
      workload.prepare(Pass::kBackward);
      workload.run(Pass::kBackward);
      run_pass(shape, op, Pass::kBackward, map, threads, *judge, workload);
    }
  }

  // The workload has run once and holds the results to check.
  void run_pass(const Shape& shape, Op op, Pass pass, Map map, int threads,
                const test::Judge& judge, Workload& workload) {
    const std::string name = label(shape, op, pass, map, threads);
    const double error = workload.error_ratio(pass, judge, options_.perturb);
    if (!(error <= 1)) {
      reject(name, message("errs ", error, " times what is allowed; not timed"));
      return;
    }
    const uint64_t checked = workload.hash(pass);
    std::optional<Traffic> traffic;
    if (op == Op::kDecodeStep) {
      const int64_t M = shape.features(map);
      traffic.emplace(map.projected ? M * shape.D : 0, M * (shape.E + 2), shape.B * shape.H);
    }
    Timing timing = measure(
        options_, threads, [&] { workload.run(pass); }, traffic ? &*traffic : nullptr, shape.L);
    const std::optional<int64_t> extra = extra_bytes(threads, [&] { workload.run(pass); });
    if (op == Op::kDecodeStep) {
      workload.prepare(pass);
      workload.run(pass);
      for (double* time : {&timing.median_s, &timing.p10_s, &timing.p90_s}) {
        *time /= static_cast<double>(shape.L);
      }
    }
    if (workload.hash(pass) != checked) {
      reject(name, "the timed calls gave other results than the checked one");
      return;
    }
    report(shape, op, pass, map, threads, timing, extra, error);
  }

  void reject(const std::string& name, const std::string& reason) {
    ++num_wrong_;
    std::fflush(stdout);
    std::fprintf(stderr, "favor_bench: %s: %s\n", name.c_str(), reason.c_str());
  }

  void report(const Shape& shape, Op op, Pass pass, Map map, int threads, const Timing& timing,
              std::optional<int64_t> extra, double error) {
    ++num_measured_;
    const bool decodes = op == Op::kDecodeStep;
    const double flops = num_flops(shape, op, pass, map);
    const double gflops = flops / timing.median_s * 1e-9;
    const int64_t L = decodes ? 1 : shape.L, S = decodes ? 1 : shape.S, M = shape.features(map);
    nlohmann::ordered_json line{
        {"op", to_string(op)},
        {"causal", op != Op::kBidirectional},
        {"pass", to_string(pass)},
        {"feature_map", map.exact ? to_string(map) : favor::to_string(map.kind)},
        {"isa", isa_},
        {"threads", threads},
        {"B", shape.B},
        {"H", shape.H},
        {"L", L},
        {"S", S},
        {"D", shape.D},
        {"E", shape.E},
        {"M", M},
        {"window", shape.window},
        {"sinks", shape.sinks},
        {"dtype", to_string(shape.dtype)},
        {"median_s", timing.median_s},
        {"gflops", gflops},
        {"peak_gflops", timing.peak_gflops},
        {"peak_fraction", gflops / timing.peak_gflops},
        {"extra_bytes", nullptr},
        {"error_ratio", error},
        {"name", shape.name},
        {"projection", !map.projected   ? "none"
                       : map.structured ? "hadamard"
                                        : "orthogonal"},
        {"clock", threads == 1 ? "thread_cpu" : "wall"},
        {"p10_s", timing.p10_s},
        {"p90_s", timing.p90_s},
        {"repeats", timing.repeats},
        {"flops", flops},
        {"tokens_per_s", static_cast<double>(shape.B * L) / timing.median_s}};
    if (extra) line["extra_bytes"] = *extra;
    std::string note;
    if (decodes) {
      // The state is read and written once, the random matrix read once per head.
      const int64_t floats =
          shape.B * shape.H *
          (2 * M * (shape.E + 2) + (map.projected && !map.structured ? M * shape.D : 0));
      const double rate = static_cast<double>(4 * floats) / timing.median_s * 1e-9;
      line["position"] = shape.position;
      line["gbytes_per_s"] = rate;
      line["traffic_s"] = timing.traffic_s;
      line["traffic_ratio"] = timing.median_s / timing.traffic_s;
      char text[100];
      std::snprintf(text, sizeof text, "  %.0f tokens/s, %.1f GB/s, %.2f of the traffic's time",
                    static_cast<double>(shape.B) / timing.median_s, rate,
                    timing.median_s / timing.traffic_s);
      note = text;
    }
    line["cpu"] = cpu_name();
    line["compiler"] = compiler_name();
    line["revision"] = FAVOR_BENCH_REVISION;
    json_ << line.dump() << "\n" << std::flush;
    const std::string kib = extra ? std::to_string((*extra + 1023) / 1024) : std::string("unknown");
    std::printf("%-52s %10.4f %10.4f %10.4f %8.1f %6.1f %9s %6.2f%s\n",
                label(shape, op, pass, map, threads).c_str(), timing.median_s * 1e3,
                timing.p10_s * 1e3, timing.p90_s * 1e3, gflops, 100 * gflops / timing.peak_gflops,
                kib.c_str(), error, note.c_str());
    std::fflush(stdout);
  }

  const Options& options_;
  std::string isa_;
  std::ofstream json_;
  int num_wrong_ = 0, num_measured_ = 0;
};

// Pins dispatch to the instruction set asked for, or to the one that FAVOR_ISA leaves; returns its
// name.
std::string pin_isa(const std::string& word) {
  const std::string wanted = word.empty() ? current_isa() : word;
  apply_isa_limit();
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    if (current_isa() == wanted) return wanted;
    hwy::SetSupportedTargetsForTest(0);
  }
  std::string known;
  for (const std::string& name : available_isas()) known += (known.empty() ? "" : " | ") + name;
  throw UsageError(message("--isa is '", word, "', expected ", known));
}

int run(const Options& options) {
  const int all_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<Shape> shapes = read_shapes(options.shapes, all_threads);
  if (options.threads > 0) {
    for (Shape& shape : shapes) shape.threads = {options.threads};
  }
  const Filter wanted(options.filter);
  std::vector<std::string> labels;
  for (const Shape& shape : shapes) {
    for (const Op op : shape.ops) {
      for (const Map map : shape.maps) {
        for (const int threads : shape.threads) {
          labels.push_back(label(shape, op, Pass::kForward, map, threads));
          if (op != Op::kDecodeStep)
            labels.push_back(label(shape, op, Pass::kBackward, map, threads));
        }
      }
    }
  }
  std::erase_if(labels, [&](const std::string& name) { return !wanted(name); });
  if (labels.empty()) {
    throw UsageError(
        message("--filter is '", options.filter, "', which no problem matches (--list shows all)"));
  }
  const std::string isa = pin_isa(options.isa);
  if (options.list) {
    for (const std::string& name : labels) std::printf("%s\n", name.c_str());
    return 0;
  }
  Bench bench(options, isa);
  bench.print_header();
  bench.run(shapes, wanted);
  std::printf("\n%d measurements in %s", bench.num_measured(), options.json.c_str());
  std::printf(bench.num_wrong() > 0 ? "; %d kernels were WRONG\n" : "\n", bench.num_wrong());
  return bench.num_wrong() > 0 ? 1 : 0;
}

}  // namespace
}  // namespace favor::bench

int main(int argc, char** argv) {
  favor::bench::Options options;
  CLI::App app{"Checks the kernels of favor against the double reference, then times them."};
  app.option_defaults()->always_capture_default();
  app.add_option("--filter", options.filter,
                 "Regular expression; runs the problems whose name (--list) it is found in");
  app.add_option("--threads", options.threads, "Threads of every problem; 0: as the list says")
      ->check(CLI::Range(0, 1024));
  app.add_option("--isa", options.isa, "Instruction set; empty: the best of this machine");
  app.add_option("--repeats", options.repeats, "Least number of timed calls")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--min-time", options.min_time_s, "Least seconds of timed calls")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--json", options.json, "Where the measurements go, one JSON object a line");
  app.add_option("--shapes", options.shapes, "The list of problems");
  app.add_flag("--list", options.list, "Print the names of the problems and stop");
  app.add_option("--perturb", options.perturb,
                 "Self-test: add this to an element of each result before it is checked");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return favor::bench::run(options);
  } catch (const favor::bench::UsageError& error) {
    std::fprintf(stderr, "favor_bench: error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "favor_bench: error: %s\n", error.what());
    return 1;
  }
}
