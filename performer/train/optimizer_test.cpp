// SPDX-License-Identifier: Apache-2.0
// The fused optimiser step beside torch's own.
#include "performer/train/optimizer.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/torch.h>

#include <limits>
#include <memory>

#include "performer/infer/testing.h"
#include "performer/nn/testing.h"

namespace performer {
namespace {

using torch::Tensor;

void set_gradients(LanguageModel& model, int64_t seed, double scale) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  for (Tensor& parameter : model->parameters()) {
    parameter.mutable_grad() = torch::randn_like(parameter) * scale;
  }
}

TEST(Optimizer, ClippedStepEqualsTorchs) {
  OptimizerConfig config;
  config.weight_decay = 0.1;
  config.lr = 0.01;
  for (const double limit : {0.0, 0.5, 1e6}) {
    SCOPED_TRACE(limit);
    LanguageModel ours = tiny_model(/*causal=*/true), theirs = tiny_model(/*causal=*/true);
    auto fused = make_optimizer(ours, config), plain = make_optimizer(theirs, config);
    for (int64_t t = 0; t < 4; ++t) {
      set_gradients(ours, t, 0.1);
      set_gradients(theirs, t, 0.1);
      // A parameter that no loss reached is left alone.
      if (t == 0) {
        ours->parameters()[2].mutable_grad() = Tensor();
        theirs->parameters()[2].mutable_grad() = Tensor();
      }
      // Gradients that autograd left transposed.
      const Tensor turned = ours->parameters()[0].grad().t().contiguous().t();
      ours->parameters()[0].mutable_grad() = turned;
      const double norm = gradient_norm(fused);
      const double expected = torch::nn::utils::clip_grad_norm_(
          theirs->parameters(), limit > 0 ? limit : std::numeric_limits<float>::max());
      EXPECT_NEAR(norm, expected, 1e-5 * expected);
      clipped_step(fused, norm, limit);
      plain.step();
      for (size_t i = 0; i < ours->parameters().size(); ++i) {
        EXPECT_LT(distance(ours->parameters()[i], theirs->parameters()[i]), 2e-6) << i;
      }
    }
    for (size_t i = 0; i < ours->parameters().size(); ++i) {
      const auto state_of = [&](torch::optim::AdamW& optimizer, const LanguageModel& model) {
        return static_cast<const torch::optim::AdamWParamState*>(
            optimizer.state().at(model->parameters()[i].unsafeGetTensorImpl()).get());
      };
      const auto *a = state_of(fused, ours), *b = state_of(plain, theirs);
      EXPECT_EQ(a->step(), b->step());
      EXPECT_LT(distance(a->exp_avg(), b->exp_avg()), 1e-6);
      EXPECT_LT(distance(a->exp_avg_sq(), b->exp_avg_sq()), 1e-6);
    }
  }
}

TEST(Optimizer, StepsLetAutogradKnow) {
  LanguageModel model = tiny_model(/*causal=*/true);
  auto optimizer = make_optimizer(model, OptimizerConfig());
  set_gradients(model, 1, 1.0);
  const Tensor weight = model->named_parameters()["output.weight"];
  const auto before = weight._version();
  clipped_step(optimizer, gradient_norm(optimizer), 1.0);
  EXPECT_GT(weight._version(), before);
}

}  // namespace
}  // namespace performer
