// SPDX-License-Identifier: Apache-2.0
// Where things are in the folder of a run and of a model, and which of them are complete. No torch
// here. A run holds config.json (TrainConfig), metrics.jsonl and checkpoint-<step>/; a checkpoint
// or model holds config.json (ModelConfig), vocab.txt and model.safetensors.
#ifndef PERFORMER_TRAIN_RUN_FOLDER_H_
#define PERFORMER_TRAIN_RUN_FOLDER_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "performer/models/config.h"
#include "performer/train/config.h"

namespace performer {

/// Parses a JSON file. Throws std::runtime_error naming the file.
nlohmann::json read_json_file(const std::string& path);

std::string checkpoint_path(const std::string& run, int64_t step);

/// Steps of the checkpoints of a run, ascending. Temporary folders are not among them.
std::vector<int64_t> checkpoint_steps(const std::string& run);

/// What makes a checkpoint unusable ("model.safetensors: ..."), or nothing.
std::optional<std::string> checkpoint_problem(const std::string& path);

/// The newest complete checkpoint; `warn` hears of each newer one that is damaged.
std::optional<std::string> newest_checkpoint(const std::string& run,
                                             const std::function<void(const std::string&)>& warn);

/// Removes all but the `keep` newest checkpoints and that of `best_step`, and what killed runs left
/// half written.
void prune_checkpoints(const std::string& run, int64_t keep, int64_t best_step);

/// The folder that holds the model `path` stands for: a model or checkpoint itself, or the newest
/// complete checkpoint of a run. Throws std::runtime_error when there is none.
std::string model_folder(const std::string& path);

/// A model's config.json: the architecture, the token that opens a stream, what it was trained for.
struct ModelFile {
  ModelConfig config;
  int64_t start_token = 0;
  std::string task = "protein";
  std::string vocabulary = "protein";  ///< Vocabulary::kind
};
ModelFile read_model_config(const std::string& folder);
void write_model_config(const std::string& folder, const ModelFile& model);

/// The configuration of the run that `path` (a run or one of its checkpoints) belongs to, if any.
std::optional<TrainConfig> find_run_config(const std::string& path);

}  // namespace performer

#endif  // PERFORMER_TRAIN_RUN_FOLDER_H_
