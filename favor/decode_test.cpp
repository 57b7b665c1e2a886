// SPDX-License-Identifier: Apache-2.0
// Decoding steps against the double reference of the whole causal pass, by the rule of testing.h.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "favor/parallel.h"
#include "favor/plan.h"
#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::Judge;
using test::MaskKind;
using test::Passes;
using test::Problem;
using test::ProjectionUse;
using test::Results;
using test::WeightKind;

// All tokens of a problem, one step after another; the state is flushed before every `flush_every`
// tokens (0: never).
Results<float> run_steps(const Problem& p, int64_t flush_every) {
  const Case& c = p.spec;
  const int64_t M = c.projection == ProjectionUse::kNone ? c.D : c.M;
  DecodeState state(c.B, c.G(), M, c.E);
  Results<float> r;
  r.out.assign(static_cast<size_t>(c.B * c.H * c.L * c.E), std::nanf(""));
  const test::Params<float> whole(p);
  AttentionParams<float> params = whole.value;
  const int64_t W = params.num_key_log_weights;
  for (int64_t t = 0; t < c.L; ++t) {
    const auto token = [t, &c](auto& x, int64_t heads, int64_t width) {
      auto view = contiguous_view(x.data() + t * width, c.B, heads, c.L, width);
      view.sizes[2] = 1;
      return view;
    };
    std::vector<uint8_t> mask;
    std::vector<float> weights;
    for (int64_t b = 0; b < c.B && !p.mask.empty(); ++b) mask.push_back(p.mask[b * c.S + t]);
    for (int64_t i = 0; i < c.B * W && !p.key_log_weight.empty(); ++i) {
      weights.push_back(p.key_log_weight[i * c.S + t]);
    }
    params.key_padding_mask = mask.empty() ? nullptr : mask.data();
    params.key_log_weight = weights.empty() ? nullptr : weights.data();
    if (flush_every > 0 && t % flush_every == 0) flush(state);
    decode_step(params, token(p.q, c.H, c.D), token(p.k, c.G(), c.D), token(p.v, c.G(), c.E), state,
                token(r.out, c.H, c.E));
  }
  return r;
}

std::vector<Case> decode_cases() {
  std::vector<Case> cases;
  const auto add = [&](FeatureMapKind map, auto change) {
    Case c;
    c.causal = true;
    c.feature_map = map;
    c.B = 2;
    c.L = c.S = 70;
    c.D = 17;
    c.E = 5;
    c.M = 38;
    change(c);
    cases.push_back(c);
  };
  using enum FeatureMapKind;
  for (const FeatureMapKind map : {kPositive, kHyperbolic, kRelu}) {
    add(map, [](Case& c) { c.mask = MaskKind::kRandom; });
    add(map, [](Case& c) { c.mask = MaskKind::kLeft, c.norm = 4; });
    add(map, [](Case& c) { c.mask = MaskKind::kItem, c.projection = ProjectionUse::kPerHead; });
    add(map, [](Case& c) { c.H = 6, c.group = 3, c.E = 33; });
    add(map, [](Case& c) { c.H = 8, c.group = 4, c.projection = ProjectionUse::kPerHead; });
    add(map, [](Case& c) { c.H = 2, c.group = 2, c.mask = MaskKind::kRandom; });
    // Sizes below, at and above every vector's length.
    for (const int64_t size : {1, 2, 3, 4, 7, 8, 9, 16, 31, 32, 64, 65}) {
      add(map, [&](Case& c) { c.B = 1, c.L = c.S = 40, c.D = size, c.E = size, c.M = 2 * size; });
    }
  }
  add(kRelu, [](Case& c) { c.projection = ProjectionUse::kNone; });
  // The plain code serves these.
  add(kElu1, [](Case&) {});
  add(kRelu, [](Case& c) { c.weights = WeightKind::kPerHead; });
  for (const FeatureMapKind map : {kPositive, kHyperbolic}) {
    add(map, [](Case& c) { c.weights = WeightKind::kShared, c.mask = MaskKind::kRandom; });
    add(map, [](Case& c) { c.weights = WeightKind::kPerHead, c.H = 4, c.group = 2; });
  }
  return cases;
}

TEST(Decode, StepsAreAsExactAsTheyMayBe) {
  set_poison_scratch(true);
  for (const Case& c : decode_cases()) {
    SCOPED_TRACE(c.name());
    const Problem p = test::make_problem(c);
    const Judge judge(p, Passes::kForward);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      for (const int threads : {1, 3}) {
        set_num_threads(threads);
        for (const int64_t flush_every : {0, 9}) {
          EXPECT_EQ(judge.verdict(run_steps(p, flush_every)), "") << "flush " << flush_every;
        }
      }
    });
    set_num_threads(1);
  }
  set_poison_scratch(false);
}

// Key weights raise the one stabiliser of relu features; later steps without weights keep it.
TEST(Decode, StepsWithoutWeightsContinueAWeightedStream) {
  DecodeState state(1, 1, 2, 1);
  AttentionParams<float> params;
  params.feature_map = FeatureMapKind::kRelu;
  params.feature_eps = 0;
  const float x[] = {1, 1}, log_weight = 3;
  float out = 0;
  const auto step = [&](float value) {
    decode_step(params, contiguous_view(x, 1, 1, 1, 2), contiguous_view(x, 1, 1, 1, 2),
                contiguous_view<const float>(&value, 1, 1, 1, 1), state,
                contiguous_view(&out, 1, 1, 1, 1));
  };
  params.key_log_weight = &log_weight;
  step(1);
  params.key_log_weight = nullptr;
  step(0);
  EXPECT_NEAR(out, std::exp(3.0) / (std::exp(3.0) + 1), 1e-6);
}

}  // namespace
}  // namespace favor
