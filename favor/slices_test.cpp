// SPDX-License-Identifier: Apache-2.0
// Gradients of a stream taken in slices: the reference against the whole pass and against central
// differences by the state, the kernels against the reference.
#include "favor/slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "favor/parallel.h"
#include "favor/plan.h"
#include "favor/testing.h"

namespace favor {
namespace {

using test::Case;
using test::error_of;
using test::Judge;
using test::MaskKind;
using test::Problem;
using test::ProjectionUse;
using test::Results;
using test::WeightKind;

// Tokens [begin, end) of a row-major [B, H, L, width] tensor.
template <class T>
View4<T> tokens_of(T* data, const Case& c, int64_t heads, int64_t width, int64_t begin,
                   int64_t end) {
  View4<T> view = contiguous_view(data + begin * width, c.B, heads, c.L, width);
  view.sizes[2] = end - begin;
  return view;
}

// The columns [begin, end) of an array whose rows are c.S long.
template <class T>
std::vector<T> columns_of(const std::vector<T>& rows, const Case& c, int64_t begin, int64_t end) {
  std::vector<T> result;
  for (size_t row = 0; row * c.S < rows.size(); ++row) {
    result.insert(result.end(), rows.begin() + row * c.S + begin, rows.begin() + row * c.S + end);
  }
  return result;
}

// What one slice of a problem needs beside its tokens.
template <class T>
struct SliceParams {
  test::Params<T> owned;
  std::vector<uint8_t> mask;
  std::vector<T> weights;

  SliceParams(const Problem& p, int64_t begin, int64_t end)
      : owned(p),
        mask(columns_of(p.mask, p.spec, begin, end)),
        weights(columns_of(owned.key_log_weight, p.spec, begin, end)) {
    owned.value.key_padding_mask = mask.empty() ? nullptr : mask.data();
    owned.value.key_log_weight = weights.empty() ? nullptr : weights.data();
  }
};

using State = reference::BasicDecodeState<double>;

int64_t features_of(const Case& c) {
  return c.projection == ProjectionUse::kNone ? c.D : c.M;
}

// The slices of a stream by the reference in double, borders between them: forward, then backward
// from the last slice to the first.
Results<double> reference_in_slices(const Problem& p, const std::vector<int64_t>& borders) {
  const Case& c = p.spec;
  const auto convert = [](const std::vector<float>& x) {
    return std::vector<double>(x.begin(), x.end());
  };
  std::vector<double> q = convert(p.q), k = convert(p.k), v = convert(p.v), dout = convert(p.dout);
  Results<double> r;
  r.out.assign(dout.size(), NAN);
  r.dq.assign(q.size(), NAN);
  r.dk.assign(k.size(), NAN);
  r.dv.assign(v.size(), NAN);
  std::vector<State> states = {State(c.B, c.G(), features_of(c), c.E)};
  const auto cut = [&](std::vector<double>& x, size_t slice) {
    const bool is_key = &x == &k || &x == &v || &x == &r.dk || &x == &r.dv;
    const bool is_value = &x == &v || &x == &dout || &x == &r.out || &x == &r.dv;
    return tokens_of(x.data(), c, is_key ? c.G() : c.H, is_value ? c.E : c.D, borders[slice],
                     borders[slice + 1]);
  };
  const auto read = [&](std::vector<double>& x, size_t slice) {
    return View4<const double>(cut(x, slice));
  };
  for (size_t n = 0; n + 1 < borders.size(); ++n) {
    const SliceParams<double> params(p, borders[n], borders[n + 1]);
    State next;
    reference::causal_forward<double, State>(params.owned.value, read(q, n), read(k, n), read(v, n),
                                             cut(r.out, n), nullptr, &states[n], &next);
    states.push_back(next);
  }
  State gradient(c.B, c.G(), features_of(c), c.E);
  gradient.c = states.back().c;
  for (size_t n = borders.size() - 1; n-- > 0;) {
    const SliceParams<double> params(p, borders[n], borders[n + 1]);
    State earlier(c.B, c.G(), features_of(c), c.E);
    earlier.c = states[n].c;
    reference::causal_slice_backward<double, State, State>(
        params.owned.value, read(q, n), read(k, n), read(v, n), read(r.out, n), read(dout, n),
        &states[n], &gradient, cut(r.dq, n), cut(r.dk, n), cut(r.dv, n), &earlier);
    gradient = earlier;
  }
  return r;
}

// The same by the kernels.
template <class T>
Results<float> kernel_in_slices(const Problem& p, const std::vector<int64_t>& borders) {
  const Case& c = p.spec;
  const auto convert = [](const std::vector<float>& x) {
    std::vector<T> result;
    for (const float value : x) result.push_back(static_cast<T>(value));
    return result;
  };
  std::vector<T> q = convert(p.q), k = convert(p.k), v = convert(p.v), dout = convert(p.dout);
  std::vector<T> out(dout.size()), dq(q.size()), dk(k.size()), dv(v.size());
  for (std::vector<T>* x : {&out, &dq, &dk, &dv}) std::fill(x->begin(), x->end(), T(NAN));
  const auto cut = [&](std::vector<T>& x, size_t slice) {
    const bool is_key = &x == &k || &x == &v || &x == &dk || &x == &dv;
    const bool is_value = &x == &v || &x == &dout || &x == &out || &x == &dv;
    return tokens_of(x.data(), c, is_key ? c.G() : c.H, is_value ? c.E : c.D, borders[slice],
                     borders[slice + 1]);
  };
  const auto read = [&](std::vector<T>& x, size_t slice) { return View4<const T>(cut(x, slice)); };
  const int64_t M = features_of(c);
  struct Kept {
    std::vector<float> normalizer, state;
    std::vector<uint8_t> starts;
    Saved<float> saved() {
      return {normalizer.data(), state.empty() ? nullptr : state.data(), starts.data()};
    }
  };
  std::vector<Kept> kept;
  std::vector<DecodeState> states = {DecodeState(c.B, c.G(), M, c.E)};
  for (size_t n = 0; n + 1 < borders.size(); ++n) {
    SliceParams<float> params(p, borders[n], borders[n + 1]);
    const int64_t length = borders[n + 1] - borders[n];
    Kept next;
    next.normalizer.resize(c.B * c.H * length);
    if (c.keep_state) {
      next.state.resize(saved_state_size(c.B, c.G(), length, M, c.E, true, 1));
    }
    next.starts.resize(c.B * c.G() * length + 1);
    Saved<float> saved = next.saved();
    DecodeState after;
    // The first slice has no state before it.
    causal_forward<T>(params.owned.value, read(q, n), read(k, n), read(v, n), cut(out, n), &saved,
                      n == 0 ? nullptr : &states[n], &after);
    states.push_back(after);
    kept.push_back(std::move(next));
  }
  StateGradient gradient;
  for (size_t n = borders.size() - 1; n-- > 0;) {
    SliceParams<float> params(p, borders[n], borders[n + 1]);
    const bool is_last = n + 2 == borders.size();
    causal_slice_backward<T>(params.owned.value, read(q, n), read(k, n), read(v, n), read(out, n),
                             read(dout, n), kept[n].saved(), n == 0 ? nullptr : &states[n],
                             is_last ? nullptr : &gradient, cut(dq, n), cut(dk, n), cut(dv, n),
                             n == 0 ? nullptr : &gradient);
  }
  const auto back = [](const std::vector<T>& x) { return std::vector<float>(x.begin(), x.end()); };
  Results<float> r;
  r.out = back(out);
  r.dq = back(dq);
  r.dk = back(dk);
  r.dv = back(dv);
  return r;
}

std::vector<Case> slice_cases() {
  std::vector<Case> cases;
  const auto add = [&](FeatureMapKind map, auto change) {
    Case c;
    c.causal = true;
    c.feature_map = map;
    c.B = 2;
    c.L = c.S = 171;
    c.D = 7;
    c.E = 5;
    c.M = 38;
    c.norm = 0.7;
    change(c);
    cases.push_back(c);
  };
  using enum FeatureMapKind;
  for (const FeatureMapKind map :
       {kPositive, kHyperbolic, kOptimalPositive, kFavorSharpDiagonal, kFavorSharp, kTrig, kRelu,
        kRelu2, kElu1, kExp, kSigmoid, kSoftplus, kGelu, kAbs, kTanh, kCos, kSin, kIdentity}) {
    add(map, [](Case& c) { c.H = 6, c.group = 3, c.mask = MaskKind::kRandom; });
    add(map, [](Case& c) { c.weights = WeightKind::kPerHead, c.mask = MaskKind::kItem; });
    add(map, [](Case& c) { c.renormalize = false, c.norm = 0.4; });
  }
  for (const FeatureMapKind map : {kPositive, kRelu}) {
    add(map, [](Case& c) { c.norm = 4; });
    // No key in the first slices.
    add(map, [](Case& c) { c.mask = MaskKind::kLeft, c.L = c.S = 250; });
    add(map, [](Case& c) { c.keep_state = false; });
    // Slices longer than the interval of kept states, features in two slabs.
    add(map, [](Case& c) { c.B = 1, c.H = 1, c.L = c.S = 2100, c.M = 130, c.E = 9; });
    add(map, [](Case& c) { c.B = 1, c.L = c.S = 1200, c.keep_state = false; });
    add(map, [](Case& c) { c.projection = ProjectionUse::kPerHead, c.structured = true; });
  }
  add(kElu1, [](Case& c) { c.projection = ProjectionUse::kNone; });
  add(kPositive, [](Case& c) { c.feature_eps = 0.01; });
  return cases;
}

// Borders at odd places, a slice of one token and an empty one.
std::vector<int64_t> odd_borders(int64_t L) {
  return {0, L / 3, L / 3 + 1, L / 3 + 1, L / 2 + 3, L};
}

TEST(Slices, ReferenceGradientsAreThoseOfTheWholeStream) {
  for (const Case& c : slice_cases()) {
    if (c.L > 300) continue;
    SCOPED_TRACE(c.name());
    const Problem p = test::make_problem(c);
    const Results<double> whole = test::run_reference<double>(p);
    const Results<double> slices = reference_in_slices(p, odd_borders(c.L));
    const auto expect_near = [](const std::vector<double>& a, const std::vector<double>& b) {
      double scale = 1, error = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        scale = std::max(scale, std::abs(b[i]));
        error = std::max(error, std::abs(a[i] - b[i]));
      }
      // The signed maps cancel in their denominators.
      EXPECT_LT(error, 1e-9 * scale);
    };
    expect_near(slices.out, whole.out);
    expect_near(slices.dq, whole.dq);
    expect_near(slices.dk, whole.dk);
    expect_near(slices.dv, whole.dv);
  }
}

// The gradient by the state itself, where stabilisers of state and tokens differ.
TEST(Slices, ReferenceGradientsOfTheStateAreDifferences) {
  using enum FeatureMapKind;
  for (const FeatureMapKind map : {kPositive, kHyperbolic, kOptimalPositive, kTrig, kRelu, kElu1}) {
    for (const bool renormalize : {true, false}) {
      Case c;
      c.causal = true;
      c.feature_map = map;
      c.renormalize = renormalize;
      c.B = 1, c.H = 2, c.group = 2, c.L = c.S = 5, c.D = 3, c.E = 2, c.M = 4;
      c.norm = 0.6;
      c.weights = WeightKind::kShared;
      SCOPED_TRACE(c.name());
      const Problem p = test::make_problem(c);
      const test::Params<double> params(p);
      const std::vector<double> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end()),
          v(p.v.begin(), p.v.end()), dout(p.dout.begin(), p.dout.end());
      const auto view = [&](const std::vector<double>& x, int64_t heads, int64_t width) {
        return contiguous_view(x.data(), c.B, heads, c.L, width);
      };
      State initial(1, 1, c.M, c.E), wanted(1, 1, c.M, c.E);
      for (int64_t f = 0; f < c.M; ++f) {
        initial.c[f] = estimates_softmax(map) && map != kTrig ? 0.3 * f - 0.5 : 0.4;
        initial.z[f] = 1 + 0.2 * f;
      }
      for (int64_t i = 0; i < c.M * c.E; ++i) initial.S[i] = std::sin(i + 1.0);
      // What later slices want of the state after the last token.
      for (int64_t f = 0; f < c.M; ++f) {
        wanted.z[f] = 0.1 * f - 0.2;
        wanted.c[f] = estimates_softmax(map) && map != kTrig ? 0.2 - 0.1 * f : -0.3;
      }
      for (int64_t i = 0; i < c.M * c.E; ++i) wanted.S[i] = std::cos(i + 1.0);
      std::vector<double> out(dout.size());
      const auto loss = [&](const State& from) {
        State after;
        reference::causal_forward<double, State>(
            params.value, view(q, 2, c.D), view(k, 1, c.D), view(v, 1, c.E),
            contiguous_view(out.data(), c.B, 2, c.L, c.E), nullptr, &from, &after);
        double sum = 0;
        for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
        for (int64_t f = 0; f < c.M; ++f) {
          // wanted is held at stabilisers of its own.
          const double factor = std::exp(after.c[f] - wanted.c[f]);
          sum += factor * wanted.z[f] * after.z[f];
          for (int64_t e = 0; e < c.E; ++e) {
            sum += factor * wanted.S[f * c.E + e] * after.S[f * c.E + e];
          }
        }
        return sum;
      };
      loss(initial);
      std::vector<double> dq(q.size()), dk(k.size()), dv(v.size());
      State gradient(1, 1, c.M, c.E);
      gradient.c = initial.c;
      reference::causal_slice_backward<double, State, State>(
          params.value, view(q, 2, c.D), view(k, 1, c.D), view(v, 1, c.E),
          View4<const double>(contiguous_view(out.data(), c.B, 2, c.L, c.E)), view(dout, 2, c.E),
          &initial, &wanted, contiguous_view(dq.data(), c.B, 2, c.L, c.D),
          contiguous_view(dk.data(), c.B, 1, c.L, c.D),
          contiguous_view(dv.data(), c.B, 1, c.L, c.E), &gradient);
      const auto check = [&](std::vector<double> State::*member) {
        for (size_t i = 0; i < (initial.*member).size(); ++i) {
          State up = initial, down = initial;
          constexpr double kStep = 1e-4;
          (up.*member)[i] += kStep;
          (down.*member)[i] -= kStep;
          EXPECT_NEAR((loss(up) - loss(down)) / (2 * kStep), (gradient.*member)[i], 2e-6) << i;
        }
      };
      check(&State::S);
      check(&State::z);
    }
  }
}

TEST(Slices, KernelsAreAsExactAsTheyMayBe) {
  set_poison_scratch(true);
  for (const Case& c : slice_cases()) {
    SCOPED_TRACE(c.name());
    const Problem p = test::make_problem(c);
    const Judge judge(p);
    test::for_each_isa([&](const char* isa) {
      SCOPED_TRACE(isa);
      for (const int threads : {1, 3}) {
        if (threads > 1 && c.B > 1) continue;  // slabs alone share a head
        set_num_threads(threads);
        EXPECT_EQ(judge.verdict(kernel_in_slices<float>(p, odd_borders(c.L))), "");
      }
      set_num_threads(1);
    });
  }
  set_poison_scratch(false);
}

TEST(Slices, Float16AndBfloat16AreConvertedOnTheWay) {
  for (const ElementType element : {ElementType::kBfloat16, ElementType::kFloat16}) {
    Case c;
    c.causal = true;
    c.L = c.S = 130;
    c.element = element;
    const Problem p = test::make_problem(c);
    const Judge judge(p);
    const Results<float> r = element == ElementType::kBfloat16
                                 ? kernel_in_slices<bfloat16>(p, {0, 70, 130})
                                 : kernel_in_slices<float16>(p, {0, 70, 130});
    EXPECT_EQ(judge.verdict(r), "");
  }
}

TEST(Slices, WithoutTokensTheGradientPassesThrough) {
  AttentionParams<float> params;
  const std::vector<float> w(12, 0.5f);
  params.projection = w.data();
  params.num_features = 4;
  DecodeState state(1, 1, 4, 2);
  std::fill(state.z.begin(), state.z.end(), 1.0f);
  StateGradient gradient(1, 1, 4, 2);
  for (size_t i = 0; i < gradient.S.size(); ++i) gradient.S[i] = static_cast<float>(i);
  float nothing = 0;
  uint8_t start = 0;
  const auto none = contiguous_view(&nothing, 1, 1, 0, 3);
  const auto none_e = contiguous_view(&nothing, 1, 1, 0, 2);
  Saved<float> saved;
  saved.normalizer = &nothing;
  saved.chunk_starts = &start;
  StateGradient result;
  causal_slice_backward<float>(params, none, none, none_e, none_e, none_e, saved, &state, &gradient,
                               none, none, none_e, &result);
  EXPECT_EQ(result.S, gradient.S);
}

TEST(Slices, WrongCallsSayWhatIsWrong) {
  std::vector<float> memory(1000, 1.0f);
  std::vector<uint8_t> starts(100);
  AttentionParams<float> params;
  params.projection = memory.data();
  params.num_features = 4;
  Saved<float> saved;
  saved.normalizer = memory.data();
  saved.chunk_starts = starts.data();
  DecodeState state(1, 2, 4, 3);
  StateGradient gradient(1, 2, 4, 3), small(1, 2, 3, 3), result;
  const auto call = [&](const AttentionParams<float>& with, int64_t S, const DecodeState* initial,
                        const StateGradient* dfinal) {
    const auto view = [&](int64_t length, int64_t width) {
      return contiguous_view(memory.data(), 1, 2, length, width);
    };
    return error_of([&] {
      causal_slice_backward<float>(with, view(6, 5), view(S, 5), view(S, 3), view(6, 3), view(6, 3),
                                   saved, initial, dfinal, view(6, 5), view(S, 5), view(S, 3),
                                   &result);
    });
  };
  EXPECT_EQ(call(params, 7, &state, nullptr),
            "causal_slice_backward: L, S are 6, 7, with 1 segments and window 0, expected L = S, 1 "
            "and 0 (states lie between slices of one stream)");
  AttentionParams<float> windowed = params;
  windowed.window = 64;
  EXPECT_EQ(
      call(windowed, 6, &state, nullptr),
      "causal_slice_backward: L, S are 6, 6, with 1 segments and window 64, expected L = S, 1 "
      "and 0 (states lie between slices of one stream)");
  EXPECT_EQ(call(params, 6, nullptr, nullptr),
            "causal_slice_backward: initial is null, expected a state where its gradient is asked "
            "for");
  EXPECT_EQ(call(params, 6, &state, &small),
            "causal_slice_backward: dfinal has 6, 18, 6 elements in c, S, z, expected 8, 24, 8");
  const DecodeState other(1, 2, 5, 3);
  EXPECT_EQ(call(params, 6, &other, nullptr),
            "causal_slice_backward: initial has B, H, M, E = 1, 2, 5, 3, expected 1, 2, 4, 3");
  EXPECT_EQ(call(params, 6, &state, &gradient), "no error");
}

}  // namespace
}  // namespace favor
