// SPDX-License-Identifier: Apache-2.0
// Causal attention, forward. Chunks of tokens go through a state in order: queries meet the state
// of the earlier chunks and, through a lower triangular block, the keys of their own chunk; then
// the state absorbs the chunk. A chunk whose stabilisers, which know all of its keys, would
// underflow an early row is halved before anything of it is kept.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/causal_forward.cpp"
#include "hwy/foreach_target.h"
#include "favor/query_features-inl.h"
#include "favor/state-inl.h"
// clang-format on

#include <numbers>
#include <vector>

#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Denominators below this, relative to the largest feature product, ask for a smaller chunk:
/// terms that underflow (2^-126) are then still below 2^-86 of the denominator. For maps known by
/// their values, whose denominators say nothing about that, the row's own stabiliser relative to
/// the chunk's takes the denominator's place.
constexpr float kGuardExponent = -40.0f;

constexpr float kLog2e = std::numbers::log2e_v<float>;

/// Tokens of a stream from which on its sums are kept with rests. What the chunks before round away
/// is below 5e-6 of the sums even if all of it has the same sign.
constexpr int64_t kLongStream = 8192;

class CausalForward {
 public:
  CausalForward(const Plan<float>& plan, const HeadPlan& head, const Item& item,
                const OutputRows& out, Saved<float>* saved)
      : plan_(plan), head_(head), item_(item), out_(out), panels_(num_panels(head.M)) {
    const int64_t row = item.b * plan.G + item.g;
    if (saved != nullptr) {
      normalizer_ = saved->normalizer;
      chunk_starts_ = saved->chunk_starts == nullptr ? nullptr : saved->chunk_starts + row * plan.L;
      if (saved->state != nullptr) {
        states_ = saved->state + row * saved_state_size(1, 1, plan.L, plan.M, plan.E, true, 1);
      }
    }
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
    state_.clear(head);
    rests_.clear(head);
    const Segment& segment = item.segment;
    const int64_t first = plan.first_allowed_key(item.b, item.g, segment.k_begin, segment.k_end);
    first_key_ = first < segment.k_end ? first - segment.k_begin : segment.num_queries();
    std::fill_n(features_transposed_.data, panel_floats(head.M, kCausalChunk), 0.0f);
  }

  /// Continues a stream. Its stabilisers are natural logarithms, the kernel's in base 2.
  void start_from(const DecodeState& initial) {
    const int64_t row = (item_.b * plan_.G + item_.g) * head_.M;
    const float* z = initial.z.data() + row;
    const float* S = initial.S.data() + row * head_.E;
    const auto all_zero = [](const float* x, int64_t n) {
      return std::all_of(x, x + n, [](float value) { return value == 0.0f; });
    };
    if (all_zero(z, head_.M) && (head_.log_linear || all_zero(S, head_.M * head_.E))) {
      return;
    }
    pack_rows(S, head_.E, head_.M, head_.E, 1.0f, nullptr, state_.S);
    std::copy_n(z, head_.M, state_.z);
    is_long_ = true;
    if (!initial.S_rest.empty()) {
      const float* S_rest = initial.S_rest.data() + row * head_.E;
      pack_rows(S_rest, head_.E, head_.M, head_.E, 1.0f, nullptr, rests_.S_rest);
      std::copy_n(initial.z_rest.data() + row, head_.M, rests_.z_rest);
    }
    for (int64_t f = 0; f < head_.M; ++f) {
      const bool empty = head_.log_linear && z[f] == 0.0f;
      state_.c[f] = empty ? kNoKey : initial.c[static_cast<size_t>(row + f)] * kLog2e;
    }
    first_key_ = 0;
  }

  void finish_into(DecodeState& final_state) {
    const int64_t row = (item_.b * plan_.G + item_.g) * head_.M;
    float* S = final_state.S.data() + row * head_.E;
    std::fill_n(factor_, head_.M, 1.0f);
    unpack_rows(state_.S, head_.M, head_.E, factor_, S, head_.E);
    std::copy_n(state_.z, head_.M, final_state.z.data() + row);
    if (!final_state.S_rest.empty()) {
      float* S_rest = final_state.S_rest.data() + row * head_.E;
      unpack_rows(rests_.S_rest, head_.M, head_.E, factor_, S_rest, head_.E);
      std::copy_n(rests_.z_rest, head_.M, final_state.z_rest.data() + row);
    }
    for (int64_t f = 0; f < head_.M; ++f) {
      final_state.c[static_cast<size_t>(row + f)] =
          state_.c[f] == kNoKey ? 0.0f : state_.c[f] / kLog2e;
    }
  }

  void run() {
    const Segment& segment = item_.segment;
    if (chunk_starts_ != nullptr) {
      std::fill_n(chunk_starts_ + segment.q_begin, segment.num_queries(), uint8_t{0});
    }
    for (int64_t t = 0; t < segment.num_queries(); t += kCausalChunk) {
      if (states_ != nullptr && t != 0 && t % kStateInterval == 0) {
        export_state(head_, state_,
                     states_ + saved_state_slot(segment, t) * head_.M * (head_.E + 2));
      }
      is_long_ = is_long_ || t >= kLongStream;
      run_chunk(t, std::min(kCausalChunk, segment.num_queries() - t));
    }
  }

 private:
  void place(ScratchLayout& layout) {
    state_.place(layout, head_);
    rests_.place(layout, head_);
    c_next_ = layout.take(panels_ * panel_width());
    z_next_ = layout.take(panels_ * panel_width());
    z_added_ = layout.take(panels_ * panel_width());
    factor_ = layout.take(panels_ * panel_width());
    keys_.place(layout, head_, kCausalChunk);
    queries_ = {layout.take(panel_floats(kCausalChunk, head_.D)), kCausalChunk};
    features_ = {layout.take(panel_floats(kCausalChunk, head_.M)), kCausalChunk};
    features_transposed_ = {layout.take(panel_floats(head_.M, kCausalChunk)), head_.M};
    query_.place(layout, head_, kCausalChunk);
    scores_ = {layout.take(panel_floats(kCausalChunk, kCausalChunk)), kCausalChunk};
    sums_ = {layout.take(panel_floats(kCausalChunk, head_.E)), kCausalChunk};
    row_sums_ = layout.take(kCausalChunk);
    buffer_ = layout.take(logit_floats(head_));
    own_ = layout.take(kCausalChunk);
    if (plan_.group() > 1) {
      undo_.place(layout, head_);
      undo_rests_.place(layout, head_);
    }
  }

  /// Features of the chunk's keys under stabilisers that hold for the chunk, c_next_; the state
  /// itself stays as it is. `next`: the keys to ask for on the way. Returns whether a stabiliser
  /// rose.
  bool chunk_features(int64_t n, const NextRows& next) {
    const int64_t NR = panel_width();
    bool raised = false;
    std::copy_n(state_.c, panels_ * NR, c_next_);
    std::fill_n(factor_, panels_ * NR, 1.0f);
    chunk_key_features(
        head_, keys_, n, c_next_, features_, Panels{nullptr, 0}, z_added_, buffer_,
        [&](int64_t panel) {
          prefetch_rows(plan_.k, item_.b, item_.g, next.first, next.last, panel, panels_);
          prefetch_rows(plan_.v, item_.b, item_.g, next.first, next.last, panel, panels_);
        },
        [&](int64_t panel, const float* factor) {
          raised = true;
          std::copy_n(factor, NR, factor_ + panel * NR);
        });
    return raised;
  }

  /// Whether c_next_ is too far above the own stabiliser of a row that has keys.
  bool stabiliser_is_far(int64_t num_queries, int64_t without_keys) const {
    return !head_.log_linear && num_queries > 1 && without_keys < num_queries &&
           own_[without_keys] - c_next_[0] < kGuardExponent;
  }

  /// Whether some row's denominator is too small to trust although the row has keys.
  bool underflows(int64_t num_queries, int64_t without_keys) const {
    const float limit = std::exp2(kGuardExponent);
    for (int64_t r = without_keys; r < num_queries && num_queries > 1; ++r) {
      if (head_.log_linear && query_.denominator[r] < limit * query_.excess[r]) {
        return true;
      }
    }
    return false;
  }

  void run_chunk(int64_t t, int64_t num_queries) {
    const Segment& segment = item_.segment;
    const int64_t num_keys = std::clamp<int64_t>(segment.num_keys() - t, 0, num_queries);
    const int64_t without_keys = std::clamp<int64_t>(first_key_ - t, 0, num_queries);
    const int64_t j = segment.k_begin + t;
    keys_.load(plan_, head_, item_, j, num_keys);
    const bool raised =
        chunk_features(num_keys, NextRows(j + num_keys, segment.k_end, kCausalChunk));
    own_stabilisers(head_, keys_, num_queries, num_keys, state_.c[0], own_);
    bool too_long = stabiliser_is_far(num_queries, without_keys);
    if (!too_long) {
      for (int64_t f = 0; f < head_.M; ++f) {
        z_next_[f] = state_.z[f] * factor_[f];
      }
      std::fill(z_next_ + head_.M, z_next_ + panels_ * panel_width(), 0.0f);
      transpose(features_, num_keys, head_.M, features_transposed_);
    }
    for (int64_t h = item_.first_head; h < item_.last_head && !too_long; ++h) {
      score(h, t, num_queries, num_keys);
      too_long = underflows(num_queries, without_keys);
      if (too_long) {
        restore_state(raised && h > item_.first_head);
        break;
      }
      if (raised && h == item_.first_head) {
        raise_state();
      }
      answer(h, t, num_queries, num_keys, without_keys);
    }
    if (too_long) {
      // Rows that were answered are answered again.
      const int64_t half = (num_queries + 1) / 2;
      run_chunk(t, half);
      run_chunk(t + half, num_queries - half);
      return;
    }
    if (chunk_starts_ != nullptr) {
      chunk_starts_[segment.q_begin + t] = 1;
    }
    if (num_keys > 0) {
      absorb(num_keys);
    }
  }

  /// Adds the chunk's keys to the state, whose z under the chunk's stabilisers is z_next_.
  void absorb(int64_t num_keys) {
    std::copy_n(z_next_, head_.M, state_.z);
    if (is_long_) {
      rests_.add_products(head_, features_, keys_.values, num_keys, state_.S);
      rests_.add_sums(head_, z_added_, state_.z);
      return;
    }
    multiply_transposed(features_, keys_.values, state_.S, state_.S, head_.M, num_panels(head_.E),
                        num_keys);
    for (int64_t f = 0; f < head_.M; ++f) {
      state_.z[f] += z_added_[f];
    }
  }

  /// Brings the state to c_next_, keeping what it was if a later head may ask for it.
  void raise_state() {
    if (plan_.group() > 1) {
      copy_state(state_, rests_, undo_, undo_rests_);
    }
    scale_rows(state_.S, head_.E, 0, head_.M, factor_);
    scale_rows(rests_.S_rest, head_.E, 0, head_.M, factor_);
    for (int64_t f = 0; f < head_.M; ++f) {
      rests_.z_rest[f] *= factor_[f];
    }
    std::copy_n(c_next_, panels_ * panel_width(), state_.c);
  }

  void restore_state(bool raised) {
    if (raised) {
      copy_state(undo_, undo_rests_, state_, rests_);
    }
  }

  /// All but z, which raise_state leaves as it is.
  void copy_state(const KeyState& from, const LongSums& from_rests, const KeyState& to,
                  const LongSums& to_rests) const {
    std::copy_n(from.S.data, panel_floats(head_.M, head_.E), to.S.data);
    std::copy_n(from.c, panels_ * panel_width(), to.c);
    std::copy_n(from_rests.S_rest.data, panel_floats(head_.M, head_.E), to_rests.S_rest.data);
    std::copy_n(from_rests.z_rest, head_.M, to_rests.z_rest);
  }

  /// Features of the chunk's queries of head h, their scores against the chunk's keys, and the
  /// denominators.
  void score(int64_t h, int64_t t, int64_t num_queries, int64_t num_keys) {
    const int64_t i = item_.segment.q_begin + t;
    const InputElements q = plan_.q.row(item_.b, h, i);
    const int64_t stride = plan_.q.strides[2];
    pack_rows(q, stride, num_queries, head_.D, head_.token_scale, nullptr, queries_);
    query_offsets(head_, q, stride, num_queries, nullptr, queries_, buffer_, query_.offset,
                  query_.floor);
    const NextRows next_q(i + num_queries, item_.segment.q_end, kCausalChunk);
    query_features(head_, queries_, num_queries, c_next_, z_next_, buffer_, query_,
                   [&](int64_t panel) {
                     prefetch_rows(plan_.q, item_.b, h, next_q.first, next_q.last, panel, panels_);
                     prefetch_rows(out_, item_.b, h, i, i + num_queries, panel, panels_);
                   });
    multiply_to_lower(query_.features, features_transposed_, scores_, num_queries, num_keys,
                      head_.M);
    make_lower(scores_, num_queries, num_keys, nullptr, row_sums_);
    for (int64_t r = 0; r < num_queries; ++r) {
      query_.denominator[r] += row_sums_[r];
    }
  }

  /// The outputs of the rows that `score` has seen.
  void answer(int64_t h, int64_t t, int64_t num_queries, int64_t num_keys, int64_t without_keys) {
    const int64_t i = item_.segment.q_begin + t;
    multiply_lower(scores_, keys_.values, sums_, num_queries, num_keys, num_panels(head_.E));
    multiply<true>(query_.features, state_.S, sums_, 0, num_queries, 0, num_panels(head_.E),
                   head_.M);
    float* normalizer =
        normalizer_ == nullptr ? nullptr : normalizer_ + (item_.b * plan_.H + h) * plan_.L + i;
    finish_rows(head_, query_, sums_, num_queries, without_keys, c_next_[0], own_,
                out_.row(item_.b, h, i), out_.strides[2], normalizer);
  }

  const Plan<float>& plan_;
  const HeadPlan& head_;
  const Item& item_;
  const OutputRows& out_;
  int64_t panels_;
  float* normalizer_ = nullptr;
  uint8_t* chunk_starts_ = nullptr;
  float* states_ = nullptr;
  int64_t first_key_;  ///< token of the segment that first has a key to see; 0 if the state has

  KeyState state_;
  LongSums rests_;
  bool is_long_ = false;  ///< whether the rests are kept
  float* c_next_;         ///< [M] stabilisers that hold for the state and the chunk
  float* z_next_;         ///< [M] the state's z under c_next_
  float* z_added_;        ///< [M] what the chunk adds to z
  float* factor_;         ///< [M] 2^(c - c_next)
  KeyChunk keys_;
  Panels queries_;              ///< [C, D]
  Panels sums_;                 ///< [C, E]
  Panels features_;             ///< [C, M] of keys
  Panels features_transposed_;  ///< [M, C]
  QueryFeatures query_;
  Panels scores_;    ///< [C, C]
  float* row_sums_;  ///< [C]
  float* buffer_;    ///< of project()
  float* own_;       ///< [C] stabilisers of the rows; of maps known by their values
  // The state before it was raised, where several query heads may ask for it again.
  KeyState undo_;
  LongSums undo_rests_;
};

void run_causal_forward(const Plan<float>& plan, const OutputRows& out, Saved<float>* saved,
                        const DecodeState* initial, DecodeState* final_state) {
  const HeadPlans heads(plan);
  if (final_state != nullptr) {
    const int64_t position = (initial == nullptr ? 0 : initial->position) + plan.L;
    if (final_state != initial) {
      *final_state = DecodeState(plan.B, plan.G, plan.M, plan.E);
    }
    if (initial != nullptr || plan.L >= kLongStream) {
      make_rests(*final_state);
    }
    final_state->position = position;
  }
  parallel_for(plan.num_items(), [&](int64_t index) {
    const Item item(plan, index);
    CausalForward pass(plan, heads[item.g], item, out, saved);
    if (initial != nullptr) {
      pass.start_from(*initial);
    }
    pass.run();
    if (final_state != nullptr) {
      pass.finish_into(*final_state);
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_causal_forward);

void causal_forward_kernel(const Plan<float>& plan, OutputRows out, Saved<float>* saved,
                           const DecodeState* initial, DecodeState* final_state) {
  HWY_DYNAMIC_DISPATCH(run_causal_forward)(plan, out, saved, initial, final_state);
}

}  // namespace favor
#endif  // HWY_ONCE
