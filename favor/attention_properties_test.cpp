// SPDX-License-Identifier: Apache-2.0
// What attention must do whatever its exact numbers: averages, hulls, linearity, symmetry,
// causality.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::Judge;
using test::MaskKind;
using test::Problem;
using test::ProjectionUse;
using test::Results;

// The relative error that sums over M features and L keys in float may leave: about 80 eps.
constexpr double kSumError = 1e-5;

double largest(const std::vector<float>& x) {
  double m = 0;
  for (float value : x) m = std::max(m, std::abs(static_cast<double>(value)));
  return m;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "element " << i;
}

// Each property for both directions and every map, ordinary and large norms, and a structured
// matrix.
std::vector<Case> property_cases(bool signed_maps) {
  std::vector<Case> cases;
  for (const bool causal : {false, true}) {
    const auto add = [&](FeatureMapKind map, double norm, bool structured) {
      Case c;
      c.causal = causal;
      c.feature_map = map;
      c.norm = norm;
      c.structured = structured;
      c.L = c.S = 75;
      c.D = 17;
      c.E = 9;
      c.M = num_state_features(map, 2) == 2 ? 37 : 38;
      cases.push_back(c);
    };
    for (const auto map : test::kPositiveMaps) add(map, 0.5, false);
    for (const auto map : {FeatureMapKind::kPositive, FeatureMapKind::kRelu}) {
      add(map, 4, false);
      add(map, 0.5, true);
    }
    if (!signed_maps) continue;
    for (const auto map : test::kSignedMaps) add(map, 0.5, false);
  }
  return cases;
}

template <class Body>
void for_each_case(bool signed_maps, const Body& body) {
  for (const Case& c : property_cases(signed_maps)) {
    SCOPED_TRACE(c.name());
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      body(c);
    });
  }
}

// What holds for positive features.
template <class Body>
void for_each_property_case(const Body& body) {
  for_each_case(false, body);
}

// What holds for all maps.
template <class Body>
void for_each_map(const Body& body) {
  for_each_case(true, body);
}

// A map fitted to sums in another order differs in its last digits, which its directions multiply.
double order_error(const Case& c) {
  return is_fitted(c.feature_map) && !c.causal ? 10 * kSumError : kSumError;
}

TEST(Attention, OnesGiveOnes) {
  for_each_property_case([](Case c) {
    c.mask = MaskKind::kRandom;
    Problem p = test::make_problem(c);
    std::fill(p.v.begin(), p.v.end(), 1.0f);
    const Results<double> truth = test::run_reference<double>(p);
    const Results<float> r = test::run_kernel(p);
    for (size_t i = 0; i < r.out.size(); ++i) {
      // A first row whose keys are all masked gives 0.
      ASSERT_NEAR(r.out[i], std::round(truth.out[i]), kSumError);
    }
  });
}

TEST(Attention, StaysInTheHullOfTheValues) {
  for (const double norm : {1.0, 100.0, 1000.0}) {
    for_each_property_case([&](Case c) {
      c.norm = norm;
      const Problem p = test::make_problem(c);
      const Results<float> r = test::run_kernel(p);
      for (int64_t head = 0; head < c.H; ++head) {
        for (int64_t e = 0; e < c.E; ++e) {
          float low = p.v[head * c.S * c.E + e], high = low;
          for (int64_t j = 0; j < c.S; ++j) {
            const float value = p.v[(head * c.S + j) * c.E + e];
            low = std::min(low, value);
            high = std::max(high, value);
          }
          for (int64_t i = 0; i < c.L; ++i) {
            const float out = r.out[(head * c.L + i) * c.E + e];
            ASSERT_GE(out, low - kSumError * std::abs(low));
            ASSERT_LE(out, high + kSumError * std::abs(high));
          }
        }
      }
    });
  }
}

TEST(Attention, IsLinearInTheValues) {
  for_each_property_case([](const Case& c) {
    Problem p = test::make_problem(c);
    const std::vector<float> other = test::random_normal(99, 0, static_cast<int64_t>(p.v.size()));
    const std::vector<float> first = test::run_kernel(p).out;
    std::vector<float> sum = p.v;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = 2 * p.v[i] - 3 * other[i];
    p.v = other;
    const std::vector<float> second = test::run_kernel(p).out;
    p.v = sum;
    const std::vector<float> combined = test::run_kernel(p).out;
    std::vector<float> expected = first;
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = 2 * first[i] - 3 * second[i];
    expect_near(combined, expected, kSumError * largest(sum));
  });
}

TEST(Attention, DoesNotSeeTheOrderOfKeys) {
  for_each_property_case([](const Case& c) {
    if (c.causal) return;
    Problem p = test::make_problem(c);
    const Results<float> first = test::run_kernel(p);
    Problem shuffled = p;
    const auto moved = [&](int64_t j) { return (j * 26 + 5) % c.S; };  // 26 and 75 share no factor
    for (int64_t head = 0; head < c.H; ++head) {
      for (int64_t j = 0; j < c.S; ++j) {
        std::copy_n(p.k.begin() + (head * c.S + j) * c.D, c.D,
                    shuffled.k.begin() + (head * c.S + moved(j)) * c.D);
        std::copy_n(p.v.begin() + (head * c.S + j) * c.E, c.E,
                    shuffled.v.begin() + (head * c.S + moved(j)) * c.E);
      }
    }
    const Results<float> second = test::run_kernel(shuffled);
    expect_near(first.out, second.out, order_error(c) * largest(p.v));
    const double scale = order_error(c) * largest(first.dv);
    for (int64_t head = 0; head < c.H; ++head) {
      for (int64_t j = 0; j < c.S; ++j) {
        for (int64_t e = 0; e < c.E; ++e) {
          ASSERT_NEAR(first.dv[(head * c.S + j) * c.E + e],
                      second.dv[(head * c.S + moved(j)) * c.E + e], scale);
        }
      }
    }
  });
}

TEST(Attention, LastCausalRowIsBidirectional) {
  for_each_property_case([](Case c) {
    if (!c.causal) return;
    const Problem p = test::make_problem(c);
    Problem both = p;
    both.spec.causal = false;
    const std::vector<float> causal = test::run_kernel(p).out;
    const std::vector<float> bidirectional = test::run_kernel(both).out;
    for (int64_t head = 0; head < c.H; ++head) {
      for (int64_t e = 0; e < c.E; ++e) {
        const int64_t i = (head * c.L + c.L - 1) * c.E + e;
        ASSERT_NEAR(causal[i], bidirectional[i], kSumError * largest(p.v));
      }
    }
  });
}

TEST(Attention, BatchItemsDoNotSeeEachOther) {
  for_each_map([](Case c) {
    c.B = 2;
    const Problem p = test::make_problem(c);
    const Results<float> both = test::run_kernel(p);
    Problem second = p;
    second.spec.B = 1;
    for (std::vector<float>* x : {&second.q, &second.k, &second.v, &second.dout}) {
      x->erase(x->begin(), x->begin() + static_cast<int64_t>(x->size()) / 2);
    }
    const Results<float> alone = test::run_kernel(second);
    EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(),
                           both.out.end() - static_cast<int64_t>(alone.out.size())));
    EXPECT_TRUE(std::equal(alone.dk.begin(), alone.dk.end(),
                           both.dk.end() - static_cast<int64_t>(alone.dk.size())));
  });
}

TEST(Attention, RepeatsBitForBit) {
  for_each_map([](const Case& c) {
    const Problem p = test::make_problem(c);
    const Results<float> first = test::run_kernel(p), second = test::run_kernel(p);
    EXPECT_EQ(first.out, second.out);
    EXPECT_EQ(first.dq, second.dq);
    EXPECT_EQ(first.dk, second.dk);
    EXPECT_EQ(first.dv, second.dv);
  });
}

TEST(Attention, PackedSegmentsAreRunsOfTheirOwn) {
  for_each_property_case([](Case c) {
    const std::vector<int64_t> cuts{0, 1, 1, 40, 75};
    c.cu_seqlens_q = c.cu_seqlens_k = cuts;
    c.H = 1;
    const Problem p = test::make_problem(c);
    const Results<float> packed = test::run_kernel(p);
    for (size_t n = 0; n + 1 < cuts.size(); ++n) {
      const int64_t begin = cuts[n], end = cuts[n + 1];
      Problem piece = p;
      piece.spec.cu_seqlens_q = piece.spec.cu_seqlens_k = {};
      piece.spec.L = piece.spec.S = end - begin;
      const auto cut = [&](std::vector<float>& x, int64_t width) {
        x = std::vector<float>(x.begin() + begin * width, x.begin() + end * width);
      };
      cut(piece.q, c.D);
      cut(piece.k, c.D);
      cut(piece.v, c.E);
      cut(piece.dout, c.E);
      const Results<float> alone = test::run_kernel(piece);
      const auto part = [&](const std::vector<float>& x, int64_t width) {
        return std::vector<float>(x.begin() + begin * width, x.begin() + end * width);
      };
      expect_near(alone.out, part(packed.out, c.E), kSumError * largest(p.v));
      expect_near(alone.dq, part(packed.dq, c.D), 10 * kSumError * largest(packed.dq));
      expect_near(alone.dk, part(packed.dk, c.D), 10 * kSumError * largest(packed.dk));
      expect_near(alone.dv, part(packed.dv, c.E), kSumError * largest(packed.dv));
    }
  });
}

// Nothing but the rows that ask may send a gradient, and only to keys they see.
TEST(Attention, GradientsFollowTheMask) {
  for_each_map([](Case c) {
    c.mask = MaskKind::kRandom;
    Problem p = test::make_problem(c);
    const int64_t asking = 30;
    for (int64_t head = 0; head < c.H; ++head) {
      for (int64_t i = 0; i < c.L; ++i) {
        if (i != asking) std::fill_n(p.dout.begin() + (head * c.L + i) * c.E, c.E, 0.0f);
      }
    }
    // Queries without a gradient may hold anything.
    if (is_fitted(c.feature_map)) test::give_map_parameters(p);
    for (int64_t d = 0; d < c.D; ++d) p.q[(asking + 1) * c.D + d] = std::nanf("");
    const Results<float> r = test::run_kernel(p);
    for (int64_t head = 0; head < c.H; ++head) {
      for (int64_t i = 0; i < c.L; ++i) {
        const bool silent_query = i != asking;
        const bool silent_key = p.mask[i] != 0 || (c.causal && i > asking);
        double dq = 0, dk = 0, dv = 0;
        for (int64_t d = 0; d < c.D; ++d) dq += std::abs(r.dq[(head * c.L + i) * c.D + d]);
        for (int64_t d = 0; d < c.D; ++d) dk += std::abs(r.dk[(head * c.L + i) * c.D + d]);
        for (int64_t e = 0; e < c.E; ++e) dv += std::abs(r.dv[(head * c.L + i) * c.E + e]);
        ASSERT_EQ(dq == 0, silent_query) << "row " << i;
        if (silent_key) {
          ASSERT_EQ(dk, 0) << "key " << i;
          ASSERT_EQ(dv, 0) << "key " << i;
        }
        ASSERT_TRUE(std::isfinite(dq + dk + dv)) << "row " << i;
      }
      ASSERT_GT(largest(r.dk), 0);
      ASSERT_GT(largest(r.dv), 0);
    }
  });
}

TEST(Attention, AMaskedKeyIsAKeyThatIsNotThere) {
  for_each_property_case([](Case c) {
    if (c.causal) return;
    c.H = 1;
    c.mask = MaskKind::kRandom;
    c.L = 40;  // where L = S a fitted map leaves out the masked positions' queries too
    const Problem p = test::make_problem(c);
    Problem removed = p;
    removed.mask.clear();
    removed.spec.mask = MaskKind::kNone;
    removed.k.clear();
    removed.v.clear();
    for (int64_t j = 0; j < c.S; ++j) {
      if (p.mask[j] != 0) continue;
      const auto k = p.k.begin() + j * c.D, v = p.v.begin() + j * c.E;
      removed.k.insert(removed.k.end(), k, k + c.D);
      removed.v.insert(removed.v.end(), v, v + c.E);
    }
    removed.spec.S = static_cast<int64_t>(removed.k.size()) / c.D;
    const Results<float> masked = test::run_kernel(p), alone = test::run_kernel(removed);
    expect_near(masked.out, alone.out, order_error(c) * largest(removed.v));
    expect_near(masked.dq, alone.dq, 10 * order_error(c) * largest(alone.dq));
  });
}

// What lies under a mask is never read into a result: other garbage, same bits.
TEST(Attention, GarbageUnderAMaskChangesNothing) {
  for_each_map([](Case c) {
    c.B = 2;
    c.mask = MaskKind::kRandom;
    const Problem p = test::make_problem(c);
    Problem clean = p;
    for (std::vector<float>* x : {&clean.k, &clean.v}) {
      for (float& value : *x) {
        if (!(std::abs(value) < 1e29f)) value = 0;
      }
    }
    const Results<float> dirty = test::run_kernel(p), plain = test::run_kernel(clean);
    EXPECT_EQ(dirty.out, plain.out);
    EXPECT_EQ(dirty.dq, plain.dq);
    EXPECT_EQ(dirty.dk, plain.dk);
    EXPECT_EQ(dirty.dv, plain.dv);
  });
}

// Of a token whose slope rounding decides, its own gradient is left out and nothing else.
TEST(Judge, LeavesOutTheGradientOfATokenAtAKinkAlone) {
  Case c;
  c.feature_map = FeatureMapKind::kRelu;
  Problem p = test::make_problem(c);
  constexpr int64_t kToken = 5;
  // Its part along the first row of the matrix is taken away.
  float* x = p.q.data() + kToken * c.D;
  const float* w = p.projection.data();
  const double along = std::inner_product(x, x + c.D, w, 0.0);
  const double square = std::inner_product(w, w + c.D, w, 0.0);
  for (int64_t i = 0; i < c.D; ++i) x[i] -= static_cast<float>(along / square * w[i]);
  const Judge judge(p);
  EXPECT_EQ(judge.kinks.queries, std::vector<int64_t>{kToken});
  EXPECT_TRUE(judge.kinks.keys.empty());
  const Results<float> right = test::run_kernel(p);
  EXPECT_EQ(judge.verdict(right), "");
  const auto verdict = [&](std::vector<float> Results<float>::*gradient, int64_t token) {
    Results<float> changed = right;
    (changed.*gradient)[static_cast<size_t>(token * c.D)] += 1;
    return judge.verdict(changed);
  };
  EXPECT_EQ(verdict(&Results<float>::dq, kToken), "");
  EXPECT_NE(verdict(&Results<float>::dq, kToken + 1), "");
  EXPECT_NE(verdict(&Results<float>::dk, kToken), "");
  EXPECT_NE(verdict(&Results<float>::dv, kToken), "");
}

}  // namespace
}  // namespace favor
