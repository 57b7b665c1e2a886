// SPDX-License-Identifier: Apache-2.0
// The list of all fields of TrainConfig, and how each type of value is read and written.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "favor/check.h"
#include "performer/train/config.h"

namespace performer {
namespace {

using favor::message;

// Named enumerations: reading, and the words allowed.
template <class T>
struct Words;
template <>
struct Words<AttentionMethod> {
  static constexpr const char* kList =
      "favor|exact|linear|window|linformer|lsh|clustered|favor_clusters|centroids";
  static AttentionMethod read(std::string_view word) { return attention_method_from_string(word); }
};
template <>
struct Words<ActivationPolicy> {
  static constexpr const char* kList = "auto|store|checkpoint|reverse";
  static ActivationPolicy read(std::string_view word) {
    return activation_policy_from_string(word);
  }
};
template <>
struct Words<PositionKind> {
  static constexpr const char* kList = "learned|sinusoidal|rotary|axial";
  static PositionKind read(std::string_view word) { return position_kind_from_string(word); }
};
template <>
struct Words<HeadKind> {
  static constexpr const char* kList = "tokens|classes|pairs";
  static HeadKind read(std::string_view word) { return head_kind_from_string(word); }
};
template <>
struct Words<PoolingKind> {
  static constexpr const char* kList = "cls|mean";
  static PoolingKind read(std::string_view word) { return pooling_kind_from_string(word); }
};
template <>
struct Words<TextUnit> {
  static constexpr const char* kList = "bytes|characters|pieces";
  static TextUnit read(std::string_view word) { return text_unit_from_string(word); }
};
template <>
struct Words<favor::FeatureMapKind> {
  // Without those that are fitted to data, which a model does not keep.
  static constexpr const char* kList =
      "positive|hyperbolic|trig|relu|relu2|elu1|exp|sigmoid|softplus|gelu|abs|tanh|cos|sin|"
      "identity";
  static favor::FeatureMapKind read(std::string_view word) {
    return favor::feature_map_from_string(word);
  }
};
template <>
struct Words<favor::ProjectionKind> {
  static constexpr const char* kList = "iid|orthogonal|hadamard|givens|simplex";
  static favor::ProjectionKind read(std::string_view word) {
    return favor::projection_kind_from_string(word);
  }
};
template <>
struct Words<favor::RowNorm> {
  static constexpr const char* kList = "chi|sqrt_d";
  static favor::RowNorm read(std::string_view word) { return favor::row_norm_from_string(word); }
};
template <>
struct Words<ScheduleKind> {
  static constexpr const char* kList = "constant|cosine|rsqrt";
  static ScheduleKind read(std::string_view word) { return schedule_kind_from_string(word); }
};
template <>
struct Words<Windowing> {
  static constexpr const char* kList = "crop|concat|packed";
  static Windowing read(std::string_view word) { return windowing_from_string(word); }
};

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, bool>) return "";
  if constexpr (std::is_enum_v<T>) return Words<T>::kList;
  if constexpr (std::is_integral_v<T>) return "INT";
  if constexpr (std::is_floating_point_v<T>) return "FLOAT";
  return "TEXT";
}

template <class T>
std::string to_text(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_enum_v<T>) {
    return to_string(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return value_text(value);
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else {
    return value;
  }
}

// Whole numbers may carry K, M or G (thousands, millions, billions).
template <class T>
T parse_count(const std::string& key, std::string_view text) {
  std::string_view digits = text;
  T unit = 1;
  if (!digits.empty()) {
    switch (digits.back()) {
      case 'k':
      case 'K':
        unit = 1000;
        break;
      case 'm':
      case 'M':
        unit = 1000000;
        break;
      case 'g':
      case 'G':
        unit = 1000000000;
        break;
      default:
        break;
    }
    if (unit != 1) digits.remove_suffix(1);
  }
  T value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  FAVOR_CHECK(error == std::errc() && end == digits.data() + digits.size() && !digits.empty(), key,
              " is '", text, "', expected a whole number",
              std::is_unsigned_v<T> ? " of at least 0" : "", " (K, M and G are understood)");
  FAVOR_CHECK(value <= std::numeric_limits<T>::max() / unit &&
                  value >= std::numeric_limits<T>::min() / unit,
              key, " is '", text, "', expected a number of at most 64 bits");
  return value * unit;
}

template <class T>
void parse_text(const std::string& key, std::string_view text, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    FAVOR_CHECK(text == "true" || text == "false", key, " is '", text, "', expected true or false");
    value = text == "true";
  } else if constexpr (std::is_enum_v<T>) {
    try {
      value = Words<T>::read(text);
    } catch (const favor::Error&) {
      std::string words = Words<T>::kList;
      for (size_t at = 0; (at = words.find('|', at)) != std::string::npos;)
        words.replace(at, 1, " or ");
      throw favor::Error(message(key, " is '", text, "', expected ", words));
    }
  } else if constexpr (std::is_integral_v<T>) {
    value = parse_count<T>(key, text);
  } else if constexpr (std::is_floating_point_v<T>) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    FAVOR_CHECK(error == std::errc() && end == text.data() + text.size() && std::isfinite(value),
                key, " is '", text, "', expected a finite number");
  } else {
    value = text;
  }
}

template <class T>
void read_json(const std::string& key, const nlohmann::json& json, T& value) {
  if constexpr (std::is_enum_v<T>) {
    FAVOR_CHECK(json.is_string(), key, " is ", json.dump(), ", expected one of ", Words<T>::kList);
    parse_text(key, json.get<std::string>(), value);
  } else if constexpr (std::is_same_v<T, bool>) {
    FAVOR_CHECK(json.is_boolean(), key, " is ", json.dump(), ", expected true or false");
    value = json.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    const bool fits = std::is_unsigned_v<T> ? json.is_number_unsigned()
                                            : json.is_number_integer() &&
                                                  (!json.is_number_unsigned() ||
                                                   json.get<uint64_t>() <= uint64_t{INT64_MAX});
    FAVOR_CHECK(fits, key, " is ", json.dump(), ", expected a whole number");
    value = json.get<T>();
  } else if constexpr (std::is_floating_point_v<T>) {
    FAVOR_CHECK(json.is_number(), key, " is ", json.dump(), ", expected a number");
    value = json.get<T>();
  } else {
    FAVOR_CHECK(json.is_string(), key, " is ", json.dump(), ", expected a string");
    value = json.get<T>();
  }
}

class FieldList {
 public:
  std::vector<Field> take() { return std::move(fields_); }
  void group(std::string name) { group_ = std::move(name); }

  // `get` returns a reference to the field of the configuration it is given.
  template <class Get>
  void add(const char* key, FieldUse use, Get get, const char* help, bool optional = false) {
    using T = std::remove_reference_t<decltype(get(std::declval<TrainConfig&>()))>;
    Field field;
    field.key = key;
    field.help = help;
    field.group = group_;
    field.type = type_name<T>();
    field.use = use;
    field.optional = optional;
    const auto read = [get](const TrainConfig& config) -> const T& {
      return get(const_cast<TrainConfig&>(config));
    };
    field.text = [read](const TrainConfig& config) { return to_text(read(config)); };
    field.parse = [get, name = field.option()](TrainConfig& config, std::string_view text) {
      parse_text(name, text, get(config));
    };
    field.to_json = [read](const TrainConfig& config) -> nlohmann::json {
      if constexpr (std::is_enum_v<T>) {
        return to_string(read(config));
      } else {
        return read(config);
      }
    };
    field.from_json = [get, name = field.key](TrainConfig& config, const nlohmann::json& json) {
      read_json(name, json, get(config));
    };
    fields_.push_back(std::move(field));
  }

 private:
  std::vector<Field> fields_;
  std::string group_;
};

#define PERFORMER_FIELD(member)  \
  [](TrainConfig & c) -> auto& { \
    return c.member;             \
  }

std::vector<Field> make_fields() {
  constexpr auto kModel = FieldUse::kModel;
  constexpr auto kFixed = FieldUse::kFixed;
  constexpr auto kFree = FieldUse::kFree;
  constexpr auto kCall = FieldUse::kCall;
  constexpr bool kOptional = true;
  FieldList list;

  list.group("Data");
  list.add("task", kFixed, PERFORMER_FIELD(data.task), "what is read and predicted; see below");
  list.add("data", kFixed, PERFORMER_FIELD(data.data),
           "token file, or FASTA, .gz or not (task protein); - is standard input");
  list.add("length", kFixed, PERFORMER_FIELD(data.length), "tokens per row");
  list.add(
      "windowing", kFixed, PERFORMER_FIELD(data.windowing),
      "crop records; concat them to rows of equal length; or crop and keep them packed in one row");
  list.add("batch_tokens", kFixed, PERFORMER_FIELD(data.batch_tokens), "tokens per forward pass");
  list.add("mask_fraction", kFixed, PERFORMER_FIELD(data.mask_fraction),
           "share of letters to predict (models that are not causal)");
  list.add("valid_fraction", kFixed, PERFORMER_FIELD(data.valid_fraction),
           "share of the sequences to validate on");
  list.add("test_fraction", kFixed, PERFORMER_FIELD(data.test_fraction),
           "share of the sequences to test on");
  list.add("split_seed", kFixed, PERFORMER_FIELD(data.split_seed),
           "another seed, another division of the data");
  list.add("vocabulary", kFixed, PERFORMER_FIELD(data.vocabulary), "text: what it is cut into");
  list.add("num_pieces", kFixed, PERFORMER_FIELD(data.num_pieces),
           "text: pieces of a SentencePiece vocabulary to train");
  list.add("pieces_model", kFixed, PERFORMER_FIELD(data.pieces_model),
           "text: SentencePiece model file to use instead");
  list.add("train_examples", kFixed, PERFORMER_FIELD(data.train_examples),
           "examples per epoch of a task that generates them");
  list.add("test_examples", kFixed, PERFORMER_FIELD(data.test_examples),
           "examples of its validation and of its test set");
  list.add("num_symbols", kFixed, PERFORMER_FIELD(data.num_symbols),
           "copy, induction, recall: size of the alphabet");
  list.add("num_pairs", kFixed, PERFORMER_FIELD(data.num_pairs), "recall: keys with a value");
  list.add("contour_length", kFixed, PERFORMER_FIELD(data.contour_length),
           "pathfinder: paddles of a path");
  list.add("image_size", kFixed, PERFORMER_FIELD(data.image_size),
           "pathfinder, pixels, picture-classes: pixels of an edge");
  list.add("channels", kFixed, PERFORMER_FIELD(data.channels),
           "pixels, picture-classes: 1 grey, 3 red, green and blue");
  list.add("tile", kFixed, PERFORMER_FIELD(data.tile),
           "pixels: cut larger pictures of a folder into tiles of this size");

  list.group("Model");
  list.add("causal", kModel, PERFORMER_FIELD(model.causal),
           "next-token decoder; otherwise a masked-LM encoder");
  list.add("vocab_size", kModel, PERFORMER_FIELD(model.vocab_size), "number of token ids");
  list.add("dim", kModel, PERFORMER_FIELD(model.dim), "width");
  list.add("num_layers", kModel, PERFORMER_FIELD(model.num_layers), "depth");
  list.add("num_heads", kModel, PERFORMER_FIELD(model.num_heads),
           "attention heads; must divide dim");
  list.add("ff_dim", kModel, PERFORMER_FIELD(model.ff_dim), "hidden width of the feed-forward");
  list.add("ff_glu", kModel, PERFORMER_FIELD(model.ff_glu), "gated feed-forward");
  list.add("max_length", kModel, PERFORMER_FIELD(model.max_length),
           "rows of the learned position table; longest row of attention linformer");
  list.add("positions", kModel, PERFORMER_FIELD(model.positions), "position encoding");
  list.add("axial_rows", kModel, PERFORMER_FIELD(model.axial_rows),
           "positions axial: rows of a picture; tasks of pictures set the three", kOptional);
  list.add("axial_columns", kModel, PERFORMER_FIELD(model.axial_columns),
           "positions axial: columns of a picture", kOptional);
  list.add("axial_channels", kModel, PERFORMER_FIELD(model.axial_channels),
           "positions axial: values of a pixel", kOptional);
  list.add("tie_embeddings", kModel, PERFORMER_FIELD(model.tie_embeddings),
           "output layer shares the embedding");
  list.add("attention_bias", kModel, PERFORMER_FIELD(model.attention_bias),
           "biases in the attention projections");
  list.add("dropout", kModel, PERFORMER_FIELD(model.dropout), "dropout probability");
  list.add("reversible", kModel, PERFORMER_FIELD(model.reversible),
           "reversible layers: memory does not grow with depth", kOptional);
  list.add("head", kModel, PERFORMER_FIELD(model.head), "what is predicted; set by the task",
           kOptional);
  list.add("num_classes", kModel, PERFORMER_FIELD(model.num_classes), "set by the task", kOptional);
  list.add("pooling", kModel, PERFORMER_FIELD(model.pooling),
           "what a classifier sees of a row: its first token, or the mean of all", kOptional);

  list.group("Attention");
  list.add("attention", kModel, PERFORMER_FIELD(model.attention.method), "method");
  list.add("feature_map", kModel, PERFORMER_FIELD(model.attention.feature_map), "feature map");
  list.add("projection", kModel, PERFORMER_FIELD(model.attention.projection), "random rows");
  list.add("row_norm", kModel, PERFORMER_FIELD(model.attention.row_norm),
           "norms of the random rows");
  list.add("use_projection", kModel, PERFORMER_FIELD(model.attention.use_projection),
           "random matrix in the generalised feature maps");
  list.add("num_features", kModel, PERFORMER_FIELD(model.attention.num_features),
           "rows of the random matrix");
  list.add("per_head_projection", kModel, PERFORMER_FIELD(model.attention.per_head_projection),
           "one random matrix per head instead of one per layer");
  list.add("feature_eps", kModel, PERFORMER_FIELD(model.attention.feature_eps),
           "added to generalised features; negative: the map's default");
  list.add("projection_seed", kModel, PERFORMER_FIELD(model.attention.projection_seed),
           "seed of the random matrices");
  list.add("redraw_interval", kModel, PERFORMER_FIELD(model.attention.redraw_interval),
           "optimiser steps between two draws; 0 keeps the first");
  list.add("window", kModel, PERFORMER_FIELD(model.attention.window),
           "favor, centroids: tokens of a block of keys that are scored exactly; 0: none",
           kOptional);
  list.add("sinks", kModel, PERFORMER_FIELD(model.attention.sinks),
           "beside a window, first and last keys that every query sees", kOptional);
  list.add("local_heads", kModel, PERFORMER_FIELD(model.attention.local_heads),
           "heads of each layer with attention window instead", kOptional);
  list.add("local_window", kModel, PERFORMER_FIELD(model.attention.local_window),
           "window, local_heads: tokens of a block", kOptional);
  list.add("mixed_keys", kModel, PERFORMER_FIELD(model.attention.mixed_keys),
           "linformer: learned mixtures of keys", kOptional);
  list.add("hash_rounds", kModel, PERFORMER_FIELD(model.attention.hash_rounds),
           "lsh: hashes of each token", kOptional);
  list.add("hash_buckets", kModel, PERFORMER_FIELD(model.attention.hash_buckets),
           "lsh: values of a hash", kOptional);
  list.add("bucket_block", kModel, PERFORMER_FIELD(model.attention.bucket_block),
           "lsh: tokens of a block of a bucket", kOptional);
  list.add("num_clusters", kModel, PERFORMER_FIELD(model.attention.num_clusters),
           "clustered, favor_clusters, centroids: clusters of a head", kOptional);
  list.add("cluster_iterations", kModel, PERFORMER_FIELD(model.attention.cluster_iterations),
           "clustered, favor_clusters, centroids: rounds of k-means", kOptional);
  list.add("cluster_top", kModel, PERFORMER_FIELD(model.attention.cluster_top),
           "clustered: keys scored for each query; 0: none", kOptional);

  list.group("Optimiser");
  list.add("lr", kFixed, PERFORMER_FIELD(optimizer.lr), "largest learning rate");
  list.add("beta1", kFixed, PERFORMER_FIELD(optimizer.beta1), "decay of the mean gradient");
  list.add("beta2", kFixed, PERFORMER_FIELD(optimizer.beta2), "decay of the mean square");
  list.add("adam_eps", kFixed, PERFORMER_FIELD(optimizer.adam_eps), "epsilon of the division");
  list.add("weight_decay", kFixed, PERFORMER_FIELD(optimizer.weight_decay),
           "decoupled decay of the matrices");
  list.add("clip", kFixed, PERFORMER_FIELD(optimizer.clip), "largest gradient norm; 0: no limit");
  list.add("accumulate", kFixed, PERFORMER_FIELD(optimizer.accumulate), "forward passes per step");
  list.add("schedule", kFixed, PERFORMER_FIELD(optimizer.schedule), "learning rate after warm-up");
  list.add("warmup_steps", kFixed, PERFORMER_FIELD(optimizer.warmup_steps),
           "steps of linear warm-up");
  list.add("min_lr_fraction", kFixed, PERFORMER_FIELD(optimizer.min_lr_fraction),
           "where the cosine ends, as a fraction of lr");

  list.group("Run");
  list.add("out", kCall, PERFORMER_FIELD(run.out), "folder of the run");
  list.add("max_steps", kFree, PERFORMER_FIELD(run.max_steps),
           "optimiser steps; 0 evaluates and saves at once");
  list.add("max_minutes", kFree, PERFORMER_FIELD(run.max_minutes),
           "stop after this time as well; 0: no limit");
  list.add("log_interval", kFree, PERFORMER_FIELD(run.log_interval), "steps per line of metrics");
  list.add("eval_interval", kFree, PERFORMER_FIELD(run.eval_interval),
           "steps per evaluation; 0: at the end only");
  list.add("eval_tokens", kFree, PERFORMER_FIELD(run.eval_tokens),
           "validation tokens per evaluation; 0: all");
  list.add("test_tokens", kFree, PERFORMER_FIELD(run.test_tokens),
           "test tokens at the end; 0: all");
  list.add("eval_sets", kFree, PERFORMER_FIELD(run.eval_sets),
           "sets to evaluate, with commas: valid (always), ood (of token files), train");
  list.add("patience", kFree, PERFORMER_FIELD(run.patience),
           "stop after so many evaluations without a lower validation loss; 0: never");
  list.add("diagnostics_interval", kFree, PERFORMER_FIELD(run.diagnostics_interval),
           "steps per diagnosis of the layers; 0: none, -1: as eval_interval");
  list.add("save_interval", kFree, PERFORMER_FIELD(run.save_interval),
           "steps per checkpoint; 0: at the end only");
  list.add("keep_checkpoints", kFree, PERFORMER_FIELD(run.keep_checkpoints),
           "newest checkpoints to keep, beside the best");
  list.add("seed", kFixed, PERFORMER_FIELD(run.seed), "of weights, order, dropout and matrices");
  list.add("threads", kFree, PERFORMER_FIELD(run.threads), "0: all cores");
  list.add("dtype", kFixed, PERFORMER_FIELD(run.dtype),
           "float32, or bfloat16 for products (weights, sums and evaluations stay float32)");
  list.add("activation", kFixed, PERFORMER_FIELD(run.memory.activation),
           "what a forward pass keeps of a block: all, its input, or nothing (reversible models)");
  list.add("ff_chunk", kFixed, PERFORMER_FIELD(run.memory.ff_chunk),
           "tokens in the feed-forward at a time; 0: all");
  list.add("loss_chunk", kFixed, PERFORMER_FIELD(run.memory.loss_chunk),
           "tokens whose logits are held at a time; 0: all");
  list.add("slice_tokens", kFixed, PERFORMER_FIELD(run.memory.slice_tokens),
           "tokens of a row that go through all layers at a time (causal favor); 0: all");
  list.add("init_from", kFixed, PERFORMER_FIELD(run.init_from),
           "run, checkpoint or model to take the weights from");
  list.add("tensorboard", kFree, PERFORMER_FIELD(run.tensorboard),
           "write event files for TensorBoard into tensorboard/");
  list.add("resume", kCall, PERFORMER_FIELD(run.resume),
           "auto, or a checkpoint of this run to continue bit for bit");
  list.add("force", kCall, PERFORMER_FIELD(run.force), "replace an existing run");
  list.add("quiet", kCall, PERFORMER_FIELD(run.quiet), "no progress, no echo");
  return list.take();
}

#undef PERFORMER_FIELD

}  // namespace

void parse_value(const std::string& name, std::string_view text, int64_t& value) {
  parse_text(name, text, value);
}

void parse_value(const std::string& name, std::string_view text, uint64_t& value) {
  parse_text(name, text, value);
}

void parse_value(const std::string& name, std::string_view text, double& value) {
  parse_text(name, text, value);
}

std::string value_text(double value) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, result.ptr};
}

std::string Field::option() const {
  std::string name = "--" + key;
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

const std::vector<Field>& train_fields() {
  static const std::vector<Field> fields = make_fields();
  return fields;
}

}  // namespace performer
