// SPDX-License-Identifier: Apache-2.0
// Options that the commands on sequences share: which model, how much at a time. No torch here.
#ifndef PERFORMER_CLI_INFER_OPTIONS_H_
#define PERFORMER_CLI_INFER_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/command.h"
#include "performer/infer/sequence_model.h"

namespace performer::cli {

struct InferOptions {
  std::string model;
  int64_t chunk = 0;
  int64_t batch_tokens = 8192;
  std::string max_memory = "0";
  int64_t threads = 0;
  bool force = false;
  bool quiet = false;

  void add_to(Options& options);
  /// Throws favor::Error.
  void check() const;
  /// What helps with sequences that are too long, for the end of a message.
  std::string chunk_hint() const;
  /// Sets threads and the memory limit, and loads the model. `folder` becomes the model's. A chunk
  /// that the model cannot take is a UsageError of `command`.
  SequenceModel open(const Command& command, std::string* folder = nullptr) const;
};

/// With six digits after the point.
std::string number_text(double value);

/// A line about the progress of a long run, at most every few seconds.
class Ticker {
 public:
  explicit Ticker(bool quiet) : quiet_(quiet) {}
  /// True when a line is due.
  bool due();
  double seconds() const;

 private:
  bool quiet_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = start_;
};

}  // namespace performer::cli

#endif  // PERFORMER_CLI_INFER_OPTIONS_H_
