// SPDX-License-Identifier: Apache-2.0
#include "favor/exact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "favor/expect_gradients.h"
#include "favor/expect_parity.h"
#include "favor/random_case.h"
#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::Problem;
using test::Results;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Case exact_case(bool causal) {
  Case c;
  c.exact = true;
  c.causal = causal;
  c.projection = test::ProjectionUse::kNone;
  return c;
}

Case random_exact_case(uint64_t index, bool causal) {
  RandomStream rng(index, 10 + causal);
  const Case wide = test::random_case(rng, causal);
  Case c = exact_case(causal);
  c.B = wide.B;
  c.H = wide.H;
  c.group = wide.group;
  c.L = wide.L;
  c.S = wide.S;
  c.D = wide.D;
  c.E = wide.E;
  c.M = 1;
  c.norm = wide.norm;
  c.mask = wide.mask;
  c.weights = wide.weights;
  c.layout = wide.layout;
  c.scale = wide.scale;
  c.cu_seqlens_q = wide.cu_seqlens_q;
  c.cu_seqlens_k = wide.cu_seqlens_k;
  c.seed = index;
  constexpr int64_t kWindows[] = {0, 0, 1, 3, 7, 64, 100, 1000};
  constexpr int64_t kSinks[] = {0, 0, 1, 4, 200};
  c.window = test::pick(rng, kWindows);
  if (c.window > 0) c.sinks = test::pick(rng, kSinks);
  RandomStream own(index, 20 + causal);
  c.skip_self = own.below(3) == 0;
  // Rounding at the end hides most errors of a kernel, so float is the rule.
  constexpr ElementType kHalves[] = {ElementType::kBfloat16, ElementType::kFloat16};
  if (rng.below(4) == 0) c.element = test::pick(rng, kHalves);
  return c;
}

TEST(Exact, MatchesTheReferenceOnTheGrid) {
  for (uint64_t index = 0; index < 150; ++index) {
    for (const bool causal : {false, true}) {
      test::expect_parity(random_exact_case(index, causal));
    }
  }
}

TEST(Exact, MatchesTheReferenceAtLength) {
  for (const bool causal : {false, true}) {
    Case c = exact_case(causal);
    c.L = c.S = 300;
    c.D = c.E = 64;
    c.H = 1;
    test::expect_parity(c);
    // Enough key heads for dq to be summed in the walk over keys.
    c.L = 150;
    c.S = 300;
    c.D = 17;
    c.E = 33;
    c.B = 2;
    c.H = 8;
    c.group = 2;
    c.mask = test::MaskKind::kRandom;
    test::expect_parity(c);
    c.window = 50;
    c.sinks = 5;
    c.weights = test::WeightKind::kPerHead;
    test::expect_parity(c);
    c.skip_self = true;
    test::expect_parity(c);
  }
}

TEST(Exact, SkippedKeysHaveNoSay) {
  for (const bool causal : {false, true}) {
    Case c = exact_case(causal);
    c.B = c.H = 1;
    c.L = c.S = 70;
    c.skip_self = true;
    const Problem p = test::make_problem(c);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      const std::vector<float> before = test::run_kernel(p, test::Passes::kForward).out;
      for (const int64_t row : {0, 1, 37, 69}) {
        Problem other = p;
        std::fill_n(other.v.begin() + row * c.E, c.E, 1e30f);
        const std::vector<float> after = test::run_kernel(other, test::Passes::kForward).out;
        EXPECT_TRUE(std::equal(before.begin() + row * c.E, before.begin() + (row + 1) * c.E,
                               after.begin() + row * c.E));
        // The last key of a causal call has no other query.
        EXPECT_EQ(before == after, causal && row == 69);
      }
      if (!causal) return;
      // The first query has nothing to see.
      EXPECT_TRUE(std::all_of(before.begin(), before.begin() + c.E,
                              [](float value) { return value == 0.0f; }));
    });
  }
}

TEST(Exact, OutputsStayInTheHullOfTheValuesAtAnyNorm) {
  for (const double norm : {1.0, 100.0, 1000.0}) {
    for (const bool causal : {false, true}) {
      Case c = exact_case(causal);
      c.L = c.S = 200;
      c.norm = norm;
      Problem p = test::make_problem(c);
      for (float& v : p.v) v = std::min(std::max(v, -1.0f), 1.0f);
      test::for_each_isa([&](const char* isa) {
        SCOPED_TRACE(c.name() + " " + isa);
        const Results<float> r = test::run_kernel(p);
        // A sum of n weights is rounded n times, that of the weighted values too.
        for (const float x : r.out) EXPECT_LE(std::abs(x), 1 + 1e-5f);
        EXPECT_TRUE(test::all_finite(r.dq) && test::all_finite(r.dk) && test::all_finite(r.dv));
      });
    }
  }
}

TEST(Exact, LaterKeysDoNotChangeEarlierOutputs) {
  for (const int64_t window : {0, 20}) {
    Case c = exact_case(true);
    c.H = 1;
    c.L = c.S = 150;
    c.window = window;
    c.sinks = window > 0 ? 2 : 0;
    const Problem p = test::make_problem(c);
    for (const int64_t changed : {1, 63, 64, 100}) {
      Problem other = p;
      for (int64_t j = changed; j < c.S; ++j) {
        for (int64_t d = 0; d < c.D; ++d) other.k[j * c.D + d] = 50.0f * p.q[d];
        for (int64_t e = 0; e < c.E; ++e) other.v[j * c.E + e] = 1e30f;
      }
      test::for_each_isa([&](const char* isa) {
        SCOPED_TRACE(c.name() + " " + isa);
        const auto before = [&](const Problem& problem) {
          std::vector<float> out = test::run_kernel(problem, test::Passes::kForward).out;
          out.resize(changed * c.E);
          return out;
        };
        EXPECT_TRUE(test::same_bits(before(p), before(other)));
      });
    }
  }
}

TEST(Exact, AWindowAsLongAsTheSequenceIsNone) {
  for (const bool causal : {false, true}) {
    Case c = exact_case(causal);
    c.L = c.S = 150;
    const Problem whole = test::make_problem(c);
    for (const int64_t window : {150, 1000}) {
      Problem p = whole;
      p.spec.window = window;
      test::for_each_isa([&](const char* isa) {
        SCOPED_TRACE(p.spec.name() + " " + isa);
        const Results<float> a = test::run_kernel(whole);
        const Results<float> b = test::run_kernel(p);
        EXPECT_TRUE(test::same_bits(a.out, b.out));
        EXPECT_TRUE(test::same_bits(a.dq, b.dq));
        EXPECT_TRUE(test::same_bits(a.dk, b.dk));
        EXPECT_TRUE(test::same_bits(a.dv, b.dv));
      });
    }
  }
}

TEST(Exact, RowsWithoutGradientTakeNoPart) {
  for (const bool many_heads : {false, true}) {
    Case c = exact_case(false);
    c.B = many_heads ? 4 : 1;
    c.L = c.S = 90;
    Problem p = test::make_problem(c);
    const int64_t row = 70;  // of every head
    for (int64_t h = 0; h < c.B * c.H; ++h) {
      std::fill_n(p.dout.begin() + (h * c.L + row) * c.E, c.E, 0.0f);
    }
    Problem garbage = p;
    for (int64_t h = 0; h < c.B * c.H; ++h) {
      std::fill_n(garbage.q.begin() + (h * c.L + row) * c.D, c.D, kNan);
    }
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      const Results<float> a = test::run_kernel(p);
      const Results<float> b = test::run_kernel(garbage);
      EXPECT_TRUE(test::same_bits(a.dq, b.dq));
      EXPECT_TRUE(test::same_bits(a.dk, b.dk));
      EXPECT_TRUE(test::same_bits(a.dv, b.dv));
      EXPECT_TRUE(std::isnan(b.out[row * c.E]));
      EXPECT_TRUE(test::all_finite({b.out.begin(), b.out.begin() + row * c.E}));
    });
  }
}

// A query of NaN shares its vector with others whose logits rise beyond any float.
TEST(Exact, ANotANumberDoesNotHideWhatItsNeighboursNeed) {
  Case c = exact_case(false);
  c.H = 1;
  c.L = 64;
  c.S = 256;
  c.D = 1;
  Problem p = test::make_problem(c);
  for (int64_t i = 0; i < c.L; ++i) p.q[i] = i % 2 == 0 ? kNan : 1.0f;
  for (int64_t j = 0; j < c.S; ++j) p.k[j] = static_cast<float>(j);
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    const Results<float> r = test::run_kernel(p, test::Passes::kForward);
    for (int64_t i = 1; i < c.L; i += 2) {
      for (int64_t e = 0; e < c.E; ++e) EXPECT_TRUE(std::isfinite(r.out[i * c.E + e]));
    }
  });
}

TEST(Exact, RowsWithoutKeysAreZeroWhateverTheQueryHolds) {
  Case c = exact_case(false);
  c.B = 2;
  c.mask = test::MaskKind::kItem;
  Problem p = test::make_problem(c);
  std::fill_n(p.q.begin(), c.H * c.L * c.D, kNan);
  test::for_each_isa([&](const char* isa) {
    SCOPED_TRACE(isa);
    const Results<float> r = test::run_kernel(p);
    const auto first_item_is_zero = [&](const std::vector<float>& x) {
      return std::all_of(x.begin(), x.begin() + static_cast<int64_t>(x.size() / 2),
                         [](float value) { return value == 0.0f; });
    };
    EXPECT_TRUE(first_item_is_zero(r.out));
    EXPECT_TRUE(first_item_is_zero(r.dq) && first_item_is_zero(r.dk) && first_item_is_zero(r.dv));
    EXPECT_TRUE(test::all_finite(r.out) && test::all_finite(r.dq));
  });
}

// The gradients of the plain code, by central differences of its output.
TEST(ReferenceExact, GradientsAreThoseOfTheOutput) {
  for (const int64_t window : {0, 3}) {
    for (const bool causal : {false, true}) {
      Case c = exact_case(causal);
      c.group = 2;
      c.L = 7;
      c.S = 9;
      c.D = 3;
      c.E = 2;
      c.window = window;
      c.sinks = window > 0 ? 1 : 0;
      c.weights = test::WeightKind::kPerHead;
      test::expect_gradients_of_output(test::make_problem(c), 1e-5);
      c.skip_self = true;
      test::expect_gradients_of_output(test::make_problem(c), 1e-5);
    }
  }
}

// One call with L = 3 queries, S = 2 keys, H = 2 heads of one key head, D = 2, E = 1.
struct Call {
  ExactParams<float> params;
  std::vector<float> q = std::vector<float>(12, 0.5f), k = std::vector<float>(4, 0.5f),
                     v = std::vector<float>(2, 0.5f), out = std::vector<float>(6),
                     dout = std::vector<float>(6, 1.0f), normalizer = std::vector<float>(6),
                     dq = std::vector<float>(12), dk = std::vector<float>(4),
                     dv = std::vector<float>(2);
  View4<float> q_view = contiguous_view(q.data(), 1, 2, 3, 2),
               k_view = contiguous_view(k.data(), 1, 1, 2, 2),
               v_view = contiguous_view(v.data(), 1, 1, 2, 1),
               out_view = contiguous_view(out.data(), 1, 2, 3, 1),
               dq_view = contiguous_view(dq.data(), 1, 2, 3, 2);

  void forward() {
    exact_forward<float>(params, q_view, k_view, v_view, out_view, normalizer.data());
  }
  void backward(const float* saved) {
    exact_backward<float>(
        params, q_view, k_view, v_view, out_view, contiguous_view(dout.data(), 1, 2, 3, 1), saved,
        dq_view, contiguous_view(dk.data(), 1, 1, 2, 2), contiguous_view(dv.data(), 1, 1, 2, 1));
  }
};

template <class Change, class Run>
std::string error_of(const Change& change, const Run& run) {
  Call call;
  change(call);
  return test::error_of([&] { run(call); });
}

template <class Change>
std::string forward_error(const Change& change) {
  return error_of(change, [](Call& c) { c.forward(); });
}

TEST(Exact, SaysWhatIsWrong) {
  EXPECT_EQ(forward_error([](Call& c) { c.k_view.sizes[3] = 3; }),
            "exact_forward: k has shape [1, 1, 2, 3], expected [1, 1, 2, 2] (same B and D as q)");
  EXPECT_EQ(forward_error([](Call& c) { c.out_view.sizes[3] = 2; }),
            "exact_forward: out has shape [1, 2, 3, 2], expected [1, 2, 3, 1] ([B, H, L, E])");
  EXPECT_EQ(forward_error([](Call& c) { c.params.scale = 0; }),
            "exact_forward: scale is 0, expected a finite number above 0");
  EXPECT_EQ(forward_error([](Call& c) { c.params.window = -1; }),
            "exact_forward: window is -1, expected 0 or more tokens");
  EXPECT_EQ(forward_error([](Call& c) {
              c.params.window = 4;
              c.params.sinks = -2;
            }),
            "exact_forward: sinks is -2, expected 0 or more tokens");
  EXPECT_EQ(forward_error([](Call& c) { c.params.sinks = 1; }),
            "exact_forward: sinks is 1, expected 0 (without a window every key is seen)");
  const std::vector<float> weights{0.0f, kNan};
  EXPECT_EQ(forward_error([&](Call& c) { c.params.key_log_weight = weights.data(); }),
            "exact_forward: key_log_weight has the element nan, expected finite numbers or -inf");
  const std::vector<int64_t> offsets{0, 3};
  EXPECT_EQ(forward_error([&](Call& c) { c.params.cu_seqlens_q = offsets; }),
            "exact_forward: cu_seqlens_k is missing, expected both cu_seqlens_q and cu_seqlens_k "
            "or neither");
  EXPECT_EQ(error_of([](Call&) {}, [](Call& c) { c.backward(nullptr); }),
            "exact_backward: normalizer is null, expected what the forward pass wrote");
  EXPECT_EQ(error_of([](Call& c) { c.dq_view.sizes[2] = 4; },
                     [](Call& c) { c.backward(c.normalizer.data()); }),
            "exact_backward: dq has shape [1, 2, 4, 2], expected [1, 2, 3, 2] (as q)");
  Call right;
  right.forward();
  right.backward(right.normalizer.data());
  EXPECT_EQ(right.out[0], 0.5f);
}

}  // namespace
}  // namespace favor
