// SPDX-License-Identifier: Apache-2.0
// What a run records of itself, in every form at once: metrics.jsonl, and TensorBoard's event files
// in the folder tensorboard/. No torch here.
#ifndef PERFORMER_TRAIN_RUN_LOG_H_
#define PERFORMER_TRAIN_RUN_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "performer/train/event_file.h"
#include "performer/train/metrics.h"

namespace performer {

class RunLog {
 public:
  /// `last_step` as of MetricsFile; -1 begins a new run and removes the event files of an earlier
  /// one. Failures are std::runtime_error naming the file.
  RunLog(const std::string& run, int64_t last_step, bool tensorboard);

  /// Tags train/loss, train/lr, train/grad_norm, train/tokens_per_s, train/peak_memory_bytes.
  void write(const TrainMetrics& metrics);
  /// Tags <split>/loss, <split>/perplexity, <split>/accuracy and the units of the task.
  void write(const EvalMetrics& metrics);
  /// Tags layer_<layer>/query_norm and so on.
  void write(const LayerMetrics& metrics);

 private:
  void write_events(int64_t step, const std::vector<Scalar>& scalars);

  MetricsFile lines_;
  std::unique_ptr<EventFile> events_;  // null: not wanted
};

}  // namespace performer

#endif  // PERFORMER_TRAIN_RUN_LOG_H_
