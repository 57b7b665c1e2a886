// SPDX-License-Identifier: Apache-2.0
// Causal backward pass: what its two walks over a chunk of tokens have in common, and what they ask
// for ahead of its use.

// clang-format off
#if defined(FAVOR_BACKWARD_CALL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_BACKWARD_CALL_INL_H_
#undef FAVOR_BACKWARD_CALL_INL_H_
#else
#define FAVOR_BACKWARD_CALL_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>
#include <vector>

#include "favor/held_chunk-inl.h"
#include "favor/slabs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Lines asked for at each step of a product: a chunk's rows and features are more than the steps
/// of the products that take them along.
constexpr int kLinesPerStep = 4;

/// The call as both walks over a slab's tokens see it, and the scratch that they share.
struct BackwardCall {
  const Plan<float>& plan;
  const HeadPlan& head;
  const Item& item;
  const InputRows& out;
  const InputRows& dout;
  const OutputRows& dq;
  const OutputRows& dk;
  const OutputRows& dv;
  int64_t panels = num_panels(head.M);
  bool is_cut = false;  ///< whether `gradients` takes the place of the caller's rows
  SlabGradients gradients = {};

  QueryGradients rows = {};
  KeyChunk keys = {};
  Panels dlogits = {};            ///< [C, M]
  Panels product = {};            ///< [C, D] or [C, E]
  float* row_sums = nullptr;      ///< [C, N]
  std::vector<Lines> lines = {};  ///< to be asked for in the course of a chunk

  void place(ScratchLayout& layout) {
    rows.place(layout, head, kCausalChunk);
    keys.place(layout, head, kCausalChunk);
    dlogits = {layout.take(panel_floats(kCausalChunk, head.M)), kCausalChunk};
    product = {layout.take(panel_floats(kCausalChunk, std::max(head.D, head.E))), kCausalChunk};
    row_sums = layout.take(kCausalChunk * panel_width() / 2);
  }

  int64_t num_keys(const Range& chunk) const {
    return std::clamp<int64_t>(item.segment.num_keys() - chunk.begin, 0, chunk.end - chunk.begin);
  }

  void load_keys(const Range& chunk) const {
    keys.load(plan, head, item, item.segment.k_begin + chunk.begin, num_keys(chunk));
  }

  /// Reads the gradients of a chunk's rows of head h.
  void load_dout(int64_t h, const Range& chunk, const HeldQueries& held) const {
    pack_rows(dout.row(item.b, h, item.segment.q_begin + chunk.begin), dout.strides[2],
              chunk.end - chunk.begin, head.E, 1.0f, held.skip, rows.dout);
  }

  /// A slab's rows of a chunk in one of gradients, for query head `index` of the item.
  static Panels rows_of(const Panels& gradient, int64_t index, const Range& chunk) {
    return {gradient.at(index * kGradientRound + chunk.begin % kGradientRound, 0), gradient.rows};
  }

  /// What the forward walk over a chunk writes last, and what it takes to walk over the next one.
  void ask_for_forward(const Range& chunk, const HeldChunk* later) {
    const Segment& segment = item.segment;
    const int64_t i = segment.q_begin;
    lines.clear();
    for (int64_t h = item.first_head; h < item.last_head; ++h) {
      if (is_cut) {
        add_lines(rows_of(gradients.dq, h - item.first_head, chunk), kCausalChunk, head.D, lines);
      } else {
        lines.emplace_back(dq, item.b, h, i + chunk.begin, i + chunk.end);
      }
    }
    if (later == nullptr) {
      return;
    }
    ask_for_keys(chunk.end);
    const int64_t end = std::min(i + chunk.end + kCausalChunk, segment.q_end);
    for (int64_t h = item.first_head; h < item.last_head; ++h) {
      for (const InputRows* input : {&plan.q, &dout, &out}) {
        lines.emplace_back(*input, item.b, h, i + chunk.end, end);
      }
    }
    ask_for_held(*later);
  }

  /// The same for the reverse walk.
  void ask_for_back(const Range& chunk, const HeldChunk* earlier) {
    const Segment& segment = item.segment;
    const int64_t j = segment.k_begin + chunk.begin;
    lines.clear();
    if (is_cut) {
      add_lines(rows_of(gradients.dv, 0, chunk), kCausalChunk, head.E, lines);
      add_lines(rows_of(gradients.dk, 0, chunk), kCausalChunk, head.D, lines);
    } else {
      const int64_t n = num_keys(chunk);
      lines.emplace_back(dv, item.b, item.g, j, j + n);
      lines.emplace_back(dk, item.b, item.g, j, j + n);
    }
    if (earlier == nullptr) {
      return;
    }
    const int64_t begin = std::max<int64_t>(chunk.begin - kCausalChunk, 0);
    ask_for_keys(begin);
    for (int64_t h = item.first_head; h < item.last_head; ++h) {
      lines.emplace_back(dout, item.b, h, segment.q_begin + begin, segment.q_begin + chunk.begin);
    }
    ask_for_held(*earlier);
  }

  /// The features of a chunk.
  void ask_for_held(const HeldChunk& held) {
    const int64_t floats = kCausalChunk * panels * panel_width();
    lines.emplace_back(held.key_features.data, floats);
    for (const HeldQueries& queries : held.queries) {
      lines.emplace_back(queries.features.data, floats);
    }
  }

  /// The keys and values of a chunk that starts at token t.
  void ask_for_keys(int64_t t) {
    const int64_t begin = item.segment.k_begin + t;
    const int64_t end = std::min(begin + kCausalChunk, item.segment.k_end);
    lines.emplace_back(plan.k, item.b, item.g, begin, end);
    lines.emplace_back(plan.v, item.b, item.g, begin, end);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_BACKWARD_CALL_INL_H_
