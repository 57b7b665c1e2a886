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
#include "favor/query_features-inl.h"
#include "favor/gradients-inl.h"
#include "favor/slabs-inl.h"
#include "favor/state-inl.h"
// clang-format on

#include <algorithm>
#include <span>
#include <vector>

#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Chunks held at a time for one query head, and fewer for more of them. A stretch has this many
/// when the forward pass halved none of its chunks; otherwise it is walked in groups.
constexpr int64_t kHeldChunks = kStateInterval / kCausalChunk;

/// Lines asked for at each step of a product: a chunk's rows and features are more than the steps
/// of the products that take them along.
constexpr int kLinesPerStep = 4;

/// Tokens [begin, end) of a segment.
struct Range {
  int64_t begin, end;
};

/// The state before a chunk or the sums over later queries, features in columns.
struct WalkedState {
  Panels S;  ///< [E, M]
  float* z;  ///< [M] padded
  float* c;  ///< [M] padded

  void place(ScratchLayout& layout, const HeadPlan& head) {
    S = {layout.take(panel_floats(head.E, head.M)), head.E};
    z = layout.take(num_panels(head.M) * panel_width());
    c = layout.take(num_panels(head.M) * panel_width());
  }

  /// Multiplies what belongs to a panel's features by factor[0 .. NR).
  void scale(const HeadPlan& head, int64_t panel, const float* factor) const {
    const int64_t NR = panel_width();
    scale_columns(S, head.E, panel, factor);
    for (int64_t i = 0; i < NR; ++i) {
      z[panel * NR + i] *= factor[i];
    }
  }
};

/// What the forward walk leaves of one head's queries for the reverse walk.
struct HeldQueries {
  Panels features;             ///< [C, M] divided by the denominators
  Panels dscores;              ///< [C, C] lower triangular: gradients of the weights
  float* dz;                   ///< [M] padded: -features^T delta
  uint8_t skip[kCausalChunk];  ///< queries that take no part

  void place(ScratchLayout& layout, const HeadPlan& head) {
    features = {layout.take(panel_floats(kCausalChunk, head.M)), kCausalChunk};
    dscores = {layout.take(panel_floats(kCausalChunk, kCausalChunk)), kCausalChunk};
    dz = layout.take(num_panels(head.M) * panel_width());
  }
};

/// What the forward walk leaves of a chunk for the reverse walk.
struct HeldChunk {
  Panels key_features;               ///< [C, M]
  Panels key_slopes;                 ///< [C, M], of maps that keep them
  float* c;                          ///< [M] padded: the stabilisers of keys and queries
  std::vector<HeldQueries> queries;  ///< of each query head

  void place(ScratchLayout& layout, const HeadPlan& head) {
    key_features = {layout.take(panel_floats(kCausalChunk, head.M)), kCausalChunk};
    key_slopes = key_features;
    if (head.keeps_slopes) {
      key_slopes.data = layout.take(panel_floats(kCausalChunk, head.M));
    }
    c = layout.take(num_panels(head.M) * panel_width());
    for (HeldQueries& held : queries) {
      held.place(layout, head);
    }
  }
};

class CausalBackward {
 public:
  static constexpr int64_t kRound = kGradientRound;

  CausalBackward(const Plan<float>& plan, const Slab& slab, const Item& item, const InputRows& out,
                 const InputRows& dout, const Saved<float>& saved, const OutputRows& dq,
                 const OutputRows& dk, const OutputRows& dv)
      : plan_(plan),
        slab_(slab),
        head_(slab.head),
        item_(item),
        out_(out),
        dout_(dout),
        dq_(dq),
        dk_(dk),
        dv_(dv),
        panels_(num_panels(head_.M)),
        held_(static_cast<size_t>(std::max<int64_t>(2 * kHeldChunks / (1 + plan.group()), 1))) {
    const int64_t row = item.b * plan.G + item.g;
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

  int64_t num_rounds() const { return (item_.segment.num_queries() + kRound - 1) / kRound; }

  /// Scratch of a slab.
  void place_slab(ScratchLayout& layout) {
    is_cut_ = true;
    place(layout);
    gradients_.place(layout, head_, plan_.group());
  }

  /// A stretch of tokens; the last one comes first.
  void run_round(int64_t round) {
    if (round == 0) {
      start();
    }
    const int64_t begin = round_begin(round);
    walk_stretch(find_chunks(begin, std::min(begin + kRound, item_.segment.num_queries())));
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
                     [&](const auto& slab) { return slab.gradients_.*gradient; });
      write_gradients(std::span(parts, slabs.size()), row, std::min(kMergedRows, end - t), cols,
                      factor, to, stride);
    };
    const Segment& segment = item.segment;
    for (int64_t h = item.first_head; h < item.last_head && t < segment.num_queries(); ++h) {
      write(&SlabGradients::dq, (h - item.first_head) * kRound + first, segment.num_queries(),
            head.D, head.out_scale, pass.dq_.row(item.b, h, segment.q_begin + t),
            pass.dq_.strides[2]);
    }
    const int64_t keys = std::min(segment.num_keys(), segment.num_queries());
    if (t < keys) {
      const int64_t j = segment.k_begin + t;
      write(&SlabGradients::dk, first, keys, head.D, head.out_scale,
            pass.dk_.row(item.b, item.g, j), pass.dk_.strides[2]);
      write(&SlabGradients::dv, first, keys, head.E, 1.0f, pass.dv_.row(item.b, item.g, j),
            pass.dv_.strides[2]);
    }
  }

 private:
  int64_t round_begin(int64_t round) const { return (num_rounds() - 1 - round) * kRound; }

  void start() {
    // Columns beyond M and beyond a chunk are read by whole vectors, so they must be finite.
    std::fill_n(features_transposed_.data, panel_floats(head_.M, kCausalChunk), 0.0f);
    std::fill_n(values_transposed_.data, panel_floats(head_.E, kCausalChunk), 0.0f);
    std::fill_n(sums_.S.data, panel_floats(head_.E, head_.M), 0.0f);
    std::fill_n(sums_.z, panels_ * panel_width(), 0.0f);
    std::fill_n(sums_.c, panels_ * panel_width(), -kNoKey);
  }

  void place(ScratchLayout& layout) {
    loaded_.place(layout, head_);
    sums_.place(layout, head_);
    state_.place(layout, head_);
    for (HeldChunk& held : held_) {
      held.place(layout, head_);
    }
    rows_.place(layout, head_, kCausalChunk);
    keys_.place(layout, head_, kCausalChunk);
    values_transposed_ = {layout.take(panel_floats(head_.E, kCausalChunk)), head_.E};
    features_transposed_ = {layout.take(panel_floats(head_.M, kCausalChunk)), head_.M};
    dlogits_ = {layout.take(panel_floats(kCausalChunk, head_.M)), kCausalChunk};
    dv_transposed_ = {layout.take(panel_floats(head_.E, kCausalChunk)), head_.E};
    scores_ = {layout.take(panel_floats(kCausalChunk, kCausalChunk)), kCausalChunk};
    product_ = {layout.take(panel_floats(kCausalChunk, std::max(head_.D, head_.E))), kCausalChunk};
    z_added_ = layout.take(panels_ * panel_width());
    row_sums_ = layout.take(kCausalChunk * panel_width() / 2);
    buffer_ = layout.take(logit_floats(head_));
    own_ = layout.take(kCausalChunk);
    shift_ = layout.take(panels_ * panel_width());
  }

  /// Sets state_ to the state before token t of the segment, a multiple of kStateInterval: what the
  /// forward pass kept, or else absorbed anew from the segment's start.
  void load_state(int64_t t) {
    if (t == 0 || states_ == nullptr) {
      loaded_.clear(head_);
    } else {
      import_state(head_, states_ + saved_state_slot(item_.segment, t) * plan_.M * (head_.E + 2),
                   slab_.first, plan_.M, loaded_);
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
    NoJob job;
    for (const Range& chunk : chunks) {
      load_keys(chunk);
      chunk_features(num_keys(chunk), held_[0]);
      absorb(num_keys(chunk), held_[0].key_features, job);
    }
  }

  /// Keys beyond the last query of the segment are seen by none.
  void zero_unseen_keys() const {
    for (int64_t s = item_.segment.num_queries(); s < item_.segment.num_keys(); ++s) {
      zero_row(dk_.row(item_.b, item_.g, item_.segment.k_begin + s), head_.D);
      zero_row(dv_.row(item_.b, item_.g, item_.segment.k_begin + s), head_.E);
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

  int64_t num_keys(const Range& chunk) const {
    return std::clamp<int64_t>(item_.segment.num_keys() - chunk.begin, 0, chunk.end - chunk.begin);
  }

  void load_keys(const Range& chunk) const {
    keys_.load(plan_, head_, item_, item_.segment.k_begin + chunk.begin, num_keys(chunk));
  }

  /// Brings state_ to stabilisers that hold for the chunk, whose loaded keys get their features.
  /// z_added_ receives what the chunk adds to z.
  void chunk_features(int64_t n, const HeldChunk& held) const {
    chunk_key_features(
        head_, keys_, n, state_.c, held.key_features, held.key_slopes, z_added_, buffer_,
        [&](int64_t panel, const float* factor) { state_.scale(head_, panel, factor); });
  }

  /// Adds the chunk, whose features are known, to state_.
  template <class Job>
  void absorb(int64_t n, const Panels& features, Job& job) const {
    for (int64_t f = 0; f < head_.M; ++f) {
      state_.z[f] += z_added_[f];
    }
    multiply_transposed(keys_.values, features, state_.S, state_.S, head_.E, panels_, n, job);
  }

  /// The forward walk over one chunk: dq, and what the reverse walk needs. `later` is where the
  /// next chunk will be held, or null.
  void walk_forward(const Range& chunk, HeldChunk& held, const HeldChunk* later) {
    const int64_t keys = num_keys(chunk);
    ask_for_forward(chunk, later);
    PrefetchJob job(lines_, kLinesPerStep);
    load_keys(chunk);
    own_stabilisers(head_, keys_, chunk.end - chunk.begin, keys, state_.c[0], own_);
    chunk_features(keys, held);
    std::copy_n(state_.c, panels_ * panel_width(), held.c);
    transpose(keys_.values, keys, head_.E, values_transposed_);
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
    rows_.load(plan_, head_, item_.b, h, i, queries, out_, dout_, normalizer_ + h * plan_.L,
               buffer_);
    rows_.settle(head_, queries, state_.c[0], own_);
    std::fill_n(held.dz, panels_ * NR, 0.0f);
    std::copy_n(rows_.skip, queries, held.skip);
    multiply_to_lower(rows_.dout, values_transposed_, held.dscores, queries, keys, head_.E);
    make_lower(held.dscores, queries, keys, rows_.delta, nullptr);
    multiply_lower(held.dscores, key_features, dlogits_, queries, keys, panels_);
    float* totals = clear_query_row_sums(head_, queries, row_sums_);
    const bool woven = can_weave(head_, head_.query);
    if (woven) {
      query_shift(head_, state_.c, shift_);
    }
    NormalizedQueryJob exponentials{RowWalk(held.features, queries), rows_.norm, shift_};
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const int64_t f = panel * NR;
      float* features = held.features.at(0, panel);
      if (woven) {
        project_panel(head_.query.matrix.columns, rows_.tokens, head_.D, queries, panel,
                      held.features, job);
        exponentials.walk.ready = queries;
        multiply<true>(rows_.dout, state_.S, dlogits_, 0, queries, panel, panel + 1, head_.E,
                       exponentials);
        finish_job(exponentials);
      } else {
        const float* u = project(head_, head_.query, rows_.tokens, queries, panel, buffer_);
        normalized_query_features(head_, f, u, state_.c + f, rows_.norm, rows_.offset, rows_.floor,
                                  queries, features, buffer_);
        multiply<true>(rows_.dout, state_.S, dlogits_, 0, queries, panel, panel + 1, head_.E, job);
      }
      query_logit_gradients(head_, features, buffer_, rows_, queries, state_.z + f,
                            dlogits_.at(0, panel), held.dz + f, totals);
    }
    if (is_cut_) {
      const Panels dq = rows_of(gradients_.dq, h - item_.first_head, chunk);
      token_gradient_panels(head_, head_.query, dlogits_, queries, rows_.tokens, totals, dq);
      return;
    }
    token_gradients(head_, head_.query, dlogits_, queries, rows_.tokens, totals, product_,
                    dq_.row(item_.b, h, i), dq_.strides[2]);
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
        walk_back(at(i), *held(i - first), i > first ? held(i - first - 1) : nullptr);
      }
      last = first;
    }
  }

  /// Brings the sums over later queries to the stabilisers of an earlier chunk.
  void lower_sums(const float* c) const {
    const FloatTag d;
    const int64_t NR = panel_width();
    HWY_ALIGN float factor[kChunk];
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const int64_t f = panel * NR;
      if (std::equal(c + f, c + f + NR, sums_.c + f)) {
        continue;
      }
      for (int64_t i = 0; i < NR; i += NR / 2) {
        const Vector fall = hn::Sub(hn::LoadU(d, c + f + i), hn::LoadU(d, sums_.c + f + i));
        hn::StoreU(exp2(fall), d, factor + i);
      }
      sums_.scale(head_, panel, factor);
      std::copy_n(c + f, NR, sums_.c + f);
    }
  }

  /// Reads the gradients of a chunk's rows of head h.
  void load_dout(int64_t h, const Range& chunk, const HeldQueries& held) const {
    pack_rows(dout_.row(item_.b, h, item_.segment.q_begin + chunk.begin), dout_.strides[2],
              chunk.end - chunk.begin, head_.E, 1.0f, held.skip, rows_.dout);
  }

  /// The reverse walk over one chunk: dk and dv, and the sums over its queries. `earlier` is where
  /// the chunk before it is held, or null.
  void walk_back(const Range& chunk, const HeldChunk& held, const HeldChunk* earlier) {
    const int64_t queries = chunk.end - chunk.begin;
    const int64_t keys = num_keys(chunk);
    ask_for_back(chunk, keys, earlier);
    PrefetchJob job(lines_, kLinesPerStep);
    lower_sums(held.c);
    if (keys > 0) {
      load_keys(chunk);
      weigh_keys(head_, keys_, keys, held.c);
      key_gradients(chunk, held, queries, keys, job);
    }
    for (int64_t h = item_.first_head; h < item_.last_head; ++h) {
      const HeldQueries& rows = held.queries[static_cast<size_t>(h - item_.first_head)];
      if (keys == 0 || plan_.group() > 1) {
        load_dout(h, chunk, rows);  // else key_gradients has left it
      }
      for (int64_t f = 0; f < panels_ * panel_width(); ++f) {
        sums_.z[f] += rows.dz[f];
      }
      multiply_transposed(rows_.dout, rows.features, sums_.S, sums_.S, head_.E, panels_, queries,
                          job);
    }
  }

  void key_gradients(const Range& chunk, const HeldChunk& held, int64_t queries, int64_t keys,
                     PrefetchJob& job) {
    const int64_t NR = panel_width();
    const int64_t j = item_.segment.k_begin + chunk.begin;
    transpose(held.key_features, keys, head_.M, features_transposed_);
    multiply<false>(sums_.S, features_transposed_, dv_transposed_, 0, head_.E, 0, num_panels(keys),
                    head_.M, job);
    const Panels dv = is_cut_ ? rows_of(gradients_.dv, 0, chunk) : product_;
    for (int64_t h = item_.first_head; h < item_.last_head; ++h) {
      const HeldQueries& rows = held.queries[static_cast<size_t>(h - item_.first_head)];
      const bool accumulate = h > item_.first_head;
      load_dout(h, chunk, rows);
      multiply_to_lower(rows.features, features_transposed_, scores_, queries, keys, head_.M);
      make_lower(scores_, queries, keys, nullptr, nullptr);
      multiply_lower_transposed(rows.dscores, rows.features, dlogits_, queries, keys, panels_,
                                accumulate);
      add_transposed_lower(rows_.dout, scores_, dv_transposed_, head_.E, queries, keys);
    }
    std::fill_n(row_sums_, keys * NR / 2, 0.0f);
    for (int64_t panel = 0; panel < panels_; ++panel) {
      multiply<true>(keys_.values, sums_.S, dlogits_, 0, keys, panel, panel + 1, head_.E, job);
      key_logit_gradients(head_, held.key_features.at(0, panel), held.key_slopes.at(0, panel),
                          keys_, keys, sums_.z + panel * NR, dlogits_.at(0, panel), row_sums_);
    }
    transpose(dv_transposed_, head_.E, keys, dv);
    if (is_cut_) {
      token_gradient_panels(head_, head_.key, dlogits_, keys, keys_.tokens, row_sums_,
                            rows_of(gradients_.dk, 0, chunk));
      return;
    }
    float ones[kCausalChunk];
    std::fill_n(ones, keys, 1.0f);
    unpack_rows(product_, keys, head_.E, ones, dv_.row(item_.b, item_.g, j), dv_.strides[2]);
    token_gradients(head_, head_.key, dlogits_, keys, keys_.tokens, row_sums_, product_,
                    dk_.row(item_.b, item_.g, j), dk_.strides[2]);
  }

  /// A slab's rows of a chunk in one of gradients_, for the query head `head` of the item.
  static Panels rows_of(const Panels& gradient, int64_t head, const Range& chunk) {
    return {gradient.at(head * kRound + chunk.begin % kRound, 0), gradient.rows};
  }

  /// What the forward walk over a chunk writes last, and what it takes to walk over the next one.
  void ask_for_forward(const Range& chunk, const HeldChunk* later) {
    const Segment& segment = item_.segment;
    const int64_t i = segment.q_begin;
    lines_.clear();
    for (int64_t h = item_.first_head; h < item_.last_head; ++h) {
      if (is_cut_) {
        add_lines(rows_of(gradients_.dq, h - item_.first_head, chunk), kCausalChunk, head_.D,
                  lines_);
      } else {
        lines_.emplace_back(dq_, item_.b, h, i + chunk.begin, i + chunk.end);
      }
    }
    if (later == nullptr) {
      return;
    }
    ask_for_keys(chunk.end);
    const int64_t end = std::min(i + chunk.end + kCausalChunk, segment.q_end);
    for (int64_t h = item_.first_head; h < item_.last_head; ++h) {
      for (const InputRows* rows : {&plan_.q, &dout_, &out_}) {
        lines_.emplace_back(*rows, item_.b, h, i + chunk.end, end);
      }
    }
    ask_for_held(*later);
  }

  /// The same for the reverse walk.
  void ask_for_back(const Range& chunk, int64_t keys, const HeldChunk* earlier) {
    const Segment& segment = item_.segment;
    const int64_t j = segment.k_begin + chunk.begin;
    lines_.clear();
    if (is_cut_) {
      add_lines(rows_of(gradients_.dv, 0, chunk), kCausalChunk, head_.E, lines_);
      add_lines(rows_of(gradients_.dk, 0, chunk), kCausalChunk, head_.D, lines_);
    } else {
      lines_.emplace_back(dv_, item_.b, item_.g, j, j + keys);
      lines_.emplace_back(dk_, item_.b, item_.g, j, j + keys);
    }
    if (earlier == nullptr) {
      return;
    }
    const int64_t begin = std::max<int64_t>(chunk.begin - kCausalChunk, 0);
    ask_for_keys(begin);
    for (int64_t h = item_.first_head; h < item_.last_head; ++h) {
      lines_.emplace_back(dout_, item_.b, h, segment.q_begin + begin,
                          segment.q_begin + chunk.begin);
    }
    ask_for_held(*earlier);
  }

  /// The features of a chunk.
  void ask_for_held(const HeldChunk& held) {
    const int64_t floats = kCausalChunk * panels_ * panel_width();
    lines_.emplace_back(held.key_features.data, floats);
    for (const HeldQueries& queries : held.queries) {
      lines_.emplace_back(queries.features.data, floats);
    }
  }

  /// The keys and values of a chunk that starts at token t.
  void ask_for_keys(int64_t t) {
    const int64_t begin = item_.segment.k_begin + t;
    const int64_t end = std::min(begin + kCausalChunk, item_.segment.k_end);
    lines_.emplace_back(plan_.k, item_.b, item_.g, begin, end);
    lines_.emplace_back(plan_.v, item_.b, item_.g, begin, end);
  }

  const Plan<float>& plan_;
  const Slab& slab_;
  const HeadPlan& head_;
  const Item& item_;
  const InputRows& out_;
  const InputRows& dout_;
  const OutputRows& dq_;
  const OutputRows& dk_;
  const OutputRows& dv_;
  int64_t panels_;
  bool is_cut_ = false;  ///< whether gradients_ takes the place of the caller's rows
  std::vector<HeldChunk> held_;
  std::vector<Lines> lines_;  ///< to be asked for in the course of a chunk
  const float* normalizer_;
  const uint8_t* chunk_starts_;
  const float* states_ = nullptr;

  KeyState loaded_;    ///< a kept state as it was stored
  WalkedState sums_;   ///< over later queries: S = dout^T features, z = -features^T delta
  WalkedState state_;  ///< before the next chunk of the forward walk
  QueryGradients rows_;
  KeyChunk keys_;
  Panels values_transposed_;    ///< [E, C]
  Panels features_transposed_;  ///< [M, C]
  Panels dlogits_;              ///< [C, M]
  Panels dv_transposed_;        ///< [E, C]
  Panels scores_;               ///< [C, C] lower triangular
  Panels product_;              ///< [C, D] or [C, E]
  float* z_added_;              ///< [M] padded
  float* row_sums_;             ///< [C, N]
  float* buffer_;               ///< of project()
  float* own_;                  ///< [C] stabilisers of the rows; of maps known by their values
  float* shift_;                ///< [M] padded, of query_shift
  SlabGradients gradients_;
};

void run_causal_backward(const Plan<float>& plan, const InputRows& out, const InputRows& dout,
                         const Saved<float>& saved, const OutputRows& dq, const OutputRows& dk,
                         const OutputRows& dv) {
  const HeadPlans heads(plan);
  const int64_t slabs = num_slabs(plan, heads.common());
  if (slabs > 1) {
    run_in_slabs<CausalBackward>(plan, heads, slabs, out, dout, saved, dq, dk, dv);
    return;
  }
  parallel_for(plan.num_items(), [&](int64_t index) {
    const Item item(plan, index);
    const Slab whole(heads[item.g]);
    CausalBackward(plan, whole, item, out, dout, saved, dq, dk, dv).run();
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
