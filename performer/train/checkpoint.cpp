// SPDX-License-Identifier: Apache-2.0
#include "performer/train/checkpoint.h"

#include <torch/optim/adamw.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "favor/check.h"
#include "performer/data/atomic_file.h"
#include "performer/data/safetensors.h"
#include "performer/train/run_folder.h"

namespace performer {
namespace {

namespace fs = std::filesystem;
using favor::message;

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
  bool is_matrix = false;  // a random matrix: drawn, not learned
};

// Everything a model file holds, in a fixed order.
std::vector<NamedTensor> model_tensors(LanguageModel& model) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : model->named_parameters()) tensors.push_back({item.key(), item.value()});
  for (const auto& item : model->named_buffers()) {
    tensors.push_back({item.key(), item.value(), true});
  }
  return tensors;
}

bool names_matrix(const std::string& name) {
  return name.ends_with("projection");
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

StoredType stored_type(const torch::Tensor& tensor) {
  if (tensor.scalar_type() == torch::kFloat32) return StoredType::kF32;
  if (tensor.scalar_type() == torch::kInt64) return StoredType::kI64;
  throw std::logic_error("only float32 and int64 tensors are stored");
}

class TensorWriter {
 public:
  void add(const std::string& name, const torch::Tensor& tensor) {
    held_.push_back(tensor.detach().cpu().contiguous());
    const torch::Tensor& held = held_.back();
    tensors_.push_back({name, stored_type(held), held.sizes().vec(), held.data_ptr(),
                        static_cast<size_t>(held.nbytes())});
  }
  void write(const std::string& path, int64_t step) const {
    write_safetensors(path, tensors_,
                      {{"format", "pt"}, {"format_version", "1"}, {"step", std::to_string(step)}});
  }

 private:
  std::vector<torch::Tensor> held_;
  std::vector<StoredTensor> tensors_;
};

void copy_into(const torch::Tensor& to, const StoredTensor& from) {
  torch::Tensor staged = torch::empty(from.shape, to.options());
  std::memcpy(staged.data_ptr(), from.data, from.bytes);
  torch::NoGradGuard no_grad;
  to.copy_(staged);
}

// The state of AdamW for one parameter; null before its first step.
torch::optim::AdamWParamState* adam_state(torch::optim::Optimizer& optimizer,
                                          const torch::Tensor& parameter) {
  const auto entry = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (entry == optimizer.state().end()) return nullptr;
  return static_cast<torch::optim::AdamWParamState*>(entry->second.get());
}

void write_optimizer(const std::string& path, LanguageModel& model,
                     torch::optim::Optimizer& optimizer, int64_t step) {
  TensorWriter writer;
  for (const auto& item : model->named_parameters()) {
    const auto* state = adam_state(optimizer, item.value());
    if (!state) continue;
    writer.add("exp_avg." + item.key(), state->exp_avg());
    writer.add("exp_avg_sq." + item.key(), state->exp_avg_sq());
    writer.add("step." + item.key(), torch::tensor(state->step(), torch::kInt64));
  }
  writer.write(path, step);
}

void read_optimizer(const std::string& path, LanguageModel& model,
                    torch::optim::Optimizer& optimizer, int64_t step) {
  const SafetensorsFile file(path);
  const auto fetch = [&](const std::string& name, const std::vector<int64_t>& shape,
                         const torch::TensorOptions& options) {
    const StoredTensor& stored = file.at(name);
    torch::Tensor tensor = torch::empty(shape, options);
    if (stored.shape != shape || stored.type != stored_type(tensor)) {
      throw std::runtime_error(message(path, ": tensor ", name, " is ", to_string(stored.type), " ",
                                       shape_text(stored.shape), ", expected ",
                                       to_string(stored_type(tensor)), " ", shape_text(shape)));
    }
    std::memcpy(tensor.data_ptr(), stored.data, stored.bytes);
    return tensor;
  };
  optimizer.state().clear();
  for (const auto& item : model->named_parameters()) {
    if (step == 0 && !file.contains("step." + item.key())) continue;
    const torch::Tensor& parameter = item.value();
    auto state = std::make_unique<torch::optim::AdamWParamState>();
    const auto shape = parameter.sizes().vec();
    state->exp_avg(fetch("exp_avg." + item.key(), shape, parameter.options().requires_grad(false)));
    state->exp_avg_sq(
        fetch("exp_avg_sq." + item.key(), shape, parameter.options().requires_grad(false)));
    state->step(fetch("step." + item.key(), {}, torch::kInt64).item<int64_t>());
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
}

}  // namespace

std::string save_checkpoint(const std::string& run, LanguageModel& model,
                            const ModelPurpose& purpose, torch::optim::Optimizer& optimizer,
                            const TrainerState& state) {
  const fs::path path = checkpoint_path(run, state.step);
  const fs::path fresh = fs::path(run) / (".new-" + path.filename().string());
  fs::remove_all(fresh);
  fs::create_directories(fresh);
  write_model_config(fresh.string(), {model->config(), purpose.start_token, purpose.task,
                                      purpose.vocabulary->kind()});
  purpose.vocabulary->save(fresh.string());
  TensorWriter writer;
  for (const NamedTensor& item : model_tensors(model)) writer.add(item.name, item.tensor);
  writer.write((fresh / "model.safetensors").string(), state.step);
  write_optimizer((fresh / "optimizer.safetensors").string(), model, optimizer, state.step);
  write_file_atomically((fresh / "trainer_state.json").string(), to_json(state).dump() + "\n");
  if (fs::exists(path)) {
    // A folder cannot replace another in one step; the older checkpoints cover the gap.
    const fs::path old = fs::path(run) / (".old-" + path.filename().string());
    fs::remove_all(old);
    fs::rename(path, old);
  }
  fs::rename(fresh, path);
  sync_folder(run);
  return path.string();
}

TrainerState load_checkpoint(const std::string& path, LanguageModel& model,
                             torch::optim::Optimizer& optimizer) {
  if (const auto problem = checkpoint_problem(path)) {
    throw std::runtime_error(message(path, ": is not a complete checkpoint: ", *problem));
  }
  const std::string state_path = (fs::path(path) / "trainer_state.json").string();
  TrainerState state = trainer_state_from_json(read_json_file(state_path), state_path);
  model->redraw(state.redraw_index);
  load_weights((fs::path(path) / "model.safetensors").string(), model, /*matrices_too=*/true);
  read_optimizer((fs::path(path) / "optimizer.safetensors").string(), model, optimizer, state.step);
  return state;
}

void load_weights(const std::string& path, LanguageModel& model, bool matrices_too) {
  const SafetensorsFile file(path);
  std::string problems;
  const auto report = [&](const auto&... parts) { problems += message("; ", parts...); };
  const std::vector<NamedTensor> wanted = model_tensors(model);
  for (const NamedTensor& item : wanted) {
    if (item.is_matrix && !matrices_too) continue;
    if (!file.contains(item.name)) {
      report("tensor ", item.name, " is missing, expected ", shape_text(item.tensor.sizes().vec()));
      continue;
    }
    const StoredTensor& stored = file.at(item.name);
    if (stored.shape != item.tensor.sizes().vec() || stored.type != stored_type(item.tensor)) {
      report("tensor ", item.name, " is ", to_string(stored.type), " ", shape_text(stored.shape),
             ", expected ", to_string(stored_type(item.tensor)), " ",
             shape_text(item.tensor.sizes().vec()));
    }
  }
  for (const StoredTensor& stored : file.tensors()) {
    if (!matrices_too && names_matrix(stored.name)) continue;
    const bool known = std::any_of(wanted.begin(), wanted.end(), [&](const NamedTensor& item) {
      return item.name == stored.name;
    });
    if (!known)
      report("tensor ", stored.name, " ", shape_text(stored.shape), " is not in the model");
  }
  if (!problems.empty()) throw std::runtime_error(message(path, ": ", problems.substr(2)));
  for (const NamedTensor& item : wanted) {
    if (item.is_matrix && !matrices_too) continue;
    copy_into(item.tensor, file.at(item.name));
  }
}

LoadedModel load_model(const std::string& path, const std::string& task) {
  LoadedModel loaded;
  loaded.folder = model_folder(path);
  const ModelFile file = read_model_config(loaded.folder);
  loaded.start_token = file.start_token;
  if (!task.empty() && file.task != task) {
    throw std::runtime_error(message(loaded.folder, ": is a model of task ", file.task,
                                     ", expected one of task ", task));
  }
  loaded.task = file.task;
  loaded.vocabulary = load_vocabulary(file.vocabulary, loaded.folder);
  if (loaded.vocabulary->size() != file.config.vocab_size) {
    throw std::runtime_error(message(loaded.folder, ": vocab.txt has ", loaded.vocabulary->size(),
                                     " tokens, expected vocab_size = ", file.config.vocab_size));
  }
  loaded.model = LanguageModel(file.config);
  load_weights((fs::path(loaded.folder) / "model.safetensors").string(), loaded.model,
               /*matrices_too=*/true);
  loaded.model->eval();
  return loaded;
}

}  // namespace performer
