// SPDX-License-Identifier: Apache-2.0
// Causal calls with few heads, whose features are cut into slabs: parity with the reference on
// every instruction set and thread count, and where slabs must agree with each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "favor/attention.h"
#include "favor/expect_parity.h"
#include "favor/random_case.h"
#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::expect_parity;
using test::Judge;
using test::Layout;
using test::make_problem;
using test::MaskKind;
using test::Problem;
using test::ProjectionUse;
using test::WeightKind;

Case one_head(int64_t L, int64_t M) {
  Case c;
  c.causal = true;
  c.H = 1;
  c.L = c.S = L;
  c.D = 8;
  c.E = 5;
  c.M = M;
  return c;
}

int64_t num_items(const Case& c) {
  const auto segments = static_cast<int64_t>(std::max<size_t>(c.cu_seqlens_q.size(), 2)) - 1;
  return c.B * c.G() * segments;
}

/// Bits of Saved::chunk_starts at the first token: one for every slab.
int first_starts(const Case& spec) {
  const Problem p = make_problem(spec);
  const test::Params<float> params(p);
  std::vector<float> out(spec.B * spec.H * spec.L * spec.E);
  std::vector<uint8_t> starts(spec.B * spec.G() * spec.L);
  Saved<float> saved;
  saved.chunk_starts = starts.data();
  causal_forward<float>(params.value,
                        contiguous_view<const float>(p.q.data(), spec.B, spec.H, spec.L, spec.D),
                        contiguous_view<const float>(p.k.data(), spec.B, spec.G(), spec.S, spec.D),
                        contiguous_view<const float>(p.v.data(), spec.B, spec.G(), spec.S, spec.E),
                        contiguous_view(out.data(), spec.B, spec.H, spec.L, spec.E), &saved);
  return starts[0];
}

TEST(Slabs, CutOneLongHeadAndNoOther) {
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    for (const FeatureMapKind map : {FeatureMapKind::kPositive, FeatureMapKind::kRelu}) {
      Case c = one_head(200, 128);
      c.feature_map = map;
      EXPECT_EQ(first_starts(c), 3);
      c.H = 4;
      EXPECT_EQ(first_starts(c), 1) << "as many heads as threads can share";
      c = one_head(100, 128);
      c.feature_map = map;
      EXPECT_EQ(first_starts(c), 1) << "too short";
      c = one_head(200, 100);
      c.feature_map = map;
      EXPECT_EQ(first_starts(c), 1) << "too few features";
    }
    Case c = one_head(200, 128);
    c.feature_map = FeatureMapKind::kRelu;
    c.projection = ProjectionUse::kNone;
    c.D = c.M;
    EXPECT_EQ(first_starts(c), 1) << "features of x itself";
  });
}

// Lengths beyond a round of the forward pass, features beyond the first slab by less than a vector.
TEST(Slabs, MatchTheReferenceOnTheGrid) {
  test::CaseSizes sizes;
  sizes.lengths = {128, 129, 257};
  sizes.dims = {1, 3, 8, 17};
  sizes.features = {128, 129, 150, 192};
  std::set<FeatureMapKind> maps;
  for (uint64_t index = 0; index < 90; ++index) {
    RandomStream rng(index, 77);
    Case c = test::random_case(rng, true, sizes);
    c.seed = index;
    c.B = 1;
    if (num_items(c) >= 4 || c.projection == ProjectionUse::kNone) continue;
    maps.insert(c.feature_map);
    expect_parity(c);
  }
  EXPECT_GE(maps.size(), 10u) << "the walk has become too short to meet the maps";
}

// More stretches than one in the backward pass, whose states were kept or not.
TEST(Slabs, MatchTheReferenceAtLength) {
  Case c = one_head(2100, 128);
  expect_parity(c);
  c.keep_state = false;
  c.feature_map = FeatureMapKind::kRelu;
  c.mask = MaskKind::kRandom;
  c.S = 1500;
  c.norm = 4;
  c.layout = Layout::kTransposed;
  expect_parity(c);
  c.feature_map = FeatureMapKind::kPositive;
  c.H = c.group = 3;
  c.weights = WeightKind::kShared;
  c.cu_seqlens_q = {0, 3, 1900, 2100};
  c.cu_seqlens_k = {0, 20, 1200, 1500};
  expect_parity(c);
  // Keys that no query is there to see.
  c = one_head(300, 128);
  c.cu_seqlens_q = {0, 0, 300};
  c.cu_seqlens_k = {0, 100, 300};
  expect_parity(c);
  c = one_head(1030, 160);
  c.structured = true;
  expect_parity(c);
  c.element = ElementType::kBfloat16;
  expect_parity(c);
}

// The slabs' stabilisers rise at other places, and their chunks are halved at others.
TEST(Slabs, MatchTheReferenceForUnevenNorms) {
  for (const int shape : {0, 1, 2, 3}) {
    SCOPED_TRACE(shape);
    Case spec = one_head(300, 150);
    spec.D = 16;
    spec.H = spec.group = 2;
    Problem p = make_problem(spec);
    for (int64_t t = 0; t < spec.L; ++t) {
      const float x = static_cast<float>(t) / static_cast<float>(spec.L);
      const float factor = shape == 0   ? 8 * x
                           : shape == 1 ? 8 * (1 - x)
                           : shape == 2 ? (t % 40 == 39 ? 8.0f : 0.2f)
                                        : (t % 2 == 0 ? 8.0f : 0.01f);
      for (int64_t d = 0; d < spec.D; ++d) {
        p.k[t * spec.D + d] *= factor;
        for (int64_t h = 0; h < spec.H && shape == 3; ++h) {
          p.q[(h * spec.L + t) * spec.D + d] *= 8 - factor;
        }
      }
    }
    const Judge judge(p);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      EXPECT_EQ(judge.verdict(test::run_kernel(p)), "");
    });
  }
}

// One slab's features of the first stream are all zero, so that its part of the state looks as if
// no key had been seen, while the log weights make the streams' stabilisers differ.
TEST(Slabs, ContinueAStreamThatOneOfThemHasNotSeen) {
  Case spec = one_head(400, 128);
  spec.feature_map = FeatureMapKind::kRelu;
  spec.feature_eps = 0.0;
  spec.weights = WeightKind::kShared;
  Problem p = make_problem(spec);
  for (int64_t f = 0; f < spec.M; ++f) {
    // The first dimension decides the sign of every logit; the second half is never active.
    p.projection[f * spec.D] = f < 64 ? 50.0f : -50.0f;
  }
  for (int64_t t = 0; t < spec.L; ++t) {
    p.k[t * spec.D] = t < 200 ? 1.0f : (t % 2 == 0 ? 1.0f : -1.0f);
    p.q[t * spec.D] = t % 3 == 0 ? -1.0f : 1.0f;
    p.key_log_weight[t] = t < 200 ? 20.0f : -20.0f + 0.1f * static_cast<float>(t % 7);
  }
  const test::Params<float> whole(p);
  const auto rows = [&](std::vector<float>& x, int64_t first, int64_t width) {
    return View4<const float>(contiguous_view(&x[first * width], 1, 1, 200, width));
  };
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    std::vector<float> expected(spec.L * spec.E), out(spec.L * spec.E);
    causal_forward<float>(whole.value, contiguous_view<const float>(p.q.data(), 1, 1, 400, spec.D),
                          contiguous_view<const float>(p.k.data(), 1, 1, 400, spec.D),
                          contiguous_view<const float>(p.v.data(), 1, 1, 400, spec.E),
                          contiguous_view(expected.data(), 1, 1, 400, spec.E));
    DecodeState state(1, 1, spec.M, spec.E);
    for (const int64_t first : {0, 200}) {
      AttentionParams<float> params = whole.value;
      params.key_log_weight = whole.value.key_log_weight + first;
      causal_forward<float>(
          params, rows(p.q, first, spec.D), rows(p.k, first, spec.D), rows(p.v, first, spec.E),
          contiguous_view(&out[first * spec.E], 1, 1, 200, spec.E), nullptr, &state, &state);
    }
    EXPECT_EQ(state.position, 400);
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], expected[i], 2e-5f) << "element " << i;
    }
  });
}

// Whole = split for a log-linear map, with the final state of either way.
TEST(Slabs, LeaveTheStateOfTheWholeRun) {
  const Case spec = one_head(300, 160);
  Problem p = make_problem(spec);
  const test::Params<float> params(p);
  const auto run = [&](int64_t first, int64_t n, DecodeState& state, std::vector<float>& out) {
    const auto rows = [&](std::vector<float>& x, int64_t width) {
      return View4<const float>(contiguous_view(&x[first * width], 1, 1, n, width));
    };
    causal_forward<float>(params.value, rows(p.q, spec.D), rows(p.k, spec.D), rows(p.v, spec.E),
                          contiguous_view(&out[first * spec.E], 1, 1, n, spec.E), nullptr, &state,
                          &state);
  };
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    std::vector<float> whole(spec.L * spec.E), split(spec.L * spec.E);
    DecodeState all(1, 1, spec.M, spec.E), parts(1, 1, spec.M, spec.E);
    run(0, 300, all, whole);
    // The first part is too short for slabs, the second is not.
    run(0, 50, parts, split);
    run(50, 250, parts, split);
    EXPECT_EQ(parts.position, all.position);
    for (size_t i = 0; i < whole.size(); ++i) {
      ASSERT_NEAR(whole[i], split[i], 2e-5f) << "element " << i;
    }
    for (int64_t f = 0; f < spec.M; ++f) {
      const float factor = std::exp(parts.c[f] - all.c[f]);
      EXPECT_NEAR(parts.z[f] * factor / all.z[f], 1.0f, 2e-5f) << "feature " << f;
    }
  });
}

}  // namespace
}  // namespace favor
