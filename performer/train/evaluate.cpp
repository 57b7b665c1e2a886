// SPDX-License-Identifier: Apache-2.0
#include "performer/train/evaluate.h"

#include <torch/types.h>

#include <cmath>

#include "favor/check.h"

namespace performer {

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
    const torch::Tensor logits = model->forward(tensors.tokens, tensors.layout);
    loss += summed_loss(logits, tensors.targets).item<double>();
    // A place without target holds -1, which no argmax equals.
    correct += logits.argmax(-1).eq(tensors.targets).sum().item<int64_t>();
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
