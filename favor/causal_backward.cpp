// SPDX-License-Identifier: Apache-2.0
// Causal attention, backward. The sequence is walked from its end in stretches of kStateInterval
// tokens, each starting from a state that the forward pass kept. Within a stretch a forward walk
// rebuilds the state before every chunk and emits dq; the features it computes on the way are held
// for a reverse walk, which carries the sums over later queries and emits dk and dv. Nothing is
// ever rebuilt by subtraction.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/causal_backward.cpp"
#include "hwy/foreach_target.h"
#include "favor/features-inl.h"
#include "favor/gradients-inl.h"
#include "favor/state-inl.h"
// clang-format on

#include <span>

#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Chunks held at a time. A stretch has this many when the forward pass halved none of its chunks;
/// otherwise it is walked in groups.
constexpr int64_t kHeldChunks = kStateInterval / kCausalChunk;

/// Tokens [begin, end) of a segment.
struct Range {
  int64_t begin, end;
};

/// The state before a chunk, features in columns.
struct WalkedState {
  Panels S;  ///< [E, M]
  float* z;  ///< [M] padded
  float* c;  ///< [M] padded

  void place(ScratchLayout& layout, const HeadPlan& head) {
    S = {layout.take(panel_floats(head.E, head.M)), head.E};
    z = layout.take(num_panels(head.M) * panel_width());
    c = layout.take(num_panels(head.M) * panel_width());
  }
};

/// What the forward walk leaves of a chunk for the reverse walk.
struct HeldChunk {
  Panels key_features;         ///< [C, M]
  Panels query_features;       ///< [C, M] divided by the denominators
  Panels dscores;              ///< [C, C] lower triangular: gradients of the weights
  float* c;                    ///< [M] padded: the stabilisers of both
  float* dz;                   ///< [M] padded: -query_features^T delta
  uint8_t skip[kCausalChunk];  ///< queries that take no part

  void place(ScratchLayout& layout, const HeadPlan& head) {
    key_features = {layout.take(panel_floats(kCausalChunk, head.M)), kCausalChunk};
    query_features = {layout.take(panel_floats(kCausalChunk, head.M)), kCausalChunk};
    dscores = {layout.take(panel_floats(kCausalChunk, kCausalChunk)), kCausalChunk};
    c = layout.take(num_panels(head.M) * panel_width());
    dz = layout.take(num_panels(head.M) * panel_width());
  }
};

class CausalBackward {
 public:
  CausalBackward(const Plan<float>& plan, const HeadPlan& head, const Item& item,
                 const InputRows& out, const InputRows& dout, const Saved<float>& saved,
                 const OutputRows& dq, const OutputRows& dk, const OutputRows& dv)
      : plan_(plan),
        head_(head),
        item_(item),
        out_(out),
        dout_(dout),
        dq_(dq),
        dk_(dk),
        dv_(dv),
        panels_(num_panels(head.M)) {
    const int64_t row = item.b * plan.H + item.h;
    normalizer_ = saved.normalizer + row * plan.L;
    chunk_starts_ = saved.chunk_starts + row * plan.L;
    if (saved.state != nullptr) {
      states_ = saved.state + row * saved_state_size(1, 1, plan.L, plan.M, plan.E, true, 1);
    }
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
    // Columns beyond M and beyond a chunk are read by whole vectors, so they must be finite.
    std::fill_n(features_transposed_.data, panel_floats(head.M, kCausalChunk), 0.0f);
    std::fill_n(values_transposed_.data, panel_floats(head.E, kCausalChunk), 0.0f);
    std::fill_n(sums_transposed_.data, panel_floats(head.E, head.M), 0.0f);
  }

  void run() {
    const Segment& segment = item_.segment;
    const int64_t length = segment.num_queries();
    sums_.clear(head_);
    std::fill_n(sums_c_, head_.M, -kNoKey);
    zero_unseen_keys();
    for (int64_t begin = (length - 1) / kStateInterval * kStateInterval; length > 0 && begin >= 0;
         begin -= kStateInterval) {
      walk_stretch(find_chunks(begin, std::min(begin + kStateInterval, length)));
    }
  }

 private:
  void place(ScratchLayout& layout) {
    loaded_.place(layout, head_);
    sums_.place(layout, head_);
    sums_c_ = layout.take(panels_ * panel_width());
    state_.place(layout, head_);
    for (HeldChunk& held : held_) {
      held.place(layout, head_);
    }
    rows_.place(layout, head_, kCausalChunk);
    keys_.place(layout, head_, kCausalChunk);
    values_transposed_ = {layout.take(panel_floats(head_.E, kCausalChunk)), head_.E};
    features_transposed_ = {layout.take(panel_floats(head_.M, kCausalChunk)), head_.M};
    dlogits_ = {layout.take(panel_floats(kCausalChunk, head_.M)), kCausalChunk};
    sums_transposed_ = {layout.take(panel_floats(head_.E, head_.M)), head_.E};
    scores_ = {layout.take(panel_floats(kCausalChunk, kCausalChunk)), kCausalChunk};
    product_ = {layout.take(panel_floats(kCausalChunk, std::max(head_.D, head_.E))), kCausalChunk};
    z_added_ = layout.take(panels_ * panel_width());
    row_sums_ = layout.take(kCausalChunk * panel_width() / 2);
    buffer_ = layout.take(logit_floats(head_));
  }

  /// Sets state_ to the state before token t of the segment, a multiple of kStateInterval: what the
  /// forward pass kept, or else absorbed anew from the segment's start.
  void load_state(int64_t t) {
    if (t == 0 || states_ == nullptr) {
      loaded_.clear(head_);
    } else {
      import_state(head_, states_ + saved_state_slot(item_.segment, t) * head_.M * (head_.E + 2),
                   loaded_);
    }
    std::fill_n(state_.S.data, panel_floats(head_.E, head_.M), 0.0f);
    transpose(loaded_.S, head_.M, head_.E, state_.S);
    std::copy_n(loaded_.z, panels_ * panel_width(), state_.z);
    std::copy_n(loaded_.c, panels_ * panel_width(), state_.c);
    if (states_ == nullptr) {
      walk_keys(find_chunks(0, t));
    }
  }

  /// Absorbs the keys of chunks whose queries are not of interest.
  void walk_keys(std::span<const Range> chunks) {
    for (const Range& chunk : chunks) {
      load_keys(chunk);
      chunk_features(num_keys(chunk), held_[0].key_features);
      absorb(num_keys(chunk), held_[0].key_features);
    }
  }

  /// Keys beyond the last query of the segment are seen by none.
  void zero_unseen_keys() {
    for (int64_t s = item_.segment.num_queries(); s < item_.segment.num_keys(); ++s) {
      zero_row(dk_.row(item_.b, item_.h, item_.segment.k_begin + s), head_.D);
      zero_row(dv_.row(item_.b, item_.h, item_.segment.k_begin + s), head_.E);
    }
  }

  /// The forward pass's chunks in [begin, end), cut to kCausalChunk tokens.
  std::vector<Range> find_chunks(int64_t begin, int64_t end) const {
    std::vector<Range> chunks;
    for (int64_t t = begin; t < end; ++t) {
      if (chunks.empty() || chunk_starts_[item_.segment.q_begin + t] != 0 ||
          t - chunks.back().begin == kCausalChunk) {
        if (!chunks.empty()) {
          chunks.back().end = t;
        }
        chunks.push_back({t, end});
      }
    }
    return chunks;
  }

  int64_t num_keys(const Range& chunk) const {
    return std::clamp<int64_t>(item_.segment.num_keys() - chunk.begin, 0, chunk.end - chunk.begin);
  }

  void load_keys(const Range& chunk) const {
    keys_.load(plan_, head_, item_, item_.segment.k_begin + chunk.begin, num_keys(chunk));
  }

  /// Brings state_ to stabilisers that hold for the chunk, whose loaded keys get their features.
  /// z_added_ receives what the chunk adds to z.
  void chunk_features(int64_t n, const Panels& features) const {
    const int64_t NR = panel_width();
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const int64_t f = panel * NR;
      key_features(head_, project(head_, keys_.tokens, n, panel, buffer_), keys_.offset, n,
                   state_.c + f, features.at(0, panel), z_added_ + f, [&](const float* factor) {
                     scale_columns(state_.S, head_.E, panel, factor);
                     for (int64_t i = 0; i < NR; ++i) {
                       state_.z[f + i] *= factor[i];
                     }
                   });
    }
  }

  /// Adds the chunk, whose features are known, to state_.
  void absorb(int64_t n, const Panels& features) {
    for (int64_t f = 0; f < head_.M; ++f) {
      state_.z[f] += z_added_[f];
    }
    multiply_transposed(keys_.values, features, state_.S, state_.S, head_.E, panels_, n);
  }

  /// The forward walk over one chunk: dq, and what the reverse walk needs. `later` is where the
  /// next chunk will be held, or null.
  void walk_forward(const Range& chunk, HeldChunk& held, const HeldChunk* later) {
    const int64_t NR = panel_width();
    const int64_t queries = chunk.end - chunk.begin;
    const int64_t keys = num_keys(chunk);
    const int64_t i = item_.segment.q_begin + chunk.begin;
    load_keys(chunk);
    rows_.load(plan_, head_, item_.b, item_.h, i, queries, out_, dout_, normalizer_);
    chunk_features(keys, held.key_features);
    std::copy_n(state_.c, panels_ * NR, held.c);
    std::fill_n(held.dz, panels_ * NR, 0.0f);
    std::copy_n(rows_.skip, queries, held.skip);
    transpose(keys_.values, keys, head_.E, values_transposed_);
    multiply_to_lower(rows_.dout, values_transposed_, held.dscores, queries, keys, head_.E);
    make_lower(held.dscores, queries, keys, rows_.delta, nullptr);
    multiply_lower(held.dscores, held.key_features, dlogits_, queries, keys, panels_);
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const int64_t f = panel * NR;
      float* features = held.query_features.at(0, panel);
      prefetch_rows(dq_, item_.b, item_.h, i, i + queries, panel, panels_);
      if (later != nullptr) {
        prefetch(later->key_features.at(0, panel), kCausalChunk * NR);
        prefetch(later->query_features.at(0, panel), kCausalChunk * NR);
        prefetch_inputs(chunk.end, true, panel);
      }
      normalized_query_features(head_, project(head_, rows_.tokens, queries, panel, buffer_),
                                state_.c + f, rows_.norm, queries, head_.M - f, features);
      multiply<true>(rows_.dout, state_.S, dlogits_, 0, queries, panel, panel + 1, head_.E);
      query_logit_gradients(head_, features, rows_.delta, rows_.norm, queries, state_.z + f,
                            dlogits_.at(0, panel), held.dz + f);
    }
    token_gradients(head_, dlogits_, queries, rows_.tokens, nullptr, product_,
                    dq_.row(item_.b, item_.h, i), dq_.strides[2]);
    absorb(keys, held.key_features);
  }

  /// Gradients of `chunks`, which start at a kept state.
  void walk_stretch(const std::vector<Range>& chunks) {
    const auto at = [&](int64_t i) { return chunks[static_cast<size_t>(i)]; };
    // The state before a later group is found by walking from the start again, which happens only
    // where the forward pass halved chunks.
    for (auto last = static_cast<int64_t>(chunks.size()); last > 0;) {
      const int64_t first = (last - 1) / kHeldChunks * kHeldChunks;
      load_state(chunks.front().begin);
      walk_keys(std::span(chunks).first(static_cast<size_t>(first)));
      for (int64_t i = first; i < last; ++i) {
        const HeldChunk* later = i + 1 < last ? &held_[i - first + 1] : nullptr;
        walk_forward(at(i), held_[i - first], later);
      }
      for (int64_t i = last - 1; i >= first; --i) {
        walk_back(at(i), held_[i - first], i > first ? &held_[i - first - 1] : nullptr);
      }
      last = first;
    }
  }

  /// Brings the sums over later queries to the stabilisers of an earlier chunk.
  void lower_sums(const float* c) {
    if (!head_.positive) {
      return;
    }
    for (int64_t f = 0; f < head_.M; ++f) {
      if (c[f] == sums_c_[f]) {
        continue;
      }
      const float factor = std::exp2(c[f] - sums_c_[f]);
      scale_rows(sums_.S, head_.E, f, 1, &factor);
      sums_.z[f] *= factor;
      sums_c_[f] = c[f];
    }
  }

  /// The reverse walk over one chunk: dk and dv, and the sums over its queries. `earlier` is where
  /// the chunk before it is held, or null.
  void walk_back(const Range& chunk, const HeldChunk& held, const HeldChunk* earlier) {
    const int64_t NR = panel_width();
    const int64_t queries = chunk.end - chunk.begin;
    const int64_t keys = num_keys(chunk);
    const int64_t i = item_.segment.q_begin + chunk.begin;
    load_keys(chunk);
    pack_rows(dout_.row(item_.b, item_.h, i), dout_.strides[2], queries, head_.E, 1.0f, held.skip,
              rows_.dout);
    lower_sums(held.c);
    if (keys > 0) {
      key_gradients(chunk, held, earlier, queries, keys);
    }
    for (int64_t f = 0; f < panels_ * NR; ++f) {
      sums_.z[f] += held.dz[f];
    }
    multiply_transposed(held.query_features, rows_.dout, sums_.S, sums_.S, head_.M,
                        num_panels(head_.E), queries);
  }

  void key_gradients(const Range& chunk, const HeldChunk& held, const HeldChunk* earlier,
                     int64_t queries, int64_t keys) {
    const int64_t NR = panel_width();
    const int64_t j = item_.segment.k_begin + chunk.begin;
    transpose(held.key_features, keys, head_.M, features_transposed_);
    multiply_to_lower(held.query_features, features_transposed_, scores_, queries, keys, head_.M);
    make_lower(scores_, queries, keys, nullptr, nullptr);
    transpose(sums_.S, head_.M, head_.E, sums_transposed_);

    multiply_lower_transposed(held.dscores, held.query_features, dlogits_, queries, keys, panels_);
    std::fill_n(row_sums_, keys * NR / 2, 0.0f);
    for (int64_t panel = 0; panel < panels_; ++panel) {
      prefetch_rows(dk_, item_.b, item_.h, j, j + keys, panel, panels_);
      prefetch_rows(dv_, item_.b, item_.h, j, j + keys, panel, panels_);
      if (earlier != nullptr) {
        prefetch_inputs(chunk.begin - kCausalChunk, false, panel);
        prefetch<const float>(earlier->key_features.at(0, panel), kCausalChunk * NR);
        prefetch<const float>(earlier->query_features.at(0, panel), kCausalChunk * NR);
      }
      multiply<true>(keys_.values, sums_transposed_, dlogits_, 0, keys, panel, panel + 1, head_.E);
      key_logit_gradients(head_, held.key_features.at(0, panel), keys_.offset, keys,
                          sums_.z + panel * NR, dlogits_.at(0, panel), row_sums_);
    }
    multiply_lower_transposed(scores_, rows_.dout, product_, queries, keys, num_panels(head_.E));
    multiply<true>(held.key_features, sums_.S, product_, 0, keys, 0, num_panels(head_.E), head_.M);
    float ones[kCausalChunk];
    std::fill_n(ones, keys, 1.0f);
    unpack_rows(product_, keys, head_.E, ones, dv_.row(item_.b, item_.h, j), dv_.strides[2]);
    token_gradients(head_, dlogits_, keys, keys_.tokens, row_sums_, product_,
                    dk_.row(item_.b, item_.h, j), dk_.strides[2]);
  }

  /// Asks for part `panel` of the inputs of the chunk that starts at token t; those of the forward
  /// walk include q and out.
  void prefetch_inputs(int64_t t, bool forward, int64_t panel) const {
    const Segment& segment = item_.segment;
    t = std::max<int64_t>(t, 0);
    const int64_t q_end = std::min(segment.q_begin + t + kCausalChunk, segment.q_end);
    const int64_t k_end = std::min(segment.k_begin + t + kCausalChunk, segment.k_end);
    const auto ask = [&](const InputRows& view, int64_t begin, int64_t end) {
      prefetch_rows(view, item_.b, item_.h, begin, std::max(begin, end), panel, panels_);
    };
    ask(plan_.k, segment.k_begin + t, k_end);
    ask(plan_.v, segment.k_begin + t, k_end);
    ask(dout_, segment.q_begin + t, q_end);
    if (forward) {
      ask(plan_.q, segment.q_begin + t, q_end);
      ask(out_, segment.q_begin + t, q_end);
    }
  }

  const Plan<float>& plan_;
  const HeadPlan& head_;
  const Item& item_;
  const InputRows& out_;
  const InputRows& dout_;
  const OutputRows& dq_;
  const OutputRows& dk_;
  const OutputRows& dv_;
  int64_t panels_;
  const float* normalizer_;
  const uint8_t* chunk_starts_;
  const float* states_ = nullptr;

  KeyState loaded_;    ///< a kept state as it was stored
  KeyState sums_;      ///< over later queries: S [M, E] = features^T dout, z = -features^T delta
  float* sums_c_;      ///< [M] stabilisers of sums_
  WalkedState state_;  ///< before the next chunk of the forward walk
  HeldChunk held_[kHeldChunks];
  QueryGradients rows_;
  KeyChunk keys_;
  Panels values_transposed_;    ///< [E, C]
  Panels features_transposed_;  ///< [M, C]
  Panels dlogits_;              ///< [C, M]
  Panels sums_transposed_;      ///< [E, M]
  Panels scores_;               ///< [C, C] lower triangular
  Panels product_;              ///< [C, D] or [C, E]
  float* z_added_;              ///< [M] padded
  float* row_sums_;             ///< [C, N]
  float* buffer_;               ///< of project()
};

void run_causal_backward(const Plan<float>& plan, const InputRows& out, const InputRows& dout,
                         const Saved<float>& saved, const OutputRows& dq, const OutputRows& dk,
                         const OutputRows& dv) {
  const HeadPlans heads(plan);
  parallel_for(plan.num_items(), [&](int64_t index) {
    const Item item(plan, index);
    CausalBackward(plan, heads[item.h], item, out, dout, saved, dq, dk, dv).run();
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
  HWY_DYNAMIC_DISPATCH(run_causal_backward)(plan, out, dout, saved, dq, dk, dv);
}

}  // namespace favor
#endif  // HWY_ONCE
