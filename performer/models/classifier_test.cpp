// SPDX-License-Identifier: Apache-2.0
#include "performer/models/classifier.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "favor/check.h"
#include "performer/models/models.h"

namespace performer {
namespace {

using torch::Tensor;

ModelConfig small(HeadKind head, PoolingKind pooling) {
  ModelConfig config;
  config.causal = false;
  config.vocab_size = 11;
  config.dim = 16;
  config.num_layers = 1;
  config.num_heads = 2;
  config.ff_dim = 24;
  config.max_length = 12;
  config.dropout = 0;
  config.attention.num_features = 8;
  config.head = head;
  config.num_classes = 3;
  config.pooling = pooling;
  return config;
}

TEST(Pool, TakesTheFirstTokenOrTheMeanOfThoseThatCount) {
  Tensor hidden = torch::arange(24, torch::kFloat).view({2, 3, 4});
  BatchLayout layout;
  EXPECT_TRUE(torch::equal(pool(hidden, layout, PoolingKind::kCls), hidden.select(1, 0)));
  EXPECT_TRUE(torch::allclose(pool(hidden, layout, PoolingKind::kMean), hidden.mean(1)));
  layout.key_padding_mask = torch::tensor({{false, false, true}, {false, false, false}});
  hidden[0][2].fill_(std::numeric_limits<float>::quiet_NaN());
  const Tensor mean = pool(hidden, layout, PoolingKind::kMean);
  EXPECT_TRUE(torch::allclose(mean[0], hidden[0].slice(0, 0, 2).mean(0)));
  EXPECT_TRUE(torch::allclose(mean[1], hidden[1].mean(0)));
}

TEST(Classifier, HeadIsTheWrittenFormula) {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  ClassifierHead one(small(HeadKind::kClasses, PoolingKind::kMean));
  ClassifierHead two(small(HeadKind::kPairs, PoolingKind::kMean));
  const Tensor hidden = torch::randn({4, 5, 16});
  const Tensor x = hidden.mean(1);
  const auto apply = [](torch::nn::Module& head, const Tensor& input) {
    const auto p = head.named_parameters();
    const Tensor up = input.matmul(p["up.weight"].t()) + p["up.bias"];
    return up.clamp_min(0).matmul(p["down.weight"].t()) + p["down.bias"];
  };
  const Tensor classes = one->forward(hidden, {});
  EXPECT_EQ(classes.sizes(), (std::vector<int64_t>{4, 1, 3}));
  EXPECT_TRUE(torch::allclose(classes.squeeze(1), apply(*one, x), 1e-5, 1e-6));
  const Tensor a = x.index_select(0, torch::tensor({0, 2}));
  const Tensor b = x.index_select(0, torch::tensor({1, 3}));
  const Tensor pairs = two->forward(hidden, {});
  EXPECT_EQ(pairs.sizes(), (std::vector<int64_t>{2, 1, 3}));
  EXPECT_TRUE(torch::allclose(pairs.squeeze(1), apply(*two, torch::cat({a, b, a * b, a - b}, 1)),
                              1e-5, 1e-6));
}

TEST(Classifier, PaddingChangesNothing) {
  for (const PoolingKind pooling : {PoolingKind::kCls, PoolingKind::kMean}) {
    torch::manual_seed(2);
    LanguageModel model(small(HeadKind::kClasses, pooling));
    model->eval();
    const torch::NoGradGuard no_grad;
    const Tensor tokens = torch::randint(11, {1, 7}, torch::kInt64);
    const Tensor alone = model->forward(tokens);
    const Tensor padded = torch::cat({tokens, torch::full({1, 5}, 3, torch::kInt64)}, 1);
    BatchLayout layout;
    layout.key_padding_mask = torch::arange(12).ge(7).unsqueeze(0);
    EXPECT_TRUE(torch::allclose(model->forward(padded, layout), alone, 1e-4, 1e-5));
    EXPECT_FALSE(torch::allclose(model->forward(padded), alone, 1e-4, 1e-5));
  }
}

TEST(Classifier, RefusesWhatItCannotDo) {
  const auto error = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const favor::Error& caught) {
      return caught.what();
    }
    return "no error";
  };
  ModelConfig config = small(HeadKind::kClasses, PoolingKind::kCls);
  config.num_classes = 1;
  EXPECT_EQ(error([&] { LanguageModel{config}; }),
            "config: num_classes is 1, expected at least 2 with head classes");
  config = small(HeadKind::kClasses, PoolingKind::kCls);
  config.causal = true;
  EXPECT_NE(error([&] { LanguageModel{config}; }).find("causal is true, expected false"),
            std::string::npos);
  LanguageModel pairs(small(HeadKind::kPairs, PoolingKind::kCls));
  EXPECT_EQ(error([&] {
              pairs->forward(torch::zeros({3, 4}, torch::kInt64));
            }),
            "classifier: there are 3 rows, expected an even number (pairs)");
  BatchLayout packed;
  packed.cu_seqlens = torch::tensor({0, 2, 4}, torch::kInt64);
  LanguageModel classes(small(HeadKind::kClasses, PoolingKind::kCls));
  EXPECT_NE(error([&] {
              classes->forward(torch::zeros({1, 4}, torch::kInt64), packed);
            }).find("rows are packed"),
            std::string::npos);
}

}  // namespace
}  // namespace performer
