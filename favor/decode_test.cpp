// SPDX-License-Identifier: Apache-2.0
// Decoding steps against the double reference of the whole causal pass, by the rule of testing.h.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "favor/expect_parity.h"
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
  if (!p.structured.empty()) {
    params.projection = nullptr;
    params.structured = p.structured.data();
  }
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
  // Every map the kernels know, its weights, constants and matrices.
  for (const FeatureMapKind map :
       {kPositive, kHyperbolic, kOptimalPositive, kFavorSharpDiagonal, kFavorSharp, kTrig, kRelu,
        kRelu2, kElu1, kExp, kSigmoid, kSoftplus, kGelu, kAbs, kTanh, kCos, kSin, kIdentity}) {
    const bool fitted = is_fitted(map);
    add(map, [](Case& c) {
      c.L = c.S = 40, c.norm = 0.5, c.H = 6, c.group = 2, c.mask = MaskKind::kRandom;
    });
    add(map, [](Case& c) { c.L = c.S = 40, c.norm = 0.5, c.renormalize = false; });
    // As many tokens as lanes, and a few more.
    add(map, [](Case& c) { c.L = c.S = 20, c.norm = 0.5, c.B = 4, c.H = 5; });
    for (const WeightKind weights : {WeightKind::kShared, WeightKind::kPerHead}) {
      add(map, [&](Case& c) {
        c.L = c.S = 40, c.norm = 0.5, c.H = 4, c.group = 2, c.weights = weights;
      });
    }
    add(map, [](Case& c) { c.L = c.S = 40, c.norm = 0.5, c.projection = ProjectionUse::kPerHead; });
    // Lanes filled by the queries of one key head.
    add(map, [](Case& c) { c.L = c.S = 20, c.norm = 0.5, c.B = 1, c.H = c.group = 18; });
    if (!fitted && map != kTrig) {
      add(map, [](Case& c) {
        c.L = c.S = 40, c.norm = 0.5, c.feature_eps = 0.01, c.weights = WeightKind::kShared;
      });
      add(map, [](Case& c) {
        c.L = c.S = 40, c.norm = 0.5, c.feature_eps = 0.01, c.renormalize = false;
      });
    }
    for (const ProjectionUse use : {ProjectionUse::kShared, ProjectionUse::kPerHead}) {
      add(map,
          [&](Case& c) { c.L = c.S = 40, c.norm = 0.5, c.structured = true, c.projection = use; });
    }
    if (!estimates_softmax(map)) {
      add(map, [](Case& c) { c.L = c.S = 40, c.norm = 0.5, c.projection = ProjectionUse::kNone; });
    }
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

// What a state keeps of a fitted map's matrix serves no other matrix.
TEST(Decode, AnotherMatrixMakesOtherRows) {
  Case c;
  c.causal = true;
  c.feature_map = FeatureMapKind::kOptimalPositive;
  c.L = c.S = 2;
  const Problem p = test::make_problem(c);
  const test::Params<float> owned(p);
  const auto step = [&](const AttentionParams<float>& params, DecodeState& state) {
    std::vector<float> out(c.H * c.E);
    const auto view = [&](const std::vector<float>& x) {
      return contiguous_view<const float>(x.data(), 1, c.H, 1, c.D);
    };
    decode_step(params, view(p.q), view(p.k), view(p.v), state,
                contiguous_view(out.data(), 1, c.H, 1, c.E));
    return out;
  };
  DecodeState state(1, c.H, c.M, c.E);
  step(owned.value, state);
  const auto* kept = state.step_rows.get();
  step(owned.value, state);
  EXPECT_EQ(state.step_rows.get(), kept);
  std::vector<float> other = owned.projection, numbers = owned.map_parameters;
  other[3] += 1;
  numbers[0] -= 0.25f;
  AttentionParams<float> changed[] = {owned.value, owned.value};
  changed[0].projection = other.data();
  changed[1].map_parameters = numbers.data();
  for (const AttentionParams<float>& params : changed) {
    DecodeState with = state, without = state;
    without.step_rows = nullptr;
    const std::vector<float> out = step(params, with);
    EXPECT_TRUE(test::same_bits(out, step(params, without)));
    DecodeState unchanged = state;
    EXPECT_FALSE(test::same_bits(out, step(owned.value, unchanged)));
  }
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
