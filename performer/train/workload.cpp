// SPDX-License-Identifier: Apache-2.0
#include "performer/train/workload.h"

#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "favor/check.h"
#include "performer/models/large_pages.h"
#include "performer/models/models.h"
#include "performer/nn/autocast.h"
#include "performer/train/adamw.h"
#include "performer/train/freed_memory.h"
#include "performer/train/optimizer.h"
#include "performer/train/step.h"

namespace performer {

std::string to_string(WorkKind kind) {
  switch (kind) {
    case WorkKind::kTrain:
      return "train";
    case WorkKind::kEncode:
      return "encode";
    case WorkKind::kGenerate:
      return "generate";
  }
  return "?";
}

WorkKind work_kind_from_string(std::string_view word) {
  for (const WorkKind kind : {WorkKind::kTrain, WorkKind::kEncode, WorkKind::kGenerate}) {
    if (word == to_string(kind)) return kind;
  }
  throw favor::Error(favor::message("mode is '", word, "', expected train, encode or generate"));
}

void WorkOptions::check() const {
  model.check();
  memory.check(model);
  FAVOR_CHECK(length >= 1, "length is ", length, ", expected at least 1");
  FAVOR_CHECK(batch >= 1, "batch is ", batch, ", expected at least 1");
  FAVOR_CHECK(kind != WorkKind::kGenerate || model.causal,
              "causal is false, expected true (to generate)");
}

struct Workload::Parts {
  explicit Parts(const WorkOptions& given) : options(given), model(given.model) {}

  WorkOptions options;
  LanguageModel model;
  std::optional<torch::optim::AdamW> optimizer;
  torch::Tensor tokens;   // [batch, length], of generation [batch, 1]
  torch::Tensor targets;  // likewise
  DecoderState state;
};

Workload::Workload(const WorkOptions& options) {
  options.check();
  torch::manual_seed(0);
  parts_ = std::make_unique<Parts>(options);
  Parts& parts = *parts_;
  const auto draw = [&](int64_t length) {
    return torch::randint(options.model.vocab_size, {options.batch, length}, torch::kInt64);
  };
  const bool training = options.kind == WorkKind::kTrain;
  parts.model->train(training);
  parts.model->set_memory(options.memory);
  if (training) give_back_freed_memory(options.memory, options.model);
  if (training) parts.optimizer.emplace(make_optimizer(parts.model, OptimizerConfig()));
  if (options.kind != WorkKind::kGenerate) {
    parts.tokens = draw(options.length);
    parts.targets = draw(options.length);
    if (options.model.head != HeadKind::kTokens) {
      const int64_t rows =
          options.model.head == HeadKind::kPairs ? options.batch / 2 : options.batch;
      parts.targets = torch::randint(options.model.num_classes, {rows, 1}, torch::kInt64);
    }
    return;
  }
  move_to_large_pages(*parts.model);
  const Autocast autocast(options.bfloat16);
  // Pieces bound the memory of activations, whatever the length.
  constexpr int64_t kPiece = 4096;
  for (int64_t at = 0; at < options.length; at += kPiece) {
    parts.model->decode(draw(std::min(kPiece, options.length - at)), parts.state);
  }
  parts.tokens = draw(1);
}

Workload::~Workload() = default;

int64_t Workload::tokens() const {
  return parts_->tokens.numel();
}

void Workload::run() {
  Parts& parts = *parts_;
  if (parts.options.kind == WorkKind::kTrain) {
    parts.optimizer->zero_grad();
    const BatchTensors batch = {parts.tokens, parts.targets, {}};
    add_gradients(parts.model, batch, double(tokens()), parts.options.bfloat16);
    clipped_step(*parts.optimizer, gradient_norm(*parts.optimizer), 1.0);
    return;
  }
  const torch::NoGradGuard no_grad;
  const Autocast autocast(parts.options.bfloat16);
  if (parts.options.kind == WorkKind::kEncode) {
    parts.model->forward(parts.tokens);
  } else {
    parts.model->decode(parts.tokens, parts.state);
  }
}

double Workload::read_s() const {
  Parts& parts = *parts_;
  volatile double observed = 0;  // or nothing would have to be read
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 50; ++i) {
    const auto start = std::chrono::steady_clock::now();
    double total = 0;
    const auto read = [&](const torch::Tensor& tensor) {
      if (tensor.scalar_type() == torch::kFloat && tensor.is_contiguous()) {
        total += sum_of_squares(tensor.const_data_ptr<float>(), tensor.numel());
      }
    };
    for (const torch::Tensor& parameter : parts.model->parameters()) read(parameter);
    for (const torch::Tensor& matrix : parts.model->buffers()) read(matrix);
    for (AttentionState& layer : parts.state.layers) {
      for (HeadsState& group : layer.groups) {
        for (const StateArray& array : state_arrays(group)) {
          // Rests and hot tokens are small, or read now and then.
          if (array.optional) continue;
          if (array.values == nullptr) {
            read(*array.tensor);
          } else {
            total += sum_of_squares(array.values->data(), std::ssize(*array.values));
          }
        }
      }
    }
    observed = observed + total;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    best = std::min(best, spent.count());
  }
  return best;
}

}  // namespace performer
