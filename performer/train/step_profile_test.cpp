// SPDX-License-Identifier: Apache-2.0
#include "performer/train/step_profile.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "performer/train/workload.h"

namespace performer {
namespace {

const ProfileLine* find(const std::vector<ProfileLine>& lines, const std::string& name) {
  const auto at = std::find_if(lines.begin(), lines.end(),
                               [&](const ProfileLine& line) { return line.name == name; });
  return at == lines.end() ? nullptr : &*at;
}

TEST(StepProfile, PartsSumUpToTheWhole) {
  WorkOptions options;
  options.model.dim = 32;
  options.model.num_layers = 2;
  options.model.num_heads = 2;
  options.model.ff_dim = 64;
  options.model.dropout = 0;
  options.model.positions = PositionKind::kSinusoidal;
  options.model.attention.num_features = 16;
  options.length = 50;
  Workload work(options);
  work.run();
  const StepProfile profile = profile_steps([&] { work.run(); }, 3);
  double total = 0, by_operator = 0;
  for (const ProfileLine& part : profile.parts) total += part.total_s();
  for (const ProfileLine& line : profile.operators) by_operator += line.total_s();
  EXPECT_NEAR(total, profile.wall_s, 0.02 * profile.wall_s);
  EXPECT_NEAR(by_operator + find(profile.parts, "outside operators")->total_s(), total, 1e-9);
  for (const char* name :
       {"attention", "layer norm", "GELU", "loss", "matrix products", "embedding"}) {
    const ProfileLine* part = find(profile.parts, name);
    ASSERT_NE(part, nullptr) << name;
    EXPECT_GT(part->forward_s, 0) << name;
    EXPECT_GT(part->backward_s, 0) << name;
  }
  ASSERT_NE(find(profile.parts, "optimiser"), nullptr);
  EXPECT_EQ(find(profile.parts, "optimiser")->backward_s, 0);
  EXPECT_NE(to_text(profile, 5).find("matrix products"), std::string::npos);
}

TEST(StepProfile, CountsCallsAndKeepsInnerTimeApart) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor a = torch::ones({64, 64});
  const StepProfile profile = profile_steps([&] { torch::matmul(a, a); }, 4);
  const ProfileLine* outer = find(profile.operators, "aten::matmul");
  const ProfileLine* inner = find(profile.operators, "aten::mm");
  ASSERT_NE(outer, nullptr);
  ASSERT_NE(inner, nullptr);
  EXPECT_EQ(outer->calls, 1);
  EXPECT_EQ(inner->calls, 1);
  EXPECT_EQ(inner->backward_s, 0);
  // Nothing is watched any more.
  torch::matmul(a, a);
  EXPECT_EQ(part_of_operator("aten::native_layer_norm_backward"), "layer norm");
  EXPECT_EQ(part_of_operator("performer::attention"), "attention");
  EXPECT_EQ(part_of_operator("torch::autograd::CppNode<performer::(anonymous namespace)::Linear>"),
            "matrix products");
  EXPECT_EQ(part_of_operator("aten::addmm"), "matrix products");
  EXPECT_EQ(part_of_operator("aten::add_"), "copies and sums");
  EXPECT_EQ(part_of_operator("aten::sqrt"), "other operators");
}

}  // namespace
}  // namespace performer
