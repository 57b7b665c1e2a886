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
    // Sums of up to 1,000 products lose about sqrt(1000) / 2 spacings of their terms, which are no
    // larger than the largest sum.
    EXPECT_LE(distance(got[i], wanted[i]), 2e-6 * wanted[i].abs().max().item<double>())
        << name << ", result " << i;
  }
}

TEST(Linear, OutputAndGradientsEqualDouble) {
  const std::vector<std::vector<int64_t>> tokens = {{1},     {127},  {128},      {129},     {2, 64},
                                                    {3, 99}, {0, 7}, {5, 1, 60}, {1, 1000}, {700}};
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

TEST(Linear, AnyOfTheGradientsCanBeWanted) {
  const Layer layer({300}, 16, 24, true);
  const Tensor dout = torch::randn({300, 24});
  const std::vector<Tensor> wanted = exact_results(layer, dout);
  for (size_t one = 0; one < 3; ++one) {
    const auto fed = [&](size_t i) {
      const Tensor leaf = layer.leaves()[i];
      return i == one ? leaf : leaf.detach();
    };
    const Tensor out = apply_linear(fed(0), fed(1), fed(2));
    expect_near(torch::autograd::grad({out}, {fed(one)}, {dout}), {wanted[one + 1]}, "one wanted");
  }
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

// The name of what the backward pass calls first, behind the view of the rows.
std::string node_of(const Tensor& out) {
  return out.grad_fn()->next_edge(0).function->name();
}

TEST(Linear, ManyFloatRowsGoToOnednn) {
  if (!at::globalContext().hasMKLDNN()) GTEST_SKIP() << "torch has no oneDNN";
  const Layer many({2, 64}, 16, 24, true), few({1, 127}, 16, 24, true);
  const auto node = [](const Layer& layer) {
    return node_of(apply_linear(layer.x, layer.weight, layer.bias));
  };
  EXPECT_NE(node(many).find("::Linear>"), std::string::npos) << node(many);
  EXPECT_EQ(node(few).find("::Linear>"), std::string::npos) << node(few);
  at::globalContext().setUserEnabledMkldnn(false);
  const std::string refused = node(many);
  at::globalContext().setUserEnabledMkldnn(true);
  EXPECT_EQ(refused.find("::Linear>"), std::string::npos) << refused;
}

TEST(Linear, AWeightChangedBeforeTheBackwardPassIsNoticed) {
  const Layer layer({300}, 16, 24, true);
  const Tensor out = apply_linear(layer.x, layer.weight, layer.bias);
  {
    const torch::NoGradGuard no_grad;
    layer.weight.add_(1);
  }
  EXPECT_THROW(out.sum().backward(), c10::Error);
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
