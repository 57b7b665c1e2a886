// SPDX-License-Identifier: Apache-2.0
// Causal backward pass: the walk from the end, which carries the sums over later queries and emits
// dk and dv.

// clang-format off
#if defined(FAVOR_REVERSE_WALK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_REVERSE_WALK_INL_H_
#undef FAVOR_REVERSE_WALK_INL_H_
#else
#define FAVOR_REVERSE_WALK_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "favor/backward_call-inl.h"
#include "favor/slices.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Walks over held chunks from the last to the first.
class ReverseWalk {
 public:
  void place(ScratchLayout& layout, const HeadPlan& head) {
    sums_.place(layout, head);
    features_transposed_ = {layout.take(panel_floats(head.M, kCausalChunk)), head.M};
    dv_transposed_ = {layout.take(panel_floats(head.E, kCausalChunk)), head.E};
    scores_ = {layout.take(panel_floats(kCausalChunk, kCausalChunk)), kCausalChunk};
  }

  void start(const HeadPlan& head) const {
    // Columns beyond M and beyond a chunk are read by whole vectors, so they must be finite.
    std::fill_n(features_transposed_.data, panel_floats(head.M, kCausalChunk), 0.0f);
    const int64_t features = num_panels(head.M) * panel_width();
    std::fill_n(sums_.S.data, panel_floats(head.E, head.M), 0.0f);
    std::fill_n(sums_.z, features, 0.0f);
    std::fill_n(sums_.c, features, -kNoKey);
  }

  /// After start: adds what is wanted of the state after the last chunk, row `row` of a gradient,
  /// its features from `first` on. `buffer` is overwritten.
  void take_up(const HeadPlan& head, int64_t row, int64_t first, const StateGradient& from,
               const KeyState& buffer) const {
    const auto at = static_cast<size_t>(row * from.M + first);
    pack_rows(from.S.data() + at * head.E, head.E, head.M, head.E, 1.0f, nullptr, buffer.S);
    transpose(buffer.S, head.M, head.E, sums_.S);
    std::copy_n(from.z.data() + at, head.M, sums_.z);
    for (int64_t f = 0; f < head.M; ++f) {
      sums_.c[f] = from.c[at + f] * std::numbers::log2e_v<float>;
    }
  }

  /// After the walk over the first chunk: the gradient of the state before it, at the stabilisers
  /// that `to` has.
  void leave(const HeadPlan& head, int64_t row, int64_t first, StateGradient& to) const {
    const auto at = static_cast<size_t>(row * to.M + first);
    for (int64_t f = 0; f < head.M; ++f) {
      const float factor = std::exp2(to.c[at + f] * std::numbers::log2e_v<float> - sums_.c[f]);
      to.z[at + f] = sums_.z[f] * factor;
      for (int64_t e = 0; e < head.E; ++e) {
        const float* panel = sums_.S.at(e, f / panel_width());
        to.S[(at + f) * head.E + e] = panel[f % panel_width()] * factor;
      }
    }
  }

  /// One chunk: dk and dv, and the sums over its queries. `earlier` is where the chunk before
  /// it is held, or null.
  void walk(BackwardCall& call, const Range& chunk, const HeldChunk& held,
            const HeldChunk* earlier) {
    const HeadPlan& head = call.head;
    const Item& item = call.item;
    const int64_t queries = chunk.end - chunk.begin;
    const int64_t keys = call.num_keys(chunk);
    call.ask_for_back(chunk, earlier);
    PrefetchJob job(call.lines, kLinesPerStep);
    lower_sums(head, held.c);
    if (keys > 0) {
      call.load_keys(chunk);
      weigh_keys(head, call.keys, keys, held.c);
      key_gradients(call, chunk, held, queries, keys, job);
    }
    for (int64_t h = item.first_head; h < item.last_head; ++h) {
      const HeldQueries& rows = held.queries[static_cast<size_t>(h - item.first_head)];
      if (keys == 0 || call.plan.group() > 1) {
        call.load_dout(h, chunk, rows);  // else key_gradients has left it
      }
      for (int64_t f = 0; f < call.panels * panel_width(); ++f) {
        sums_.z[f] += rows.dz[f];
      }
      multiply_transposed(call.rows.dout, rows.features, sums_.S, sums_.S, head.E, call.panels,
                          queries, job);
    }
  }

 private:
  void key_gradients(const BackwardCall& call, const Range& chunk, const HeldChunk& held,
                     int64_t queries, int64_t keys, PrefetchJob& job) const {
    const HeadPlan& head = call.head;
    const Item& item = call.item;
    const int64_t NR = panel_width();
    const int64_t j = item.segment.k_begin + chunk.begin;
    transpose(held.key_features, keys, head.M, features_transposed_);
    multiply<false>(sums_.S, features_transposed_, dv_transposed_, 0, head.E, 0, num_panels(keys),
                    head.M, job);
    const Panels dv = call.is_cut ? call.rows_of(call.gradients.dv, 0, chunk) : call.product;
    for (int64_t h = item.first_head; h < item.last_head; ++h) {
      const HeldQueries& rows = held.queries[static_cast<size_t>(h - item.first_head)];
      const bool accumulate = h > item.first_head;
      call.load_dout(h, chunk, rows);
      multiply_to_lower(rows.features, features_transposed_, scores_, queries, keys, head.M);
      make_lower(scores_, queries, keys, nullptr, nullptr);
      multiply_lower_transposed(rows.dscores, rows.features, call.dlogits, queries, keys,
                                call.panels, accumulate);
      add_transposed_lower(call.rows.dout, scores_, dv_transposed_, head.E, queries, keys);
    }
    std::fill_n(call.row_sums, keys * NR / 2, 0.0f);
    for (int64_t panel = 0; panel < call.panels; ++panel) {
      multiply<true>(call.keys.values, sums_.S, call.dlogits, 0, keys, panel, panel + 1, head.E,
                     job);
      key_logit_gradients(head, held.key_features.at(0, panel), held.key_slopes.at(0, panel),
                          call.keys, keys, sums_.z + panel * NR, call.dlogits.at(0, panel),
                          call.row_sums);
    }
    transpose(dv_transposed_, head.E, keys, dv);
    if (call.is_cut) {
      token_gradient_panels(head, head.key, call.dlogits, keys, call.keys.tokens, call.row_sums,
                            call.rows_of(call.gradients.dk, 0, chunk));
      return;
    }
    float ones[kCausalChunk];
    std::fill_n(ones, keys, 1.0f);
    unpack_rows(call.product, keys, head.E, ones, call.dv.row(item.b, item.g, j),
                call.dv.strides[2]);
    token_gradients(head, head.key, call.dlogits, keys, call.keys.tokens, call.row_sums,
                    call.product, call.dk.row(item.b, item.g, j), call.dk.strides[2]);
  }

  /// Brings the sums over later queries to the stabilisers of an earlier chunk.
  void lower_sums(const HeadPlan& head, const float* c) const {
    const FloatTag d;
    const int64_t NR = panel_width();
    HWY_ALIGN float factor[kChunk];
    for (int64_t panel = 0; panel < num_panels(head.M); ++panel) {
      const int64_t f = panel * NR;
      if (std::equal(c + f, c + f + NR, sums_.c + f)) {
        continue;
      }
      for (int64_t i = 0; i < NR; i += NR / 2) {
        const Vector fall = hn::Sub(hn::LoadU(d, c + f + i), hn::LoadU(d, sums_.c + f + i));
        hn::StoreU(exp2(fall), d, factor + i);
      }
      sums_.scale(head, panel, factor);
      std::copy_n(c + f, NR, sums_.c + f);
    }
  }

  WalkedState sums_;            ///< over later queries: S = dout^T features, z = -features^T delta
  Panels features_transposed_;  ///< [M, C]
  Panels dv_transposed_;        ///< [E, C]
  Panels scores_;               ///< [C, C] lower triangular
};

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_REVERSE_WALK_INL_H_
