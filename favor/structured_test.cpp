// SPDX-License-Identifier: Apache-2.0
// Attention with structured matrices in their compact form: the kernels' fast transforms against
// the reference, which multiplies by the matrix itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "favor/attention.h"
#include "favor/check.h"
#include "favor/expect_parity.h"
#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::expect_parity;
using test::Judge;
using test::Problem;
using test::ProjectionUse;
using test::Results;

// Blocks narrower than a vector, of one to eight vectors and beyond, on every instruction set.
TEST(StructuredAttention, MatchesReferenceAtOddSizes) {
  for (const bool causal : {false, true}) {
    for (const int64_t D : {1, 3, 8, 17, 64, 128}) {
      for (const int64_t M : {1, 5, 37, 256}) {
        Case c;
        c.causal = causal;
        c.D = D;
        c.M = M;
        c.E = 5;
        c.L = c.S = M == 256 ? 67 : 35;
        c.structured = true;
        c.projection = M == 5 ? ProjectionUse::kPerHead : ProjectionUse::kShared;
        c.feature_map = M == 37 ? FeatureMapKind::kRelu : FeatureMapKind::kPositive;
        c.seed = static_cast<uint64_t>(D + M);
        expect_parity(c);
      }
    }
  }
}

TEST(StructuredAttention, MatchesReferenceWithWideBlocksAndLargeNorms) {
  for (const bool causal : {false, true}) {
    Case c;
    c.causal = causal;
    c.H = 1;
    c.D = 300;  // blocks of 512
    c.M = 530;
    c.L = c.S = 20;
    c.structured = true;
    expect_parity(c);
    c.D = 64;
    c.M = 100;
    c.L = c.S = 130;
    c.norm = 8;
    c.mask = test::MaskKind::kRandom;
    expect_parity(c);
  }
}

TEST(StructuredAttention, MatchesReferenceBesideAnExactWindow) {
  for (const bool causal : {false, true}) {
    for (const int64_t D : {3, 64}) {
      Case c;
      c.causal = causal;
      c.D = D;
      c.M = 37;
      c.L = c.S = 100;
      c.window = 16;
      c.sinks = 2;
      c.structured = true;
      expect_parity(c);
    }
  }
}

TEST(StructuredAttention, DecodingGivesTheCausalRows) {
  for (const int64_t D : {1, 3, 17, 64, 128}) {
    for (const auto map : {FeatureMapKind::kPositive, FeatureMapKind::kRelu}) {
      Case c;
      c.causal = true;
      c.L = c.S = 9;
      c.D = D;
      c.E = 5;
      c.M = 37;
      c.feature_map = map;
      c.structured = true;
      c.projection = D == 17 ? ProjectionUse::kPerHead : ProjectionUse::kShared;
      SCOPED_TRACE(c.name());
      Problem p = test::make_problem(c);
      const Judge judge(p, test::Passes::kForward);
      test::Params<float> owned(p);
      owned.value.projection = nullptr;
      owned.value.structured = p.structured.data();
      test::for_each_isa([&](const char* isa) {
        SCOPED_TRACE(isa);
        DecodeState state(c.B, c.H, c.M, c.E);
        Results<float> r;
        r.out.assign(p.dout.size(), std::nanf(""));
        const auto q = contiguous_view(p.q.data(), c.B, c.H, c.L, c.D);
        const auto k = contiguous_view(p.k.data(), c.B, c.H, c.L, c.D);
        const auto v = contiguous_view(p.v.data(), c.B, c.H, c.L, c.E);
        const auto out = contiguous_view(r.out.data(), c.B, c.H, c.L, c.E);
        const auto token = [](View4<float> view, int64_t t) {
          view.data += t * view.strides[2];
          view.sizes[2] = 1;
          return view;
        };
        for (int64_t t = 0; t < c.L; ++t) {
          decode_step(owned.value, token(q, t), token(k, t), token(v, t), state, token(out, t));
        }
        EXPECT_EQ(judge.verdict(r), "");
      });
    }
  }
}

// Maps and sizes without a fast transform: the plain code expands the matrix.
TEST(StructuredAttention, OtherCallsExpandTheMatrix) {
  for (const auto map : {FeatureMapKind::kHyperbolic, FeatureMapKind::kPositive}) {
    Case c;
    c.H = 1;
    c.L = c.S = 3;
    c.D = map == FeatureMapKind::kPositive ? 1025 : 5;  // blocks of 2048
    c.M = 2;
    c.feature_map = map;
    c.structured = true;
    const Problem p = test::make_problem(c);
    const Judge judge(p, test::Passes::kForward);
    EXPECT_EQ(judge.verdict(test::run_kernel(p, test::Passes::kForward)), "");
    // In double too.
    test::Params<double> owned(p);
    owned.value.projection = nullptr;
    owned.value.structured = p.structured.data();
    std::vector<double> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end()),
        v(p.v.begin(), p.v.end()), out(p.dout.size());
    bidirectional_forward<double>(owned.value,
                                  contiguous_view<const double>(q.data(), 1, 1, 3, c.D),
                                  contiguous_view<const double>(k.data(), 1, 1, 3, c.D),
                                  contiguous_view<const double>(v.data(), 1, 1, 3, c.E),
                                  contiguous_view(out.data(), 1, 1, 3, c.E));
    EXPECT_EQ(out, judge.truth.out);
  }
}

TEST(StructuredAttention, ErrorsNameArgumentAndValue) {
  Case c;
  c.D = 5;
  c.M = 7;
  c.structured = true;
  const auto error_of = [&](auto change) -> std::string {
    Problem p = test::make_problem(c);
    test::Params<float> owned(p);
    owned.value.projection = nullptr;
    owned.value.structured = p.structured.data();
    change(owned.value, p);
    std::vector<float> out(p.dout.size());
    return test::error_of([&] {
      bidirectional_forward<float>(owned.value,
                                   contiguous_view<const float>(p.q.data(), c.B, c.H, c.L, c.D),
                                   contiguous_view<const float>(p.k.data(), c.B, c.H, c.S, c.D),
                                   contiguous_view<const float>(p.v.data(), c.B, c.H, c.S, c.E),
                                   contiguous_view(out.data(), c.B, c.H, c.L, c.E));
    });
  };
  using Params = AttentionParams<float>;
  EXPECT_EQ(
      error_of([](Params& params, Problem& p) { params.projection = p.projection.data(); }),
      "bidirectional_forward: projection and structured are both given, expected one of them");
  EXPECT_EQ(error_of([](Params& params, Problem&) { params.num_features = 8; }),
            "bidirectional_forward: structured[0] is a matrix of 7 x 5, expected 8 x 5");
  EXPECT_EQ(error_of([](Params&, Problem& p) { p.structured[0].head_dim = 4; }),
            "bidirectional_forward: structured[0] is a matrix of 7 x 4, expected 7 x 5");
  EXPECT_EQ(error_of([](Params&, Problem& p) { p.structured[0].signs.pop_back(); }),
            "bidirectional_forward: structured[0] has 2 words of signs and 7 scales in blocks of 8 "
            "rows, expected what draw_structured_projection gives");
}

}  // namespace
}  // namespace favor
