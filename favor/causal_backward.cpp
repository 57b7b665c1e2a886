// SPDX-License-Identifier: Apache-2.0
// Causal attention, backward. The sequence is walked from its end in stretches of kStateInterval
// tokens, each starting from a state that the forward pass kept. Within a stretch a forward walk
// rebuilds the state before every chunk, then a reverse walk emits all gradients of a chunk at once
// and carries the sums over later queries. Nothing is ever rebuilt by subtraction.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/causal_backward.cpp"
#include "hwy/foreach_target.h"
#include "favor/features-inl.h"
// clang-format on

#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Chunks whose states and key features are held at a time. A stretch has this many when none was
/// halved by the forward pass; otherwise it is walked in groups.
constexpr int64_t kHeldChunks = kStateInterval / kChunk;

/// Tokens [begin, end) of a segment.
struct Range {
  int64_t begin, end;
};

/// The state before a chunk, under the stabilisers that hold for the chunk, features in columns.
struct ChunkState {
  Panels S;  ///< [E, M]
  float* z;  ///< [M] padded
  float* c;  ///< [M] padded

  void place(ScratchLayout& layout, const HeadPlan& head) {
    S = {layout.take(panel_floats(head.E, head.M)), head.E};
    z = layout.take(num_panels(head.M) * panel_width());
    c = layout.take(num_panels(head.M) * panel_width());
  }
};

class CausalBackward {
 public:
  CausalBackward(const Plan<float>& plan, const HeadPlan& head, const Item& item,
                 const View4<const float>& out, const View4<const float>& dout,
                 const Saved<float>& saved, const View4<float>& dq, const View4<float>& dk,
                 const View4<float>& dv)
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
    states_ = saved.state + row * saved_state_size(1, 1, plan.L, plan.M, plan.E, true, 1);
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
    // Columns beyond M and rows beyond a chunk are read by whole vectors, so they must be finite.
    std::fill_n(features_transposed_.data, panel_floats(head.M, kChunk), 0.0f);
    std::fill_n(values_transposed_.data, panel_floats(head.E, kChunk), 0.0f);
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
    for (int64_t i = 0; i <= kHeldChunks; ++i) {
      held_[i].place(layout, head_);
    }
    for (int64_t i = 0; i < kHeldChunks; ++i) {
      held_features_[i] = {layout.take(panel_floats(kChunk, head_.M)), kChunk};
    }
    rows_.place(layout, head_);
    keys_ = {layout.take(panel_floats(kChunk, head_.D)), kChunk};
    values_ = {layout.take(panel_floats(kChunk, head_.E)), kChunk};
    values_transposed_ = {layout.take(panel_floats(head_.E, kChunk)), head_.E};
    features_transposed_ = {layout.take(panel_floats(head_.M, kChunk)), head_.M};
    query_features_ = {layout.take(panel_floats(kChunk, head_.M)), kChunk};
    dlogits_ = {layout.take(panel_floats(kChunk, head_.M)), kChunk};
    sums_transposed_ = {layout.take(panel_floats(head_.E, head_.M)), head_.E};
    scores_ = {layout.take(panel_floats(kChunk, kChunk)), kChunk};
    dscores_ = {layout.take(panel_floats(kChunk, kChunk)), kChunk};
    product_ = {layout.take(panel_floats(kChunk, std::max(head_.D, head_.E))), kChunk};
    added_ = layout.take(panel_width());
    factor_ = layout.take(panel_width());
    offset_ = layout.take(kChunk);
    row_sums_ = layout.take(kChunk * panel_width());
    buffer_ = layout.take(panel_floats(kChunk, 1));
  }

  /// The state that the forward pass kept before token t of the segment.
  void load_state(int64_t t, const ChunkState& state) const {
    if (t == 0) {
      loaded_.clear(head_);
    } else {
      import_state(head_, states_ + saved_state_slot(item_.segment, t) * head_.M * (head_.E + 2),
                   loaded_);
    }
    std::fill_n(state.S.data, panel_floats(head_.E, head_.M), 0.0f);
    transpose(loaded_.S, head_.M, head_.E, state.S);
    std::copy_n(loaded_.z, panels_ * panel_width(), state.z);
    std::copy_n(loaded_.c, panels_ * panel_width(), state.c);
  }

  /// Keys beyond the last query of the segment are seen by none.
  void zero_unseen_keys() {
    for (int64_t s = item_.segment.num_queries(); s < item_.segment.num_keys(); ++s) {
      std::fill_n(dk_.row(item_.b, item_.h, item_.segment.k_begin + s), head_.D, 0.0f);
      std::fill_n(dv_.row(item_.b, item_.h, item_.segment.k_begin + s), head_.E, 0.0f);
    }
  }

  /// The forward pass's chunks in [begin, end).
  std::vector<Range> find_chunks(int64_t begin, int64_t end) const {
    std::vector<Range> chunks;
    for (int64_t t = begin; t < end; ++t) {
      if (chunk_starts_[item_.segment.q_begin + t] != 0) {
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

  const uint8_t* skipped_keys(const Range& chunk) const {
    const uint8_t* mask = plan_.mask_row(item_.b);
    return mask == nullptr ? nullptr : mask + item_.segment.k_begin + chunk.begin;
  }

  /// Packs the chunk's keys and values.
  void load_keys(const Range& chunk) {
    const int64_t n = num_keys(chunk);
    if (n == 0) {
      return;
    }
    const int64_t j = item_.segment.k_begin + chunk.begin;
    const uint8_t* skip = skipped_keys(chunk);
    const float* k = plan_.k.row(item_.b, item_.h, j);
    pack_rows(k, plan_.k.strides[2], n, head_.D, head_.token_scale, skip, keys_);
    key_offsets(head_, k, plan_.k.strides[2], n, skip, offset_);
    pack_rows(plan_.v.row(item_.b, item_.h, j), plan_.v.strides[2], n, head_.E, 1.0f, skip,
              values_);
  }

  /// Brings `state` to the stabilisers that hold for the chunk, leaves the keys' features in
  /// `features`, and writes the state after the chunk to `next`, which may be `state` itself.
  void walk_forward(const Range& chunk, const ChunkState& state, const Panels& features,
                    const ChunkState& next) {
    const int64_t NR = panel_width();
    const int64_t n = num_keys(chunk);
    prefetch_rows(plan_.k, item_.b, item_.h, item_.segment.k_begin + chunk.end,
                  item_.segment.k_end);
    prefetch_rows(plan_.v, item_.b, item_.h, item_.segment.k_begin + chunk.end,
                  item_.segment.k_end);
    load_keys(chunk);
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const int64_t f = panel * NR;
      const float* u = project(head_, keys_, n, panel, buffer_);
      float* to = features.at(0, panel);
      if (!head_.positive) {
        relu_keys(u, offset_, n, head_.eps, to, added_);
      } else if (!(positive_keys(u, offset_, n, state.c + f, to, added_) <= kLazyRaise)) {
        raise_stabilisers(u, offset_, n, state.c + f, factor_);
        scale_columns(state.S, head_.E, panel, factor_);
        for (int64_t i = 0; i < NR; ++i) {
          state.z[f + i] *= factor_[i];
        }
        positive_keys(u, offset_, n, state.c + f, to, added_);
      }
      for (int64_t i = 0; i < NR; ++i) {
        // Columns beyond M stay without keys.
        next.z[f + i] = f + i < head_.M ? state.z[f + i] + added_[i] : 0.0f;
        next.c[f + i] = state.c[f + i];
      }
    }
    multiply_transposed(values_, features, state.S, next.S, head_.E, panels_, n);
  }

  /// Gradients of `chunks` from held_[0], the state before the first of them.
  void walk_stretch(const std::vector<Range>& chunks) {
    const auto at = [&](int64_t i) { return chunks[static_cast<size_t>(i)]; };
    // A group holds at most kHeldChunks chunks; the state before a later group is found by walking
    // from the start again, which happens only where the forward pass halved chunks.
    for (auto last = static_cast<int64_t>(chunks.size()); last > 0;) {
      const int64_t first = (last - 1) / kHeldChunks * kHeldChunks;
      load_state(chunks.front().begin, held_[0]);
      for (int64_t i = 0; i < first; ++i) {
        walk_forward(at(i), held_[0], held_features_[0], held_[0]);
      }
      for (int64_t i = first; i < last; ++i) {
        walk_forward(at(i), held_[i - first], held_features_[i - first], held_[i - first + 1]);
      }
      for (int64_t i = last - 1; i >= first; --i) {
        chunk_gradients(at(i), i - first);
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

  void chunk_gradients(const Range& chunk, int64_t slot) {
    const int64_t NR = panel_width();
    const int64_t queries = chunk.end - chunk.begin;
    const int64_t keys = num_keys(chunk);
    const ChunkState& state = held_[slot];
    const Panels& key_features = held_features_[slot];
    const int64_t i = item_.segment.q_begin + chunk.begin;

    const int64_t earlier = std::max(i - kChunk, item_.segment.q_begin);
    prefetch_rows(plan_.q, item_.b, item_.h, earlier, i);
    prefetch_rows(out_, item_.b, item_.h, earlier, i);
    prefetch_rows(dout_, item_.b, item_.h, earlier, i);
    load_keys(chunk);
    rows_.load(plan_, head_, item_.b, item_.h, i, queries, out_, dout_, normalizer_);
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const int64_t f = panel * NR;
      normalized_query_features(head_, project(head_, rows_.tokens, queries, panel, buffer_),
                                state.c + f, rows_.norm, queries, head_.M - f,
                                query_features_.at(0, panel));
    }
    transpose(values_, keys, head_.E, values_transposed_);
    multiply_to_lower(rows_.dout, values_transposed_, dscores_, queries, keys, head_.E);
    make_lower(dscores_, queries, keys, rows_.delta, nullptr);
    if (keys > 0) {
      lower_sums(state.c);
      key_gradients(chunk, key_features, queries, keys);
    }
    query_gradients(chunk, state, key_features, queries, keys);
  }

  void key_gradients(const Range& chunk, const Panels& key_features, int64_t queries,
                     int64_t keys) {
    const int64_t NR = panel_width();
    const int64_t j = item_.segment.k_begin + chunk.begin;
    transpose(key_features, keys, head_.M, features_transposed_);
    multiply_to_lower(query_features_, features_transposed_, scores_, queries, keys, head_.M);
    make_lower(scores_, queries, keys, nullptr, nullptr);
    transpose(sums_.S, head_.M, head_.E, sums_transposed_);

    multiply_lower_transposed(dscores_, query_features_, dlogits_, queries, keys, panels_);
    multiply<true>(values_, sums_transposed_, dlogits_, 0, keys, 0, panels_, head_.E);
    std::fill_n(row_sums_, keys * NR, 0.0f);
    for (int64_t panel = 0; panel < panels_; ++panel) {
      key_logit_gradients(head_, key_features.at(0, panel), offset_, keys, sums_.z + panel * NR,
                          dlogits_.at(0, panel), row_sums_);
    }
    multiply_lower_transposed(scores_, rows_.dout, product_, queries, keys, num_panels(head_.E));
    multiply<true>(key_features, sums_.S, product_, 0, keys, 0, num_panels(head_.E), head_.M);
    float ones[kChunk];
    std::fill_n(ones, keys, 1.0f);
    unpack_rows(product_, keys, head_.E, ones, dv_.row(item_.b, item_.h, j), dv_.strides[2]);
    token_gradients(head_, dlogits_, keys, keys_, row_sums_, product_, dk_.row(item_.b, item_.h, j),
                    dk_.strides[2]);
  }

  void query_gradients(const Range& chunk, const ChunkState& state, const Panels& key_features,
                       int64_t queries, int64_t keys) {
    const int64_t NR = panel_width();
    const int64_t i = item_.segment.q_begin + chunk.begin;
    multiply_lower(dscores_, key_features, dlogits_, queries, keys, panels_);
    multiply<true>(rows_.dout, state.S, dlogits_, 0, queries, 0, panels_, head_.E);
    for (int64_t panel = 0; panel < panels_; ++panel) {
      query_logit_gradients(head_, query_features_.at(0, panel), rows_.delta, rows_.norm, queries,
                            state.z + panel * NR, dlogits_.at(0, panel), sums_.z + panel * NR);
    }
    multiply_transposed(query_features_, rows_.dout, sums_.S, sums_.S, head_.M, num_panels(head_.E),
                        queries);
    token_gradients(head_, dlogits_, queries, rows_.tokens, nullptr, product_,
                    dq_.row(item_.b, item_.h, i), dq_.strides[2]);
  }

  const Plan<float>& plan_;
  const HeadPlan& head_;
  const Item& item_;
  const View4<const float>& out_;
  const View4<const float>& dout_;
  const View4<float>& dq_;
  const View4<float>& dk_;
  const View4<float>& dv_;
  int64_t panels_;
  const float* normalizer_;
  const uint8_t* chunk_starts_;
  const float* states_;

  KeyState loaded_;  ///< a kept state as it was stored
  KeyState sums_;    ///< over later queries: S [M, E] = features^T dout, z = -features^T delta
  float* sums_c_;    ///< [M] stabilisers of sums_
  ChunkState held_[kHeldChunks + 1];   ///< before each chunk of a group
  Panels held_features_[kHeldChunks];  ///< [C, M] each
  QueryGradients rows_;
  Panels keys_;                 ///< [C, D]
  Panels values_;               ///< [C, E]
  Panels values_transposed_;    ///< [E, C]
  Panels features_transposed_;  ///< [M, C]
  Panels query_features_;       ///< [C, M] divided by the denominators
  Panels dlogits_;              ///< [C, M]
  Panels sums_transposed_;      ///< [E, M]
  Panels scores_, dscores_;     ///< [C, C] lower triangular: weights and their gradients
  Panels product_;              ///< [C, D] or [C, E]
  float* added_;                ///< [NR]
  float* factor_;               ///< [NR]
  float* offset_;               ///< [C]
  float* row_sums_;             ///< [C, N]
  float* buffer_;               ///< [C, NR]
};

void run_causal_backward(const Plan<float>& plan, const View4<const float>& out,
                         const View4<const float>& dout, const Saved<float>& saved,
                         const View4<float>& dq, const View4<float>& dk, const View4<float>& dv) {
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

void causal_backward_kernel(const Plan<float>& plan, View4<const float> out,
                            View4<const float> dout, const Saved<float>& saved, View4<float> dq,
                            View4<float> dk, View4<float> dv) {
  HWY_DYNAMIC_DISPATCH(run_causal_backward)(plan, out, dout, saved, dq, dk, dv);
}

}  // namespace favor
#endif  // HWY_ONCE
