// SPDX-License-Identifier: Apache-2.0
// A problem solved by the reference, and by the kernels through the public calls.
#ifndef FAVOR_TESTING_RUNS_H_
#define FAVOR_TESTING_RUNS_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <type_traits>
#include <vector>

#include "favor/attention.h"
#include "favor/exact.h"
#include "favor/reference.h"
#include "favor/reference_exact.h"
#include "favor/testing_buffer.h"
#include "favor/testing_problem.h"

namespace favor::test {

/// Outputs and gradients in row-major order.
template <class T>
struct Results {
  std::vector<T> out, dq, dk, dv;
  std::vector<T> out_terms;    ///< with kTerms: the output for |v|
  double largest_log_sum = 0;  ///< of the reference: |log2| of a row's sum, where maps have it
  bool guards_intact = true;
};

enum class Passes {
  kForward,  ///< gradients stay empty
  kBoth,
  kTerms,  ///< as kBoth with |v|, |dout| and out = 0
};

/// Forward and backward by the reference in T. Where T is float, results are rounded to the case's
/// element type when they are stored, so that the backward pass sees the output as a kernel does.
///
/// dv is a sum of dout with positive weights, and the gradient of a feature is dout.v less
/// dout.out. With kTerms signs no longer cancel and the second term is missing, which leaves the
/// size of what rounding errors are relative to.
template <class T>
Results<T> run_reference(const Problem& p, Passes passes = Passes::kBoth) {
  const Case& c = p.spec;
  const auto convert = [](const std::vector<float>& x) {
    return std::vector<T>(x.begin(), x.end());
  };
  std::vector<T> q = convert(p.q), k = convert(p.k), v = convert(p.v), dout = convert(p.dout);
  Results<T> r;
  if (passes == Passes::kTerms) {
    for (std::vector<T>* x : {&v, &dout}) {
      for (T& value : *x) value = std::abs(value);
    }
  }
  const T nan = std::numeric_limits<T>::quiet_NaN();
  r.out.assign(dout.size(), nan);
  const auto view = [&](std::vector<T>& x, int64_t length, int64_t width) {
    const int64_t heads = &x == &k || &x == &v || &x == &r.dk || &x == &r.dv ? c.G() : c.H;
    return contiguous_view(x.data(), c.B, heads, length, width);
  };
  const auto read = [&](std::vector<T>& x, int64_t length, int64_t width) {
    return View4<const T>(view(x, length, width));
  };
  const Params<T> owned(p);
  const AttentionParams<T>& params = owned.value;
  const auto forward =
      c.causal ? reference::causal_forward<T, DecodeState>
               : +[](const AttentionParams<T>& a, View4<const T> b, View4<const T> d,
                     View4<const T> e, View4<T> f, Saved<T>* g, const DecodeState*,
                     DecodeState*) { reference::bidirectional_forward<T>(a, b, d, e, f, g); };
  const auto backward =
      c.causal ? reference::causal_backward<T> : reference::bidirectional_backward<T>;
  std::vector<T> normalizer(c.B * c.H * c.L);
  Saved<T> saved;
  saved.normalizer = normalizer.data();
  if (c.exact) {
    reference::exact_forward<T>(exact_params(c, params), read(q, c.L, c.D), read(k, c.S, c.D),
                                read(v, c.S, c.E), view(r.out, c.L, c.E), normalizer.data());
  } else {
    forward(params, read(q, c.L, c.D), read(k, c.S, c.D), read(v, c.S, c.E), view(r.out, c.L, c.E),
            &saved, nullptr, nullptr);
  }
  if (c.exact || is_log_linear(c.feature_map)) {
    for (const T log_sum : normalizer) {
      if (!std::isfinite(log_sum)) continue;
      const double size = std::abs(static_cast<double>(log_sum)) * std::numbers::log2e;
      r.largest_log_sum = std::max(r.largest_log_sum, size);
    }
  }
  const auto finish = [&](std::initializer_list<std::vector<T>*> results) {
    if constexpr (std::is_same_v<T, float>) {
      for (std::vector<T>* x : results) round_to(c.element, *x);
    }
  };
  finish({&r.out});
  if (passes == Passes::kForward) return r;
  if (passes == Passes::kTerms) {
    r.out_terms = r.out;
    std::fill(r.out.begin(), r.out.end(), T{0});
  }
  r.dq.assign(q.size(), nan);
  r.dk.assign(k.size(), nan);
  r.dv.assign(v.size(), nan);
  if (c.exact) {
    reference::exact_backward<T>(exact_params(c, params), read(q, c.L, c.D), read(k, c.S, c.D),
                                 read(v, c.S, c.E), read(r.out, c.L, c.E), read(dout, c.L, c.E),
                                 normalizer.data(), view(r.dq, c.L, c.D), view(r.dk, c.S, c.D),
                                 view(r.dv, c.S, c.E));
  } else {
    backward(params, read(q, c.L, c.D), read(k, c.S, c.D), read(v, c.S, c.E), read(r.out, c.L, c.E),
             read(dout, c.L, c.E), Saved<T>(), view(r.dq, c.L, c.D), view(r.dk, c.S, c.D),
             view(r.dv, c.S, c.E));
  }
  finish({&r.dq, &r.dk, &r.dv});
  return r;
}

/// Forward and backward through the public entry points on elements of type T.
template <class T>
Results<float> run_kernel_on(const Problem& p, Passes passes) {
  const Case& c = p.spec;
  const Layout output = c.layout == Layout::kExpanded ? Layout::kContiguous : c.layout;
  const std::array<int64_t, 4> q_size{c.B, c.H, c.L, c.D}, k_size{c.B, c.G(), c.S, c.D},
      v_size{c.B, c.G(), c.S, c.E}, out_size{c.B, c.H, c.L, c.E};
  Buffer<T> q(q_size, c.layout), k(k_size, c.layout), v(v_size, c.layout), dout(out_size, c.layout);
  Buffer<T> out(out_size, output), dq(q_size, output), dk(k_size, output), dv(v_size, output);
  q.set(p.q);
  k.set(p.k);
  v.set(p.v);
  dout.set(p.dout);
  const int64_t M = c.projection == ProjectionUse::kNone ? c.D : c.M;
  const int64_t segments =
      c.cu_seqlens_q.empty() ? 1 : static_cast<int64_t>(c.cu_seqlens_q.size()) - 1;
  Buffer<float> normalizer({c.B, c.H, c.L, 1}, Layout::kContiguous);
  Buffer<float> state({1, 1, 1, saved_state_size(c.B, c.G(), c.L, M, c.E, c.causal, segments)},
                      Layout::kContiguous);
  std::vector<uint8_t> chunk_starts(c.B * c.G() * c.L + 1, 0xee);
  Saved<float> saved;
  saved.normalizer = normalizer.view().data;
  saved.state = c.keep_state ? state.view().data : nullptr;
  saved.chunk_starts = c.causal ? chunk_starts.data() : nullptr;
  Params<float> owned(p);
  if (!p.structured.empty()) {
    owned.value.projection = nullptr;
    owned.value.structured = p.structured.data();
  }
  const AttentionParams<float>& params = owned.value;
  const bool both = passes != Passes::kForward;
  if (c.exact) {
    const ExactParams<float> exact = exact_params(c, params);
    exact_forward<T>(exact, q.view(), k.view(), v.view(), out.view(), saved.normalizer);
    if (both) {
      exact_backward<T>(exact, q.view(), k.view(), v.view(), out.view(), dout.view(),
                        saved.normalizer, dq.view(), dk.view(), dv.view());
    }
  } else if (c.causal) {
    causal_forward<T>(params, q.view(), k.view(), v.view(), out.view(), &saved);
    if (both) {
      causal_backward<T>(params, q.view(), k.view(), v.view(), out.view(), dout.view(), saved,
                         dq.view(), dk.view(), dv.view());
    }
  } else {
    bidirectional_forward<T>(params, q.view(), k.view(), v.view(), out.view(), &saved);
    if (both) {
      bidirectional_backward<T>(params, q.view(), k.view(), v.view(), out.view(), dout.view(),
                                saved, dq.view(), dk.view(), dv.view());
    }
  }
  Results<float> r;
  r.out = out.get();
  if (both) {
    r.dq = dq.get();
    r.dk = dk.get();
    r.dv = dv.get();
  }
  for (const Buffer<T>* buffer : {&q, &k, &v, &dout, &out, &dq, &dk, &dv}) {
    r.guards_intact = r.guards_intact && buffer->guards_intact();
  }
  r.guards_intact = r.guards_intact && normalizer.guards_intact() && state.guards_intact();
  r.guards_intact = r.guards_intact && chunk_starts.back() == 0xee;
  return r;
}

/// Forward and backward through the public entry points, in memory of the case's layout and type.
inline Results<float> run_kernel(const Problem& p, Passes passes = Passes::kBoth) {
  switch (p.spec.element) {
    case ElementType::kBfloat16:
      return run_kernel_on<bfloat16>(p, passes);
    case ElementType::kFloat16:
      return run_kernel_on<float16>(p, passes);
    default:
      return run_kernel_on<float>(p, passes);
  }
}

}  // namespace favor::test

#endif  // FAVOR_TESTING_RUNS_H_
