// SPDX-License-Identifier: Apache-2.0
// Everything a training run can be told, and the one list of its fields that drives command line,
// help, config file, echo and saved config. No torch here.
#ifndef PERFORMER_TRAIN_CONFIG_H_
#define PERFORMER_TRAIN_CONFIG_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/batches.h"
#include "performer/data/vocabulary.h"
#include "performer/models/config.h"
#include "performer/models/memory.h"

namespace performer {

enum class ScheduleKind {
  kConstant,  ///< warm-up, then the full rate
  kCosine,    ///< warm-up, then half a cosine down to min_lr_fraction of the rate
  kRsqrt,     ///< warm-up of w steps, then the rate times sqrt(w / step)
};

std::string to_string(ScheduleKind kind);
/// Throws favor::Error, listing the known words.
ScheduleKind schedule_kind_from_string(std::string_view word);

/// What is trained on.
struct DataConfig {
  std::string task = "protein";  ///< a name in tasks()
  std::string data;              ///< what the task reads, `-` for standard input
  int64_t length = 1024;         ///< tokens per row at most
  Windowing windowing = Windowing::kConcat;
  int64_t batch_tokens = 8192;    ///< tokens per forward pass, padding included
  double mask_fraction = 0.15;    ///< masked-LM only: share of letters to predict
  double valid_fraction = 0.025;  ///< share of the distinct sequences, by hash
  double test_fraction = 0.025;
  uint64_t split_seed = 0;  ///< another seed, another division
  // Of task text.
  TextUnit vocabulary = TextUnit::kBytes;
  int64_t num_pieces = 8000;  ///< of a SentencePiece vocabulary that is trained
  std::string pieces_model;   ///< file of one that is not
  // Of the tasks that generate their examples.
  int64_t train_examples = 100000;
  int64_t test_examples = 1000;  ///< of valid and of test
  int64_t num_symbols = 64;      ///< probes: letters of the alphabet
  int64_t num_pairs = 8;         ///< recall: keys with a value
  int64_t contour_length = 14;   ///< pathfinder: paddles of a path
  // Of pictures.
  int64_t image_size = 32;  ///< pixels of an edge
  int64_t channels = 1;     ///< values of a pixel: 1 grey, 3 red, green, blue
  bool tile = false;        ///< cuts larger pictures into tiles of image_size x image_size
};

/// AdamW and its learning rate.
struct OptimizerConfig {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.98;
  double adam_eps = 1e-9;
  double weight_decay = 0.1;  ///< on matrices; biases, norms and position tables have none
  double clip = 0.5;          ///< largest norm of the whole gradient; 0 does not clip
  int64_t accumulate = 1;     ///< forward passes per optimiser step
  ScheduleKind schedule = ScheduleKind::kConstant;
  int64_t warmup_steps = 100;
  double min_lr_fraction = 0.0;  ///< where the cosine ends, as a fraction of lr
};

/// How long, how often, where.
struct RunConfig {
  int64_t max_steps = 10000;        ///< optimiser steps; 0 evaluates and saves at once
  double max_minutes = 0;           ///< stops after this time as well; 0 has no limit
  int64_t log_interval = 10;        ///< steps between two lines of metrics
  int64_t eval_interval = 500;      ///< steps between two evaluations; 0 evaluates at the end only
  int64_t eval_tokens = 50000;      ///< tokens of the validation split per evaluation; 0 takes all
  int64_t test_tokens = 0;          ///< tokens of the test split at the end; 0 takes all
  std::string eval_sets = "valid";  ///< of valid, ood and train, with commas; valid always is
  int64_t patience = 0;  ///< evaluations without a lower validation loss before the end; 0: never
  int64_t diagnostics_interval = -1;  ///< steps between two diagnoses of the layers; 0: none, -1:
                                      ///< as eval_interval
  int64_t save_interval = 500;        ///< steps between two checkpoints; 0 saves at the end only
  int64_t keep_checkpoints = 2;       ///< newest ones kept, beside the best
  uint64_t seed = 0;
  int64_t threads = 0;            ///< 0: all cores
  std::string dtype = "float32";  ///< or bfloat16: Autocast in training steps
  MemoryOptions memory;
  std::string init_from;  ///< run, checkpoint or model whose weights to start from
  std::string out;        ///< folder of the run
  std::string resume;     ///< `auto`, or a checkpoint of this run
  bool force = false;     ///< replace an existing run
  bool quiet = false;
  bool tensorboard = true;  ///< event files beside metrics.jsonl
};

struct TrainConfig {
  ModelConfig model;
  DataConfig data;
  OptimizerConfig optimizer;
  RunConfig run;

  /// Throws favor::Error naming the first field that is out of range.
  void check() const;

  BatchOptions batch_options() const;
  SplitOptions split_options() const;
  /// The names in run.eval_sets but `valid`, in their order. Throws favor::Error for others.
  std::vector<std::string> other_eval_sets() const;
};

/// What may be done with a field.
enum class FieldUse {
  kModel,  ///< part of the model's own config.json
  kFixed,  ///< shapes the course of the run: a resumed run must keep it
  kFree,   ///< stored, and may change when the run is resumed
  kCall,   ///< belongs to one call and is not stored
};

/// One field of TrainConfig, with its value as text (command line, help) and as JSON (files).
struct Field {
  std::string key;  ///< config key; the option's name has dashes for underscores
  std::string help;
  std::string group;  ///< heading in the help text
  std::string type;   ///< INT, FLOAT, TEXT, or the allowed words; empty for a switch
  FieldUse use = FieldUse::kFixed;
  bool optional = false;  ///< a model's config.json may lack it: older than the field
  std::function<std::string(const TrainConfig&)> text;
  std::function<void(TrainConfig&, std::string_view)> parse;  ///< throws favor::Error
  std::function<nlohmann::json(const TrainConfig&)> to_json;
  std::function<void(TrainConfig&, const nlohmann::json&)> from_json;  ///< throws favor::Error

  std::string option() const;  ///< "--max-steps"
};

/// Reads one value; `name` stands in the messages of favor::Error. Whole numbers may carry K, M or
/// G (thousands, millions, billions).
void parse_value(const std::string& name, std::string_view text, int64_t& value);
void parse_value(const std::string& name, std::string_view text, uint64_t& value);
void parse_value(const std::string& name, std::string_view text, double& value);

/// The shortest text that reads back as `value`.
std::string value_text(double value);

/// Every field, each once, in the order of the help text.
const std::vector<Field>& train_fields();

/// Null if there is no such key. Dashes count as underscores.
const Field* find_field(std::string_view key);

/// The candidate with the smallest edit distance to `word`.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

struct Preset {
  std::string name;
  std::string help;
  std::function<void(TrainConfig&)> apply;
};
const std::vector<Preset>& presets();

/// Applies a preset; returns the keys it sets. Throws favor::Error naming the nearest preset.
std::set<std::string> apply_preset(TrainConfig& config, std::string_view name);

/// Applies a flat JSON object; returns its keys. Throws favor::Error for an unknown key, naming the
/// nearest one, and for a value of the wrong type. `source` names the file in messages.
std::set<std::string> apply_json(TrainConfig& config, const nlohmann::json& json,
                                 const std::string& source);

/// All stored fields (not FieldUse::kCall) as one flat object.
nlohmann::json to_json(const TrainConfig& config);

/// A model's config.json: its fields, and the names by which other tools know it.
nlohmann::json to_json(const ModelConfig& config);

/// Reads what to_json(ModelConfig) wrote. Throws favor::Error for unknown or missing keys, or a
/// format version that this build does not know.
ModelConfig model_config_from_json(const nlohmann::json& json, const std::string& source);

/// One line per field, `key = value`, grouped: the echo at the start of a run.
std::string describe(const TrainConfig& config);

}  // namespace performer

#endif  // PERFORMER_TRAIN_CONFIG_H_
