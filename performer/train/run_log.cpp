// SPDX-License-Identifier: Apache-2.0
#include "performer/train/run_log.h"

#include <chrono>
#include <filesystem>
#include <stdexcept>

#include "favor/check.h"

namespace performer {
namespace {

namespace fs = std::filesystem;

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

RunLog::RunLog(const std::string& run, int64_t last_step, bool tensorboard)
    : lines_((fs::path(run) / "metrics.jsonl").string(), last_step) {
  const fs::path folder = fs::path(run) / "tensorboard";
  std::error_code error;
  if (last_step < 0) fs::remove_all(folder, error);
  if (!tensorboard) return;
  fs::create_directories(folder, error);
  if (error) {
    throw std::runtime_error(
        favor::message(folder.string(), ": cannot be created: ", error.message()));
  }
  events_ = std::make_unique<EventFile>(folder.string(), last_step + 1, wall_time());
}

void RunLog::write(const TrainMetrics& metrics) {
  lines_.write(to_line(metrics));
  write_events(metrics.step, {{"train/loss", metrics.loss},
                              {"train/lr", metrics.lr},
                              {"train/grad_norm", metrics.grad_norm},
                              {"train/tokens_per_s", metrics.tokens_per_s},
                              {"train/peak_memory_bytes", double(metrics.peak_memory_bytes)}});
}

void RunLog::write(const EvalMetrics& metrics) {
  lines_.write(to_line(metrics));
  std::vector<Scalar> scalars = {{metrics.split + "/loss", metrics.model.loss},
                                 {metrics.split + "/perplexity", metrics.model.perplexity},
                                 {metrics.split + "/accuracy", metrics.model.accuracy}};
  for (const UnitValue& unit : metrics.model.units) {
    scalars.emplace_back(metrics.split + "/" + unit.name, unit.value);
  }
  write_events(metrics.step, scalars);
}

void RunLog::write(const LayerMetrics& metrics) {
  lines_.write(to_line(metrics));
  const std::string group = favor::message("layer_", metrics.layer, "/");
  const AttentionDiagnostics& values = metrics.diagnostics;
  std::vector<Scalar> scalars = {{group + "query_norm", values.query_norm},
                                 {group + "key_norm", values.key_norm},
                                 {group + "output_error", values.output_error},
                                 {group + "uniform_error", values.uniform_error}};
  if (values.relative_variance) {
    scalars.emplace_back(group + "relative_variance", *values.relative_variance);
  }
  write_events(metrics.step, scalars);
}

void RunLog::write_events(int64_t step, const std::vector<Scalar>& scalars) {
  if (events_) events_->write(step, scalars, wall_time());
}

}  // namespace performer
