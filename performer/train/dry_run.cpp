// SPDX-License-Identifier: Apache-2.0
#include "performer/train/dry_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "favor/check.h"
#include "performer/train/metrics.h"
#include "performer/train/task.h"
#include "performer/train/workload.h"

namespace performer {
namespace {

using favor::message;

std::string megabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MB", double(bytes) / 1e6);
  return text;
}

}  // namespace

DryRun dry_run(const TrainConfig& given) {
  given.check();
  const bool has_data = !given.data.data.empty() || find_task(given.data.task).generated;
  const std::unique_ptr<TaskData> data = has_data ? open_task(given, nullptr) : nullptr;
  const TrainConfig config = data ? fitted(given, *data) : given;
  if (config.run.threads > 0) at::set_num_threads(static_cast<int>(config.run.threads));
  DryRun run;
  run.parameters = count_parameters(config.model);
  run.memory = estimate_memory(config);
  const int64_t accumulate = config.optimizer.accumulate;
  run.tokens_per_step = config.data.batch_tokens * accumulate;
  if (data) {
    const auto batches = data->train_batches();
    run.steps_per_epoch = (batches->batches_in_epoch() + accumulate - 1) / accumulate;
  }
  WorkOptions options;
  options.model = config.model;
  options.length = config.data.length;
  options.batch = config.data.batch_tokens / config.data.length;
  if (config.model.head == HeadKind::kPairs)
    options.batch = std::max<int64_t>(options.batch & ~1, 2);
  options.bfloat16 = config.run.dtype == "bfloat16";
  options.memory = config.run.memory;
  run.resident_bytes = resident_bytes();
  Workload workload(options);
  workload.run();
  const auto start = std::chrono::steady_clock::now();
  workload.run();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  run.step_s = spent.count() * double(accumulate) * double(config.data.batch_tokens) /
               double(workload.tokens());
  run.measured_peak_bytes = std::max<int64_t>(0, peak_memory_bytes() - run.resident_bytes);
  return run;
}

nlohmann::json to_json(const DryRun& run) {
  nlohmann::json object = {{"parameters",
                            {{"embedding", run.parameters.embedding},
                             {"attention", run.parameters.attention},
                             {"feed_forward", run.parameters.feed_forward},
                             {"output", run.parameters.output},
                             {"total", run.parameters.total()}}},
                           {"memory_bytes",
                            {{"weights", run.memory.weights},
                             {"gradients", run.memory.gradients},
                             {"optimizer", run.memory.optimizer},
                             {"activations", run.memory.activations},
                             {"total", run.memory.total()}}},
                           {"resident_bytes", run.resident_bytes},
                           {"measured_peak_bytes", run.measured_peak_bytes},
                           {"tokens_per_step", run.tokens_per_step},
                           {"step_s", run.step_s}};
  if (run.steps_per_epoch > 0) {
    object["steps_per_epoch"] = run.steps_per_epoch;
    object["epoch_s"] = run.step_s * double(run.steps_per_epoch);
  }
  return object;
}

std::string describe(const DryRun& run) {
  const ParameterCount& count = run.parameters;
  const MemoryEstimate& memory = run.memory;
  std::string text =
      message("parameters  ", count.total(), ": embedding ", count.embedding, ", attention ",
              count.attention, ", feed-forward ", count.feed_forward, ", output ", count.output,
              "\nmemory      ", megabytes(memory.total()), ": weights ", megabytes(memory.weights),
              ", gradients ", megabytes(memory.gradients), ", optimiser ",
              megabytes(memory.optimizer), ", activations ", megabytes(memory.activations),
              " (estimated; two steps took ", megabytes(run.measured_peak_bytes),
              ")\n            beside ", megabytes(run.resident_bytes), " of program and data");
  char line[160];
  std::snprintf(line, sizeof line, "\ntime        %.3g s per step of %lld tokens (%.0f tokens/s)\n",
                run.step_s, static_cast<long long>(run.tokens_per_step),
                double(run.tokens_per_step) / run.step_s);
  text += line;
  if (run.steps_per_epoch > 0) {
    text += message("            ", format_duration(run.step_s * double(run.steps_per_epoch)),
                    " per epoch of ", run.steps_per_epoch, " steps\n");
  }
  return text;
}

}  // namespace performer
