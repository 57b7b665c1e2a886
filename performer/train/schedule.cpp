// SPDX-License-Identifier: Apache-2.0
#include "performer/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace performer {

double run_progress(const RunConfig& run, int64_t steps_done, double elapsed_s) {
  double progress = run.max_steps > 0 ? double(steps_done) / double(run.max_steps) : 1.0;
  if (run.max_minutes > 0) progress = std::max(progress, elapsed_s / (60 * run.max_minutes));
  return std::clamp(progress, 0.0, 1.0);
}

double learning_rate(const OptimizerConfig& optimizer, int64_t steps_done, double progress) {
  double factor = 1;
  if (steps_done < optimizer.warmup_steps) {
    factor = double(steps_done + 1) / double(optimizer.warmup_steps);
  }
  if (optimizer.schedule == ScheduleKind::kRsqrt && steps_done >= optimizer.warmup_steps) {
    const auto warmup = double(std::max<int64_t>(optimizer.warmup_steps, 1));
    factor = std::sqrt(warmup / double(steps_done + 1));
  }
  if (optimizer.schedule == ScheduleKind::kCosine) {
    const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
    factor *= optimizer.min_lr_fraction + (1 - optimizer.min_lr_fraction) * cosine;
  }
  return optimizer.lr * factor;
}

}  // namespace performer
