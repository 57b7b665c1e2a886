// SPDX-License-Identifier: Apache-2.0
// What the commands of the command line share: the table's row, options, help, reports. No torch.
#ifndef PERFORMER_CLI_COMMAND_H_
#define PERFORMER_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "performer/train/config.h"

namespace performer::cli {

/// A row of the command table.
struct Command {
  const char* name;
  const char* summary;
  const char* example;
  int (*run)(const Command& command, const std::vector<std::string>& arguments);
};

int run_attention(const Command& command, const std::vector<std::string>& arguments);
int run_bench(const Command& command, const std::vector<std::string>& arguments);
int run_compare(const Command& command, const std::vector<std::string>& arguments);
int run_info(const Command& command, const std::vector<std::string>& arguments);
int run_data(const Command& command, const std::vector<std::string>& arguments);
int run_train(const Command& command, const std::vector<std::string>& arguments);
int run_eval(const Command& command, const std::vector<std::string>& arguments);
int run_generate(const Command& command, const std::vector<std::string>& arguments);
int run_report(const Command& command, const std::vector<std::string>& arguments);
int run_embed(const Command& command, const std::vector<std::string>& arguments);
int run_score(const Command& command, const std::vector<std::string>& arguments);
int run_variants(const Command& command, const std::vector<std::string>& arguments);
int run_tokenize(const Command& command, const std::vector<std::string>& arguments);

/// The command line itself is wrong: one line, exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Options of one command. Help is a switch like any other, so that it can show current values.
class Options {
 public:
  explicit Options(const Command& command);

  /// `names` as CLI11 takes them: "-o,--output". Values are read by parse_value.
  void add(const std::string& names, int64_t& value, const std::string& help);
  void add(const std::string& names, uint64_t& value, const std::string& help);
  void add(const std::string& names, double& value, const std::string& help);
  void add(const std::string& names, std::string& value, const std::string& help);
  void add(const std::string& names, bool& value, const std::string& help);
  /// A value without a dash in front.
  void positional(const std::string& name, std::string& value, const std::string& help);
  /// Any number of them.
  void positional(const std::string& name, std::vector<std::string>& values,
                  const std::string& help);

  /// Throws UsageError; unknown options are named with the nearest known one. Returns false when
  /// help was asked for.
  bool parse(const std::vector<std::string>& arguments);
  std::string help() const;

  CLI::App& app() { return app_; }

 private:
  template <class T>
  void add_number(const std::string& names, T& value, const std::string& help,
                  const std::string& type, const std::string& text);
  std::string mismatch(const std::string& text) const;

  Command command_;
  CLI::App app_;
  bool help_wanted_ = false;
};

/// CPU time that this process has used, over all threads.
double cpu_seconds();

/// Announces a run on stderr, and accounts for it at the end.
class RunReport {
 public:
  RunReport(const Command& command, const std::vector<std::string>& arguments, bool quiet);
  /// Prints wall time, CPU time and peak memory.
  void finish() const;
  /// wall_s, cpu_s, peak_memory_bytes.
  nlohmann::json resources() const;
  /// version, revision, command line.
  nlohmann::json provenance() const;

 private:
  std::string command_line_;
  bool quiet_;
  std::chrono::steady_clock::time_point start_;
};

/// A line on stderr where `dtype` is bfloat16 and the CPU has to emulate it.
void warn_if_emulated(const std::string& dtype);

/// Writes to standard output, or whole or not at all to a file ("" and "-" are standard output). An
/// existing file needs `force`.
void write_result(const std::string& path, const std::string& content, bool force);

/// Fails early, before long work, where write_result would fail: an existing file without `force`,
/// a folder that is not there or may not be written to.
void check_writable(const std::string& path, bool force);

std::string version();
std::string revision();

}  // namespace performer::cli

#endif  // PERFORMER_CLI_COMMAND_H_
