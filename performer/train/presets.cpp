// SPDX-License-Identifier: Apache-2.0
// Named configurations to start from.
#include <cmath>

#include "favor/check.h"
#include "performer/train/config.h"
#include "performer/train/task.h"

namespace performer {
namespace {

// The paper's regular shape is what ModelConfig holds by default; smaller ones fit two cores.
void set_demo(TrainConfig& c) {
  c.model.dim = 128;
  c.model.num_layers = 4;
  c.model.num_heads = 4;
  c.model.ff_dim = 512;
  c.model.dropout = 0.0;
  c.model.positions = PositionKind::kRotary;
  c.model.attention.num_features = 64;
  c.data.length = 512;
  // Small steps: within minutes, their number counts for more than the noise of each.
  c.data.batch_tokens = 2048;
  c.optimizer.schedule = ScheduleKind::kCosine;
  c.optimizer.lr = 3e-3;
  c.optimizer.warmup_steps = 50;
  c.run.max_minutes = 3;
  c.run.log_interval = 20;
  c.run.eval_interval = 200;
  c.run.eval_tokens = 30000;
  c.run.save_interval = 500;
}

void set_small(TrainConfig& c) {
  c.model.dim = 512;
  c.model.num_layers = 6;
  c.model.num_heads = 8;
  c.model.ff_dim = 2048;
  c.model.max_length = 1024;
  c.data.length = 1024;
  c.data.batch_tokens = 8192;
  c.optimizer.accumulate = 4;
  c.model.attention.redraw_interval = 1000;
}

void set_36(TrainConfig& c) {
  set_small(c);
  c.model.num_layers = 36;
  c.model.ff_dim = 1024;
}

void set_task(TrainConfig& c, const char* name) {
  const Task& task = find_task(name);
  c.data.task = task.name;
  c.model.head = task.head;
  task.set_defaults(c);
}

// Small enough for minutes on two cores: learns the words of a language, not what they say.
void set_text_demo(TrainConfig& c) {
  set_task(c, "text");
  set_demo(c);
}

// Fashion-MNIST within minutes: clothes one can tell.
void set_pixels_demo(TrainConfig& c) {
  set_task(c, "pixels");
  set_demo(c);
  c.model.positions = PositionKind::kAxial;
  c.data.batch_tokens = 8 * 784;
  c.run.max_minutes = 10;
  c.run.test_tokens = 256 * 784;  // all 10,000 pictures would take longer than training
}

// The paper's model of ImageNet64: rows of 12,288 values.
void set_pixels_imagenet64(TrainConfig& c) {
  set_task(c, "pixels");
  set_small(c);
  c.data.image_size = 64;
  c.data.channels = 3;
  find_task(c.data.task).settle(c);
  c.data.batch_tokens = c.data.length;
  c.model.max_length = c.data.length;
  c.optimizer.accumulate = 16;
}

// The Long Range Arena's models and schedules; features are 256 where its Performers had 2.
void set_arena(TrainConfig& c, const char* task, int64_t length, int64_t layers, int64_t heads,
               int64_t dim, int64_t ff_dim) {
  set_task(c, task);
  c.model.num_layers = layers;
  c.model.num_heads = heads;
  c.model.dim = dim;
  c.model.ff_dim = ff_dim;
  c.model.attention.num_features = 256;
  c.model.max_length = length;
  c.data.length = length;
  c.optimizer.schedule = ScheduleKind::kRsqrt;
  c.optimizer.weight_decay = 0.1;
}

// The Arena writes its rate as lr / sqrt(step), the largest of which comes after warm-up.
double arena_rate(double lr, int64_t warmup_steps) {
  return lr / std::sqrt(double(warmup_steps));
}

void set_lra_listops(TrainConfig& c) {
  set_arena(c, "listops", 2000, 4, 8, 512, 1024);
  c.data.batch_tokens = 32 * 2000;
  c.optimizer.warmup_steps = 1000;
  c.optimizer.lr = arena_rate(0.05, 1000);
  c.run.max_steps = 5000;
}

void set_lra_text(TrainConfig& c) {
  set_arena(c, "documents", 4000, 4, 4, 256, 1024);
  c.data.batch_tokens = 32 * 4000;
  c.optimizer.warmup_steps = 8000;
  c.optimizer.lr = arena_rate(0.05, 8000);
  c.run.max_steps = 20000;
}

void set_lra_retrieval(TrainConfig& c) {
  set_arena(c, "retrieval", 4000, 4, 4, 128, 512);
  c.data.batch_tokens = 32 * 2 * 4000;
  c.optimizer.warmup_steps = 8000;
  c.optimizer.lr = arena_rate(0.05, 8000);
  c.run.max_steps = 5000;
}

void set_lra_pathfinder(TrainConfig& c) {
  set_arena(c, "pathfinder", 1024, 4, 8, 32, 32);
  c.model.dropout = 0.2;
  c.model.pooling = PoolingKind::kMean;
  c.model.positions = PositionKind::kSinusoidal;
  c.data.train_examples = 160000;
  c.data.test_examples = 20000;
  c.data.batch_tokens = 512 * 1024;
  c.optimizer.schedule = ScheduleKind::kCosine;
  c.optimizer.lr = 1e-3;
  c.run.max_steps = 62500;  // 200 epochs
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> list = {
      {"protein-demo", "small causal model: a result within minutes on two cores", set_demo},
      {"protein-small", "the paper's regular shape: 6 layers, 8 heads, 512 wide", set_small},
      {"protein-36", "the paper's protein model: 36 layers, 8 heads, 512 wide", set_36},
      {"text-demo", "small causal model of text: a result within minutes on two cores",
       set_text_demo},
      {"pixels-demo", "small model of 28 x 28 grey pixels: a result within minutes",
       set_pixels_demo},
      {"pixels-imagenet64", "6 layers, 512 wide, of 64 x 64 pixels in colour",
       set_pixels_imagenet64},
      {"lra-listops", "Long Range Arena's ListOps with 256 features", set_lra_listops},
      {"lra-text", "its byte-level documents, rows of 4,000", set_lra_text},
      {"lra-retrieval", "its pairs of documents, rows of 4,000", set_lra_retrieval},
      {"lra-pathfinder", "its Pathfinder of 32 x 32 pixels", set_lra_pathfinder},
  };
  return list;
}

std::set<std::string> apply_preset(TrainConfig& config, std::string_view name) {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    names.push_back(preset.name);
    if (preset.name != name) continue;
    // Applied to the defaults as well, so that a value equal to the default still counts as given.
    TrainConfig plain;
    preset.apply(plain);
    preset.apply(config);
    std::set<std::string> keys;
    for (const Field& field : train_fields()) {
      if (field.text(plain) != field.text(TrainConfig())) keys.insert(field.key);
    }
    return keys;
  }
  std::string words;
  for (const std::string& word : names) words += (words.empty() ? "" : ", ") + word;
  throw favor::Error(favor::message("--preset is '", name, "', expected one of ", words,
                                    " (did you mean ", nearest_name(name, names), "?)"));
}

}  // namespace performer
