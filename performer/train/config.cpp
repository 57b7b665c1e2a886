// SPDX-License-Identifier: Apache-2.0
// Checks and files of the training configuration; fields and presets have files of their own.
#include "performer/train/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "favor/check.h"
#include "favor/words.h"
#include "performer/train/task.h"

namespace performer {
namespace {

using nlohmann::json;

constexpr int kFormatVersion = 1;

constexpr favor::Word<ScheduleKind> kSchedules[] = {{ScheduleKind::kConstant, "constant"},
                                                    {ScheduleKind::kCosine, "cosine"},
                                                    {ScheduleKind::kRsqrt, "rsqrt"}};

bool is_model_name_key(const std::string& key) {
  return key == "model_type" || key == "architectures" || key == "format_version";
}

std::string architecture(const ModelConfig& model) {
  if (model.head != HeadKind::kTokens) return "PerformerForSequenceClassification";
  return model.causal ? "PerformerForCausalLM" : "PerformerForMaskedLM";
}

std::vector<std::string> field_keys() {
  std::vector<std::string> keys;
  for (const Field& field : train_fields()) keys.push_back(field.key);
  return keys;
}

void check_format_version(const json& object, const std::string& source) {
  const auto version = object.find("format_version");
  if (version == object.end()) return;
  FAVOR_CHECK(*version == kFormatVersion, source, ": format_version is ", version->dump(),
              ", expected ", kFormatVersion, " (written by another version of performer)");
}

}  // namespace

std::string to_string(ScheduleKind kind) {
  return favor::word_of(kSchedules, kind);
}

ScheduleKind schedule_kind_from_string(std::string_view word) {
  return favor::value_of(kSchedules, word, "schedule");
}

void TrainConfig::check() const {
  model.check();
  const Task& task = find_task(data.task);
  FAVOR_CHECK(model.head == task.head, "head is ", to_string(model.head), ", expected ",
              to_string(task.head), " (task ", task.name, ")");
  if (task.check) task.check(*this);
  const auto at_least = [](const char* name, auto value, auto least) {
    FAVOR_CHECK(value >= least, name, " is ", value, ", expected at least ", least);
  };
  const auto fraction = [](const char* name, double value) {
    FAVOR_CHECK(value >= 0 && value < 1, name, " is ", value, ", expected a number in [0, 1)");
  };
  at_least("length", data.length, int64_t{2});
  FAVOR_CHECK(model.positions != PositionKind::kLearned || data.length <= model.max_length,
              "length is ", data.length, ", expected at most max_length = ", model.max_length,
              " (rows of the learned position table)");
  FAVOR_CHECK(data.length <= model.max_positions(), "length is ", data.length,
              ", expected at most ", model.max_positions_text());
  FAVOR_CHECK(data.batch_tokens >= data.length, "batch_tokens is ", data.batch_tokens,
              ", expected at least length = ", data.length);
  FAVOR_CHECK(data.mask_fraction > 0 && data.mask_fraction <= 1, "mask_fraction is ",
              data.mask_fraction, ", expected a number in (0, 1]");
  fraction("valid_fraction", data.valid_fraction);
  fraction("test_fraction", data.test_fraction);
  FAVOR_CHECK(data.valid_fraction + data.test_fraction < 1, "valid_fraction + test_fraction is ",
              data.valid_fraction + data.test_fraction,
              ", expected less than 1 (nothing is left to train on)");
  FAVOR_CHECK(optimizer.lr > 0, "lr is ", optimizer.lr, ", expected a positive number");
  fraction("beta1", optimizer.beta1);
  fraction("beta2", optimizer.beta2);
  FAVOR_CHECK(optimizer.adam_eps > 0, "adam_eps is ", optimizer.adam_eps,
              ", expected a positive number");
  at_least("weight_decay", optimizer.weight_decay, 0.0);
  at_least("clip", optimizer.clip, 0.0);
  at_least("accumulate", optimizer.accumulate, int64_t{1});
  at_least("warmup_steps", optimizer.warmup_steps, int64_t{0});
  FAVOR_CHECK(optimizer.min_lr_fraction >= 0 && optimizer.min_lr_fraction <= 1,
              "min_lr_fraction is ", optimizer.min_lr_fraction, ", expected a number in [0, 1]");
  at_least("max_steps", run.max_steps, int64_t{0});
  at_least("max_minutes", run.max_minutes, 0.0);
  at_least("log_interval", run.log_interval, int64_t{1});
  at_least("eval_interval", run.eval_interval, int64_t{0});
  at_least("eval_tokens", run.eval_tokens, int64_t{0});
  at_least("test_tokens", run.test_tokens, int64_t{0});
  other_eval_sets();
  at_least("train_examples", data.train_examples, int64_t{1});
  at_least("test_examples", data.test_examples, int64_t{1});
  at_least("patience", run.patience, int64_t{0});
  FAVOR_CHECK(run.patience == 0 || run.eval_interval > 0, "patience is ", run.patience,
              ", expected 0 with eval_interval = 0 (there is nothing to wait for)");
  at_least("diagnostics_interval", run.diagnostics_interval, int64_t{-1});
  at_least("save_interval", run.save_interval, int64_t{0});
  at_least("keep_checkpoints", run.keep_checkpoints, int64_t{1});
  FAVOR_CHECK(run.threads >= 0 && run.threads <= 1024, "threads is ", run.threads,
              ", expected 0 (all cores) to 1024");
  run.memory.check(model);
  FAVOR_CHECK(run.dtype == "float32" || run.dtype == "bfloat16", "dtype is '", run.dtype,
              "', expected float32 or bfloat16");
}

BatchOptions TrainConfig::batch_options() const {
  BatchOptions options;
  options.objective = model.causal ? Objective::kNextToken : Objective::kMaskedLm;
  options.windowing = data.windowing;
  options.length = data.length;
  options.tokens_per_batch = data.batch_tokens;
  options.mask_fraction = data.mask_fraction;
  options.seed = run.seed;
  return options;
}

std::vector<std::string> TrainConfig::other_eval_sets() const {
  std::vector<std::string> names;
  std::istringstream words(run.eval_sets);
  for (std::string word; std::getline(words, word, ',');) {
    FAVOR_CHECK(word == "valid" || word == "ood" || word == "train", "eval_sets names '", word,
                "', expected valid, ood or train");
    if (word != "valid" && std::find(names.begin(), names.end(), word) == names.end()) {
      names.push_back(word);
    }
  }
  return names;
}

SplitOptions TrainConfig::split_options() const {
  return {data.valid_fraction, data.test_fraction, data.split_seed};
}

const Field* find_field(std::string_view key) {
  std::string name(key);
  std::replace(name.begin(), name.end(), '-', '_');
  for (const Field& field : train_fields()) {
    if (field.key == name) return &field;
  }
  return nullptr;
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i + 1;
      for (size_t j = 0; j < candidate.size(); ++j) {
        const size_t replace = diagonal + (word[i] != candidate[j] ? 1 : 0);
        diagonal = row[j + 1];
        row[j + 1] = std::min({replace, diagonal + 1, row[j] + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

std::set<std::string> apply_json(TrainConfig& config, const json& object,
                                 const std::string& source) {
  FAVOR_CHECK(object.is_object(), source, ": is ", object.type_name(),
              ", expected an object of options");
  check_format_version(object, source);
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) {
    if (is_model_name_key(key)) continue;
    const Field* field = find_field(key);
    FAVOR_CHECK(field != nullptr && field->key == key, source, ": unknown key '", key,
                "' (did you mean ", nearest_name(key, field_keys()), "?)");
    try {
      field->from_json(config, value);
    } catch (const favor::Error& error) {
      throw favor::Error(favor::message(source, ": ", error.what()));
    }
    keys.insert(key);
  }
  return keys;
}

json to_json(const TrainConfig& config) {
  json object = {{"format_version", kFormatVersion}};
  for (const Field& field : train_fields()) {
    if (field.use != FieldUse::kCall) object[field.key] = field.to_json(config);
  }
  return object;
}

json to_json(const ModelConfig& model) {
  TrainConfig config;
  config.model = model;
  json object = {
      {"format_version", kFormatVersion},
      {"model_type", "performer"},
      {"architectures", json::array({architecture(model)})},
  };
  for (const Field& field : train_fields()) {
    if (field.use == FieldUse::kModel) object[field.key] = field.to_json(config);
  }
  return object;
}

ModelConfig model_config_from_json(const json& object, const std::string& source) {
  TrainConfig config;
  const std::set<std::string> keys = apply_json(config, object, source);
  for (const Field& field : train_fields()) {
    const bool is_model = field.use == FieldUse::kModel;
    FAVOR_CHECK(!is_model || field.optional || keys.count(field.key), source, ": key '", field.key,
                "' is missing, expected every field of the model");
    FAVOR_CHECK(is_model || !keys.count(field.key), source, ": unknown key '", field.key,
                "' (not a field of the model)");
  }
  config.model.check();
  return config.model;
}

std::string describe(const TrainConfig& config) {
  std::ostringstream out;
  std::string group;
  for (const Field& field : train_fields()) {
    if (field.use == FieldUse::kCall) continue;
    if (field.group != group) {
      group = field.group;
      out << "[" << group << "]\n";
    }
    out << "  " << field.key << " = " << field.text(config) << "\n";
  }
  return out.str();
}

}  // namespace performer
