// SPDX-License-Identifier: Apache-2.0
// `performer compare`: a grid of training runs, each a process of its own, so that its memory is
// its own and a failure is one cell of the table.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "cli/command.h"
#include "favor/check.h"
#include "performer/data/atomic_file.h"
#include "performer/report/comparison.h"
#include "performer/report/run_record.h"
#include "performer/train/metrics.h"
#include "performer/train/run_folder.h"

namespace performer::cli {
namespace {

namespace fs = std::filesystem;
using favor::message;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

volatile std::sig_atomic_t stop_signal = 0;

void request_stop(int signal) {
  stop_signal = signal;
}

// The line above all others on a terminal; elsewhere one line when a run begins.
class GridProgress {
 public:
  GridProgress(size_t runs, bool quiet)
      : runs_(runs), quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}

  void begin(const std::string& name) {
    name_ = name;
    begun_ = Clock::now();
    if (!quiet_ && !terminal_) {
      std::fprintf(stderr, "%zu of %zu: %s\n", over_ + 1, runs_, name.c_str());
    }
    draw();
  }
  void draw() const {
    if (quiet_ || !terminal_) return;
    constexpr size_t kCells = 24;
    const size_t full = kCells * over_ / runs_;
    std::string left;
    if (trained_ > 0)
      left = ", " + format_duration(spent_s_ / trained_ * double(runs_ - over_)) + " left";
    std::fprintf(stderr, "\r\033[K[%s%s] %zu/%zu %s %s%s", std::string(full, '#').c_str(),
                 std::string(kCells - full, '.').c_str(), over_, runs_, name_.c_str(),
                 format_duration(seconds()).c_str(), left.c_str());
  }
  void end(const std::string& outcome) {
    ++over_;
    ++trained_;
    spent_s_ += seconds();
    say(message(name_, ": ", outcome, ", ", format_duration(seconds())));
  }
  /// A run that an earlier call has finished.
  void skip(const std::string& name) {
    ++over_;
    say(message(name, ": done before"));
  }
  void say(const std::string& text) const {
    if (quiet_) return;
    std::fprintf(stderr, "%s%s\n", terminal_ ? "\r\033[K" : "", text.c_str());
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

  size_t runs_, over_ = 0;
  int trained_ = 0;
  double spent_s_ = 0;
  bool quiet_, terminal_;
  std::string name_;
  Clock::time_point begun_ = Clock::now();
};

// Starts this very program with its stderr in `log` and nothing on stdout.
pid_t start_self(const std::vector<std::string>& arguments, const std::string& log) {
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error(message("compare: fork: ", std::strerror(errno)));
  if (child > 0) return child;
  const int errors = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  const int nothing = ::open("/dev/null", O_RDWR);
  if (errors < 0 || nothing < 0) ::_exit(126);
  ::dup2(errors, STDERR_FILENO);
  ::dup2(nothing, STDOUT_FILENO);
  ::dup2(nothing, STDIN_FILENO);
  std::vector<char*> argv;
  std::string name = "performer";
  argv.push_back(name.data());
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  ::execv("/proc/self/exe", argv.data());
  ::_exit(127);
}

// Waits for the child, and hands a signal on to it: it saves a checkpoint and ends.
int wait_for(pid_t child, const GridProgress& progress) {
  bool told = false;
  for (int status = 0;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0 && errno != EINTR) return -1;
    if (stop_signal != 0 && !told) {
      ::kill(child, SIGTERM);
      told = true;
    }
    ::usleep(100000);
    progress.draw();
  }
}

std::string last_line(const fs::path& log) {
  std::ifstream in(log);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) last = line;
  }
  constexpr std::string_view kOpening = "performer: error: ";
  return last.starts_with(kOpening) ? last.substr(kOpening.size()) : last;
}

class Comparison {
 public:
  Comparison(const ComparisonPlan& plan, fs::path out, bool force, bool quiet)
      : plan_(plan), out_(std::move(out)), force_(force), progress_(plan.runs.size(), quiet) {}

  /// Throws where the folder holds runs of other settings, before anything is trained.
  void check() const {
    for (const PlannedRun& run : plan_.runs) {
      const fs::path file = out_ / run.folder() / "settings.json";
      if (force_ || !fs::exists(file)) continue;
      const json held = read_json_file(file.string());
      if (held != settings(run)) {
        throw std::runtime_error(message("--out: ", (out_ / run.folder()).string(),
                                         " was trained with other settings, expected "
                                         "those of the comparison (--force trains it again)"));
      }
    }
  }

  /// Returns whether all runs are over; false: a signal came.
  bool run() {
    for (const PlannedRun& run : plan_.runs) {
      const fs::path folder = out_ / run.folder();
      if (!force_ && fs::exists(folder / "result.json")) {
        progress_.skip(run.folder());
        continue;
      }
      progress_.begin(run.folder());
      const std::string failure = train(run, folder);
      if (stop_signal != 0) return false;
      failures_ += !failure.empty();
      progress_.end(failure.empty() ? "done" : "failed: " + failure);
    }
    return true;
  }

  int64_t failures() const { return failures_; }

  std::vector<ComparedRun> results() const {
    std::vector<ComparedRun> runs;
    for (const PlannedRun& plan : plan_.runs) {
      const fs::path folder = out_ / plan.folder();
      ComparedRun run{plan, nullptr, "", {}};
      if (fs::exists(folder / "result.json")) {
        run.result = read_json_file((folder / "result.json").string());
        const RunRecord record = read_run_record((folder / "run").string());
        run.progress =
            record.over_seconds(RunRecord::points(record.evaluations_of("valid"), "step", "loss"));
      } else {
        run.failure = last_line(folder / "log");
      }
      runs.push_back(std::move(run));
    }
    return runs;
  }

 private:
  static json settings(const PlannedRun& run) {
    return {{"preset", run.preset}, {"settings", run.settings}};
  }

  // Returns why it failed, or nothing.
  std::string train(const PlannedRun& run, const fs::path& folder) {
    if (force_) fs::remove_all(folder);
    fs::create_directories(folder);
    write_file_atomically((folder / "settings.json").string(), settings(run).dump(2) + "\n");
    write_file_atomically((folder / "config.json").string(), run.settings.dump(2) + "\n");
    std::vector<std::string> arguments = {"train",
                                          "--config",
                                          (folder / "config.json").string(),
                                          "--out",
                                          (folder / "run").string(),
                                          "--resume",
                                          "auto",
                                          "--quiet",
                                          "--output",
                                          (folder / "result.json").string()};
    if (!run.preset.empty()) arguments.insert(arguments.end(), {"--preset", run.preset});
    const int status = wait_for(start_self(arguments, (folder / "log").string()), progress_);
    // A run that was stopped has saved itself, and its result is not one.
    if (stop_signal != 0) {
      fs::remove(folder / "result.json");
      return "";
    }
    if (WIFSIGNALED(status)) {
      const std::string text = message("ended by signal ", WTERMSIG(status));
      std::ofstream(folder / "log", std::ios::app) << text << "\n";
      return text;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
    return last_line(folder / "log");
  }

  const ComparisonPlan& plan_;
  fs::path out_;
  bool force_;
  GridProgress progress_;
  int64_t failures_ = 0;
};

}  // namespace

int run_compare(const Command& command, const std::vector<std::string>& arguments) {
  std::string file, out;
  bool force = false, quiet = false, json_wanted = false;
  Options options(command);
  options.positional("CONFIG", file, "JSON file: title, common, tasks, methods, seeds");
  options.add("-o,--out", out, "folder of the comparison; a second call continues it");
  options.add("--force", force, "train everything again");
  options.add("--json", json_wanted, "print the numbers as JSON instead of a table");
  options.add("-q,--quiet", quiet, "no progress");
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  if (file.empty()) {
    throw UsageError("compare: CONFIG is missing, expected a JSON file (docs/compare.md)");
  }
  if (out.empty()) throw UsageError("compare: --out is missing, expected a folder");
  std::ifstream in(file);
  if (!in) throw std::runtime_error(message(file, ": cannot be opened: ", std::strerror(errno)));
  nlohmann::ordered_json content;
  try {
    content = nlohmann::ordered_json::parse(in);
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(message(file, ": ", error.what()));
  }
  ComparisonPlan plan;
  try {
    plan = comparison_plan(content, file);
  } catch (const favor::Error& error) {
    throw UsageError(message("compare: ", error.what()));
  }
  RunReport report(command, arguments, quiet);
  Comparison comparison(plan, out, force, quiet);
  comparison.check();
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  if (!comparison.run()) {
    if (!quiet) {
      std::fprintf(stderr, "\ncompare: stopped; the same command continues in %s\n", out.c_str());
    }
    return 128 + stop_signal;
  }
  const std::vector<ComparedMethod> methods = compared_methods(comparison.results());
  const std::string table = comparison_table(methods);
  const std::string numbers = comparison_json(methods).dump(2) + "\n";
  write_file_atomically((fs::path(out) / "comparison.md").string(), table);
  write_file_atomically((fs::path(out) / "comparison.json").string(), numbers);
  write_file_atomically((fs::path(out) / "comparison.svg").string(),
                        comparison_picture(plan.title.empty() ? file : plan.title, methods));
  write_result("-", json_wanted ? numbers : table, false);
  report.finish();
  if (comparison.failures() > 0) {
    throw std::runtime_error(message("compare: ", comparison.failures(), " of ", plan.runs.size(),
                                     " runs failed; their messages are in ", out, "/*/*/*/log"));
  }
  return 0;
}

}  // namespace performer::cli
