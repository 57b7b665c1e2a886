// SPDX-License-Identifier: Apache-2.0
// Models and sequences for the tests of this folder.
#ifndef PERFORMER_INFER_TESTING_H_
#define PERFORMER_INFER_TESTING_H_

#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "favor/random.h"
#include "performer/models/models.h"

namespace performer {

/// Two layers 32 wide, learned positions up to 64 by default, random weights.
inline LanguageModel tiny_model(bool causal, PositionKind positions = PositionKind::kLearned) {
  ModelConfig config;
  config.causal = causal;
  config.dim = 32;
  config.num_layers = 2;
  config.num_heads = 2;
  config.ff_dim = 64;
  config.max_length = 64;
  config.positions = positions;
  config.attention.num_features = 16;
  torch::manual_seed(3);
  LanguageModel model(config);
  model->eval();
  return model;
}

/// Log-probabilities of constant_model, whatever it reads.
inline std::vector<double> constant_log_probabilities() {
  std::vector<double> values;
  double total = 0;
  for (int64_t id = 0; id < 29; ++id) {
    values.push_back(0.3 * static_cast<double>(id % 7) - 0.05 * static_cast<double>(id));
    total += std::exp(values.back());
  }
  for (double& value : values) value -= std::log(total);
  return values;
}

/// An output layer of zeros and a bias: the logits are the same everywhere.
inline LanguageModel constant_model(bool causal) {
  LanguageModel model = tiny_model(causal, PositionKind::kSinusoidal);
  const torch::NoGradGuard no_grad;
  auto parameters = model->named_parameters();
  parameters["output.weight"].zero_();
  const std::vector<double> values = constant_log_probabilities();
  for (int64_t id = 0; id < 29; ++id) parameters["output.bias"][id] = values[id];
  return model;
}

/// Ids of amino acids, a function of the length.
inline std::vector<uint8_t> random_residues(int64_t length) {
  favor::RandomStream random(11, static_cast<uint64_t>(length));
  std::vector<uint8_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<uint8_t>(random.below(20)));
  return ids;
}

}  // namespace performer

#endif  // PERFORMER_INFER_TESTING_H_
