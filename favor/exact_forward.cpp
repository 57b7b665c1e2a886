// SPDX-License-Identifier: Apache-2.0
// Exact softmax attention, forward: each task takes a block of queries past the keys that they
// meet, under maxima that follow the keys, and never holds more than one panel of scores.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/exact_forward.cpp"
#include "hwy/foreach_target.h"
#include "favor/exact-inl.h"
#include "favor/query_features-inl.h"
#include "favor/state-inl.h"
// clang-format on

#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Most queries of a task: packing the keys anew for each task then costs little beside the
/// products.
constexpr int64_t kQueryBlock = 256;
/// Queries of a task where there would be less than kEnoughTasks otherwise.
constexpr int64_t kSmallQueryBlock = 64;
constexpr int64_t kEnoughTasks = 8;

/// weights = 2^(score - top) in place for rows of one panel, their sums added to `total`, `peak`
/// raised to the largest score. Returns whether every exponent is at most kLazyRaise; if not,
/// nothing is to be used.
inline HWY_NOINLINE bool exponentials(const KeyBlock::Rows& rows, const float* HWY_RESTRICT top,
                                      float* HWY_RESTRICT scores, float* HWY_RESTRICT total,
                                      float* HWY_RESTRICT peak) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  const Vector top0 = hn::LoadU(d, top);
  const Vector top1 = hn::LoadU(d, top + N);
  Vector largest0 = hn::Set(d, kNoKey);
  Vector largest1 = largest0;
  Vector sum0 = hn::Zero(d);
  Vector sum1 = hn::Zero(d);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const Vector t0 = hn::Sub(hn::LoadU(d, scores + r * NR), top0);
    const Vector t1 = hn::Sub(hn::LoadU(d, scores + r * NR + N), top1);
    largest0 = hn::Max(largest0, t0);
    largest1 = hn::Max(largest1, t1);
    const Vector e0 = exp2(t0);
    const Vector e1 = exp2(t1);
    sum0 = hn::Add(sum0, e0);
    sum1 = hn::Add(sum1, e1);
    hn::StoreU(e0, d, scores + r * NR);
    hn::StoreU(e1, d, scores + r * NR + N);
  }
  // Lane by lane, so that a query of NaN cannot hide what another asks for.
  const Vector limit = hn::Set(d, kLazyRaise);
  if (!hn::AllFalse(d, hn::Gt(largest0, limit)) || !hn::AllFalse(d, hn::Gt(largest1, limit))) {
    return false;
  }
  hn::StoreU(hn::Max(hn::LoadU(d, peak), hn::Add(largest0, top0)), d, peak);
  hn::StoreU(hn::Max(hn::LoadU(d, peak + N), hn::Add(largest1, top1)), d, peak + N);
  hn::StoreU(hn::Add(hn::LoadU(d, total), sum0), d, total);
  hn::StoreU(hn::Add(hn::LoadU(d, total + N), sum1), d, total + N);
  return true;
}

/// Raises the maxima of the columns whose scores exceed them by more than kLazyRaise; `factor`
/// receives 2^(old - new), by which `total` is multiplied.
inline HWY_NOINLINE void raise_tops(const KeyBlock::Rows& rows, const float* HWY_RESTRICT scores,
                                    float* HWY_RESTRICT top, float* HWY_RESTRICT total,
                                    float* HWY_RESTRICT factor) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  for (int64_t half = 0; half < NR; half += N) {
    const Vector old = hn::LoadU(d, top + half);
    Vector largest = hn::Set(d, kNoKey);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      largest = hn::Max(largest, hn::LoadU(d, scores + r * NR + half));
    }
    const auto rises = hn::Gt(hn::Sub(largest, old), hn::Set(d, kLazyRaise));
    const Vector raised = hn::IfThenElse(rises, largest, old);
    const Vector scale = exp2(hn::Sub(old, raised));
    hn::StoreU(raised, d, top + half);
    hn::StoreU(scale, d, factor + half);
    hn::StoreU(hn::Mul(scale, hn::LoadU(d, total + half)), d, total + half);
  }
}

class ExactForward {
 public:
  ExactForward(const ExactPlan<float>& plan, const QueryRows& rows, const OutputRows& out,
               float* normalizer)
      : plan_(plan), rows_(rows), out_(out), normalizer_(normalizer) {
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
  }

  void run() {
    load_queries();
    const KeyStream stream(plan_, rows_.b, rows_.h / plan_.group(), rows_.segment);
    for_each_key_block(stream, plan_.keys_of_queries(rows_.segment, rows_.positions), block_,
                       [&] { absorb(); });
    finish();
  }

 private:
  void place(ScratchLayout& layout) {
    block_.place(layout, plan_.D, plan_.E);
    packed_ = {layout.take(panel_floats(kQueryBlock, plan_.D)), kQueryBlock};
    queries_ = {layout.take(panel_floats(plan_.D, kQueryBlock)), plan_.D};
    sums_ = {layout.take(panel_floats(kQueryBlock, plan_.E)), kQueryBlock};
    scores_ = layout.take(panel_floats(kKeyBlock, 1));
    top_ = layout.take(kQueryBlock);
    peak_ = layout.take(kQueryBlock);
    total_ = layout.take(kQueryBlock);
    factor_ = layout.take(panel_width());
  }

  int64_t first_row() const { return rows_.segment.q_begin + rows_.positions.begin; }

  void load_queries() {
    const int64_t n = rows_.positions.size();
    const auto scale = static_cast<float>(plan_.scale * std::numbers::log2e);
    pack_rows(plan_.q.row(rows_.b, rows_.h, first_row()), plan_.q.strides[2], n, plan_.D, scale,
              nullptr, packed_);
    std::fill_n(queries_.data, panel_floats(plan_.D, n), 0.0f);
    transpose(packed_, n, plan_.D, queries_);
    std::fill_n(sums_.data, panel_floats(kQueryBlock, plan_.E), 0.0f);
    std::fill_n(top_, kQueryBlock, kNoKey);
    std::fill_n(peak_, kQueryBlock, kNoKey);
    std::fill_n(total_, kQueryBlock, 0.0f);
    seen_ = false;
  }

  /// Takes every panel of queries past the block of keys.
  void absorb() {
    const int64_t NR = panel_width();
    const int64_t n = rows_.positions.size();
    for (int64_t x = 0; x < n; x += NR) {
      const int64_t first = rows_.positions.begin + x;
      const KeyBlock::Rows rows =
          block_.rows_met_by({first, std::min(first + NR, rows_.positions.end)});
      if (rows.begin == rows.end) {
        continue;
      }
      const float* queries = queries_.at(0, x / NR);
      score(block_, rows, plan_.D, queries, first, scores_);
      if (!seen_) {
        raise(x, rows);
      }
      if (!exponentials(rows, top_ + x, scores_, total_ + x, peak_ + x)) {
        score(block_, rows, plan_.D, queries, first, scores_);
        raise(x, rows);
        exponentials(rows, top_ + x, scores_, total_ + x, peak_ + x);
      }
      for (int64_t panel = 0; panel < num_panels(plan_.E); ++panel) {
        float* at = sums_.at(x, panel);
        multiply_rows<true>(std::min(NR, n - x), scores_ + rows.begin * NR, 0,
                            block_.values.at(rows.begin, panel), at, at, rows.end - rows.begin);
      }
    }
    seen_ = true;
  }

  void raise(int64_t x, const KeyBlock::Rows& rows) {
    raise_tops(rows, scores_, top_ + x, total_ + x, factor_);
    scale_rows(sums_, plan_.E, x, std::min(panel_width(), rows_.positions.size() - x), factor_);
  }

  void finish() {
    const FloatTag d;
    const int64_t N = static_cast<int64_t>(hn::Lanes(d));
    const int64_t n = rows_.positions.size();
    HWY_ALIGN float kept[kQueryBlock];
    // Without a key the total is 0, and so are the sums: they have met no weight but 0.
    for (int64_t r = 0; r < n; r += N) {
      const Vector total = hn::LoadU(d, total_ + r);
      const auto none = hn::Eq(total, hn::Zero(d));
      // Relative to the peak, so that one overwhelming score is its own log-sum, to the last bit:
      // the backward pass then gives it the weight 1 however large it is.
      const Vector peak = hn::LoadU(d, peak_ + r);
      const Vector rest = hn::Mul(total, exp2(hn::Sub(hn::LoadU(d, top_ + r), peak)));
      const Vector log = hn::Add(peak, hn::Log2(d, rest));
      const Vector minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
      hn::StoreU(hn::IfThenElse(none, minus_infinity, log), d, kept + r);
      hn::StoreU(hn::IfThenZeroElse(none, hn::Div(hn::Set(d, 1.0f), total)), d, total_ + r);
    }
    unpack_rows(sums_, n, plan_.E, total_, out_.row(rows_.b, rows_.h, first_row()),
                out_.strides[2]);
    if (normalizer_ != nullptr) {
      std::copy_n(kept, n, normalizer_ + (rows_.b * plan_.H + rows_.h) * plan_.L + first_row());
    }
  }

  const ExactPlan<float>& plan_;
  const QueryRows& rows_;
  const OutputRows& out_;
  float* normalizer_;
  KeyBlock block_;
  Panels packed_;   ///< [kQueryBlock, D]
  Panels queries_;  ///< [D, kQueryBlock], times scale and log2(e)
  Panels sums_;     ///< [kQueryBlock, E]
  float* scores_;   ///< [kKeyBlock, NR]: one panel of logits, then of weights
  float* top_;      ///< [kQueryBlock] the maxima that weights are relative to
  float* peak_;     ///< [kQueryBlock] the largest scores
  float* total_;    ///< [kQueryBlock] sums of the weights
  float* factor_;   ///< [NR]
  bool seen_;       ///< some block of keys has been absorbed
};

void run_exact_forward(const ExactPlan<float>& plan, const OutputRows& out, float* normalizer) {
  std::vector<QueryRows> blocks;
  const bool many = plan.B * plan.H * plan.L >= kEnoughTasks * kQueryBlock;
  const int64_t length = many ? kQueryBlock : kSmallQueryBlock;
  for (const Segment& segment : plan.segments) {
    for (int64_t i = 0; i < segment.num_queries(); i += length) {
      blocks.push_back({0, 0, segment, {i, std::min(i + length, segment.num_queries())}});
    }
  }
  const auto num_blocks = static_cast<int64_t>(blocks.size());
  // Backwards, because the last blocks of a causal call take longest.
  parallel_for(plan.B * plan.H * num_blocks, [&](int64_t task) {
    const int64_t row = task % (plan.B * plan.H);
    QueryRows rows = blocks[static_cast<size_t>(num_blocks - 1 - task / (plan.B * plan.H))];
    rows.b = row / plan.H;
    rows.h = row % plan.H;
    ExactForward(plan, rows, out, normalizer).run();
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_exact_forward);

void exact_forward_kernel(const ExactPlan<float>& plan, OutputRows out, float* normalizer) {
  HWY_DYNAMIC_DISPATCH(run_exact_forward)(plan, out, normalizer);
}

}  // namespace favor
#endif  // HWY_ONCE
