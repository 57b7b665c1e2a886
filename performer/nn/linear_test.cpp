// SPDX-License-Identifier: Apache-2.0
// The linear layer's product against double, at shapes on both sides of its choice of library.
#include "performer/nn/linear.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "performer/nn/autocast.h"
#include "performer/nn/testing.h"

namespace performer {
namespace {

using torch::Tensor;

struct Layer {
  Tensor x, weight, bias;

  Layer(const std::vector<int64_t>& tokens, int64_t in, int64_t out, bool has_bias) {
    torch::manual_seed(1);
    std::vector<int64_t> shape = tokens;
    shape.push_back(in);
    x = torch::randn(shape).requires_grad_();
    weight = torch::randn({out, in}).requires_grad_();
    if (has_bias) bias = torch::randn({out}).requires_grad_();
  }

  std::vector<Tensor> leaves() const {
    return bias.defined() ? std::vector<Tensor>{x, weight, bias} : std::vector<Tensor>{x, weight};
  }
};

// The output, then gradients of sum(output * dout).
std::vector<Tensor> results(const Layer& layer, const Tensor& out, const Tensor& dout) {
  std::vector<Tensor> all = torch::autograd::grad({out}, layer.leaves(), {dout});
  all.insert(all.begin(), out);
  return all;
}

// Those of torch's layer in double.
std::vector<Tensor> exact_results(const Layer& layer, const Tensor& dout) {
  const auto widened = [](const Tensor& leaf) {
    return leaf.defined() ? leaf.detach().to(torch::kDouble).requires_grad_() : Tensor();
  };
  Layer wide = layer;
  wide.x = widened(layer.x);
  wide.weight = widened(layer.weight);
  wide.bias = widened(layer.bias);
  return results(wide, torch::linear(wide.x, wide.weight, wide.bias), dout.to(torch::kDouble));
}

void expect_near(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted,
                 const std::string& name) {
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), wanted[i].sizes()) << name << ", result " << i;
    if (got[i].numel() == 0) continue;
    EXPECT_LE(distance(got[i], wanted[i]), 2e-6 * wanted[i].abs().max().item<double>())
        << name << ", result " << i;
  }
}

TEST(Linear, OutputAndGradientsEqualDouble) {
  const std::vector<std::vector<int64_t>> tokens = {
      {1}, {255}, {256}, {257}, {2, 128}, {3, 99}, {0, 7}, {5, 1, 60}, {1, 1000}, {700}};
  for (const auto& shape : tokens) {
    for (const int64_t in : {1, 17, 64}) {
      for (const int64_t out : {1, 3, 33, 64}) {
        for (const bool bias : {false, true}) {
          const Layer layer(shape, in, out, bias);
          const Tensor y = apply_linear(layer.x, layer.weight, layer.bias);
          const Tensor dout = torch::randn(y.sizes());
          std::string name = "in " + std::to_string(in) + " out " + std::to_string(out) + " tokens";
          for (const int64_t n : shape) name += " " + std::to_string(n);
          expect_near(results(layer, y, dout), exact_results(layer, dout), name);
        }
      }
    }
  }
}

TEST(Linear, TakesStridedTokensAndExpandedGradients) {
  const Layer layer({300, 2}, 16, 24, true);
  const Tensor part = layer.x.select(1, 1);
  const Tensor wanted = torch::linear(part, layer.weight, layer.bias);
  const Tensor got = apply_linear(part, layer.weight, layer.bias);
  const Tensor one = torch::ones({1, 1}).expand_as(got);  // strides 0
  expect_near(results(layer, got, one), results(layer, wanted, one), "strided");
  const Tensor turned = layer.weight.detach().t().contiguous().t();
  expect_near({apply_linear(part, turned, layer.bias)}, {wanted}, "transposed weight");
}

TEST(Linear, GivesOnlyTheGradientsThatAreWanted) {
  const Layer layer({300}, 16, 24, true);
  const Tensor frozen = apply_linear(layer.x, layer.weight.detach(), layer.bias.detach());
  const Tensor dout = torch::randn(frozen.sizes());
  EXPECT_LT(
      distance(torch::autograd::grad({frozen}, {layer.x}, {dout})[0], dout.matmul(layer.weight)),
      1e-4);
  const Tensor fed = apply_linear(layer.x.detach(), layer.weight, Tensor());
  EXPECT_LT(
      distance(torch::autograd::grad({fed}, {layer.weight}, {dout})[0], dout.t().matmul(layer.x)),
      1e-3);
  EXPECT_FALSE(apply_linear(layer.x.detach(), layer.weight.detach(), Tensor()).requires_grad());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(apply_linear(layer.x, layer.weight, layer.bias).requires_grad());
}

TEST(Linear, SecondDerivativesEqualTorch) {
  const Layer layer({300}, 8, 6, true);
  const auto second = [&](const Tensor& y) {
    const Tensor first =
        torch::autograd::grad({y.square().sum()}, {layer.x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.square().sum()}, {layer.x, layer.weight});
  };
  expect_near(second(apply_linear(layer.x, layer.weight, layer.bias)),
              second(torch::linear(layer.x, layer.weight, layer.bias)), "second");
}

TEST(Linear, AutocastGivesBfloat16) {
  const Layer layer({300}, 16, 24, true);
  const Autocast autocast(true);
  EXPECT_EQ(apply_linear(layer.x, layer.weight, layer.bias).scalar_type(), torch::kBFloat16);
}

TEST(Linear, ShapesThatDoNotFitAreRefused) {
  const Layer layer({300}, 16, 24, true);
  EXPECT_THROW(apply_linear(layer.x, torch::randn({24, 17}), layer.bias), c10::Error);
  EXPECT_THROW(apply_linear(layer.x, layer.weight, torch::randn({23})), c10::Error);
}

}  // namespace
}  // namespace performer
