// SPDX-License-Identifier: Apache-2.0
// Internal: one checked call of exact attention as the kernels see it, and which keys a query
// meets.
#ifndef FAVOR_EXACT_PLAN_H_
#define FAVOR_EXACT_PLAN_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "favor/plan.h"

namespace favor {

/// Positions [begin, end) of a segment.
struct Positions {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

/// A checked call of exact attention. window: 0, every key is near, or at most the longer of L and
/// S; sinks: at most S.
template <class T>
struct ExactPlan : AttentionCall<T> {
  bool is_causal;
  bool skip_self;

  using AttentionCall<T>::L, AttentionCall<T>::S, AttentionCall<T>::window, AttentionCall<T>::sinks;

  /// Of a call whose window and sinks may be longer than its tokens.
  ExactPlan(AttentionCall<T> call, bool causal, bool without_self = false)
      : AttentionCall<T>(std::move(call)), is_causal(causal), skip_self(without_self) {
    window = std::min(window, std::max({L, S, int64_t{1}}));
    sinks = std::min(sinks, S);
  }

  /// Whether the key at position `j` of a segment is met by every query (at or after it, if
  /// causal).
  bool is_sink(const Segment& segment, int64_t j) const {
    return j < sinks || (!is_causal && j >= segment.num_keys() - sinks);
  }

  /// The queries of a segment that meet the key at position `j`, with the one at `j` itself even
  /// where skip_self leaves it out.
  Positions queries_of_key(const Segment& segment, int64_t j) const {
    Positions queries{0, segment.num_queries()};
    if (window > 0 && !is_sink(segment, j)) {
      const int64_t n = j / window;
      queries.begin = std::max<int64_t>(n - 1, 0) * window;
      queries.end = std::min(queries.end, (n + 2) * window);
    }
    if (is_causal) {
      queries.begin = std::max(queries.begin, j);
    }
    queries.begin = std::min(queries.begin, queries.end);
    return queries;
  }

  /// Ascending, disjoint ranges of the keys of a segment that some of its queries [begin, end)
  /// meet.
  struct KeyRanges {
    std::array<Positions, 3> ranges;
    int64_t count = 0;
  };
  KeyRanges keys_of_queries(const Segment& segment, const Positions& queries) const {
    KeyRanges result;
    const int64_t keys = is_causal ? std::min(segment.num_keys(), queries.end) : segment.num_keys();
    if (window == 0) {
      result.ranges[0] = {0, keys};
      result.count = keys > 0;
      return result;
    }
    const int64_t first = queries.begin / window;
    const int64_t last = (queries.end - 1) / window;
    std::array<Positions, 3> wanted{
        Positions{0, std::min(sinks, keys)},
        Positions{std::max<int64_t>(first - 1, 0) * window, std::min(keys, (last + 2) * window)},
        Positions{is_causal ? keys : std::max<int64_t>(segment.num_keys() - sinks, 0), keys}};
    if (wanted[2].begin < wanted[1].begin) {
      std::swap(wanted[1], wanted[2]);
    }
    int64_t done = 0;
    for (const Positions& range : wanted) {
      const int64_t begin = std::max(range.begin, done);
      if (begin < range.end) {
        result.ranges[static_cast<size_t>(result.count++)] = {begin, range.end};
        done = range.end;
      }
    }
    return result;
  }
};

/// What the backward pass reads and writes beside the plan.
struct ExactGradients {
  InputRows out, dout;
  const float* normalizer;  ///< [B, H, L] log2 of the denominators
  OutputRows dq, dk, dv;
};

// The float kernels, defined once per instruction set and dispatched at run time. A null
// `normalizer` is not kept.
void exact_forward_kernel(const ExactPlan<float>& plan, OutputRows out, float* normalizer);
void exact_backward_kernel(const ExactPlan<float>& plan, const ExactGradients& grads);

}  // namespace favor

#endif  // FAVOR_EXACT_PLAN_H_
