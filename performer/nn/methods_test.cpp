// SPDX-License-Identifier: Apache-2.0
// Every method of attention against its definition: forward and gradients in double and in float,
// masks, packed sequences, odd lengths, the past against the future, and what is refused.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "performer/nn/attention_core.h"
#include "performer/nn/testing.h"
#include "performer/nn/testing_methods.h"

namespace performer {
namespace {

using torch::Tensor;

constexpr int64_t kHeads = 2, kHeadDim = 5, kValueDim = 3;

AttentionCoreOptions options_of(AttentionMethod method, bool causal) {
  AttentionCoreOptions options;
  options.num_heads = kHeads;
  options.head_dim = kHeadDim;
  options.max_length = 130;
  options.causal = causal;
  AttentionOptions& attention = options.attention;
  attention.method = method;
  attention.num_features = 24;
  attention.local_window = 7;
  attention.mixed_keys = 6;
  attention.hash_rounds = 3;
  attention.hash_buckets = 6;
  attention.bucket_block = 4;
  attention.num_clusters = 5;
  attention.cluster_iterations = 3;
  attention.cluster_top = 4;
  return options;
}

// Each method in each form, with its variants.
std::vector<AttentionCoreOptions> all_options() {
  std::vector<AttentionCoreOptions> all;
  for (const bool causal : {true, false}) {
    for (const AttentionMethod method : attention_methods()) {
      if (causal && !has_causal_form(method)) continue;
      all.push_back(options_of(method, causal));
      AttentionCoreOptions other = all.back();
      switch (method) {
        case AttentionMethod::kFavor:
        case AttentionMethod::kCentroids:
          other.attention.window = 6;
          all.push_back(other);
          other.attention.sinks = 2;
          break;
        case AttentionMethod::kWindow:
          other.attention.sinks = 3;
          break;
        case AttentionMethod::kLsh:
          other.attention.hash_rounds = 1;
          break;
        case AttentionMethod::kClustered:
          other.attention.cluster_top = 0;
          break;
        case AttentionMethod::kFavorClusters:
          other.attention.per_head_projection = true;
          break;
        default:
          continue;
      }
      all.push_back(other);
    }
  }
  return all;
}

std::string name_of(const AttentionCoreOptions& options) {
  return to_string(options.attention.method) + (options.causal ? " causal" : "") + " window " +
         std::to_string(options.attention.window) + " sinks " +
         std::to_string(options.attention.sinks);
}

struct Inputs {
  Tensor q, k, v, dout;

  Inputs(int64_t B, int64_t L, torch::ScalarType type) {
    const auto rows = [&](int64_t width) {
      return torch::randn({B, kHeads, L, width}, torch::kDouble).to(type);
    };
    q = rows(kHeadDim).requires_grad_();
    k = rows(kHeadDim).requires_grad_();
    v = rows(kValueDim).requires_grad_();
    dout = rows(kValueDim);
  }
  Inputs to(torch::ScalarType type) const {
    Inputs other = *this;
    for (Tensor* x : {&other.q, &other.k, &other.v}) {
      *x = x->detach().to(type).requires_grad_();
    }
    other.dout = dout.to(type);
    return other;
  }
};

// Output and gradients of q, k, v.
std::vector<Tensor> results(const Inputs& in, const Tensor& out) {
  std::vector<Tensor> all = {out.detach()};
  const std::vector<Tensor> given = {in.q, in.k, in.v};
  const auto gradients =
      torch::autograd::grad({(out * in.dout).sum()}, given, {}, {}, false, /*allow_unused=*/true);
  for (size_t i = 0; i < gradients.size(); ++i) {
    all.push_back(gradients[i].defined() ? gradients[i] : torch::zeros_like(given[i]));
  }
  return all;
}

void expect_definition(const AttentionCoreOptions& options, const Inputs& in,
                       const BatchLayout& layout) {
  torch::nn::Module owner;
  const auto core = make_attention_core(options, owner);
  for (const torch::ScalarType type : {torch::kFloat, torch::kDouble}) {
    owner.to(type);
    const Inputs given = in.to(type);
    const std::vector<Tensor> expected =
        results(in, brute::attend(options, owner, in.q, in.k, in.v, layout));
    const std::vector<Tensor> got =
        results(given, core->forward(given.q, given.k, given.v, layout));
    const char* names[] = {"out", "dq", "dk", "dv"};
    for (size_t i = 0; i < got.size(); ++i) {
      // Sums of some hundred terms of about unit size.
      const double size = std::max(1.0, expected[i].abs().max().item<double>());
      EXPECT_LT(distance(got[i].to(torch::kDouble), expected[i]),
                size * (type == torch::kFloat ? 1e-4 : 1e-10))
          << names[i] << " " << type;
    }
  }
}

TEST(AttentionMethods, EqualTheirDefinitionsAtAnyLength) {
  for (const AttentionCoreOptions& options : all_options()) {
    for (const int64_t L : {1, 2, 17, 129}) {
      SCOPED_TRACE(name_of(options) + " L " + std::to_string(L));
      torch::manual_seed(static_cast<uint64_t>(3 + L));
      expect_definition(options, Inputs(1, L, torch::kDouble), {});
    }
  }
}

TEST(AttentionMethods, EqualTheirDefinitionsUnderMasks) {
  for (const AttentionCoreOptions& options : all_options()) {
    SCOPED_TRACE(name_of(options));
    torch::manual_seed(8);
    const Inputs in(3, 33, torch::kDouble);
    Tensor mask = torch::rand({3, 33}).lt(0.3);
    mask[1].slice(0, 20).fill_(true);
    mask[2].fill_(true);  // nothing to see
    expect_definition(options, in, {.key_padding_mask = mask});
  }
}

TEST(AttentionMethods, EqualTheirDefinitionsInPackedRows) {
  for (const AttentionCoreOptions& options : all_options()) {
    SCOPED_TRACE(name_of(options));
    torch::manual_seed(9);
    const Inputs in(2, 50, torch::kDouble);
    BatchLayout layout;
    layout.cu_seqlens = torch::tensor({0, 1, 1, 18, 20, 50});
    expect_definition(options, in, layout);
    layout.key_padding_mask = torch::rand({2, 50}).lt(0.2);
    expect_definition(options, in, layout);
  }
}

TEST(AttentionMethods, GarbageUnderAMaskReachesNothing) {
  for (const AttentionCoreOptions& options : all_options()) {
    SCOPED_TRACE(name_of(options));
    torch::manual_seed(4);
    torch::nn::Module owner;
    const auto core = make_attention_core(options, owner);
    const Inputs in = Inputs(1, 40, torch::kDouble).to(torch::kFloat);
    Tensor mask = torch::zeros({1, 40}, torch::kBool);
    mask[0].slice(0, 10, 13).fill_(true);
    mask[0].slice(0, 35).fill_(true);
    const Tensor hidden = mask.view({1, 1, 40, 1});
    Inputs other = in;
    const bool by_torch = options.attention.method == AttentionMethod::kExact ||
                          options.attention.method == AttentionMethod::kLinformer;
    for (Tensor* x : {&other.q, &other.k, &other.v}) {
      // Torch's own attention multiplies a gradient of 0 by whatever a query holds.
      if (by_torch && x == &other.q) continue;
      *x = x->detach().masked_fill(hidden, std::nan("")).requires_grad_();
    }
    // Rows that are padding themselves have no loss.
    other.dout = in.dout.masked_fill(hidden, 0);
    const auto kept = [&](const Tensor& x) { return x.masked_fill(hidden, 0); };
    const BatchLayout layout{.key_padding_mask = mask};
    const auto run = [&](const Inputs& given) {
      const Tensor out = core->forward(given.q, given.k, given.v, layout);
      std::vector<Tensor> all = {kept(out.detach())};
      const auto gradients = torch::autograd::grad(
          {kept(out * other.dout).sum()}, {given.q, given.k, given.v}, {}, {}, false, true);
      for (const Tensor& gradient : gradients) {
        if (gradient.defined()) all.push_back(kept(gradient));
      }
      return all;
    };
    const std::vector<Tensor> clean = run(in), garbage = run(other);
    for (size_t i = 0; i < clean.size(); ++i) {
      EXPECT_LT(distance(clean[i], garbage[i]), 1e-5) << i;
    }
  }
}

TEST(AttentionMethods, TheFutureDoesNotReachThePast) {
  for (const AttentionCoreOptions& options : all_options()) {
    if (!options.causal) continue;
    SCOPED_TRACE(name_of(options));
    torch::manual_seed(6);
    torch::nn::Module owner;
    const auto core = make_attention_core(options, owner);
    const torch::NoGradGuard no_grad;
    const Inputs in = Inputs(2, 70, torch::kDouble).to(torch::kFloat);
    const Tensor before = core->forward(in.q, in.k, in.v, {});
    for (const int64_t t : {1, 30, 69}) {
      const auto changed = [&](const Tensor& x) {
        return torch::cat({x.narrow(2, 0, t), torch::randn_like(x.narrow(2, t, 70 - t)) * 3}, 2);
      };
      const Tensor after = core->forward(changed(in.q), changed(in.k), changed(in.v), {});
      EXPECT_LT(distance(after.narrow(2, 0, t), before.narrow(2, 0, t)), 1e-5) << t;
      EXPECT_GT(distance(after.narrow(2, t, 70 - t), before.narrow(2, t, 70 - t)), 1e-2) << t;
    }
  }
}

TEST(AttentionMethods, EachOptionIsFelt) {
  const auto run = [](const AttentionCoreOptions& options) {
    torch::manual_seed(5);
    torch::nn::Module owner;
    const auto core = make_attention_core(options, owner);
    const torch::NoGradGuard no_grad;
    torch::manual_seed(6);
    const Inputs in = Inputs(1, 90, torch::kDouble).to(torch::kFloat);
    return core->forward(in.q, in.k, in.v, {});
  };
  const auto felt = [&](AttentionMethod method, int64_t AttentionOptions::*field, int64_t value) {
    AttentionCoreOptions options = options_of(method, false);
    const Tensor before = run(options);
    options.attention.*field = value;
    EXPECT_GT(distance(run(options), before), 1e-4) << to_string(method) << " " << value;
  };
  felt(AttentionMethod::kFavor, &AttentionOptions::window, 10);
  felt(AttentionMethod::kWindow, &AttentionOptions::local_window, 11);
  felt(AttentionMethod::kWindow, &AttentionOptions::sinks, 1);
  felt(AttentionMethod::kLinformer, &AttentionOptions::mixed_keys, 12);
  felt(AttentionMethod::kLsh, &AttentionOptions::hash_rounds, 2);
  felt(AttentionMethod::kLsh, &AttentionOptions::hash_buckets, 4);
  felt(AttentionMethod::kLsh, &AttentionOptions::bucket_block, 9);
  felt(AttentionMethod::kClustered, &AttentionOptions::num_clusters, 9);
  felt(AttentionMethod::kClustered, &AttentionOptions::cluster_iterations, 0);
  felt(AttentionMethod::kClustered, &AttentionOptions::cluster_top, 8);
  felt(AttentionMethod::kFavorClusters, &AttentionOptions::num_clusters, 2);
  felt(AttentionMethod::kCentroids, &AttentionOptions::num_clusters, 20);
  felt(AttentionMethod::kCentroids, &AttentionOptions::window, 20);
}

// As many clusters as tokens, all of them near, and every token in one bucket: softmax attention.
TEST(AttentionMethods, LimitsAreSoftmaxAttention) {
  torch::manual_seed(7);
  const torch::NoGradGuard no_grad;
  const int64_t L = 60;
  const Inputs in = Inputs(1, L, torch::kDouble).to(torch::kFloat);
  const auto run = [&](const AttentionCoreOptions& options) {
    torch::nn::Module owner;
    return make_attention_core(options, owner)->forward(in.q, in.k, in.v, {});
  };
  const Tensor exact = run(options_of(AttentionMethod::kExact, false));
  for (const AttentionMethod method : {AttentionMethod::kWindow, AttentionMethod::kClustered,
                                       AttentionMethod::kCentroids, AttentionMethod::kFavor}) {
    AttentionCoreOptions options = options_of(method, false);
    options.attention.local_window = L;
    options.attention.num_clusters = L;
    if (method == AttentionMethod::kFavor) options.attention.window = L;
    EXPECT_LT(distance(run(options), exact), 1e-5) << to_string(method);
  }
  AttentionCoreOptions listed = options_of(AttentionMethod::kClustered, false);
  listed.attention.cluster_top = L;
  EXPECT_LT(distance(run(listed), exact), 1e-5);
}

TEST(AttentionMethods, RefuseWhatIsNotDefined) {
  for (const AttentionMethod method :
       {AttentionMethod::kLinformer, AttentionMethod::kClustered, AttentionMethod::kFavorClusters,
        AttentionMethod::kCentroids}) {
    torch::nn::Module owner;
    EXPECT_EQ(error_of([&] { make_attention_core(options_of(method, true), owner); }),
              "config: causal is true, expected false with attention " + to_string(method) +
                  " (what a query sees depends on later tokens; causal forms have favor, exact, "
                  "linear, window and lsh)");
    const auto core = make_attention_core(options_of(method, false), owner);
    HeadsState state;
    const Tensor x = torch::zeros({1, kHeads, 1, kHeadDim});
    EXPECT_NE(error_of([&] { core->decode(x, x, x, state); }).find("no causal form"),
              std::string::npos);
  }
  torch::nn::Module other;
  const auto linformer = make_attention_core(options_of(AttentionMethod::kLinformer, false), other);
  const Tensor x = torch::zeros({1, kHeads, 131, kHeadDim});
  EXPECT_EQ(error_of([&] { linformer->forward(x, x, x, {}); }),
            "MultiHeadAttention: x has 131 tokens in a row, expected at most max_length = 130 "
            "(attention linformer has learned no more columns)");
}

}  // namespace
}  // namespace performer
