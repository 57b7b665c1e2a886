// SPDX-License-Identifier: Apache-2.0
#include "performer/train/evaluate.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "favor/check.h"

namespace performer {
namespace {

using torch::Tensor;
using Visit = std::function<void(const Tensor& logits, const Tensor& targets)>;

// Logits of hidden states, memory().loss_chunk of them at a time.
void visit_logits(LanguageModel& model, const Tensor& hidden, const Tensor& targets,
                  const Visit& visit) {
  const int64_t chunk = model->memory().loss_chunk;
  if (chunk <= 0 || targets.numel() <= chunk) return visit(model->logits(hidden), targets);
  const TensorList rows = hidden.flatten(0, 1).split(chunk);
  const TensorList wanted = targets.flatten().split(chunk);
  for (size_t i = 0; i < rows.size(); ++i) {
    visit(model->logits(rows[i]).unsqueeze(0), wanted[i].unsqueeze(0));
  }
}

// The logits of a batch, as many at a time as the model's memory options allow.
void visit_logits(LanguageModel& model, const BatchTensors& batch, const Visit& visit) {
  if (model->config().head != HeadKind::kTokens) {
    return visit(model->forward(batch.tokens, batch.layout), batch.targets);
  }
  const int64_t L = batch.tokens.size(1), C = model->memory().slice_tokens;
  if (C <= 0 || L <= C) {
    return visit_logits(model, model->hidden(batch.tokens, batch.layout), batch.targets, visit);
  }
  std::vector<SliceState> states;
  for (int64_t begin = 0; begin < L; begin += C) {
    const int64_t end = std::min(L, begin + C);
    visit_logits(model, model->hidden_slice(batch.tokens, batch.layout, begin, end, states),
                 batch.targets.slice(1, begin, end), visit);
  }
}

}  // namespace

BatchTensors to_tensors(const Batch& batch, bool causal) {
  const std::vector<int64_t> shape = {batch.rows, batch.length};
  // The tensors are only read; from_blob has no read-only form.
  const auto view = [&](const void* data, torch::ScalarType type) {
    return torch::from_blob(const_cast<void*>(data), shape, type);
  };
  BatchTensors tensors;
  tensors.tokens = view(batch.tokens.data(), torch::kInt64);
  const std::vector<int64_t> target_shape =
      batch.classes ? std::vector<int64_t>{std::ssize(batch.targets), 1} : shape;
  tensors.targets =
      torch::from_blob(const_cast<int64_t*>(batch.targets.data()), target_shape, torch::kInt64);
  if (!batch.cu_seqlens.empty()) {
    tensors.layout.cu_seqlens =
        torch::from_blob(const_cast<int64_t*>(batch.cu_seqlens.data()),
                         {static_cast<int64_t>(batch.cu_seqlens.size())}, torch::kInt64);
  }
  // Padding stands at the end of a row, where no earlier position of a causal model sees it.
  if (!causal && batch.num_tokens < batch.rows * batch.length) {
    tensors.layout.key_padding_mask = view(batch.padding.data(), torch::kBool);
  }
  return tensors;
}

torch::Tensor summed_loss(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(logits.flatten(0, 1).to(torch::kFloat), targets.flatten(), {},
                                   torch::Reduction::Sum, /*ignore_index=*/-1);
}

EvalScore evaluate(LanguageModel& model, const EvalSource& batches,
                   const std::vector<Unit>& units) {
  torch::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  model->eval();
  EvalScore score;
  double loss = 0;
  int64_t correct = 0;
  std::vector<double> unit_counts(units.size(), 0);
  for (int64_t i = 0; i < batches.size(); ++i) {
    const Batch batch = batches.batch(i);
    if (batch.num_targets == 0) continue;
    const BatchTensors tensors = to_tensors(batch, model->config().causal);
    visit_logits(model, tensors, [&](const Tensor& logits, const Tensor& targets) {
      loss += summed_loss(logits, targets).item<double>();
      // A place without target holds -1, which no argmax equals.
      correct += logits.argmax(-1).eq(targets).sum().item<int64_t>();
    });
    score.num_targets += batch.num_targets;
    for (size_t u = 0; u < units.size(); ++u) {
      for (const int64_t target : batch.targets) {
        if (target < 0) continue;
        unit_counts[u] += units[u].per_target.empty()
                              ? units[u].ratio
                              : units[u].per_target[static_cast<size_t>(target)];
      }
    }
  }
  model->train(was_training);
  FAVOR_CHECK(score.num_targets > 0, "evaluate: the data holds no target, expected at least one");
  score.loss = loss / double(score.num_targets);
  score.perplexity = std::exp(score.loss);
  score.accuracy = double(correct) / double(score.num_targets);
  for (size_t u = 0; u < units.size(); ++u) {
    const double per_target = unit_counts[u] / double(score.num_targets);
    score.units.push_back({units[u].name, in_unit(units[u], score.loss, per_target), per_target});
  }
  return score;
}

}  // namespace performer
