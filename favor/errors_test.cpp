// SPDX-License-Identifier: Apache-2.0
// Every argument check of the public entry points: its message names the operation, what it got and
// what it expected, and nothing has been written by then.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "favor/attention.h"
#include "favor/check.h"
#include "favor/testing_errors.h"

namespace favor {
namespace {

enum class Op { kBidirectionalForward, kBidirectionalBackward, kCausalForward, kCausalBackward };

constexpr Op kOps[] = {Op::kBidirectionalForward, Op::kBidirectionalBackward, Op::kCausalForward,
                       Op::kCausalBackward};

std::string name_of(Op op) {
  switch (op) {
    case Op::kBidirectionalForward:
      return "bidirectional_forward";
    case Op::kBidirectionalBackward:
      return "bidirectional_backward";
    case Op::kCausalForward:
      return "causal_forward";
    case Op::kCausalBackward:
      return "causal_backward";
  }
  return "";
}

bool is_backward(Op op) {
  return op == Op::kBidirectionalBackward || op == Op::kCausalBackward;
}

// A right call; tests spoil one argument of it. All tensors share one block of memory.
struct Call {
  std::vector<float> memory = std::vector<float>(4096, 7.0f);
  std::vector<float> projection = std::vector<float>(64, 0.5f);
  std::vector<int64_t> offsets_q, offsets_k;
  std::vector<uint8_t> chunk_starts = std::vector<uint8_t>(64);
  AttentionParams<float> params;
  View4<float> q, k, v, out, dout, dq, dk, dv;
  Saved<float> saved;
  DecodeState state{2, 3, 4, 6};
  const DecodeState* initial = nullptr;
  DecodeState* final_state = nullptr;

  Call() {
    params.projection = projection.data();
    params.num_features = 4;
    float* next = memory.data();
    const auto place = [&](int64_t length, int64_t width) {
      const View4<float> view = contiguous_view(next, 2, 3, length, width);
      next += 2 * 3 * length * width;
      return view;
    };
    q = place(7, 5);
    k = place(9, 5);
    v = place(9, 6);
    out = place(7, 6);
    dout = place(7, 6);
    dq = place(7, 5);
    dk = place(9, 5);
    dv = place(9, 6);
    saved.normalizer = next;
    saved.chunk_starts = chunk_starts.data();
  }

  void run(Op op) {
    params.cu_seqlens_q = offsets_q;
    params.cu_seqlens_k = offsets_k;
    switch (op) {
      case Op::kBidirectionalForward:
        return bidirectional_forward<float>(params, q, k, v, out, &saved);
      case Op::kBidirectionalBackward:
        return bidirectional_backward<float>(params, q, k, v, out, dout, saved, dq, dk, dv);
      case Op::kCausalForward:
        return causal_forward<float>(params, q, k, v, out, &saved, initial, final_state);
      case Op::kCausalBackward:
        return causal_backward<float>(params, q, k, v, out, dout, saved, dq, dk, dv);
    }
  }
};

using test::error_of;

// The message of `op` after `spoil`; also checks that no tensor has been touched.
std::string error_of(Op op, const std::function<void(Call&)>& spoil) {
  Call call;
  spoil(call);
  const std::vector<float> before = call.memory;
  const std::string error = error_of([&] { call.run(op); });
  EXPECT_EQ(before, call.memory) << "written to before the error: " << error;
  return error;
}

// Expects "<op>: <message>" from each of the four entry points.
void expect_error(const std::string& expected, const std::function<void(Call&)>& spoil) {
  for (const Op op : kOps) EXPECT_EQ(error_of(op, spoil), name_of(op) + ": " + expected);
}

TEST(Errors, ARightCallPasses) {
  for (const Op op : kOps) {
    Call call;
    EXPECT_EQ(error_of([&] { call.run(op); }), "no error");
  }
}

TEST(Errors, Shapes) {
  expect_error("k has shape [2, 3, 9, 4], expected [2, 3, 9, 5] (same B and D as q)",
               [](Call& c) { c.k.sizes[3] = 4; });
  expect_error("k has shape [2, 2, 9, 5], expected a number of heads that divides q's 3",
               [](Call& c) { c.k.sizes[1] = 2; });
  expect_error("k has shape [2, 0, 9, 5], expected a number of heads that divides q's 3",
               [](Call& c) { c.k.sizes[1] = 0; });
  expect_error("v has shape [2, 3, 9, 6], expected [2, 1, 9, 6] (same B, heads and S as k)",
               [](Call& c) { c.k.sizes[1] = 1; });
  expect_error("v has shape [2, 3, 8, 6], expected [2, 3, 9, 6] (same B, heads and S as k)",
               [](Call& c) { c.v.sizes[2] = 8; });
  expect_error("q has shape [2, 3, 7, 0], expected a head dim D >= 1",
               [](Call& c) { c.q.sizes[3] = 0; });
  expect_error("v has shape [2, 3, 9, 0], expected a value dim E >= 1",
               [](Call& c) { c.v.sizes[3] = 0; });
  expect_error("q has shape [2, 3, -7, 5], expected no negative size",
               [](Call& c) { c.q.sizes[2] = -7; });
  expect_error("q has stride 2 in its last dimension, expected 1 (contiguous)",
               [](Call& c) { c.q.strides[3] = 2; });
  expect_error("k is a null pointer, expected data of shape [2, 3, 9, 5]",
               [](Call& c) { c.k.data = nullptr; });
  expect_error("out has shape [2, 3, 7, 5], expected [2, 3, 7, 6] ([B, H, L, E])",
               [](Call& c) { c.out.sizes[3] = 5; });
}

TEST(Errors, ShapesOfGradients) {
  for (const Op op : kOps) {
    if (!is_backward(op)) continue;
    const std::string name = name_of(op) + ": ";
    EXPECT_EQ(error_of(op, [](Call& c) { c.dout.sizes[2] = 6; }),
              name + "dout has shape [2, 3, 6, 6], expected [2, 3, 7, 6] (as out)");
    EXPECT_EQ(error_of(op, [](Call& c) { c.dq.sizes[0] = 1; }),
              name + "dq has shape [1, 3, 7, 5], expected [2, 3, 7, 5] (as q)");
    EXPECT_EQ(error_of(op, [](Call& c) { c.dk.sizes[2] = 7; }),
              name + "dk has shape [2, 3, 7, 5], expected [2, 3, 9, 5] (as k)");
    EXPECT_EQ(error_of(op, [](Call& c) { c.dv.sizes[3] = 5; }),
              name + "dv has shape [2, 3, 9, 5], expected [2, 3, 9, 6] (as v)");
    EXPECT_EQ(error_of(op, [](Call& c) { c.dv.strides[3] = 3; }),
              name + "dv has stride 3 in its last dimension, expected 1 (contiguous)");
    EXPECT_EQ(error_of(op, [](Call& c) { c.saved.normalizer = nullptr; }),
              name + "saved.normalizer is null, expected what the forward pass saved");
  }
  EXPECT_EQ(error_of(Op::kCausalBackward, [](Call& c) { c.saved.chunk_starts = nullptr; }),
            "causal_backward: saved.chunk_starts is null, expected what the forward pass saved");
}

TEST(Errors, Parameters) {
  expect_error("projection is null, expected an [M, D] matrix (feature_map positive is random)",
               [](Call& c) { c.params.projection = nullptr; });
  expect_error("num_features is 0, expected M >= 1 (features of the state)",
               [](Call& c) { c.params.num_features = 0; });
  expect_error("num_features is -4, expected M >= 1 (features of the state)",
               [](Call& c) { c.params.num_features = -4; });
  expect_error(
      "num_features is 4, expected 0 or D = 5 (no projection: the features are those of x itself)",
      [](Call& c) {
        c.params.feature_map = FeatureMapKind::kRelu;
        c.params.projection = nullptr;
      });
  expect_error("num_projections is 2, expected 1 or 3 (key heads)",
               [](Call& c) { c.params.num_projections = 2; });
  expect_error("scale is 0, expected a finite number above 0", [](Call& c) { c.params.scale = 0; });
  expect_error("scale is nan, expected a finite number above 0",
               [](Call& c) { c.params.scale = std::nan(""); });
  expect_error("feature_eps is 0.001, expected 0 (feature_map trig takes none)", [](Call& c) {
    c.params.feature_map = FeatureMapKind::kTrig;
    c.params.feature_eps = 1e-3;
  });
  expect_error(
      "num_features is 5, expected an even number (feature_map hyperbolic makes two of "
      "each row)",
      [](Call& c) {
        c.params.feature_map = FeatureMapKind::kHyperbolic;
        c.params.num_features = 5;
      });
  expect_error("compatibility is official, expected feature_map positive, not relu", [](Call& c) {
    c.params.feature_map = FeatureMapKind::kRelu;
    c.params.compatibility = Compatibility::kOfficial;
  });
  expect_error("renormalize is false, expected true (compatibility is official)", [](Call& c) {
    c.params.renormalize = false;
    c.params.compatibility = Compatibility::kOfficial;
  });
  expect_error("feature_eps is -1, expected a finite number, 0 or above", [](Call& c) {
    c.params.feature_map = FeatureMapKind::kRelu;
    c.params.feature_eps = -1;
  });
}

TEST(Errors, MapParameters) {
  static const std::vector<float> ones(3 * (5 + 25), 1.0f);
  expect_error(
      "map_parameters are given, expected none (feature_map positive has no fitted "
      "parameters)",
      [](Call& c) { c.params.map_parameters = ones.data(); });
  expect_error("map_parameters[0][0] is 1, expected A < 1/8", [](Call& c) {
    c.params.feature_map = FeatureMapKind::kOptimalPositive;
    c.params.map_parameters = ones.data();
  });
  expect_error("num_map_parameter_sets is 2, expected 1 or 3 (key heads)", [](Call& c) {
    c.params.feature_map = FeatureMapKind::kOptimalPositive;
    c.params.map_parameters = ones.data();
    c.params.num_map_parameter_sets = 2;
  });
  static const std::vector<float> psi = {0, 1, 1, -1, 1, 1};
  expect_error("map_parameters[0][3] is -1, expected Psi > 0", [](Call& c) {
    c.params.feature_map = FeatureMapKind::kFavorSharpDiagonal;
    c.params.map_parameters = psi.data();
  });
  static const std::vector<float> odd = {std::nanf("")};
  expect_error("map_parameters[0][0] is nan, expected a finite number", [](Call& c) {
    c.params.feature_map = FeatureMapKind::kOptimalPositive;
    c.params.map_parameters = odd.data();
  });
  EXPECT_EQ(error_of(Op::kCausalForward,
                     [](Call& c) { c.params.feature_map = FeatureMapKind::kFavorSharp; }),
            "causal_forward: map_parameters is null, expected those of fit_feature_map "
            "(feature_map favor_sharp would be fitted to later tokens)");
  EXPECT_EQ(error_of(Op::kCausalForward,
                     [](Call& c) { c.params.compatibility = Compatibility::kOfficial; }),
            "causal_forward: compatibility is official, expected none (its stabiliser is the "
            "maximum over later keys too)");
}

TEST(Errors, KeyWeightsAndWindow) {
  static std::vector<float> weights(2 * 3 * 9, 0.0f);
  expect_error("num_key_log_weights is 2, expected 1 or 3 (key heads)", [](Call& c) {
    c.params.key_log_weight = weights.data();
    c.params.num_key_log_weights = 2;
  });
  static std::vector<float> infinite(2 * 9, std::numeric_limits<float>::infinity());
  expect_error("key_log_weight has the element inf, expected finite numbers or -inf",
               [](Call& c) { c.params.key_log_weight = infinite.data(); });
  expect_error("window is -1, expected 0 or more tokens", [](Call& c) { c.params.window = -1; });
  expect_error("sinks is -2, expected 0 or more tokens", [](Call& c) { c.params.sinks = -2; });
  expect_error("sinks is 2, expected 0 (without a window every key goes through features)",
               [](Call& c) { c.params.sinks = 2; });
  expect_error("window is 4, expected 0 (feature_map relu has no scores to join exact ones)",
               [](Call& c) {
                 c.params.window = 4;
                 c.params.feature_map = FeatureMapKind::kRelu;
               });
  expect_error("window is 4, expected 0 (feature_map trig has no scores to join exact ones)",
               [](Call& c) {
                 c.params.window = 4;
                 c.params.feature_map = FeatureMapKind::kTrig;
               });
  expect_error("feature_eps is 0.5, expected 0 (with a window)", [](Call& c) {
    c.params.window = 4;
    c.params.feature_eps = 0.5;
  });
  expect_error("renormalize is false, expected true (with a window)", [](Call& c) {
    c.params.window = 4;
    c.params.renormalize = false;
  });
}

TEST(Errors, Segments) {
  expect_error("cu_seqlens_k is missing, expected both cu_seqlens_q and cu_seqlens_k or neither",
               [](Call& c) {
                 c.offsets_q = {0, 7};
               });
  expect_error("cu_seqlens_q is missing, expected both cu_seqlens_q and cu_seqlens_k or neither",
               [](Call& c) {
                 c.offsets_k = {0, 9};
               });
  expect_error("cu_seqlens_k has 3 offsets, expected 2 (as cu_seqlens_q)", [](Call& c) {
    c.offsets_q = {0, 7};
    c.offsets_k = {0, 4, 9};
  });
  expect_error(
      "cu_seqlens_q has 1 offsets, expected at least 2 (the first is 0, the last the length)",
      [](Call& c) { c.offsets_q = c.offsets_k = {0}; });
  expect_error("cu_seqlens_q[0] is 1, expected 0", [](Call& c) {
    c.offsets_q = {1, 7};
    c.offsets_k = {0, 9};
  });
  expect_error("the last offset of cu_seqlens_k is 8, expected 9 (the length)", [](Call& c) {
    c.offsets_q = {0, 7};
    c.offsets_k = {0, 8};
  });
  expect_error("cu_seqlens_k[2] is 3, expected at least 5 (offsets ascend)", [](Call& c) {
    c.offsets_q = {0, 2, 4, 7};
    c.offsets_k = {0, 5, 3, 9};
  });
}

TEST(Errors, States) {
  const auto causal = [](const std::function<void(Call&)>& spoil) {
    return error_of(Op::kCausalForward, spoil);
  };
  const auto square = [](Call& c) {
    c.k.sizes[2] = c.v.sizes[2] = 7;
    c.initial = &c.state;
    c.final_state = &c.state;
  };
  EXPECT_EQ(causal([](Call& c) { c.final_state = &c.state; }),
            "causal_forward: q has length 7, expected 9 (as k, because a state is given or asked "
            "for)");
  EXPECT_EQ(causal([&](Call& c) {
              square(c);
              c.offsets_q = c.offsets_k = {0, 3, 7};
            }),
            "causal_forward: there are 2 segments, expected 1 (a state is given or asked for)");
  EXPECT_EQ(causal([&](Call& c) {
              square(c);
              c.params.window = 3;
            }),
            "causal_forward: window is 3, expected 0 (a state is given or asked for)");
  EXPECT_EQ(causal([&](Call& c) {
              square(c);
              c.state = DecodeState(2, 3, 5, 6);
            }),
            "causal_forward: initial has B, H, M, E = 2, 3, 5, 6, expected 2, 3, 4, 6");
  EXPECT_EQ(causal([&](Call& c) {
              square(c);
              c.state.S.pop_back();
            }),
            "causal_forward: initial has 24, 143, 24 elements in c, S, z, expected 24, 144, 24");
  EXPECT_EQ(error_of([] { DecodeState(1, -2, 3, 4); }),
            "DecodeState: B, H, M, E are 1, -2, 3, 4, expected no negative size");
  const int64_t huge = int64_t{1} << 32;
  EXPECT_EQ(error_of([&] { DecodeState(huge, huge, 1, 1); }),
            "DecodeState: the product of the sizes overflows 64 bits, expected less than 2^63 "
            "elements");
  EXPECT_EQ(error_of([&] { saved_state_size(huge, 1, huge, huge, 1, true, 1); }),
            "saved_state_size: the product of the sizes overflows 64 bits, expected less than 2^63 "
            "elements");
}

TEST(Errors, DecodeStep) {
  const auto decode = [](const std::function<void(Call&)>& spoil) {
    Call call;
    call.q.sizes[2] = call.k.sizes[2] = call.v.sizes[2] = call.out.sizes[2] = 1;
    spoil(call);
    call.params.cu_seqlens_q = call.offsets_q;
    call.params.cu_seqlens_k = call.offsets_k;
    const DecodeState before = call.state;
    const std::string error =
        error_of([&] { decode_step(call.params, call.q, call.k, call.v, call.state, call.out); });
    if (error != "no error") {
      EXPECT_EQ(before.position, call.state.position);
      EXPECT_EQ(before.z, call.state.z);
    }
    return error;
  };
  EXPECT_EQ(decode([](Call&) {}), "no error");
  EXPECT_EQ(decode([](Call& c) { c.q.sizes[2] = 2; }),
            "decode_step: q and k have lengths 2 and 1, expected 1 and 1");
  EXPECT_EQ(decode([](Call& c) {
              c.offsets_q = c.offsets_k = {0, 0, 1};
            }),
            "decode_step: there are 2 segments, expected 1");
  EXPECT_EQ(
      decode([](Call& c) { c.params.window = 4; }),
      "decode_step: window is 4, expected 0 (hybrid_decode_step has a state that holds keys)");
  EXPECT_EQ(decode([](Call& c) { c.k.sizes[3] = 4; }),
            "decode_step: k has shape [2, 3, 1, 4], expected [2, 3, 1, 5] (same B and D as q)");
  EXPECT_EQ(decode([](Call& c) { c.out.sizes[3] = 2; }),
            "decode_step: out has shape [2, 3, 1, 2], expected [2, 3, 1, 6] ([B, H, 1, E])");
  EXPECT_EQ(decode([](Call& c) { c.state = DecodeState(1, 3, 4, 6); }),
            "decode_step: state has B, H, M, E = 1, 3, 4, 6, expected 2, 3, 4, 6");
}

}  // namespace
}  // namespace favor
