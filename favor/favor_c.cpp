// SPDX-License-Identifier: Apache-2.0
// The C interface: matrices and attention.
#include "favor/favor_c.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "favor/c_calls.h"
#include "favor/favor.h"
#include "favor/plan_checks.h"

struct favor_saved {
  bool is_causal = false;
  std::vector<float> normalizer, state;
  std::vector<uint8_t> chunk_starts;
};

namespace favor::c {
namespace {

/// Elements of what a forward pass keeps. Sizes that are wrong give none: the pass itself reports
/// them.
struct SavedSizes {
  size_t normalizer = 0, state = 0, chunk_starts = 0;

  SavedSizes(const AttentionParams<float>& params, const favor_tensor& q, const favor_tensor& k,
             const favor_tensor& v, bool is_causal) {
    const int64_t B = q.sizes[0], H = q.sizes[1], L = q.sizes[2], G = k.sizes[1], E = v.sizes[3];
    const int64_t M = has_projection(params) ? params.num_features : q.sizes[3];
    if (std::min({B, H, L, G, E, M}) < 0) return;
    const int64_t segments =
        params.cu_seqlens_q.empty() ? 1 : static_cast<int64_t>(params.cu_seqlens_q.size()) - 1;
    state = static_cast<size_t>(saved_state_size(B, G, L, M, E, is_causal, segments));
    normalizer = static_cast<size_t>(checked_product("favor_saved", {B, H, L}));
    chunk_starts = is_causal ? static_cast<size_t>(checked_product("favor_saved", {B, G, L})) : 0;
  }
};

Saved<float> view_of(favor_saved& saved) {
  Saved<float> view;
  view.normalizer = saved.normalizer.data();
  view.state = saved.state.empty() ? nullptr : saved.state.data();
  view.chunk_starts = saved.is_causal ? saved.chunk_starts.data() : nullptr;
  return view;
}

void forward(const char* op, const favor_options* options, bool is_causal, const favor_tensor& q,
             const favor_tensor& k, const favor_tensor& v, const favor_tensor& out,
             favor_saved** saved, const favor_state* initial, favor_state* final_state) {
  const AttentionParams<float> params = params_of(op, options);
  std::unique_ptr<favor_saved> kept;
  Saved<float> kept_view;
  if (saved != nullptr) {
    const SavedSizes sizes(params, q, k, v, is_causal);
    kept = std::make_unique<favor_saved>();
    kept->is_causal = is_causal;
    kept->normalizer.resize(sizes.normalizer);
    kept->state.resize(sizes.state);
    kept->chunk_starts.resize(sizes.chunk_starts);
    kept_view = view_of(*kept);
  }
  Saved<float>* keep = saved == nullptr ? nullptr : &kept_view;
  with_dtype(op, q, [&](auto element) {
    using T = decltype(element);
    const Views<T> view(op);
    if (is_causal) {
      causal_forward<T>(params, view("q", q), view("k", k), view("v", v), view("out", out), keep,
                        initial == nullptr ? nullptr : &plain(op, "initial", *initial),
                        final_state == nullptr ? nullptr : &plain(op, "final_state", *final_state));
    } else {
      bidirectional_forward<T>(params, view("q", q), view("k", k), view("v", v), view("out", out),
                               keep);
    }
  });
  if (saved != nullptr) *saved = kept.release();
}

void backward(const char* op, const favor_options* options, bool is_causal, const favor_tensor& q,
              const favor_tensor& k, const favor_tensor& v, const favor_tensor& out,
              const favor_tensor& dout, const favor_saved* saved, const favor_tensor& dq,
              const favor_tensor& dk, const favor_tensor& dv) {
  const AttentionParams<float> params = params_of(op, options);
  const favor_saved& kept = required(op, "saved", saved);
  const SavedSizes sizes(params, q, k, v, is_causal);
  FAVOR_CHECK(kept.is_causal == is_causal && kept.normalizer.size() == sizes.normalizer &&
                  kept.state.size() == sizes.state &&
                  kept.chunk_starts.size() == sizes.chunk_starts,
              op, ": saved comes from a ", kept.is_causal ? "causal" : "bidirectional",
              " pass over other sizes or under other options, expected this pass's own");
  // The backward pass reads only.
  const Saved<float> kept_view = view_of(const_cast<favor_saved&>(kept));
  with_dtype(op, q, [&](auto element) {
    using T = decltype(element);
    const Views<T> view(op);
    const auto run = is_causal ? causal_backward<T> : bidirectional_backward<T>;
    run(params, view("q", q), view("k", k), view("v", v), view("out", out), view("dout", dout),
        kept_view, view("dq", dq), view("dk", dk), view("dv", dv));
  });
}

}  // namespace
}  // namespace favor::c

using namespace favor;     // NOLINT(google-build-using-namespace): the rest is C
using namespace favor::c;  // NOLINT(google-build-using-namespace)

favor_status favor_draw_projection(const favor_projection_spec* given, float* rows) {
  return guarded([&] {
    const char* op = "favor_draw_projection";
    static_cast<void>(required(op, "rows", rows));
    const std::vector<float> drawn = draw_projection(spec_of(op, given));
    std::copy(drawn.begin(), drawn.end(), rows);
  });
}

favor_status favor_structured_create(const favor_projection_spec* given, int64_t num_matrices,
                                     favor_structured** structured) {
  return guarded([&] {
    const char* op = "favor_structured_create";
    favor_structured*& result = required(op, "structured", structured);
    ProjectionSpec spec = spec_of(op, given);
    FAVOR_CHECK(num_matrices >= 1, op, ": num_matrices is ", num_matrices, ", expected 1 or more");
    auto made = std::make_unique<favor_structured>();
    for (int64_t i = 0; i < num_matrices; ++i, ++spec.head) {
      made->matrices.push_back(draw_structured_projection(spec));
    }
    result = made.release();
  });
}

void favor_structured_free(favor_structured* structured) {
  delete structured;
}

favor_status favor_num_projection_rows(const char* feature_map, int64_t num_features,
                                       int64_t* rows) {
  return guarded([&] {
    const char* op = "favor_num_projection_rows";
    const char* word = &required(op, "feature_map", feature_map);
    required(op, "rows", rows) = num_projection_rows(feature_map_from_string(word), num_features);
  });
}

favor_status favor_num_map_parameters(const char* feature_map, int64_t head_dim, int64_t* numbers) {
  return guarded([&] {
    const char* op = "favor_num_map_parameters";
    const char* word = &required(op, "feature_map", feature_map);
    required(op, "numbers", numbers) = num_map_parameters(feature_map_from_string(word), head_dim);
  });
}

favor_status favor_fit_feature_map(const favor_options* options, favor_tensor q, favor_tensor k,
                                   float* parameters) {
  return guarded([&] {
    const char* op = "favor_fit_feature_map";
    const Views<float> view(op);
    const AttentionParams<float> params = params_of(op, options);
    static_cast<void>(required(op, "parameters", parameters));
    const std::vector<float> fitted = fit_feature_map<float>(params, view("q", q), view("k", k));
    std::copy(fitted.begin(), fitted.end(), parameters);
  });
}

void favor_saved_free(favor_saved* saved) {
  delete saved;
}

favor_status favor_bidirectional_forward(const favor_options* options, favor_tensor q,
                                         favor_tensor k, favor_tensor v, favor_tensor out,
                                         favor_saved** saved) {
  return guarded([&] {
    forward("favor_bidirectional_forward", options, false, q, k, v, out, saved, nullptr, nullptr);
  });
}

favor_status favor_bidirectional_backward(const favor_options* options, favor_tensor q,
                                          favor_tensor k, favor_tensor v, favor_tensor out,
                                          favor_tensor dout, const favor_saved* saved,
                                          favor_tensor dq, favor_tensor dk, favor_tensor dv) {
  return guarded([&] {
    backward("favor_bidirectional_backward", options, false, q, k, v, out, dout, saved, dq, dk, dv);
  });
}

favor_status favor_causal_forward(const favor_options* options, favor_tensor q, favor_tensor k,
                                  favor_tensor v, favor_tensor out, favor_saved** saved,
                                  const favor_state* initial, favor_state* final_state) {
  return guarded([&] {
    forward("favor_causal_forward", options, true, q, k, v, out, saved, initial, final_state);
  });
}

favor_status favor_causal_backward(const favor_options* options, favor_tensor q, favor_tensor k,
                                   favor_tensor v, favor_tensor out, favor_tensor dout,
                                   const favor_saved* saved, favor_tensor dq, favor_tensor dk,
                                   favor_tensor dv) {
  return guarded([&] {
    backward("favor_causal_backward", options, true, q, k, v, out, dout, saved, dq, dk, dv);
  });
}

favor_status favor_exact_forward(const favor_exact_options* options, favor_tensor q, favor_tensor k,
                                 favor_tensor v, favor_tensor out, float* normalizer) {
  return guarded([&] {
    const char* op = "favor_exact_forward";
    const Views<float> view(op);
    exact_forward<float>(params_of(op, options), view("q", q), view("k", k), view("v", v),
                         view("out", out), normalizer);
  });
}

favor_status favor_exact_backward(const favor_exact_options* options, favor_tensor q,
                                  favor_tensor k, favor_tensor v, favor_tensor out,
                                  favor_tensor dout, const float* normalizer, favor_tensor dq,
                                  favor_tensor dk, favor_tensor dv) {
  return guarded([&] {
    const char* op = "favor_exact_backward";
    const Views<float> view(op);
    exact_backward<float>(params_of(op, options), view("q", q), view("k", k), view("v", v),
                          view("out", out), view("dout", dout), normalizer, view("dq", dq),
                          view("dk", dk), view("dv", dv));
  });
}
