// SPDX-License-Identifier: Apache-2.0
#include "performer/train/dry_run.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <string>
#include <vector>

#include "performer/models/models.h"
#include "performer/train/evaluate.h"
#include "performer/train/metrics.h"
#include "performer/train/workload.h"

namespace performer {
namespace {

TEST(DryRun, CountsTheParametersOfTheModel) {
  for (const bool flag : {false, true}) {
    for (const PositionKind positions :
         {PositionKind::kLearned, PositionKind::kRotary, PositionKind::kAxial}) {
      ModelConfig config;
      config.dim = 24;
      config.num_layers = 3;
      config.num_heads = 2;
      config.ff_dim = 40;
      config.max_length = 17;
      config.positions = positions;
      config.ff_glu = flag;
      config.tie_embeddings = flag;
      config.attention_bias = flag;
      config.attention.num_features = 8;
      LanguageModel model(config);
      ParameterCount expected;
      for (const auto& item : model->named_parameters()) {
        const std::string& name = item.key();
        const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
        int64_t& group = has("embed")                       ? expected.embedding
                         : has("attention") || has("norm1") ? expected.attention
                         : has("layers")                    ? expected.feed_forward
                                                            : expected.output;
        group += item.value().numel();
      }
      const ParameterCount count = count_parameters(config);
      EXPECT_EQ(count.embedding, expected.embedding);
      EXPECT_EQ(count.attention, expected.attention);
      EXPECT_EQ(count.feed_forward, expected.feed_forward);
      EXPECT_EQ(count.output, expected.output);
    }
  }
}

// Most memory held since the last reset_peak.
int64_t peak_since_reset() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stoll(line.substr(6));
  }
  return 0;
}

bool reset_peak() {
  ::malloc_trim(0);
  std::ofstream out("/proc/self/clear_refs");
  out << "5";
  out.close();
  return !out.fail() && peak_since_reset() < resident_bytes() + (8 << 20);
}

struct Case {
  const char* name;
  bool causal = false, glu = false, bfloat16 = false, reversible = false;
  AttentionMethod method = AttentionMethod::kFavor;
  PositionKind positions = PositionKind::kSinusoidal;
  double dropout = 0;
  MemoryOptions memory = {};
};

// The factor that estimate.h states.
void expect_estimates(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    TrainConfig config;
    config.model.dim = 128;
    config.model.num_layers = 4;
    config.model.num_heads = 2;
    config.model.ff_dim = 512;
    config.model.causal = one.causal;
    config.model.ff_glu = one.glu;
    config.model.positions = one.positions;
    config.model.dropout = one.dropout;
    config.model.attention.num_features = 64;
    config.model.attention.method = one.method;
    config.data.length = 512;
    config.data.batch_tokens = 4096;
    config.model.max_length = 512;
    if (one.bfloat16) config.run.dtype = "bfloat16";
    config.model.reversible = one.reversible;
    config.run.memory = one.memory;
    if (!reset_peak()) GTEST_SKIP() << "the kernel does not reset the peak";
    const int64_t before = resident_bytes();
    WorkOptions options;
    options.model = config.model;
    options.length = 512;
    options.batch = 8;
    options.bfloat16 = one.bfloat16;
    options.memory = one.memory;
    Workload workload(options);
    workload.run();
    workload.run();
    const auto measured = double(peak_since_reset() - before);
    const auto estimated = double(estimate_memory(config).total());
    EXPECT_GT(estimated, 50e6);
    EXPECT_LT(estimated, 1.5 * measured);
    EXPECT_GT(estimated, measured / 1.5);
    testing::Test::RecordProperty(one.name, std::to_string(estimated / measured));
    std::printf("%s: estimated %.1f MB, measured %.1f MB\n", one.name, estimated / 1e6,
                measured / 1e6);
  }
}

// The first test of this file, because an allocator that has grown keeps freed memory.
TEST(DryRun, EstimatedSavingsAreNearAMeasuredStep) {
  expect_estimates({
      {.name = "checkpoint",
       .causal = true,
       .glu = true,
       .dropout = 0.1,
       .memory = {.activation = ActivationPolicy::kCheckpoint}},
      {.name = "reversible", .causal = true, .reversible = true},
      {.name = "slices", .causal = true, .memory = {.slice_tokens = 128}},
      {.name = "chunks", .causal = true, .memory = {.ff_chunk = 512, .loss_chunk = 512}},
  });
}

TEST(DryRun, EstimatedMemoryIsNearAMeasuredStep) {
  expect_estimates({
      {.name = "masked", .positions = PositionKind::kLearned},
      {.name = "causal", .causal = true, .positions = PositionKind::kLearned, .dropout = 0.1},
      {.name = "glu, rotary",
       .causal = true,
       .glu = true,
       .positions = PositionKind::kRotary,
       .dropout = 0.1},
      {.name = "exact", .causal = true, .method = AttentionMethod::kExact, .dropout = 0.1},
      {.name = "bfloat16", .bfloat16 = true, .dropout = 0.1},
  });
}

TEST(DryRun, EstimatedMemoryCountsWhatMethodsKeep) {
  expect_estimates({
      {.name = "lsh", .method = AttentionMethod::kLsh},
      {.name = "clustered", .method = AttentionMethod::kClustered},
      {.name = "favor_clusters", .method = AttentionMethod::kFavorClusters},
      {.name = "centroids", .method = AttentionMethod::kCentroids},
      {.name = "window", .method = AttentionMethod::kWindow},
      {.name = "linformer", .method = AttentionMethod::kLinformer},
  });
}

// One row of as many tokens as it says, each to be predicted.
struct OneRow : EvalSource {
  explicit OneRow(int64_t tokens) : length(tokens) {}
  int64_t size() const override { return 1; }
  Batch batch(int64_t) const override {
    Batch batch;
    batch.rows = 1;
    batch.length = batch.num_tokens = batch.num_targets = length;
    for (int64_t i = 0; i < length; ++i) batch.tokens.push_back(i % 29);
    batch.targets = batch.tokens;
    batch.padding.assign(batch.tokens.size(), 0);
    return batch;
  }
  int64_t length;
};

TEST(DryRun, EvaluationInSlicesHoldsOneSlice) {
  ModelConfig config;
  config.dim = 64;
  config.num_layers = 2;
  config.num_heads = 2;
  config.ff_dim = 512;
  config.positions = PositionKind::kSinusoidal;
  config.attention.num_features = 16;
  LanguageModel model(config);
  const OneRow row(16384);
  const auto peak = [&](const MemoryOptions& memory) {
    model->set_memory(memory);
    if (!reset_peak()) return int64_t{0};
    const int64_t before = resident_bytes();
    evaluate(model, row);
    return peak_since_reset() - before;
  };
  peak({.slice_tokens = 1024});  // what a first pass leaves for good
  const int64_t slices = peak({.slice_tokens = 1024}), whole = peak({});
  if (whole == 0) GTEST_SKIP() << "the kernel does not reset the peak";
  EXPECT_GT(whole, 32 << 20);  // the hidden rows of one feed-forward
  EXPECT_LT(slices, whole / 3);
}

}  // namespace
}  // namespace performer
