// SPDX-License-Identifier: Apache-2.0
// Parity: every public float entry point, on every instruction set and thread count, held against
// the double reference with the naive float code as its budget of error.
#include "favor/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "favor/expect_parity.h"
#include "favor/plan.h"
#include "favor/random_case.h"
#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::expect_parity;
using test::Judge;
using test::Layout;
using test::MaskKind;
using test::Problem;
using test::ProjectionUse;
using test::Results;

// Scratch memory is NaN whenever a kernel receives it, in every test of this executable.
class PoisonScratch : public ::testing::Environment {
 public:
  void SetUp() override { set_poison_scratch(true); }
};
const auto* const kPoison = ::testing::AddGlobalTestEnvironment(new PoisonScratch);

void expect_parity_on_grid(bool causal, ElementType element = ElementType::kFloat32) {
  std::set<std::pair<int64_t, int64_t>> met;
  for (uint64_t index = 0; index < 240; ++index) {
    RandomStream rng(index, causal);
    Case c = test::random_case(rng, causal);
    c.seed = index;
    c.element = element;
    // The 16-bit types differ from float in loads and stores, and have tests of their own.
    if (element != ElementType::kFloat32 && index % 4 != 0) continue;
    // Wide cases cost the most and show little that narrow ones do not: every eighth is kept.
    if (c.L * c.M * c.D * c.E > 4'000'000 && index % 8 != 0) continue;
    met.insert({c.L, c.M});
    expect_parity(c);
  }
  EXPECT_GE(met.size(), element == ElementType::kFloat32 ? 45u : 15u)
      << "the walk has become too short to meet the grid";
}

TEST(Bidirectional, MatchesTheReferenceOnTheGrid) {
  expect_parity_on_grid(false);
}

TEST(Causal, MatchesTheReferenceOnTheGrid) {
  expect_parity_on_grid(true);
}

TEST(Bidirectional, MatchesTheReferenceIn16Bits) {
  expect_parity_on_grid(false, ElementType::kBfloat16);
  expect_parity_on_grid(false, ElementType::kFloat16);
}

TEST(Causal, MatchesTheReferenceIn16Bits) {
  expect_parity_on_grid(true, ElementType::kBfloat16);
  expect_parity_on_grid(true, ElementType::kFloat16);
}

// The shape that speed is measured at, and lengths past every internal block.
std::vector<Case> long_cases(bool causal) {
  std::vector<Case> cases;
  Case c;
  c.causal = causal;
  c.H = 1;
  c.L = c.S = 1000;
  c.D = c.E = 64;
  c.M = 256;
  cases.push_back(c);
  c.D = 17;
  c.E = 8;
  c.M = 37;
  c.L = c.S = 2100;
  c.mask = MaskKind::kRandom;
  c.H = 2;
  cases.push_back(c);
  c.keep_state = false;
  c.norm = 4;
  cases.push_back(c);
  c.feature_map = FeatureMapKind::kRelu;
  c.layout = Layout::kTransposed;
  cases.push_back(c);
  c.projection = ProjectionUse::kNone;
  c.cu_seqlens_q = {0, 3, 3, 1500, 2100};
  c.cu_seqlens_k = {0, 0, 1000, 2090, 2100};
  cases.push_back(c);
  c.feature_map = FeatureMapKind::kPositive;
  c.projection = ProjectionUse::kPerHead;
  cases.push_back(c);
  return cases;
}

TEST(Bidirectional, MatchesTheReferenceAtLength) {
  for (const Case& c : long_cases(false)) expect_parity(c);
}

TEST(Causal, MatchesTheReferenceAtLength) {
  for (const Case& c : long_cases(true)) expect_parity(c);
}

// Norms that rise, fall or jump along the sequence make the stabilisers of neighbouring tokens
// differ by more than a float's exponent can hold.
TEST(Causal, MatchesTheReferenceForUnevenNorms) {
  for (const int shape : {0, 1, 2, 3}) {
    SCOPED_TRACE(shape);
    Case spec;
    spec.causal = true;
    spec.L = spec.S = 150;
    spec.D = 16;
    spec.M = 37;
    Problem p = test::make_problem(spec);
    for (int64_t head = 0; head < spec.H; ++head) {
      for (int64_t t = 0; t < spec.L; ++t) {
        const float x = static_cast<float>(t) / static_cast<float>(spec.L);
        const float factor = shape == 0   ? 8 * x
                             : shape == 1 ? 8 * (1 - x)
                             : shape == 2 ? (t % 40 == 39 ? 8.0f : 0.2f)
                                          : (t % 2 == 0 ? 8.0f : 0.01f);
        for (int64_t d = 0; d < spec.D; ++d) {
          p.k[(head * spec.L + t) * spec.D + d] *= factor;
          p.q[(head * spec.L + t) * spec.D + d] *= shape == 3 ? 8 - factor : 1;
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

// double goes through the same entry points and checks.
TEST(Double, IsTheReference) {
  for (const bool causal : {false, true}) {
    Case spec;
    spec.causal = causal;
    spec.L = spec.S = 20;
    spec.mask = MaskKind::kRandom;
    const Problem p = test::make_problem(spec);
    const Results<double> expected = test::run_reference<double>(p);
    std::vector<double> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end()),
        v(p.v.begin(), p.v.end()), dout(p.dout.begin(), p.dout.end()),
        w(p.projection.begin(), p.projection.end());
    const auto params = test::make_params(p, w);
    const auto view = [&](std::vector<double>& x) {
      return contiguous_view(x.data(), spec.B, spec.H, 20, 8);
    };
    std::vector<double> out(q.size()), dq(q.size()), dk(q.size()), dv(q.size());
    std::vector<double> normalizer(spec.B * spec.H * 20);
    std::vector<uint8_t> chunk_starts(normalizer.size());
    Saved<double> saved;
    saved.normalizer = normalizer.data();
    saved.chunk_starts = chunk_starts.data();
    if (causal) {
      causal_forward<double>(params, view(q), view(k), view(v), view(out), &saved);
      causal_backward<double>(params, view(q), view(k), view(v), view(out), view(dout), saved,
                              view(dq), view(dk), view(dv));
    } else {
      bidirectional_forward<double>(params, view(q), view(k), view(v), view(out), &saved);
      bidirectional_backward<double>(params, view(q), view(k), view(v), view(out), view(dout),
                                     saved, view(dq), view(dk), view(dv));
    }
    EXPECT_EQ(out, expected.out);
    EXPECT_EQ(dq, expected.dq);
    EXPECT_EQ(dk, expected.dk);
    EXPECT_EQ(dv, expected.dv);
  }
}

}  // namespace
}  // namespace favor
