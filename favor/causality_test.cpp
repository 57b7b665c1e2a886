// SPDX-License-Identifier: Apache-2.0
// The future never reaches the past, and every way to walk a sequence (whole, split, stepped) gives
// the same numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

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

// A causal forward pass over tokens [begin, end) of a problem.
std::vector<float> run_part(const Problem& p, int64_t begin, int64_t end,
                            const DecodeState* initial, DecodeState* final_state) {
  const Case& c = p.spec;
  const auto part = [&](const std::vector<float>& x, int64_t width) {
    View4<const float> view =
        contiguous_view<const float>(x.data() + begin * width, c.B, c.H, c.L, width);
    view.sizes[2] = end - begin;
    return view;
  };
  std::vector<uint8_t> mask;
  AttentionParams<float> params = test::make_params(p, p.projection);
  if (!p.mask.empty()) {
    for (int64_t b = 0; b < c.B; ++b) {
      mask.insert(mask.end(), p.mask.begin() + b * c.S + begin, p.mask.begin() + b * c.S + end);
    }
    mask.push_back(0);  // never a null pointer
    params.key_padding_mask = mask.data();
  }
  std::vector<float> out(c.B * c.H * (end - begin) * c.E, std::nanf(""));
  causal_forward<float>(params, part(p.q, c.D), part(p.k, c.D), part(p.v, c.E),
                        contiguous_view(out.data(), c.B, c.H, end - begin, c.E), nullptr, initial,
                        final_state);
  return out;
}

// One token after another.
std::vector<float> run_steps(const Problem& p, DecodeState& state, int64_t begin, int64_t end) {
  const Case& c = p.spec;
  std::vector<float> all(c.B * c.H * (end - begin) * c.E, std::nanf(""));
  AttentionParams<float> params = test::make_params(p, p.projection);
  for (int64_t t = begin; t < end; ++t) {
    const auto token = [&](const std::vector<float>& x, int64_t width) {
      View4<const float> view =
          contiguous_view<const float>(x.data() + t * width, c.B, c.H, c.L, width);
      view.sizes[2] = 1;
      return view;
    };
    std::vector<uint8_t> mask(c.B);
    if (!p.mask.empty()) {
      for (int64_t b = 0; b < c.B; ++b) mask[b] = p.mask[b * c.S + t];
      params.key_padding_mask = mask.data();
    }
    View4<float> out = contiguous_view(all.data() + (t - begin) * c.E, c.B, c.H, end - begin, c.E);
    out.sizes[2] = 1;
    decode_step(params, token(p.q, c.D), token(p.k, c.D), token(p.v, c.E), state, out);
  }
  return all;
}

// Rows [begin, end) of a [B, H, L, E] result.
std::vector<float> rows(const Case& c, const std::vector<float>& out, int64_t begin, int64_t end) {
  std::vector<float> part;
  for (int64_t head = 0; head < c.B * c.H; ++head) {
    part.insert(part.end(), out.begin() + (head * c.L + begin) * c.E,
                out.begin() + (head * c.L + end) * c.E);
  }
  return part;
}

void expect_same(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double scale = 0;
  for (float x : a) scale = std::max(scale, std::abs(static_cast<double>(x)));
  for (size_t i = 0; i < a.size(); ++i) {
    // Two orders of the same float sums.
    ASSERT_NEAR(a[i], b[i], 1e-5 * scale) << what << ", element " << i;
  }
}

std::vector<Case> stream_cases() {
  std::vector<Case> cases;
  const auto add = [&](FeatureMapKind map, ProjectionUse projection, MaskKind mask, double norm) {
    Case c;
    c.causal = true;
    c.feature_map = map;
    c.projection = projection;
    c.mask = mask;
    c.norm = norm;
    c.B = 2;
    c.L = c.S = 130;
    c.D = 17;
    c.E = 5;
    c.M = projection == ProjectionUse::kNone ? c.D : 37;
    cases.push_back(c);
  };
  for (const auto map : {FeatureMapKind::kPositive, FeatureMapKind::kRelu}) {
    for (const auto mask : {MaskKind::kNone, MaskKind::kLeft, MaskKind::kItem}) {
      for (const double norm : {0.5, 1.0, 4.0}) add(map, ProjectionUse::kShared, mask, norm);
    }
    add(map, ProjectionUse::kPerHead, MaskKind::kRandom, 1);
  }
  add(FeatureMapKind::kRelu, ProjectionUse::kNone, MaskKind::kRandom, 1);
  return cases;
}

TEST(Causal, WholeIsSplitIsStepped) {
  for (const Case& c : stream_cases()) {
    SCOPED_TRACE(c.name());
    const Problem p = test::make_problem(c);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      DecodeState whole_state;
      const std::vector<float> whole = run_part(p, 0, c.L, nullptr, &whole_state);
      EXPECT_EQ(whole_state.position, c.L);
      for (const int64_t cut : {0, 1, 64, 77, 130}) {
        DecodeState state, end_state;
        const auto first = run_part(p, 0, cut, nullptr, &state);
        EXPECT_EQ(state.position, cut);
        const auto second = run_part(p, cut, c.L, &state, &end_state);
        expect_same(rows(c, whole, 0, cut), first, "before the cut");
        expect_same(rows(c, whole, cut, c.L), second, "after the cut");
        // The state is a value: running on from it left it as it was.
        DecodeState again = state;
        expect_same(rows(c, whole, cut, c.L), run_steps(p, again, cut, c.L), "steps");
        EXPECT_EQ(again.position, c.L);
        DecodeState in_place = state;
        const auto third = run_part(p, cut, c.L, &in_place, &in_place);
        EXPECT_EQ(second, third) << "the final state may replace the initial one";
        EXPECT_EQ(in_place.S, end_state.S);
      }
      DecodeState state(c.B, c.H, c.M, c.E);
      expect_same(whole, run_steps(p, state, 0, c.L), "steps from nothing");
      flush(state);
      // The two states stand for the same sums, whatever stabilisers they hold them at.
      for (size_t i = 0; i < state.z.size(); ++i) {
        if (whole_state.z[i] == 0 || state.z[i] == 0) {
          ASSERT_EQ(whole_state.z[i], state.z[i]);
          continue;
        }
        ASSERT_NEAR(whole_state.c[i] + std::log(whole_state.z[i]),
                    state.c[i] + std::log(state.z[i]), 1e-4)
            << "feature " << i;
      }
    });
  }
}

// Overwrites the last key of every head with w_f / root_scale, whose feature f is as large as that
// of any key can be.
void set_last_key_to_row(Problem& p, int64_t f) {
  const Case& c = p.spec;
  const double root = std::sqrt(resolve_scale(test::make_params(p, p.projection), c.D));
  for (int64_t head = 0; head < c.B * c.H; ++head) {
    for (int64_t d = 0; d < c.D; ++d) {
      p.k[(head * c.S + c.S - 1) * c.D + d] = static_cast<float>(p.projection[f * c.D + d] / root);
    }
  }
}

void expect_past_unmoved(const Case& c, const std::vector<float>& before,
                         const std::vector<float>& after) {
  for (int64_t head = 0; head < c.B * c.H; ++head) {
    for (int64_t i = 0; i + 1 < c.L; ++i) {
      double moved = 0, norm = 0;
      for (int64_t e = 0; e < c.E; ++e) {
        const float a = before[(head * c.L + i) * c.E + e], b = after[(head * c.L + i) * c.E + e];
        moved += (a - b) * (a - b);
        norm += a * a;
      }
      ASSERT_LE(std::sqrt(moved), 4e-6 * std::sqrt(norm)) << "head " << head << " row " << i;
    }
  }
}

TEST(Causal, TheFutureNeverReachesThePast) {
  // Standard deviations of q and k: the first four give rows of length 0.5, 1, 4 and 16, after
  // which the last key stands out in one feature; after the others in all of them.
  for (const double norm : {0.0625, 0.125, 0.5, 2.0, 4.0, 16.0}) {
    for (const int64_t L : {2, 64, 100}) {
      Case c;
      c.causal = true;
      c.H = 1;
      c.L = c.S = L;
      c.D = c.E = 64;
      c.M = 256;
      c.norm = norm;
      SCOPED_TRACE(message("norm ", norm, " L ", L));
      const Problem p = test::make_problem(c);
      std::vector<Problem> changed;
      for (const int64_t f : {0, 3, 100, 255}) {
        changed.push_back(p);
        set_last_key_to_row(changed.back(), f);
      }
      changed.push_back(p);
      for (int64_t head = 0; head < c.H; ++head) {
        for (int64_t d = 0; d < c.D; ++d) {
          changed.back().k[(head * L + L - 1) * c.D + d] *= 1000;
          changed.back().v[(head * L + L - 1) * c.E + d] *= 1000;
        }
      }
      std::vector<Judge> judges;
      for (const Problem& q : changed) judges.emplace_back(q, Passes::kForward);
      test::for_each_isa([&](const char* isa) {
        SCOPED_TRACE(isa);
        const std::vector<float> before = test::run_kernel(p, Passes::kForward).out;
        DecodeState state(c.B, c.H, c.M, c.E);
        const std::vector<float> steps = run_steps(p, state, 0, L);
        for (size_t n = 0; n < changed.size(); ++n) {
          SCOPED_TRACE(message("change ", n));
          const Results<float> after = test::run_kernel(changed[n], Passes::kForward);
          expect_past_unmoved(c, before, after.out);
          EXPECT_EQ(judges[n].verdict(after), "");
          DecodeState other(c.B, c.H, c.M, c.E);
          const std::vector<float> other_steps = run_steps(changed[n], other, 0, L);
          expect_past_unmoved(c, steps, other_steps);
          // Exponents near 1500, as at norm 16, are themselves rounded by 6e-5.
          if (norm <= 4) expect_same(after.out, other_steps, "steps");
        }
      });
    }
  }
}

// Chunks are where they are whatever the tokens hold, so what comes in later ones, NaN included,
// leaves no trace at all in earlier rows.
TEST(Causal, LaterChunksLeaveEarlierRowsAsTheyAre) {
  constexpr int64_t kFirst = 128;  // a multiple of every chunk
  const auto check = [&](FeatureMapKind map, bool structured) {
    Case c;
    c.causal = true;
    c.feature_map = map;
    c.structured = structured;
    c.L = c.S = 150;
    c.D = 17;
    c.E = 9;
    c.M = num_state_features(map, 2) == 2 ? 37 : 38;
    SCOPED_TRACE(c.name());
    const Problem p = test::make_problem(c);
    Problem changed = p, wrong = p;
    for (int64_t head = 0; head < c.H; ++head) {
      for (int64_t j = kFirst; j < c.S; ++j) {
        for (int64_t d = 0; d < c.D; ++d) {
          changed.k[(head * c.S + j) * c.D + d] *= -30;
          wrong.k[(head * c.S + j) * c.D + d] = std::nanf("");
          wrong.q[(head * c.S + j) * c.D + d] = std::nanf("");
        }
        for (int64_t e = 0; e < c.E; ++e) changed.v[(head * c.S + j) * c.E + e] *= 1000;
      }
    }
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      const std::vector<float> before = test::run_kernel(p, Passes::kForward).out;
      for (const Problem* other : {&changed, &wrong}) {
        const std::vector<float> after = test::run_kernel(*other, Passes::kForward).out;
        EXPECT_EQ(rows(c, before, 0, kFirst), rows(c, after, 0, kFirst));
      }
    });
  };
  for (const auto map : test::kPositiveMaps) check(map, false);
  for (const auto map : test::kSignedMaps) check(map, false);
  for (const auto map : {FeatureMapKind::kPositive, FeatureMapKind::kRelu}) check(map, true);
}

// Causal order counts from the first query and the first key, so of more keys than queries the last
// are never read.
TEST(Causal, KeysBeyondTheLastQueryTakeNoPart) {
  const auto check = [](FeatureMapKind map) {
    Case c;
    c.causal = true;
    c.feature_map = map;
    c.H = 1;
    c.L = 3;
    c.S = 5;
    c.D = 4;
    c.E = 6;
    SCOPED_TRACE(c.name());
    Problem p = test::make_problem(c);
    const Judge judge(p);
    Problem other = p;
    for (int64_t d = 0; d < 2 * c.D; ++d) other.k[c.L * c.D + d] = std::nanf("");
    for (int64_t e = 0; e < 2 * c.E; ++e) other.v[c.L * c.E + e] = std::nanf("");
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      const Results<float> r = test::run_kernel(p), unread = test::run_kernel(other);
      EXPECT_EQ(judge.verdict(r), "");
      EXPECT_EQ(r.out, unread.out);
      EXPECT_EQ(r.dq, unread.dq);
      EXPECT_EQ(r.dk, unread.dk);
      EXPECT_EQ(r.dv, unread.dv);
      for (int64_t d = 0; d < 2 * c.D; ++d) EXPECT_EQ(r.dk[c.L * c.D + d], 0);
      for (int64_t e = 0; e < 2 * c.E; ++e) EXPECT_EQ(r.dv[c.L * c.E + e], 0);
    });
  };
  for (const auto map : test::kPositiveMaps) check(map);
  for (const auto map : test::kSignedMaps) check(map);
}

// Features that are values of their own logit alone, without a common stabiliser.
TEST(Causal, GeneralisedMapsNeverSeeALaterTokenOfTheirChunk) {
  for (const auto map : {FeatureMapKind::kRelu, FeatureMapKind::kRelu2, FeatureMapKind::kElu1,
                         FeatureMapKind::kSigmoid, FeatureMapKind::kSoftplus, FeatureMapKind::kGelu,
                         FeatureMapKind::kAbs, FeatureMapKind::kTanh, FeatureMapKind::kCos,
                         FeatureMapKind::kSin, FeatureMapKind::kIdentity}) {
    Case c;
    c.causal = true;
    c.feature_map = map;
    c.L = c.S = 60;
    c.D = 17;
    c.E = 9;
    c.M = 37;
    SCOPED_TRACE(c.name());
    const Problem p = test::make_problem(c);
    Problem changed = p;
    for (int64_t head = 0; head < c.H; ++head) {
      for (int64_t j = 50; j < c.S; ++j) {
        for (int64_t d = 0; d < c.D; ++d) changed.k[(head * c.S + j) * c.D + d] *= -30;
        for (int64_t e = 0; e < c.E; ++e) changed.v[(head * c.S + j) * c.E + e] *= 1000;
      }
    }
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      EXPECT_EQ(rows(c, test::run_kernel(p, Passes::kForward).out, 0, 50),
                rows(c, test::run_kernel(changed, Passes::kForward).out, 0, 50));
    });
  }
}

// The same in the other direction: a gradient that enters before a large key does not change.
TEST(Causal, TheFutureNeverReachesAGradientOfThePast) {
  for (const double norm : {0.5, 4.0}) {
    Case c;
    c.causal = true;
    c.H = 1;
    c.L = c.S = 64;
    c.D = c.E = 64;
    c.M = 256;
    c.norm = norm / 8;
    SCOPED_TRACE(norm);
    Problem p = test::make_problem(c);
    std::fill_n(p.dout.end() - c.E, c.E, 0.0f);
    Problem q = p;
    set_last_key_to_row(q, 3);
    const Judge judge(p), other_judge(q);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      const Results<float> before = test::run_kernel(p), after = test::run_kernel(q);
      EXPECT_EQ(judge.verdict(before), "");
      EXPECT_EQ(other_judge.verdict(after), "");
      for (int64_t d = 0; d < c.D; ++d) EXPECT_EQ(after.dk[(c.L - 1) * c.D + d], 0);
      for (const auto gradient : {&Results<float>::dq, &Results<float>::dk, &Results<float>::dv}) {
        const std::vector<float>&x = before.*gradient, &y = after.*gradient;
        double size = 0;
        for (const float value : x) size = std::max(size, std::abs(double{value}));
        for (size_t i = 0; i < x.size() / c.L * (c.L - 1); ++i) {
          ASSERT_NEAR(x[i], y[i], 1e-5 * size) << "element " << i;
        }
      }
    });
  }
}

}  // namespace
}  // namespace favor
