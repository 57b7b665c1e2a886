// SPDX-License-Identifier: Apache-2.0
#include "performer/train/run_folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "favor/check.h"
#include "performer/data/atomic_file.h"
#include "performer/data/safetensors.h"
#include "performer/train/trainer_state.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using favor::message;
using nlohmann::json;

constexpr std::string_view kPrefix = "checkpoint-";
constexpr const char* kStartToken = "decoder_start_token_id";
constexpr const char* kTask = "task";
constexpr const char* kVocabulary = "vocabulary";

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = -1;
  const char* first = name.data() + kPrefix.size();
  const char* last = name.data() + name.size();
  const auto [end, error] = std::from_chars(first, last, step);
  if (error != std::errc() || end != last || step < 0) return std::nullopt;
  return step;
}

bool holds_model(const fs::path& folder) {
  return fs::is_regular_file(folder / "config.json") &&
         fs::is_regular_file(folder / "model.safetensors");
}

// Files of different steps in one folder would continue a run that never was.
std::optional<std::string> step_problem(const SafetensorsFile& file, const std::string& path,
                                        int64_t step) {
  const auto stored = file.metadata().find("step");
  // Written before the step was stored.
  if (stored == file.metadata().end() || stored->second == std::to_string(step)) {
    return std::nullopt;
  }
  return message(path, ": is of another step than trainer_state.json, expected step ", step);
}

void no_warning(const std::string&) {}

}  // namespace

json read_json_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error(message(path, ": cannot be opened, expected a JSON file"));
  try {
    return json::parse(in);
  } catch (const json::parse_error& error) {
    throw std::runtime_error(message(path, ": is not JSON (byte ", error.byte, ")"));
  }
}

std::string checkpoint_path(const std::string& run, int64_t step) {
  return (fs::path(run) / (std::string(kPrefix) + std::to_string(step))).string();
}

std::vector<int64_t> checkpoint_steps(const std::string& run) {
  std::vector<int64_t> steps;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run, ignored)) {
    if (const auto step = step_of(entry.path().filename().string())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<std::string> checkpoint_problem(const std::string& path) {
  try {
    const fs::path folder = path;
    read_json_file((folder / "config.json").string());
    const std::string state_file = (folder / "trainer_state.json").string();
    const int64_t step = trainer_state_from_json(read_json_file(state_file), state_file).step;
    const SafetensorsFile model((folder / "model.safetensors").string());
    const std::string optimizer_file = (folder / "optimizer.safetensors").string();
    const SafetensorsFile optimizer(optimizer_file);
    if (const auto problem = step_problem(model, (folder / "model.safetensors").string(), step)) {
      return problem;
    }
    if (const auto problem = step_problem(optimizer, optimizer_file, step)) return problem;
    for (const StoredTensor& tensor : model.tensors()) {
      // Random matrices are drawn, not learned; before the first step there is nothing to keep.
      if (step == 0 || tensor.name.ends_with("projection")) continue;
      for (const char* part : {"exp_avg.", "exp_avg_sq.", "step."}) {
        if (!optimizer.contains(part + tensor.name)) {
          return message(optimizer_file, ": tensor ", part, tensor.name, " is missing");
        }
      }
    }
    const fs::path vocab = fs::path(path) / "vocab.txt";
    if (!fs::is_regular_file(vocab)) return vocab.string() + ": is missing";
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

std::optional<std::string> newest_checkpoint(const std::string& run,
                                             const std::function<void(const std::string&)>& warn) {
  const std::vector<int64_t> steps = checkpoint_steps(run);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string path = checkpoint_path(run, *step);
    const auto problem = checkpoint_problem(path);
    if (!problem) return path;
    warn(message("checkpoint skipped: ", *problem));
  }
  return std::nullopt;
}

void prune_checkpoints(const std::string& run, int64_t keep, int64_t best_step) {
  const std::vector<int64_t> steps = checkpoint_steps(run);
  const int64_t surplus = static_cast<int64_t>(steps.size()) - keep;
  for (int64_t i = 0; i < surplus; ++i) {
    if (steps[i] == best_step) continue;
    // Renamed first: a half-removed checkpoint must not carry a checkpoint's name.
    const fs::path path = checkpoint_path(run, steps[i]);
    const fs::path doomed = fs::path(run) / (".old-" + path.filename().string());
    fs::remove_all(doomed);
    fs::rename(path, doomed);
  }
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".old-") || name.starts_with(".new-") ||
        name.find(".tmp-") != std::string::npos) {
      leftovers.push_back(entry.path());
    }
  }
  for (const fs::path& path : leftovers) fs::remove_all(path);
}

std::string model_folder(const std::string& path) {
  if (holds_model(path)) return path;
  if (!fs::is_directory(path)) {
    throw std::runtime_error(
        message(path, ": is not a folder, expected a run, checkpoint or model"));
  }
  std::string problems;
  const auto newest =
      newest_checkpoint(path, [&](const std::string& text) { problems += " (" + text + ")"; });
  if (!newest) {
    throw std::runtime_error(message(
        path, ": holds neither model.safetensors with config.json nor a complete checkpoint",
        problems));
  }
  return *newest;
}

ModelFile read_model_config(const std::string& folder) {
  const std::string path = (fs::path(folder) / "config.json").string();
  json object = read_json_file(path);
  ModelFile model;
  if (object.is_object() && object.contains(kStartToken)) {
    FAVOR_CHECK(object[kStartToken].is_number_unsigned(), path, ": ", kStartToken, " is ",
                object[kStartToken].dump(), ", expected a token id");
    model.start_token = object[kStartToken].get<int64_t>();
    object.erase(kStartToken);
  }
  const auto take_word = [&](const char* key, std::string& word) {
    if (!object.is_object() || !object.contains(key)) return;
    FAVOR_CHECK(object[key].is_string(), path, ": ", key, " is ", object[key].dump(),
                ", expected a word");
    word = object[key].get<std::string>();
    object.erase(key);
  };
  take_word(kTask, model.task);
  take_word(kVocabulary, model.vocabulary);
  model.config = model_config_from_json(object, path);
  FAVOR_CHECK(model.start_token < model.config.vocab_size, path, ": ", kStartToken, " is ",
              model.start_token, ", expected less than vocab_size = ", model.config.vocab_size);
  return model;
}

void write_model_config(const std::string& folder, const ModelFile& model) {
  json object = to_json(model.config);
  object[kStartToken] = model.start_token;
  object[kTask] = model.task;
  object[kVocabulary] = model.vocabulary;
  write_file_atomically((fs::path(folder) / "config.json").string(), object.dump(2) + "\n");
}

std::optional<TrainConfig> find_run_config(const std::string& path) {
  // A checkpoint's config.json describes the model alone; its run's stands one folder up.
  const fs::path absolute = fs::absolute(path).lexically_normal();
  fs::path run = absolute.has_filename() ? absolute : absolute.parent_path();
  if (holds_model(run)) run = run.parent_path();
  const fs::path file = run / "config.json";
  if (!fs::is_regular_file(file) || holds_model(run)) return std::nullopt;
  if (newest_checkpoint(run.string(), no_warning) == std::nullopt) return std::nullopt;
  TrainConfig config;
  apply_json(config, read_json_file(file.string()), file.string());
  return config;
}

}  // namespace performer
