// SPDX-License-Identifier: Apache-2.0
#include "performer/train/diagnose.h"

#include <torch/types.h>

#include <cmath>
#include <cstdio>

#include "favor/check.h"

namespace performer {
namespace {

// Sequences of the first batches, each by itself and without padding.
std::vector<std::vector<int64_t>> sample_rows(const EvalSource& batches) {
  constexpr size_t kRows = 8;
  constexpr int64_t kShortest = 2;
  std::vector<std::vector<int64_t>> rows;
  for (int64_t i = 0; i < batches.size() && rows.size() < kRows; ++i) {
    const Batch batch = batches.batch(i);
    const auto add = [&](int64_t begin, int64_t end) {
      if (end - begin < kShortest || rows.size() == kRows) return;
      rows.emplace_back(batch.tokens.begin() + begin, batch.tokens.begin() + end);
    };
    for (size_t n = 0; n + 1 < batch.cu_seqlens.size(); ++n) {
      add(batch.cu_seqlens[n], batch.cu_seqlens[n + 1]);
    }
    if (!batch.cu_seqlens.empty()) continue;
    for (int64_t row = 0; row < batch.rows; ++row) {
      const int64_t begin = row * batch.length;
      int64_t end = begin + batch.length;
      while (end > begin && batch.padding[static_cast<size_t>(end - 1)] != 0) --end;
      add(begin, end);
    }
  }
  return rows;
}

void add(LayerMetrics& sum, const AttentionDiagnostics& one, double share) {
  AttentionDiagnostics& total = sum.diagnostics;
  total.query_norm += share * one.query_norm;
  total.key_norm += share * one.key_norm;
  if (one.relative_variance) {
    total.relative_variance = total.relative_variance.value_or(0) + share * *one.relative_variance;
  }
  total.output_error += share * one.output_error;
  total.uniform_error += share * one.uniform_error;
  total.uniform_distance += share * one.uniform_distance;
}

}  // namespace

std::vector<LayerMetrics> diagnose(LanguageModel& model, const EvalSource& batches, int64_t step) {
  if (model->config().attention.method != AttentionMethod::kFavor) return {};
  std::vector<LayerMetrics> layers(static_cast<size_t>(model->config().num_layers));
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].step = step;
    layers[i].layer = static_cast<int64_t>(i);
  }
  std::vector<std::vector<int64_t>> rows = sample_rows(batches);
  if (rows.empty()) return {};
  for (std::vector<int64_t>& row : rows) {
    const torch::Tensor tokens = torch::from_blob(row.data(), {1, std::ssize(row)}, torch::kInt64);
    model->diagnose(tokens, [&](int64_t layer, const AttentionDiagnostics& one) {
      add(layers[static_cast<size_t>(layer)], one, 1.0 / double(rows.size()));
    });
  }
  return layers;
}

std::string collapse_warning(const LayerMetrics& metrics, const AttentionOptions& attention) {
  const AttentionDiagnostics& values = metrics.diagnostics;
  // Attention that is flat itself loses nothing.
  constexpr double kFlat = 0.1;
  // So much nearer to the mean than exact attention is.
  constexpr double kCollapsed = 0.1;
  if (!values.relative_variance || !(values.uniform_error > kFlat)) return "";
  const bool collapsed = values.uniform_distance < kCollapsed * values.uniform_error;
  if (!collapsed && values.output_error < values.uniform_error) return "";
  char numbers[200];
  std::snprintf(numbers, sizeof numbers,
                "against exact attention its output is off by %.2g, the plain mean of the values "
                "by %.2g (norms of q and k: %.2g, %.2g; relative variance: %.2g)",
                values.output_error, values.uniform_error, values.query_norm, values.key_norm,
                *values.relative_variance);
  return favor::message("warning: layer ", metrics.layer, " at step ", metrics.step,
                        ": the random features ",
                        collapsed ? "have collapsed to" : "are no better than",
                        " uniform attention: ", numbers, "; more than ", attention.num_features,
                        " features or smaller norms (weight decay, learning rate) would help");
}

}  // namespace performer
