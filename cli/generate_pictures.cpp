// SPDX-License-Identifier: Apache-2.0
#include "cli/generate_pictures.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "favor/check.h"
#include "performer/data/picture_grid.h"
#include "performer/infer/generate.h"
#include "performer/train/run_folder.h"
#include "performer/train/task.h"

namespace performer::cli {
namespace {

using favor::message;
using Values = std::vector<uint8_t>;

// As the run says, or as the model's positions do.
PictureShape shape_of(const LoadedModel& loaded, const TrainConfig* run) {
  const ModelConfig& config = loaded.model->config();
  if (run != nullptr) return {run->data.image_size, run->data.image_size, run->data.channels};
  if (config.positions != PositionKind::kAxial) {
    throw std::runtime_error(message(loaded.folder, ": belongs to no run and has positions ",
                                     to_string(config.positions),
                                     ", expected axial ones, which tell the size of a picture"));
  }
  return {config.axial_rows, config.axial_columns, config.axial_channels};
}

std::vector<Values> test_pictures(const LoadedModel& loaded, const TrainConfig* run,
                                  const PictureShape& shape, const PictureOptions& options) {
  TrainConfig config = run != nullptr ? *run : TrainConfig();
  if (run == nullptr) {
    config.data.task = loaded.task;
    find_task(loaded.task).set_defaults(config);
    config.data.image_size = shape.height;
    config.data.channels = shape.channels;
  }
  config.model = loaded.model->config();
  if (!options.data.empty()) config.data.data = options.data;
  if (config.data.data.empty()) {
    throw std::runtime_error(message("generate: --data is missing, expected pictures to complete (",
                                     options.model, " belongs to no run)"));
  }
  const auto data = open_task(config, loaded.vocabulary);
  const char* set = data->size("test") > 0 ? "test" : "valid";
  // Half a picture more, so that rounding cannot leave one out.
  const int64_t tokens = options.count * shape.num_values() + shape.num_values() / 2;
  const EvalSet chosen = data->eval_set(set, tokens);
  if (chosen.size < options.count) {
    throw std::runtime_error(message("generate: --count is ", options.count, ", expected at most ",
                                     chosen.size, " (pictures of ", config.data.data, ")"));
  }
  std::vector<Values> pictures;
  for (int64_t b = 0; b < chosen.batches->size(); ++b) {
    const Batch batch = chosen.batches->batch(b);
    for (int64_t row = 0; row < batch.rows && std::ssize(pictures) < options.count; ++row) {
      const auto first = batch.targets.begin() + row * batch.length;
      pictures.emplace_back(first, first + batch.length);
    }
  }
  return pictures;
}

StreamStart start_of(int64_t start_token, const Values& given) {
  StreamStart start;
  start.pending.push_back(start_token);
  for (const uint8_t value : given) {
    start.pending.push_back(value);
    start.recent.add(value);
  }
  start.length = std::ssize(given);
  return start;
}

}  // namespace

DrawnPictures generate_pictures(LoadedModel& loaded, const PictureOptions& options) {
  const std::optional<TrainConfig> stored = find_run_config(options.model);
  const TrainConfig* run = stored ? &*stored : nullptr;
  const PictureShape shape = shape_of(loaded, run);
  FAVOR_CHECK(options.keep_rows < shape.height, "--keep-rows is ", options.keep_rows,
              ", expected less than ", shape.height, " (rows of a picture)");
  std::vector<Values> originals;
  if (options.keep_rows > 0) originals = test_pictures(loaded, run, shape, options);

  const int64_t kept = options.keep_rows * shape.width * shape.channels;
  std::vector<StreamStart> starts;
  std::vector<StreamJob> jobs;
  std::vector<Values> drawn;
  // Jobs point into it.
  starts.reserve(static_cast<size_t>(options.count));
  for (int64_t i = 0; i < options.count; ++i) {
    if (!originals.empty()) {
      const Values& original = originals[static_cast<size_t>(i)];
      drawn.emplace_back(original.begin(), original.begin() + kept);
    } else {
      drawn.emplace_back();
    }
    // Samples share one start, and with it the first pass.
    if (i == 0 || kept > 0) starts.push_back(start_of(loaded.start_token, drawn.back()));
    const std::string given(drawn.back().begin(), drawn.back().end());
    jobs.push_back({&starts.back(), random_place(options.seed, given, i)});
  }
  const std::vector<Values> given = drawn;
  SamplingOptions sampling = options.sampling;
  sampling.max_length = shape.num_values();
  sampling.ignore_end = true;
  DrawnPictures result;
  result.height = shape.height;
  result.width = shape.width;
  result.channels = shape.channels;
  double log_probs = 0;
  generate(loaded.model, *loaded.vocabulary, jobs, sampling, options.batch,
           [&](int64_t job, int64_t id, double log_prob) {
             drawn[static_cast<size_t>(job)].push_back(static_cast<uint8_t>(id));
             log_probs += log_prob;
             ++result.values;
           });
  result.bits_per_dim = -log_probs / double(std::max<int64_t>(result.values, 1)) / std::log(2.0);

  const double side = std::sqrt(double(options.count) / (kept > 0 ? 3 : 1));
  const auto columns = static_cast<int64_t>(std::ceil(side - 1e-9));
  if (kept == 0) {
    write_png(options.pictures, picture_grid(drawn, shape, columns));
    return result;
  }
  std::vector<Values> triples;
  for (size_t i = 0; i < drawn.size(); ++i) {
    triples.insert(triples.end(), {given[i], drawn[i], originals[i]});
  }
  write_png(options.pictures, picture_grid(triples, shape, 3 * columns));
  return result;
}

}  // namespace performer::cli
