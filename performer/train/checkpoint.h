// SPDX-License-Identifier: Apache-2.0
// Saving and loading models and checkpoints. A checkpoint is a folder `checkpoint-<step>` inside a
// run: a model (config.json, model.safetensors, vocab.txt) and what continues it
// (optimizer.safetensors, trainer_state.json). It appears under its name only when complete.
#ifndef PERFORMER_TRAIN_CHECKPOINT_H_
#define PERFORMER_TRAIN_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "performer/data/tokenizer.h"
#include "performer/data/vocabulary.h"
#include "performer/models/models.h"
#include "performer/train/trainer_state.h"

namespace torch::optim {
class Optimizer;
}

namespace performer {

/// A model read from disk.
struct LoadedModel {
  LanguageModel model{nullptr};
  std::string task;
  std::shared_ptr<const Vocabulary> vocabulary;
  Tokenizer tokenizer = Tokenizer::protein();  ///< of task protein
  int64_t start_token = 0;                     ///< opens a stream in generation
  std::string folder;                          ///< where it was found
};

/// What a model's folder says beside its weights and its shape.
struct ModelPurpose {
  std::string task = "protein";
  std::shared_ptr<const Vocabulary> vocabulary;
  int64_t start_token = 0;
};

/// Writes `<run>/checkpoint-<step>` through a temporary folder, synced and renamed; replaces an
/// existing one. Returns its path.
std::string save_checkpoint(const std::string& run, LanguageModel& model,
                            const ModelPurpose& purpose, torch::optim::Optimizer& optimizer,
                            const TrainerState& state);

/// Restores weights, matrices and optimiser, and returns the rest. The generator is left to the
/// caller. Throws std::runtime_error naming the checkpoint when anything is missing or damaged.
TrainerState load_checkpoint(const std::string& path, LanguageModel& model,
                             torch::optim::Optimizer& optimizer);

/// Reads config.json, the vocabulary and model.safetensors of model_folder(path). Missing,
/// unexpected or mis-shaped tensors are an error that names them with both shapes. A model of
/// another task than `task` is refused; an empty `task` takes any.
LoadedModel load_model(const std::string& path, const std::string& task = "protein");

/// Copies the tensors of a model.safetensors into `model`. With `matrices_too` false the random
/// matrices keep the values of `model`, whatever the file holds; all other tensors must agree in
/// name, type and shape. Throws std::runtime_error otherwise.
void load_weights(const std::string& file, LanguageModel& model, bool matrices_too);

}  // namespace performer

#endif  // PERFORMER_TRAIN_CHECKPOINT_H_
