// SPDX-License-Identifier: Apache-2.0
#include "performer/train/optimizer.h"

#include <ATen/record_function.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "performer/train/adamw.h"

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

double gradient_norm(const torch::optim::AdamW& optimizer) {
  RECORD_USER_SCOPE("optimizer: gradient norm");
  double total = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      const torch::Tensor gradient = parameter.grad().contiguous();
      total += sum_of_squares(gradient.const_data_ptr<float>(), gradient.numel());
    }
  }
  return std::sqrt(total);
}

void clipped_step(torch::optim::AdamW& optimizer, double norm, double limit) {
  RECORD_USER_SCOPE("optimizer: step");
  const torch::NoGradGuard no_grad;
  const double factor = limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    for (torch::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& entry = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (entry == nullptr) {
        auto fresh = std::make_unique<torch::optim::AdamWParamState>();
        fresh->step(0);
        fresh->exp_avg(torch::zeros_like(parameter));
        fresh->exp_avg_sq(torch::zeros_like(parameter));
        entry = std::move(fresh);
      }
      auto& state = static_cast<torch::optim::AdamWParamState&>(*entry);
      state.step(state.step() + 1);
      const AdamWStep step(options.lr(), beta1, beta2, options.eps(), options.weight_decay(),
                           state.step(), factor);
      const torch::Tensor gradient = parameter.grad().contiguous();
      adamw_step(step, gradient.const_data_ptr<float>(), parameter.numel(),
                 parameter.mutable_data_ptr<float>(), state.exp_avg().mutable_data_ptr<float>(),
                 state.exp_avg_sq().mutable_data_ptr<float>());
      parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace performer
