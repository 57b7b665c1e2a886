// SPDX-License-Identifier: Apache-2.0
// The torch operators: parity with favor, first derivatives, meta shapes, and error texts.
#include "performer/ops/compact_rows.h"
#include "performer/ops/favor_attention.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "favor/check.h"
#include "favor/reference.h"

namespace performer {
namespace {

using torch::Tensor;

struct Case {
  const char* name;
  const char* feature_map = "positive";
  bool is_causal = false;
  double key_scale = 1;
  bool masked = false;
  bool packed = false;
  bool with_projection = true;
  int64_t P = 1;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* map : {"positive", "relu"}) {
    for (bool is_causal : {false, true}) {
      for (double key_scale : {1.0, 4.0, 8.0}) {
        cases.push_back({"plain", map, is_causal, key_scale});
      }
      cases.push_back({"masked", map, is_causal, 1, true});
      cases.push_back({"packed", map, is_causal, 1, false, true});
      cases.push_back(
          {"masked, packed, a matrix per head", map, is_causal, 1, true, true, true, 2});
    }
  }
  cases.push_back({"without projection", "relu", false, 1, true, false, false});
  cases.push_back({"without projection", "relu", true, 1, true, false, false});
  return cases;
}

struct Inputs {
  Tensor q, k, v;
  FavorArguments arguments;
};

constexpr int64_t kB = 2, kH = 2, kL = 6, kD = 4, kE = 3, kM = 5;

// q, k, v hold their heads inside the tokens, as a fused projection gives them.
Inputs make_inputs(const Case& c, torch::ScalarType type) {
  torch::manual_seed(7);
  const auto options = torch::TensorOptions().dtype(type);
  Inputs in;
  in.q = torch::randn({kB, kL, kH, kD}, options).transpose(1, 2);
  in.k = (torch::randn({kB, kL, kH, kD}, options) * c.key_scale).transpose(1, 2);
  in.v = torch::randn({kB, kL, kH, kE}, options).transpose(1, 2);
  in.arguments.feature_map = c.feature_map;
  if (c.with_projection) in.arguments.projection = torch::randn({c.P, kM, kD}, options);
  if (c.masked) {
    Tensor mask = torch::zeros({kB, kL}, torch::kBool);
    mask[0][2] = true;
    mask[1] = true;  // nothing to attend to
    in.arguments.key_padding_mask = mask;
  }
  if (c.packed) {
    in.arguments.cu_seqlens_q = torch::tensor({0, 2, 2, 6}, torch::kInt);
    in.arguments.cu_seqlens_k = torch::tensor({0, 2, 2, 6}, torch::kLong);
  }
  return in;
}

// Brute force in double: features, forbidden pairs set to zero, rows divided by their sums.
Tensor brute_force(const Inputs& in, bool is_causal) {
  const Tensor q = in.q.to(torch::kDouble), k = in.k.to(torch::kDouble);
  const Tensor v = in.v.to(torch::kDouble);
  const int64_t L = q.size(2), S = k.size(2);
  const bool positive = in.arguments.feature_map == "positive";
  const double root =
      std::sqrt(in.arguments.scale.value_or(positive ? 1 / std::sqrt(q.size(3)) : 1.0));
  const double eps = in.arguments.feature_eps.value_or(1e-3);
  const auto features = [&](const Tensor& x) {
    Tensor scaled = x * root;
    Tensor a = scaled;
    if (in.arguments.projection) {
      Tensor w = in.arguments.projection->to(torch::kDouble);
      if (w.dim() == 2) w = w.unsqueeze(0);
      a = torch::matmul(scaled, w.transpose(1, 2));
    }
    return positive ? a - 0.5 * scaled.square().sum(-1, true) : torch::relu(a) + eps;
  };
  const Tensor fq = features(q), fk = features(k);
  // [B, H, L, S, M] in logarithms for the positive map, so that no key scale underflows.
  Tensor scores = positive ? torch::logsumexp(fq.unsqueeze(3) + fk.unsqueeze(2), -1)
                           : torch::log(torch::matmul(fq, fk.transpose(2, 3)));
  Tensor allowed = torch::ones({L, S}, torch::kBool);
  if (in.arguments.cu_seqlens_q) {
    allowed.zero_();
    const Tensor cq = *in.arguments.cu_seqlens_q, ck = *in.arguments.cu_seqlens_k;
    for (int64_t n = 0; n + 1 < cq.numel(); ++n) {
      const int64_t q0 = cq[n].item<int64_t>(), q1 = cq[n + 1].item<int64_t>();
      const int64_t k0 = ck[n].item<int64_t>(), k1 = ck[n + 1].item<int64_t>();
      Tensor block = torch::ones({q1 - q0, k1 - k0}, torch::kBool);
      allowed.slice(0, q0, q1).slice(1, k0, k1).copy_(is_causal ? block.tril() : block);
    }
  } else if (is_causal) {
    allowed = allowed.tril();
  }
  allowed = allowed.view({1, 1, L, S});
  if (in.arguments.key_padding_mask) {
    allowed = allowed.logical_and(
        in.arguments.key_padding_mask->logical_not().view({q.size(0), 1, 1, S}));
  }
  scores = scores.masked_fill(allowed.logical_not(), -INFINITY);
  return torch::nan_to_num(torch::softmax(scores, -1), 0.0).matmul(v);
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const favor::Error& error) {
    return error.what();
  }
  return "no favor::Error";
}

std::string label(const Case& c) {
  return std::string(c.name) + ", " + c.feature_map + (c.is_causal ? ", causal" : "") +
         ", key scale " + std::to_string(c.key_scale);
}

TEST(Attention, EqualsBruteForceInDouble) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(label(c));
    const Inputs in = make_inputs(c, torch::kDouble);
    const Tensor out = favor_attention(in.q, in.k, in.v, in.arguments, c.is_causal);
    EXPECT_LT((out - brute_force(in, c.is_causal)).abs().max().item<double>(), 1e-11);
  }
}

// Error budget: that of the naive float form against double, see favor/reference.h.
TEST(Attention, FloatErrsAtMostTwiceAsMuchAsTheNaiveForm) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(label(c));
    const Inputs in = make_inputs(c, torch::kFloat);
    const Tensor exact = brute_force(in, c.is_causal);
    favor::AttentionParams<float> params;
    params.feature_map = favor::feature_map_from_string(c.feature_map);
    if (c.with_projection) {
      params.projection = in.arguments.projection->const_data_ptr<float>();
      params.num_projections = c.P;
      params.num_features = kM;
    }
    if (c.masked) {
      params.key_padding_mask =
          reinterpret_cast<const uint8_t*>(in.arguments.key_padding_mask->const_data_ptr<bool>());
    }
    std::vector<int64_t> offsets;
    if (c.packed) offsets = {0, 2, 2, 6};
    params.cu_seqlens_q = offsets;
    params.cu_seqlens_k = offsets;
    Tensor naive = torch::empty({kB, kH, kL, kE});
    const auto view = [](const Tensor& t) {
      return favor::contiguous_view(const_cast<const float*>(t.const_data_ptr<float>()), t.size(0),
                                    t.size(1), t.size(2), t.size(3));
    };
    const Tensor q = in.q.contiguous(), k = in.k.contiguous(), v = in.v.contiguous();
    const auto run = [&](auto function) {
      function(params, view(q), view(k), view(v),
               favor::contiguous_view(naive.mutable_data_ptr<float>(), kB, kH, kL, kE));
    };
    if (c.is_causal) {
      run([](auto&&... x) { favor::reference::causal_forward<float>(x...); });
    } else {
      run([](auto&&... x) { favor::reference::bidirectional_forward<float>(x...); });
    }
    const Tensor out = favor_attention(in.q, in.k, in.v, in.arguments, c.is_causal);
    const double budget = 2 * (naive - exact).abs().max().item<double>() +
                          4 * 1.2e-7 * in.v.abs().max().item<double>();
    EXPECT_LE((out - exact).abs().max().item<double>(), budget);
  }
}

// Central differences of <out, weights> through autograd itself, in every element of q, k and v.
void check_gradients(const Case& c) {
  SCOPED_TRACE(label(c));
  const Inputs in = make_inputs(c, torch::kDouble);
  torch::manual_seed(11);
  const Tensor weights = torch::randn({kB, kH, kL, kE}, torch::kDouble);
  Tensor leaves[3] = {in.q.contiguous(), in.k.contiguous(), in.v.contiguous()};
  const auto value = [&] {
    return (favor_attention(leaves[0], leaves[1], leaves[2], in.arguments, c.is_causal) * weights)
        .sum();
  };
  for (Tensor& leaf : leaves) leaf.set_requires_grad(true);
  value().backward();
  const torch::NoGradGuard no_grad;
  for (int n = 0; n < 3; ++n) {
    const Tensor gradient = leaves[n].grad().contiguous();
    const double* got = gradient.const_data_ptr<double>();
    double* x = leaves[n].mutable_data_ptr<double>();
    // Fourth order with steps of 1e-3: truncation and rounding are both below 1e-9 here.
    const double h = 1e-3;
    for (int64_t i = 0; i < leaves[n].numel(); ++i) {
      const double at = x[i];
      double sum = 0;
      for (const auto& [offset, factor] :
           {std::pair{1, 8.0}, std::pair{-1, -8.0}, std::pair{2, -1.0}, std::pair{-2, 1.0}}) {
        x[i] = at + offset * h;
        sum += factor * value().item<double>();
      }
      x[i] = at;
      const double expected = sum / (12 * h);
      EXPECT_NEAR(got[i], expected, 1e-6 * (1 + std::abs(expected)))
          << "input " << n << ", element " << i;
    }
  }
}

TEST(Attention, GradientsEqualCentralDifferences) {
  for (const Case& c : all_cases()) check_gradients(c);
}

TEST(Attention, FloatGradientsFollowDouble) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(label(c));
    Tensor gradients[2][3];
    int n = 0;
    for (torch::ScalarType type : {torch::kFloat, torch::kDouble}) {
      Inputs in = make_inputs(c, torch::kFloat);
      Tensor leaves[3] = {in.q, in.k, in.v};
      for (Tensor& leaf : leaves) leaf = leaf.detach().to(type).set_requires_grad(true);
      torch::manual_seed(3);
      const Tensor dout = torch::randn({kB, kH, kL, kE}).to(type);
      favor_attention(leaves[0], leaves[1], leaves[2], in.arguments, c.is_causal).backward(dout);
      for (int i = 0; i < 3; ++i) gradients[n][i] = leaves[i].grad();
      ++n;
    }
    for (int i = 0; i < 3; ++i) {
      const double size = gradients[1][i].abs().max().item<double>();
      // Some hundred roundings, each of 6e-8, of terms up to the key scale times the result.
      EXPECT_LE((gradients[0][i] - gradients[1][i]).abs().max().item<double>(),
                3e-5 * (1 + size) * c.key_scale)
          << "input " << i;
    }
  }
}

// Each argument beside the defaults, as the operator takes it and as favor does.
struct Variation {
  const char* name;
  std::function<void(FavorArguments&)> of_operator;
  std::function<void(favor::AttentionParams<double>&)> of_favor;
};

TEST(Attention, HandsEveryArgumentToFavor) {
  using Params = favor::AttentionParams<double>;
  const Inputs in = make_inputs({"plain"}, torch::kDouble);
  const Tensor weight = torch::randn({kB, kH, kL}, torch::kDouble);
  const Tensor shared_weight = torch::randn({kB, kL});  // float, converted
  const Tensor shared_f64 = shared_weight.to(torch::kDouble);
  const Tensor fitted = torch::tensor({-0.3, 1.1, 0.9, 1.2, 0.8}, torch::kDouble);
  std::vector<Variation> variations = {
      {"scale", [](FavorArguments& x) { x.scale = 0.3; }, [](Params& x) { x.scale = 0.3; }},
      {"key_log_weight", [&](FavorArguments& x) { x.key_log_weight = weight; },
       [&](Params& x) {
         x.key_log_weight = weight.const_data_ptr<double>();
         x.num_key_log_weights = kH;
       }},
      {"key_log_weight of all heads", [&](FavorArguments& x) { x.key_log_weight = shared_weight; },
       [&](Params& x) { x.key_log_weight = shared_f64.const_data_ptr<double>(); }},
      {"feature_eps", [](FavorArguments& x) { x.feature_eps = 0.1; },
       [](Params& x) { x.feature_eps = 0.1; }},
      {"compatibility",
       [](FavorArguments& x) {
         x.compatibility = "official";
         x.feature_eps = 0.1;
       },
       [](Params& x) {
         x.compatibility = favor::Compatibility::kOfficial;
         x.feature_eps = 0.1;
       }},
      {"renormalize", [](FavorArguments& x) { x.renormalize = false; },
       [](Params& x) { x.renormalize = false; }},
      {"map_parameters",
       [&](FavorArguments& x) {
         x.feature_map = "favor_sharp_diagonal";
         x.map_parameters = fitted;
       },
       [&](Params& x) {
         x.feature_map = favor::FeatureMapKind::kFavorSharpDiagonal;
         x.map_parameters = fitted.const_data_ptr<double>();
       }}};
  for (const char* map : {"hyperbolic", "optimal_positive", "favor_sharp_diagonal", "favor_sharp",
                          "trig", "relu", "relu2", "elu1", "exp", "sigmoid", "softplus", "gelu",
                          "abs", "tanh", "cos", "sin", "identity"}) {
    variations.push_back({map, [=](FavorArguments& x) { x.feature_map = map; },
                          [=](Params& x) {
                            x.feature_map = favor::feature_map_from_string(map);
                            x.num_features = favor::num_state_features(x.feature_map, kM);
                          }});
  }
  const Tensor plain = favor_attention(in.q, in.k, in.v, in.arguments, false);
  for (const Variation& variation : variations) {
    SCOPED_TRACE(variation.name);
    FavorArguments arguments = in.arguments;
    variation.of_operator(arguments);
    Params params;
    params.projection = in.arguments.projection->const_data_ptr<double>();
    params.num_features = kM;
    variation.of_favor(params);
    const Tensor q = in.q.contiguous(), k = in.k.contiguous(), v = in.v.contiguous();
    Tensor expected = torch::empty({kB, kH, kL, kE}, torch::kDouble);
    const auto view = [](const Tensor& t) {
      return favor::contiguous_view(t.const_data_ptr<double>(), t.size(0), t.size(1), t.size(2),
                                    t.size(3));
    };
    favor::bidirectional_forward<double>(
        params, view(q), view(k), view(v),
        favor::contiguous_view(expected.mutable_data_ptr<double>(), kB, kH, kL, kE));
    const Tensor out = favor_attention(in.q, in.k, in.v, arguments, false);
    EXPECT_LT((out - expected).abs().max().item<double>(), 1e-12);
    EXPECT_GT((out - plain).abs().max().item<double>(), 1e-3);
  }
}

TEST(Attention, SixteenBitTensorsAreRoundedResultsOfFloat) {
  for (torch::ScalarType type : {torch::kBFloat16, torch::kHalf}) {
    for (bool is_causal : {false, true}) {
      const Inputs in = make_inputs({"masked", "positive", is_causal, 1, true}, torch::kFloat);
      const auto run = [&](torch::ScalarType kind) {
        Tensor leaves[3] = {in.q.to(type).to(kind), in.k.to(type).to(kind), in.v.to(type).to(kind)};
        for (Tensor& leaf : leaves) leaf = leaf.detach().set_requires_grad(true);
        const Tensor out =
            favor_attention(leaves[0], leaves[1], leaves[2], in.arguments, is_causal);
        EXPECT_EQ(out.scalar_type(), kind);
        out.sum().backward();
        EXPECT_EQ(leaves[0].grad().scalar_type(), kind);
        std::vector<Tensor> results = {out.detach()};
        for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
        return results;
      };
      const std::vector<Tensor> rounded = run(type), expected = run(torch::kFloat);
      // One rounding of 2^-9 or 2^-12 of each result; of the output too, before it is used again.
      const double unit = type == torch::kHalf ? 1.0 / 4096 : 1.0 / 512;
      for (size_t n = 0; n < rounded.size(); ++n) {
        EXPECT_LT((rounded[n].to(torch::kFloat) - expected[n]).abs().max().item<double>(),
                  4 * unit * (1 + expected[n].abs().max().item<double>()))
            << "tensor " << n;
      }
    }
  }
}

TEST(Attention, GroupsOfQueryHeadsShareAKeyHead) {
  for (bool is_causal : {false, true}) {
    for (torch::ScalarType type : {torch::kFloat, torch::kDouble}) {
      const Inputs in = make_inputs({"plain"}, type);
      const auto run = [&](bool repeated) {
        Tensor leaves[3] = {in.q.repeat({1, 2, 1, 1}), in.k.clone(), in.v.clone()};
        for (Tensor& leaf : leaves) leaf.set_requires_grad(true);
        const auto shared = [&](const Tensor& x) {
          return repeated ? x.repeat_interleave(2, 1) : x;
        };
        const Tensor out = favor_attention(leaves[0], shared(leaves[1]), shared(leaves[2]),
                                           in.arguments, is_causal);
        out.square().sum().backward();
        return std::vector<Tensor>{out.detach(), leaves[0].grad(), leaves[1].grad(),
                                   leaves[2].grad()};
      };
      const std::vector<Tensor> grouped = run(false), expected = run(true);
      // Sums of a dozen terms in another order.
      const double bound = type == torch::kFloat ? 1e-5 : 1e-13;
      for (size_t n = 0; n < grouped.size(); ++n) {
        EXPECT_LT((grouped[n] - expected[n]).abs().max().item<double>(), bound) << "tensor " << n;
      }
    }
  }
}

TEST(Attention, TakesAnyStridesOfInputsAndGradients) {
  for (bool is_causal : {false, true}) {
    const Case c{"plain", "positive", is_causal};
    const Inputs in = make_inputs(c, torch::kFloat);
    const auto gradients = [&](bool strided, const Tensor& dout) {
      // A last dimension that is not contiguous, and rows of a larger tensor.
      const auto view = [&](const Tensor& x) {
        if (!strided) return x.contiguous().clone();
        return torch::cat({x, x}, 2).transpose(2, 3).contiguous().transpose(2, 3).slice(2, 0, kL);
      };
      Tensor leaves[3] = {view(in.q), view(in.k), view(in.v)};
      for (Tensor& leaf : leaves) leaf.set_requires_grad(true);
      favor_attention(leaves[0], leaves[1], leaves[2], in.arguments, is_causal).backward(dout);
      return torch::cat(
          {leaves[0].grad().flatten(), leaves[1].grad().flatten(), leaves[2].grad().flatten()});
    };
    const Tensor expanded = torch::ones({1, 1, 1, 1}).expand({kB, kH, kL, kE});
    const Tensor expected = gradients(false, expanded.contiguous());
    EXPECT_TRUE(torch::equal(gradients(true, expanded), expected));
    EXPECT_TRUE(torch::equal(gradients(false, expanded), expected));
    const Tensor turned = torch::ones({kB, kH, kE, kL}).transpose(2, 3);
    EXPECT_TRUE(torch::equal(gradients(false, turned), expected));
    // A batch of views of one item.
    const Tensor q = in.q.slice(0, 0, 1).expand({3, kH, kL, kD});
    const Tensor out = favor_attention(q, q, q, in.arguments, is_causal);
    EXPECT_TRUE(torch::equal(out, favor_attention(q.contiguous(), q.contiguous(), q.contiguous(),
                                                  in.arguments, is_causal)));
  }
}

TEST(Attention, MaskedGarbageReachesNeitherOutputNorGradient) {
  for (bool is_causal : {false, true}) {
    for (double garbage : {1e30, static_cast<double>(NAN)}) {
      const Case c{"masked", "positive", is_causal, 1, true};
      const Inputs in = make_inputs(c, torch::kFloat);
      Tensor k = in.k.clone(), v = in.v.clone();
      const Tensor where = in.arguments.key_padding_mask->view({kB, 1, kL, 1});
      k.masked_fill_(where, garbage);
      v.masked_fill_(where, garbage);
      Tensor q = in.q.detach().clone().set_requires_grad(true);
      k.set_requires_grad(true);
      v.set_requires_grad(true);
      const Tensor out = favor_attention(q, k, v, in.arguments, is_causal);
      EXPECT_TRUE(torch::equal(out, favor_attention(in.q, in.k, in.v, in.arguments, is_causal)));
      EXPECT_EQ(out[1].abs().max().item<double>(), 0);
      out.sum().backward();
      for (const Tensor& leaf : {q, k, v}) {
        EXPECT_TRUE(torch::isfinite(leaf.grad()).all().item<bool>());
        EXPECT_EQ(leaf.grad()[1].abs().max().item<double>(), 0);
      }
      EXPECT_EQ(k.grad().masked_select(where).abs().max().item<double>(), 0);
    }
  }
}

TEST(Attention, ZeroLengthsAreLegal) {
  FavorArguments arguments;
  arguments.projection = torch::randn({kM, kD});
  for (bool is_causal : {false, true}) {
    const auto run = [&](int64_t B, int64_t L, int64_t S) {
      Tensor q = torch::randn({B, kH, L, kD}).set_requires_grad(true);
      const Tensor out = favor_attention(q, torch::randn({B, kH, S, kD}),
                                         torch::randn({B, kH, S, kE}), arguments, is_causal);
      out.sum().backward();
      EXPECT_EQ(q.grad().abs().sum().item<double>(), 0);
      return out;
    };
    EXPECT_EQ(run(2, 0, 5).sizes(), (std::vector<int64_t>{2, kH, 0, kE}));
    EXPECT_EQ(run(2, 3, 0).abs().sum().item<double>(), 0);
    EXPECT_EQ(run(0, 3, 5).numel(), 0);
  }
}

TEST(Attention, KeepsTheMemoryOrderOfItsInputs) {
  const Inputs in = make_inputs({"plain"}, torch::kFloat);
  Tensor q = in.q.detach().set_requires_grad(true), k = in.k.contiguous().set_requires_grad(true);
  const Tensor out = favor_attention(q, k, in.v, in.arguments, false);
  EXPECT_TRUE(out.transpose(1, 2).is_contiguous());
  out.sum().backward();
  EXPECT_TRUE(q.grad().transpose(1, 2).is_contiguous());
  EXPECT_TRUE(k.grad().is_contiguous());
  EXPECT_TRUE(favor_attention(k, q, in.v, in.arguments, false).is_contiguous());
}

TEST(Attention, InferenceKeepsNothing) {
  const Inputs in = make_inputs({"plain"}, torch::kFloat);
  for (bool is_causal : {false, true}) {
    const auto [out, normalizer, state, starts] =
        favor_forward(in.q, in.k, in.v, in.arguments, /*save=*/false, is_causal);
    EXPECT_EQ(normalizer.numel() + state.numel() + starts.numel(), 0);
    const Tensor with_grad =
        favor_attention(in.q.detach().set_requires_grad(true), in.k, in.v, in.arguments, is_causal);
    EXPECT_TRUE(with_grad.requires_grad());
    EXPECT_TRUE(torch::equal(out, with_grad));
    const c10::InferenceMode inference;
    EXPECT_TRUE(torch::equal(out, favor_attention(in.q, in.k, in.v, in.arguments, is_causal)));
  }
}

TEST(Attention, HasNoSecondDerivative) {
  const Inputs in = make_inputs({"plain"}, torch::kDouble);
  const Tensor q = in.q.detach().set_requires_grad(true);
  const Tensor out = favor_attention(q, in.k, in.v, in.arguments, true);
  const Tensor first = torch::autograd::grad({out.square().sum()}, {q}, {}, true, true)[0];
  try {
    torch::autograd::grad({first.sum()}, {q});
    FAIL() << "a second derivative was given";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("performer::causal_backward"), std::string::npos)
        << error.what();
  }
}

TEST(Meta, ShapesStridesAndTypesEqualThoseOfTheCpu) {
  std::vector<Case> cases = all_cases();
  cases.push_back({"two features per row", "hyperbolic", true});
  cases.push_back({"window", "positive", true});
  cases.push_back({"window", "positive", false});
  for (const Case& c : cases) {
    SCOPED_TRACE(label(c));
    for (int64_t L : {int64_t{0}, kL, 2 * favor::kStateInterval, 2 * favor::kStateInterval + 1}) {
      if (c.name != std::string("plain") && L != kL) continue;
      for (bool heads_inside : {false, true}) {
        Inputs in = make_inputs(c, torch::kFloat);
        in.q = torch::randn({kB, L, kH, kD}).transpose(1, 2);
        if (!heads_inside) in.q = in.q.contiguous();
        if (c.name == std::string("window")) in.arguments.window = 2;
        if (heads_inside && c.P == 1) {  // one key head for all
          in.k = in.k.slice(1, 0, 1).contiguous();
          in.v = in.v.slice(1, 0, 1).contiguous();
        }
        const auto meta = [](const Tensor& x) { return x.to(torch::kMeta); };
        FavorArguments arguments = in.arguments;
        if (arguments.projection) arguments.projection = meta(*arguments.projection);
        if (arguments.key_padding_mask) {
          arguments.key_padding_mask = meta(*arguments.key_padding_mask);
        }
        if (c.packed) {
          arguments.cu_seqlens_q = meta(*arguments.cu_seqlens_q);
          arguments.cu_seqlens_k = meta(*arguments.cu_seqlens_k);
        }
        for (bool save : {false, true}) {
          const ForwardResult real =
              favor_forward(in.q, in.k, in.v, in.arguments, save, c.is_causal);
          const ForwardResult shape =
              favor_forward(meta(in.q), meta(in.k), meta(in.v), arguments, save, c.is_causal);
          const auto compare = [](const Tensor& a, const Tensor& b) {
            EXPECT_TRUE(b.is_meta());
            EXPECT_EQ(a.sizes(), b.sizes());
            EXPECT_EQ(a.strides(), b.strides());
            EXPECT_EQ(a.scalar_type(), b.scalar_type());
          };
          compare(std::get<0>(real), std::get<0>(shape));
          compare(std::get<1>(real), std::get<1>(shape));
          compare(std::get<2>(real), std::get<2>(shape));
          compare(std::get<3>(real), std::get<3>(shape));
          if (!save) continue;
          const Tensor dout = torch::ones_like(std::get<0>(real));
          const BackwardResult gradients =
              favor_backward(dout, in.q, in.k, in.v, real, in.arguments, c.is_causal);
          const BackwardResult shapes = favor_backward(meta(dout), meta(in.q), meta(in.k),
                                                       meta(in.v), shape, arguments, c.is_causal);
          compare(std::get<0>(gradients), std::get<0>(shapes));
          compare(std::get<1>(gradients), std::get<1>(shapes));
          compare(std::get<2>(gradients), std::get<2>(shapes));
        }
      }
    }
  }
}

TEST(Decode, StepsAndSplitsEqualTheWholePass) {
  for (const char* map : {"positive", "relu"}) {
    SCOPED_TRACE(map);
    const Inputs in = make_inputs({"plain", map}, torch::kFloat);
    const Tensor whole = favor_attention(in.q, in.k, in.v, in.arguments, true);
    for (int64_t first : {int64_t{1}, int64_t{2}, int64_t{4}, kL}) {
      favor::DecodeState state;
      std::vector<Tensor> rows;
      for (int64_t at = 0, count = first; at < kL; at += count, count = 1) {
        const auto part = [&](const Tensor& x) { return x.slice(2, at, at + count); };
        rows.push_back(favor_decode(part(in.q), part(in.k), part(in.v), in.arguments, state));
      }
      EXPECT_EQ(state.position, kL);
      EXPECT_LT((torch::cat(rows, 2) - whole).abs().max().item<double>(), 1e-5);
    }
  }
}

TEST(Decode, StepsWithAWindowEqualTheWholePass) {
  favor::ProjectionSpec spec;
  spec.kind = favor::ProjectionKind::kHadamard;
  spec.num_features = kM;
  spec.head_dim = kD;
  for (const bool is_compact : {false, true}) {
    Inputs in = make_inputs({"plain"}, torch::kFloat);
    in.arguments.window = 1;
    in.arguments.sinks = 1;
    if (is_compact) {
      in.arguments.projection = ops::compact_rows(favor::draw_structured_projection(spec));
    }
    const Tensor whole = favor_attention(in.q, in.k, in.v, in.arguments, true);
    for (int64_t first : {int64_t{1}, int64_t{4}, kL}) {
      favor::HybridState state;
      std::vector<Tensor> rows;
      for (int64_t at = 0, count = first; at < kL; at += count, count = 1) {
        const auto part = [&](const Tensor& x) { return x.slice(2, at, at + count); };
        rows.push_back(favor_decode(part(in.q), part(in.k), part(in.v), in.arguments, state));
      }
      EXPECT_EQ(state.position, kL);
      EXPECT_LT((torch::cat(rows, 2) - whole).abs().max().item<double>(), 1e-5);
    }
  }
}

TEST(Errors, NameOperatorArgumentAndExpectation) {
  const Inputs in = make_inputs({"plain"}, torch::kFloat);
  const auto run = [&](const std::function<void(Inputs&)>& change) {
    Inputs changed = in;
    change(changed);
    return error_of([&] {
      favor_attention(changed.q, changed.k, changed.v, changed.arguments, /*is_causal=*/false);
    });
  };
  EXPECT_EQ(run([](Inputs& x) { x.q = x.q.to(torch::kInt); }),
            "bidirectional_forward: q has dtype Int, expected Float, BFloat16, Half or Double");
  EXPECT_EQ(run([](Inputs& x) { x.k = x.k.to(torch::kDouble); }),
            "bidirectional_forward: k has dtype Double, expected Float (the dtype of q)");
  EXPECT_EQ(run([](Inputs& x) { x.v = x.v[0]; }),
            "bidirectional_forward: v has shape [2, 6, 3], expected 4 dimensions [B, G, S, E]");
  EXPECT_EQ(run([](Inputs& x) {
              x.arguments.projection = torch::randn({5, 3});
            }),
            "bidirectional_forward: projection is Float of shape [5, 3], expected [R, 4] or "
            "[P, R, 4], floating point or in compact form, on the CPU (P is 1 or the number of key "
            "heads, 2)");
  EXPECT_EQ(run([](Inputs& x) {
              x.arguments.projection = torch::randn({3, 5, 4});
            }),
            "bidirectional_forward: projection has shape [3, 5, 4], expected 1 or 2 matrices (key "
            "heads)");
  EXPECT_EQ(run([](Inputs& x) {
              x.arguments.key_padding_mask = torch::zeros({2, 6});
            }),
            "bidirectional_forward: key_padding_mask is Float of shape [2, 6], expected Bool of "
            "shape [2, 6] on the CPU (true = ignore this key)");
  EXPECT_EQ(run([](Inputs& x) {
              x.arguments.key_padding_mask = torch::zeros({2, 5}, torch::kBool);
            }),
            "bidirectional_forward: key_padding_mask is Bool of shape [2, 5], expected Bool of "
            "shape [2, 6] on the CPU (true = ignore this key)");
  EXPECT_EQ(run([](Inputs& x) {
              x.arguments.cu_seqlens_q = torch::tensor({0, 6});
            }),
            "bidirectional_forward: cu_seqlens_k is missing, expected both cu_seqlens or none");
  EXPECT_EQ(run([](Inputs& x) { x.arguments.projection->set_requires_grad(true); }),
            "attention: projection requires a gradient, expected none (random matrices are fixed; "
            "pass projection.detach())");
  in.arguments.projection->set_requires_grad(false);
  // favor's own checks arrive unchanged.
  EXPECT_NE(run([](Inputs& x) { x.arguments.feature_map = "softmax"; }).find("'softmax'"),
            std::string::npos);
  EXPECT_NE(run([](Inputs& x) {
              x.k = x.k.slice(1, 0, 1);
            }).find("bidirectional_forward: v has shape [2, 2, 6, 3], expected [2, 1, 6, 3]"),
            std::string::npos);
  EXPECT_EQ(run([](Inputs& x) {
              x.arguments.key_log_weight = torch::zeros({2, 3, 6});
            }),
            "bidirectional_forward: key_log_weight is Float of shape [2, 3, 6], expected floating "
            "point of shape [2, 6] or [2, W, 6] on the CPU (W is 1 or the number of key heads, 2)");
  EXPECT_EQ(run([](Inputs& x) {
              x.arguments.key_log_weight = torch::zeros({2, 6}).set_requires_grad(true);
            }),
            "attention: key_log_weight requires a gradient, expected none (weights of keys carry "
            "none; pass key_log_weight.detach())");
  EXPECT_EQ(run([](Inputs& x) {
              x.arguments.feature_map = "favor_sharp_diagonal";
              x.arguments.map_parameters = torch::zeros({4});
            }),
            "bidirectional_forward: map_parameters is Float of shape [4], expected [5] or [Q, 5], "
            "floating point, on the CPU (Q is 1 or the number of key heads, 2)");
  EXPECT_EQ(run([](Inputs& x) { x.arguments.compatibility = "paper"; }),
            "compatibility_from_string: compatibility is 'paper', expected none | official");
  favor::DecodeState state;
  EXPECT_EQ(
      error_of([&] {
        const auto f64 = [](const Tensor& x) { return x.to(torch::kDouble); };
        favor_decode(f64(in.q), f64(in.k), f64(in.v), in.arguments, state);
      }),
      "favor_decode: q has dtype Double, expected Float, BFloat16 or Half (decoding states are "
      "float32)");
}

}  // namespace
}  // namespace performer
