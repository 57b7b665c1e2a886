// SPDX-License-Identifier: Apache-2.0
#include "performer/train/optimizer.h"

#include <memory>
#include <vector>

namespace performer {

torch::optim::AdamW make_optimizer(LanguageModel& model, const OptimizerConfig& config) {
  std::vector<torch::Tensor> decayed;
  std::vector<torch::Tensor> plain;
  for (const auto& item : model->named_parameters()) {
    const bool is_table = item.key().find("position") != std::string::npos;
    (item.value().dim() >= 2 && !is_table ? decayed : plain).push_back(item.value());
  }
  const auto options = [&](double weight_decay) {
    return std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(config.lr)
                                                            .betas({config.beta1, config.beta2})
                                                            .eps(config.adam_eps)
                                                            .weight_decay(weight_decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, options(config.weight_decay));
  groups.emplace_back(plain, options(0));
  return torch::optim::AdamW(groups, torch::optim::AdamWOptions(config.lr));
}

}  // namespace performer
