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
#include "favor/next_stabilisers-inl.h"
#include "favor/slabs-inl.h"
#include "favor/state-inl.h"
#include "favor/stream-inl.h"
// clang-format on

#include <span>
#include <vector>

#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

class CausalForward {
 public:
  static constexpr int64_t kRound = kOutputRound;

  CausalForward(const Plan<float>& plan, const Slab& slab, const Item& item, const OutputRows& out,
                Saved<float>* saved, const DecodeState* initial, DecodeState* final_state)
      : plan_(plan),
        slab_(slab),
        head_(slab.head),
        item_(item),
        out_(out),
        initial_(initial),
        final_state_(final_state),
        panels_(num_panels(head_.M)) {
    const int64_t row = item.b * plan.G + item.g;
    if (saved != nullptr) {
      normalizer_ = saved->normalizer;
      chunk_starts_ = saved->chunk_starts == nullptr
                          ? nullptr
                          : saved->chunk_starts + row * plan.L + item.segment.q_begin;
      if (saved->state != nullptr) {
        states_ = saved->state + row * saved_state_size(1, 1, plan.L, plan.M, plan.E, true, 1);
      }
    }
    const Segment& segment = item.segment;
    const int64_t first = plan.first_allowed_key(item.b, item.g, segment.k_begin, segment.k_end);
    first_key_ = first < segment.k_end ? first - segment.k_begin : segment.num_queries();
  }

  /// The whole item, with a head that is not cut.
  void run() {
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
    start();
    starts_ = chunk_starts_;
    if (starts_ != nullptr) {
      std::fill_n(starts_, item_.segment.num_queries(), uint8_t{0});
    }
    walk(0, item_.segment.num_queries());
  }

  int64_t num_rounds() const { return (item_.segment.num_queries() + kRound - 1) / kRound; }

  /// Scratch of a slab.
  void place_slab(ScratchLayout& layout) {
    is_cut_ = true;
    place(layout);
    for (SlabOutputs& outputs : kept_) {
      outputs.place(layout, head_, plan_.group());
    }
  }

  /// What the slab knows of a round's rows, in its own memory.
  void run_round(int64_t round) {
    if (round == 0) {
      start();
    }
    const int64_t begin = round * kRound;
    const int64_t end = std::min(begin + kRound, item_.segment.num_queries());
    outputs_ = kept_[round % kKeptRounds];
    starts_ = outputs_.starts;
    std::fill_n(starts_, kRound, uint8_t{0});
    walk(begin, end);
  }

  /// The outputs of up to kMergedRows tokens of a round, `first` being the first, after all slabs
  /// have run it.
  static void merge(std::span<const CausalForward> slabs, int64_t round, int64_t first) {
    const CausalForward& pass = slabs[0];
    const int64_t t = round * kRound + first;
    const int64_t n = std::min(kMergedRows, pass.item_.segment.num_queries() - t);
    const SlabOutputs* parts[kMaxSlabs];
    std::transform(slabs.begin(), slabs.end(), parts,
                   [round](const auto& p) { return &p.kept_[round % kKeptRounds]; });
    if (n > 0) {
      write_outputs(pass.plan_, pass.head_, pass.item_, std::span(parts, slabs.size()), t, n,
                    pass.rows_without_keys(t, n), pass.out_, pass.normalizer_, pass.chunk_starts_);
    }
  }

 private:
  void start() {
    state_.clear(head_);
    rests_.clear(head_);
    std::fill_n(features_transposed_.data, panel_floats(head_.M, kCausalChunk), 0.0f);
    const int64_t row = item_.b * plan_.G + item_.g;
    if (initial_ != nullptr && load_stream(head_, *initial_, row, slab_.first, state_, rests_)) {
      is_long_ = true;
      first_key_ = 0;
    }
  }

  /// Tokens [begin, end), where begin is a multiple of kCausalChunk.
  void walk(int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t += kCausalChunk) {
      if (states_ != nullptr && t != 0 && t % kStateInterval == 0) {
        export_state(head_, state_,
                     states_ + saved_state_slot(item_.segment, t) * plan_.M * (head_.E + 2),
                     slab_.first, plan_.M);
      }
      is_long_ = is_long_ || t >= kLongStream;
      run_chunk(t, std::min(kCausalChunk, end - t));
    }
    if (end == item_.segment.num_queries() && final_state_ != nullptr) {
      store_stream(head_, state_, rests_, item_.b * plan_.G + item_.g, slab_.first, *final_state_);
    }
  }

  void place(ScratchLayout& layout) {
    state_.place(layout, head_);
    rests_.place(layout, head_);
    next_.place(layout, head_);
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

  void run_chunk(int64_t t, int64_t num_queries) {
    const Segment& segment = item_.segment;
    const int64_t num_keys = std::clamp<int64_t>(segment.num_keys() - t, 0, num_queries);
    const int64_t num_empty = rows_without_keys(t, num_queries);
    const int64_t j = segment.k_begin + t;
    keys_.load(plan_, head_, item_, j, num_keys);
    const bool raised = next_.find(head_, state_, keys_, num_keys, features_, buffer_);
    own_stabilisers(head_, keys_, num_queries, num_keys, state_.c[0], own_);
    bool too_long = next_.are_far(head_, own_, num_queries, num_empty);
    if (!too_long) {
      next_.find_z(head_, state_);
      transpose(features_, num_keys, head_.M, features_transposed_);
    }
    for (int64_t h = item_.first_head; h < item_.last_head && !too_long; ++h) {
      score(h, t, num_queries, num_keys);
      too_long = underflows(head_, query_, num_queries, num_empty);
      if (too_long) {
        restore_state(raised && h > item_.first_head);
        break;
      }
      if (raised && h == item_.first_head) {
        raise_state();
      }
      answer(h, t, num_queries, num_keys);
    }
    if (too_long) {
      // Rows that were answered are answered again.
      const int64_t half = (num_queries + 1) / 2;
      run_chunk(t, half);
      run_chunk(t + half, num_queries - half);
      return;
    }
    if (starts_ != nullptr) {
      starts_[is_cut_ ? t % kRound : t] = 1;
    }
    if (num_keys > 0) {
      const NextRows next(j + num_keys, segment.k_end, kCausalChunk);
      const Lines lines[] = {{plan_.k, item_.b, item_.g, next.first, next.last},
                             {plan_.v, item_.b, item_.g, next.first, next.last}};
      PrefetchJob job(lines);
      absorb(num_keys, job);
    }
  }

  /// Adds the chunk's keys to the state, whose z under the next stabilisers is known.
  void absorb(int64_t num_keys, PrefetchJob& job) {
    std::copy_n(next_.z, head_.M, state_.z);
    if (is_long_) {
      rests_.add_products(head_, features_, keys_.values, num_keys, state_.S, job);
      rests_.add_sums(head_, next_.z_added, state_.z);
      return;
    }
    multiply_transposed(features_, keys_.values, state_.S, state_.S, head_.M, num_panels(head_.E),
                        num_keys, job);
    for (int64_t f = 0; f < head_.M; ++f) {
      state_.z[f] += next_.z_added[f];
    }
  }

  /// Brings the state to the next stabilisers, keeping what it was if a later head may ask for it.
  void raise_state() {
    if (plan_.group() > 1) {
      copy_sums(head_, state_, rests_, undo_, undo_rests_);
    }
    scale_sums(head_, state_, rests_, next_.factor);
    std::copy_n(next_.c, panels_ * panel_width(), state_.c);
  }

  void restore_state(bool raised) {
    if (raised) {
      copy_sums(head_, undo_, undo_rests_, state_, rests_);
    }
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
    query_features(head_, queries_, num_queries, next_.c, next_.z, buffer_, query_);
    multiply_to_lower(query_.features, features_transposed_, scores_, num_queries, num_keys,
                      head_.M);
    make_lower(scores_, num_queries, num_keys, nullptr, row_sums_);
    for (int64_t r = 0; r < num_queries; ++r) {
      query_.denominator[r] += row_sums_[r];
    }
  }

  /// The outputs of the rows that `score` has seen.
  void answer(int64_t h, int64_t t, int64_t num_queries, int64_t num_keys) {
    const int64_t row = output_row(h, t);
    const Panels sums = is_cut_ ? outputs_.sums_at(row) : sums_;
    multiply_lower(scores_, keys_.values, sums, num_queries, num_keys, num_panels(head_.E));
    ask_for_queries(h, t, num_queries);
    PrefetchJob job(lines_);
    multiply<true>(query_.features, state_.S, sums, 0, num_queries, 0, num_panels(head_.E), head_.M,
                   job);
    if (is_cut_) {
      outputs_.keep(head_, query_, own_, row, num_queries);
    } else {
      const int64_t i = item_.segment.q_begin + t;
      float* normalizer =
          normalizer_ == nullptr ? nullptr : normalizer_ + (item_.b * plan_.H + h) * plan_.L + i;
      finish_rows(head_, query_, sums, num_queries, rows_without_keys(t, num_queries), own_,
                  out_.row(item_.b, h, i), out_.strides[2], normalizer);
    }
  }

  /// The place of these outputs, or of the next ones in outputs_ (but for those of another round),
  /// which products write, and the next queries.
  void ask_for_queries(int64_t h, int64_t t, int64_t num_queries) {
    const int64_t i = item_.segment.q_begin + t;
    const NextRows next(i + num_queries, item_.segment.q_end, kCausalChunk);
    lines_.clear();
    if (is_cut_) {
      if ((t + num_queries) % kRound != 0) {
        add_lines(outputs_.sums_at(output_row(h, t + num_queries)), kCausalChunk, head_.E, lines_);
      }
    } else {
      lines_.emplace_back(out_, item_.b, h, i, i + num_queries);
    }
    lines_.emplace_back(plan_.q, item_.b, h, next.first, next.last);
  }

  /// Where outputs_ has a query.
  int64_t output_row(int64_t h, int64_t t) const {
    return (h - item_.first_head) * kRound + t % kRound;
  }
  /// How many of n queries from t on have no key to see.
  int64_t rows_without_keys(int64_t t, int64_t n) const {
    return std::clamp<int64_t>(first_key_ - t, 0, n);
  }

  const Plan<float>& plan_;
  const Slab& slab_;
  const HeadPlan& head_;
  const Item& item_;
  const OutputRows& out_;
  const DecodeState* initial_;
  DecodeState* final_state_;
  int64_t panels_;
  bool is_cut_ = false;  ///< whether outputs_ takes the place of the caller's rows
  float* normalizer_ = nullptr;
  uint8_t* chunk_starts_ = nullptr;  ///< of the segment's tokens
  uint8_t* starts_ = nullptr;        ///< the same, or of the round's tokens for a slab alone
  float* states_ = nullptr;
  std::vector<Lines> lines_;  ///< to be asked for in the course of a product
  int64_t first_key_;  ///< token of the segment that first has a key to see; 0 if the state has

  KeyState state_;
  LongSums rests_;
  bool is_long_ = false;  ///< whether the rests are kept
  NextStabilisers next_;
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
  SlabOutputs kept_[kKeptRounds];
  SlabOutputs outputs_;  ///< of the round that is walked, among those
};

void run_causal_forward(const Plan<float>& plan, const OutputRows& out, Saved<float>* saved,
                        const DecodeState* initial, DecodeState* final_state) {
  const HeadPlans heads(plan);
  if (final_state != nullptr) {
    make_final_state(plan, initial, *final_state);
  }
  const int64_t slabs = num_slabs(plan, heads.common());
  if (slabs > 1) {
    run_in_slabs<CausalForward>(plan, heads, slabs, out, saved, initial, final_state);
    return;
  }
  parallel_for(plan.num_items(), [&](int64_t index) {
    const Item item(plan, index);
    const Slab whole(heads[item.g]);
    CausalForward(plan, whole, item, out, saved, initial, final_state).run();
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
