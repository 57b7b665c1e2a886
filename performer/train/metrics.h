// SPDX-License-Identifier: Apache-2.0
// What a run says while it goes on: metrics.jsonl for programs, a progress line for people. No
// torch here.
#ifndef PERFORMER_TRAIN_METRICS_H_
#define PERFORMER_TRAIN_METRICS_H_

#include <cstdint>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "performer/models/diagnostics.h"

namespace performer {

/// One line per log_interval. Loss in nats per target, averaged over the steps since the last line.
struct TrainMetrics {
  int64_t step = 0;
  int64_t tokens = 0;  ///< seen since the start of the run, padding left out
  double loss = 0;
  double lr = 0;
  double grad_norm = 0;  ///< before clipping, of the last step
  double tokens_per_s = 0;
  double elapsed_s = 0;
  int64_t peak_memory_bytes = 0;  ///< of the process so far
};

/// A unit in which people know the loss of a task.
struct Unit {
  std::string name;                ///< such as bits_per_byte
  bool bits = true;                ///< bits per unit; otherwise perplexity of a unit
  std::vector<double> per_target;  ///< units that each target id stands for; empty: `ratio`
  double ratio = 1;                ///< units per target
};

struct UnitValue {
  std::string name;
  double value = 0;
  double per_target = 1;  ///< how many of them there are
};

/// Token-weighted score of a model on a set.
struct EvalScore {
  int64_t num_targets = 0;
  double loss = 0;                    ///< mean negative log-likelihood in nats
  double perplexity = 0;              ///< exp(loss)
  double accuracy = 0;                ///< 0 to 1
  std::vector<UnitValue> units = {};  ///< the loss in the units of the task
};

/// The loss per target in a unit of which there are `units_per_target`.
double in_unit(const Unit& unit, double loss, double units_per_target);
nlohmann::json to_json(const EvalScore& score);

/// One line per evaluation: the model beside the empirical baseline on the same targets.
struct EvalMetrics {
  int64_t step = 0;
  std::string split;  ///< valid, test, ood or train
  EvalScore model;
  EvalScore baseline;
};

/// Fills in the units of `other`, a score on the same targets as `score`.
void convert_units(const std::vector<Unit>& units, const EvalScore& score, EvalScore& other);

/// "perplexity 8.1 (baseline 18), accuracy 40 % (baseline 9 %)", in the task's units if it has any;
/// of classes the loss in place of the perplexity.
std::string describe(const EvalMetrics& metrics, bool classes);

/// One line per layer and diagnosis.
struct LayerMetrics {
  int64_t step = 0;
  int64_t layer = 0;  ///< from 0
  AttentionDiagnostics diagnostics;
};

/// The lines of metrics.jsonl: keys `step, tokens, loss, lr, grad_norm, tokens_per_s, elapsed_s,
/// peak_memory_bytes` in this order, or `step, split, targets, loss, perplexity, accuracy,
/// baseline_loss, baseline_perplexity, baseline_accuracy` and the task's units, or `step, layer,
/// query_norm, key_norm, relative_variance (of maps that estimate softmax), output_error,
/// uniform_error`.
std::string to_line(const TrainMetrics& metrics);
std::string to_line(const EvalMetrics& metrics);
std::string to_line(const LayerMetrics& metrics);

/// metrics.jsonl, appended line by line. All failures are std::runtime_error naming the file.
class MetricsFile {
 public:
  /// Keeps of an existing file the lines up to `last_step` that belong to the course of the run
  /// (the test line at its end does not); -1 starts an empty file.
  MetricsFile(const std::string& path, int64_t last_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void write(const std::string& line);

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

/// Progress on stderr: a bar rewritten in place on a terminal, plain lines elsewhere.
class Progress {
 public:
  Progress(bool quiet, bool terminal) : quiet_(quiet), terminal_(terminal) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `progress` is the share of the run that is over, `run_s` the seconds spent on it so far.
  void update(const TrainMetrics& metrics, double progress, double run_s);
  /// A message of its own, above the bar.
  void say(const std::string& text);

 private:
  void clear();

  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
};

/// Resident memory of this process at the moment.
int64_t resident_bytes();

/// Largest resident memory this process has had.
int64_t peak_memory_bytes();

/// "1:02:03" or "2:03".
std::string format_duration(double seconds);

}  // namespace performer

#endif  // PERFORMER_TRAIN_METRICS_H_
