// SPDX-License-Identifier: Apache-2.0
// Causal attention, backward. The sequence is walked from its end in stretches of kStateInterval
// tokens, each starting from a state that the forward pass kept. Within a stretch a forward walk
// rebuilds the state before every chunk and emits dq; the features it computes on the way are held
// for a reverse walk, which carries the sums over later queries and emits dk and dv. Nothing is
// ever rebuilt by subtraction. A slice of a stream starts from its first state, and the sums from
// what later slices want of its last one.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/causal_backward.cpp"
#include "hwy/foreach_target.h"
#include "favor/query_features-inl.h"
#include "favor/gradients-inl.h"
#include "favor/backward_call-inl.h"
#include "favor/reverse_walk-inl.h"
#include "favor/state-inl.h"
#include "favor/stream-inl.h"
// clang-format on

#include <algorithm>
#include <span>
#include <vector>

#include "favor/parallel.h"
#include "favor/slice_plan.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Chunks held at a time for one query head, and fewer for more of them. A stretch has this many
/// when the forward pass halved none of its chunks; otherwise it is walked in groups.
constexpr int64_t kHeldChunks = kStateInterval / kCausalChunk;

class CausalBackward {
 public:
  static constexpr int64_t kRound = kGradientRound;

  CausalBackward(const Plan<float>& plan, const Slab& slab, const Item& item, const InputRows& out,
                 const InputRows& dout, const Saved<float>& saved, const SliceBorders& borders,
                 const OutputRows& dq, const OutputRows& dk, const OutputRows& dv)
      : slab_(slab),
        head_(slab.head),
        item_(item),
        borders_(borders),
        call_{plan, slab.head, item, out, dout, dq, dk, dv},
        held_(static_cast<size_t>(std::max<int64_t>(2 * kHeldChunks / (1 + plan.group()), 1))) {
    const int64_t row = item_row();
    for (HeldChunk& held : held_) {
      held.queries.resize(static_cast<size_t>(plan.group()));
    }
    normalizer_ = saved.normalizer + item.b * plan.H * plan.L;
    chunk_starts_ = saved.chunk_starts + row * plan.L;
    if (saved.state != nullptr) {
      states_ = saved.state + row * saved_state_size(1, 1, plan.L, plan.M, plan.E, true, 1);
    }
  }

  /// The whole item, with a head that is not cut.
  void run() {
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
    zero_unseen_keys();
    for (int64_t round = 0; round < num_rounds(); ++round) {
      run_round(round);
    }
  }

  /// At least one, which gives keys without queries their gradients, zeros.
  int64_t num_rounds() const {
    return std::max<int64_t>((item_.segment.num_queries() + kRound - 1) / kRound, 1);
  }

  /// Scratch of a slab.
  void place_slab(ScratchLayout& layout) {
    call_.is_cut = true;
    place(layout);
    for (SlabGradients& gradients : kept_) {
      gradients.place(layout, head_, call_.plan.group());
    }
  }

  /// A stretch of tokens; the last one comes first.
  void run_round(int64_t round) {
    if (round == 0) {
      start();
    }
    call_.gradients = kept_[round % kKeptRounds];
    const int64_t begin = round_begin(round);
    walk_stretch(find_chunks(begin, std::min(begin + kRound, item_.segment.num_queries())));
    if (begin == 0 && borders_.dinitial != nullptr && has_initial_) {
      reverse_.leave(head_, item_row(), slab_.first, *borders_.dinitial);
    }
  }

  /// Gradients of up to kMergedRows tokens of a round, `first` being the first, after all slabs
  /// have run it.
  static void merge(std::span<const CausalBackward> slabs, int64_t round, int64_t first) {
    const CausalBackward& pass = slabs[0];
    const Item& item = pass.item_;
    const HeadPlan& head = pass.head_;
    const int64_t t = pass.round_begin(round) + first;
    if (round == 0 && first == 0) {
      pass.zero_unseen_keys();
    }
    const auto write = [&](Panels SlabGradients::*gradient, int64_t row, int64_t end, int64_t cols,
                           float factor, const OutputElements& to, int64_t stride) {
      Panels parts[kMaxSlabs];
      std::transform(slabs.begin(), slabs.end(), parts,
                     [&](const auto& slab) { return slab.kept_[round % kKeptRounds].*gradient; });
      write_gradients(std::span(parts, slabs.size()), row, std::min(kMergedRows, end - t), cols,
                      factor, to, stride);
    };
    const Segment& segment = item.segment;
    for (int64_t h = item.first_head; h < item.last_head && t < segment.num_queries(); ++h) {
      write(&SlabGradients::dq, (h - item.first_head) * kRound + first, segment.num_queries(),
            head.D, head.out_scale, pass.call_.dq.row(item.b, h, segment.q_begin + t),
            pass.call_.dq.strides[2]);
    }
    const int64_t keys = std::min(segment.num_keys(), segment.num_queries());
    if (t < keys) {
      const int64_t j = segment.k_begin + t;
      write(&SlabGradients::dk, first, keys, head.D, head.out_scale,
            pass.call_.dk.row(item.b, item.g, j), pass.call_.dk.strides[2]);
      write(&SlabGradients::dv, first, keys, head.E, 1.0f, pass.call_.dv.row(item.b, item.g, j),
            pass.call_.dv.strides[2]);
    }
  }

 private:
  /// Of states and what is kept of them.
  int64_t item_row() const { return item_.b * call_.plan.G + item_.g; }
  int64_t round_begin(int64_t round) const { return (num_rounds() - 1 - round) * kRound; }

  void start() {
    // Columns beyond a chunk are read by whole vectors, so they must be finite.
    std::fill_n(values_transposed_.data, panel_floats(head_.E, kCausalChunk), 0.0f);
    reverse_.start(head_);
    if (borders_.dfinal != nullptr) {
      reverse_.take_up(head_, item_row(), slab_.first, *borders_.dfinal, loaded_);
    }
  }

  void place(ScratchLayout& layout) {
    loaded_.place(layout, head_);
    state_.place(layout, head_);
    for (HeldChunk& held : held_) {
      held.place(layout, head_);
    }
    call_.place(layout);
    reverse_.place(layout, head_);
    values_transposed_ = {layout.take(panel_floats(head_.E, kCausalChunk)), head_.E};
    z_added_ = layout.take(call_.panels * panel_width());
    buffer_ = layout.take(logit_floats(head_));
    own_ = layout.take(kCausalChunk);
    shift_ = layout.take(call_.panels * panel_width());
  }

  /// Sets state_ to the state before token t of the segment, a multiple of kStateInterval: what the
  /// forward pass kept, or else absorbed anew from the segment's start.
  void load_state(int64_t t) {
    if (t == 0 || states_ == nullptr) {
      loaded_.clear(head_);
      has_initial_ = borders_.initial != nullptr &&
                     load_stream(head_, *borders_.initial, item_row(), slab_.first, loaded_);
    } else {
      import_state(head_,
                   states_ + saved_state_slot(item_.segment, t) * call_.plan.M * (head_.E + 2),
                   slab_.first, call_.plan.M, loaded_);
    }
    std::fill_n(state_.S.data, panel_floats(head_.E, head_.M), 0.0f);
    transpose(loaded_.S, head_.M, head_.E, state_.S);
    std::copy_n(loaded_.z, call_.panels * panel_width(), state_.z);
    std::copy_n(loaded_.c, call_.panels * panel_width(), state_.c);
    if (states_ == nullptr) {
      walk_keys(find_chunks(0, t));
    }
  }

  /// Absorbs the keys of chunks whose queries are not of interest.
  void walk_keys(std::span<const Range> chunks) {
    NoJob job;
    for (const Range& chunk : chunks) {
      call_.load_keys(chunk);
      chunk_features(call_.num_keys(chunk), held_[0]);
      absorb(call_.num_keys(chunk), held_[0].key_features, job);
    }
  }

  /// Keys beyond the last query of the segment are seen by none.
  void zero_unseen_keys() const {
    for (int64_t s = item_.segment.num_queries(); s < item_.segment.num_keys(); ++s) {
      zero_row(call_.dk.row(item_.b, item_.g, item_.segment.k_begin + s), head_.D);
      zero_row(call_.dv.row(item_.b, item_.g, item_.segment.k_begin + s), head_.E);
    }
  }

  /// The forward pass's chunks in [begin, end), cut to kCausalChunk tokens.
  std::vector<Range> find_chunks(int64_t begin, int64_t end) const {
    std::vector<Range> chunks;
    for (int64_t t = begin; t < end; ++t) {
      if (chunks.empty() || (chunk_starts_[item_.segment.q_begin + t] >> slab_.index & 1) != 0 ||
          t - chunks.back().begin == kCausalChunk) {
        if (!chunks.empty()) {
          chunks.back().end = t;
        }
        chunks.push_back({t, end});
      }
    }
    return chunks;
  }

  /// Brings state_ to stabilisers that hold for the chunk, whose loaded keys get their features.
  /// z_added_ receives what the chunk adds to z.
  void chunk_features(int64_t n, const HeldChunk& held) const {
    chunk_key_features(
        head_, call_.keys, n, state_.c, held.key_features, held.key_slopes, z_added_, buffer_,
        [&](int64_t panel, const float* factor) { state_.scale(head_, panel, factor); });
  }

  /// Adds the chunk, whose features are known, to state_.
  template <class Job>
  void absorb(int64_t n, const Panels& features, Job& job) const {
    for (int64_t f = 0; f < head_.M; ++f) {
      state_.z[f] += z_added_[f];
    }
    multiply_transposed(call_.keys.values, features, state_.S, state_.S, head_.E, call_.panels, n,
                        job);
  }

  /// The forward walk over one chunk: dq, and what the reverse walk needs. `later` is where the
  /// next chunk will be held, or null.
  void walk_forward(const Range& chunk, HeldChunk& held, const HeldChunk* later) {
    const int64_t keys = call_.num_keys(chunk);
    call_.ask_for_forward(chunk, later);
    PrefetchJob job(call_.lines, kLinesPerStep);
    call_.load_keys(chunk);
    own_stabilisers(head_, call_.keys, chunk.end - chunk.begin, keys, state_.c[0], own_);
    chunk_features(keys, held);
    std::copy_n(state_.c, call_.panels * panel_width(), held.c);
    transpose(call_.keys.values, keys, head_.E, values_transposed_);
    for (int64_t h = item_.first_head; h < item_.last_head; ++h) {
      const auto index = static_cast<size_t>(h - item_.first_head);
      query_gradients(h, chunk, keys, held.key_features, held.queries[index], job);
    }
    absorb(keys, held.key_features, job);
  }

  void query_gradients(int64_t h, const Range& chunk, int64_t keys, const Panels& key_features,
                       HeldQueries& held, PrefetchJob& job) {
    const int64_t NR = panel_width();
    const int64_t queries = chunk.end - chunk.begin;
    const int64_t i = item_.segment.q_begin + chunk.begin;
    call_.rows.load(call_.plan, head_, item_.b, h, i, queries, call_.out, call_.dout,
                    normalizer_ + h * call_.plan.L, buffer_);
    call_.rows.settle(head_, queries, state_.c[0], own_);
    std::fill_n(held.dz, call_.panels * NR, 0.0f);
    std::copy_n(call_.rows.skip, queries, held.skip);
    multiply_to_lower(call_.rows.dout, values_transposed_, held.dscores, queries, keys, head_.E);
    make_lower(held.dscores, queries, keys, call_.rows.delta, nullptr);
    multiply_lower(held.dscores, key_features, call_.dlogits, queries, keys, call_.panels);
    float* totals = clear_query_row_sums(head_, queries, call_.row_sums);
    const bool woven = can_weave(head_, head_.query);
    if (woven) {
      query_shift(head_, state_.c, shift_);
    }
    NormalizedQueryJob exponentials{RowWalk(held.features, queries), call_.rows.norm, shift_};
    for (int64_t panel = 0; panel < call_.panels; ++panel) {
      const int64_t f = panel * NR;
      float* features = held.features.at(0, panel);
      if (woven) {
        project_panel(head_.query.matrix.columns, call_.rows.tokens, head_.D, queries, panel,
                      held.features, job);
        exponentials.walk.ready = queries;
        multiply<true>(call_.rows.dout, state_.S, call_.dlogits, 0, queries, panel, panel + 1,
                       head_.E, exponentials);
        finish_job(exponentials);
      } else {
        const float* u = project(head_, head_.query, call_.rows.tokens, queries, panel, buffer_);
        normalized_query_features(head_, f, u, state_.c + f, call_.rows.norm, call_.rows.offset,
                                  call_.rows.floor, queries, features, buffer_);
        multiply<true>(call_.rows.dout, state_.S, call_.dlogits, 0, queries, panel, panel + 1,
                       head_.E, job);
      }
      query_logit_gradients(head_, features, buffer_, call_.rows, queries, state_.z + f,
                            call_.dlogits.at(0, panel), held.dz + f, totals);
    }
    if (call_.is_cut) {
      const Panels dq = call_.rows_of(call_.gradients.dq, h - item_.first_head, chunk);
      token_gradient_panels(head_, head_.query, call_.dlogits, queries, call_.rows.tokens, totals,
                            dq);
      return;
    }
    token_gradients(head_, head_.query, call_.dlogits, queries, call_.rows.tokens, totals,
                    call_.product, call_.dq.row(item_.b, h, i), call_.dq.strides[2]);
  }

  /// Gradients of `chunks`, which start at a kept state.
  void walk_stretch(const std::vector<Range>& chunks) {
    const auto at = [&](int64_t i) { return chunks[static_cast<size_t>(i)]; };
    const auto held = [&](int64_t i) { return &held_[static_cast<size_t>(i)]; };
    const auto num_held = static_cast<int64_t>(held_.size());
    // The state before a later group is found by walking from the start again, which happens only
    // where the forward pass halved chunks.
    for (auto last = static_cast<int64_t>(chunks.size()); last > 0;) {
      const int64_t first = (last - 1) / num_held * num_held;
      load_state(chunks.front().begin);
      walk_keys(std::span(chunks).first(static_cast<size_t>(first)));
      for (int64_t i = first; i < last; ++i) {
        walk_forward(at(i), *held(i - first), i + 1 < last ? held(i - first + 1) : nullptr);
      }
      for (int64_t i = last - 1; i >= first; --i) {
        reverse_.walk(call_, at(i), *held(i - first), i > first ? held(i - first - 1) : nullptr);
      }
      last = first;
    }
  }

  const Slab& slab_;
  const HeadPlan& head_;
  const Item& item_;
  const SliceBorders& borders_;
  BackwardCall call_;
  std::vector<HeldChunk> held_;
  SlabGradients kept_[kKeptRounds];  ///< of slabs; call_ has that of the round that is walked
  const float* normalizer_;
  const uint8_t* chunk_starts_;
  const float* states_ = nullptr;

  bool has_initial_ = false;  ///< whether the state before the first token holds a key
  KeyState loaded_;           ///< a kept state as it was stored
  WalkedState state_;         ///< before the next chunk of the forward walk
  ReverseWalk reverse_;
  Panels values_transposed_;  ///< [E, C]
  float* z_added_;            ///< [M] padded
  float* buffer_;             ///< of project()
  float* own_;                ///< [C] stabilisers of the rows; of maps known by their values
  float* shift_;              ///< [M] padded, of query_shift
};

void run_causal_backward(const Plan<float>& plan, const InputRows& out, const InputRows& dout,
                         const Saved<float>& saved, const SliceBorders& borders,
                         const OutputRows& dq, const OutputRows& dk, const OutputRows& dv) {
  const HeadPlans heads(plan);
  const int64_t slabs = num_slabs(plan, heads.common());
  if (slabs > 1) {
    run_in_slabs<CausalBackward>(plan, heads, slabs, out, dout, saved, borders, dq, dk, dv);
    return;
  }
  parallel_for(plan.num_items(), [&](int64_t index) {
    const Item item(plan, index);
    const Slab whole(heads[item.g]);
    CausalBackward(plan, whole, item, out, dout, saved, borders, dq, dk, dv).run();
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_causal_backward);

void causal_backward_kernel(const Plan<float>& plan, InputRows out, InputRows dout,
                            const Saved<float>& saved, OutputRows dq, OutputRows dk,
                            OutputRows dv) {
  causal_slice_backward_kernel(plan, out, dout, saved, SliceBorders(), dq, dk, dv);
}

void causal_slice_backward_kernel(const Plan<float>& plan, InputRows out, InputRows dout,
                                  const Saved<float>& saved, const SliceBorders& borders,
                                  OutputRows dq, OutputRows dk, OutputRows dv) {
  HWY_DYNAMIC_DISPATCH(run_causal_backward)(plan, out, dout, saved, borders, dq, dk, dv);
}

}  // namespace favor
#endif  // HWY_ONCE
