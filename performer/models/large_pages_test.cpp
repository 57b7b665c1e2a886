// SPDX-License-Identifier: Apache-2.0
#include "performer/models/large_pages.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "performer/models/models.h"

namespace performer {
namespace {

using torch::Tensor;

// 2.4 MB of weights.
ModelConfig wide_config() {
  ModelConfig config;
  config.vocab_size = 11;
  config.dim = 192;
  config.num_layers = 2;
  config.num_heads = 3;
  config.ff_dim = 384;
  config.causal = true;
  config.tie_embeddings = true;
  config.attention.num_features = 40;
  return config;
}

std::vector<Tensor> tensors_of(LanguageModel& model) {
  std::vector<Tensor> tensors = model->parameters();
  for (const Tensor& buffer : model->buffers()) tensors.push_back(buffer);
  return tensors;
}

TEST(LargePages, TensorsKeepTheirValuesAndShareOneBlock) {
  torch::manual_seed(1);
  LanguageModel model(wide_config());
  std::vector<Tensor> before;
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors_of(model)) {
    before.push_back(tensor.detach().clone());
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  ASSERT_GT(bytes, 2 << 20);
  move_to_large_pages(*model);
  const std::vector<Tensor> after = tensors_of(model);
  ASSERT_EQ(after.size(), before.size());
  std::vector<const char*> places;
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(torch::equal(after[i], before[i])) << i;
    EXPECT_EQ(after[i].dtype(), before[i].dtype()) << i;
    places.push_back(static_cast<const char*>(after[i].const_data_ptr()));
  }
#ifdef __linux__
  const auto [first, last] = std::minmax_element(places.begin(), places.end());
  EXPECT_LE(*last - *first, bytes + 64 * std::ssize(places));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*first) % (2 << 20), 0U);
#endif
}

// The parameters stay the same leaves: gradients and optimisers find them.
TEST(LargePages, MovedModelsDecodeAndTrainAsBefore) {
  torch::manual_seed(1);
  LanguageModel model(wide_config());
  const Tensor tokens = torch::randint(11, {1, 20});
  const auto decode = [&] {
    const torch::NoGradGuard no_grad;
    DecoderState state;
    model->decode(tokens.narrow(1, 0, 19), state);
    return model->decode(tokens.narrow(1, 19, 1), state);
  };
  const auto step = [&] {
    const std::vector<Tensor> parameters = model->parameters();
    torch::optim::SGD optimizer(parameters, 0.1);
    model->forward(tokens).square().sum().backward();
    optimizer.step();
  };
  const Tensor first = decode();
  const std::vector<Tensor> held = model->parameters();
  move_to_large_pages(*model);
  EXPECT_TRUE(torch::equal(decode(), first));
  step();
  const Tensor second = decode();
  EXPECT_FALSE(torch::equal(second, first));
  EXPECT_EQ(held[0].const_data_ptr(), model->parameters()[0].const_data_ptr());
  // Once more: the block itself cannot be moved.
  move_to_large_pages(*model);
  EXPECT_TRUE(torch::equal(decode(), second));
}

struct SharingImpl : torch::nn::Module {
  SharingImpl() {
    weight = register_parameter("weight", torch::ones({1024, 1024}));
    view = register_buffer("view", weight.detach().view({-1}));
    other = register_parameter("other", torch::ones({1024, 1024}));
    again = register_parameter("again", other);
  }
  Tensor weight, view, other, again;
};

TEST(LargePages, TensorsOfOneStorageStayTogether) {
  SharingImpl module;
  const void* other = module.other.const_data_ptr();
  move_to_large_pages(module);
  const torch::NoGradGuard no_grad;
  module.weight.fill_(2);
  EXPECT_EQ(module.view[0].item<float>(), 2);
#ifdef __linux__
  EXPECT_NE(module.other.const_data_ptr(), other);
#endif
  module.other.fill_(3);
  EXPECT_EQ(module.again[0][0].item<float>(), 3);
}

TEST(LargePages, SmallModelsStay) {
  ModelConfig config = wide_config();
  config.dim = 24;
  config.ff_dim = 24;
  LanguageModel model(config);
  const void* before = model->parameters()[0].const_data_ptr();
  move_to_large_pages(*model);
  EXPECT_EQ(model->parameters()[0].const_data_ptr(), before);
}

}  // namespace
}  // namespace performer
