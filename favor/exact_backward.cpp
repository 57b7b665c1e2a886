// SPDX-License-Identifier: Apache-2.0
// Exact softmax attention, backward. A key head's keys are taken past the queries that meet them,
// which gives dk and dv. With enough heads for every thread the same walk gives dq; otherwise dq
// has a walk of its own, in which blocks of queries pass the keys, so that both walks split into
// independent tasks at the price of computing the scores twice.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/exact_backward.cpp"
#include "hwy/foreach_target.h"
#include "favor/exact-inl.h"
// clang-format on

#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Queries handled at a time.
constexpr int64_t kQueryBlock = 64;
/// Blocks of keys that a walk for dk and dv holds.
constexpr int64_t kHeldBlocks = 4;
/// Key heads times segments from which on each is one task.
constexpr int64_t kEnoughTasks = 8;

/// weights = 2^(score - norm) and their gradients weight (dweight - delta), both in place, for some
/// rows of one panel.
inline HWY_NOINLINE void score_gradients(int64_t rows, const float* HWY_RESTRICT norm,
                                         const float* HWY_RESTRICT delta,
                                         float* HWY_RESTRICT scores, float* HWY_RESTRICT dscores) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t half = 0; half < 2 * N; half += N) {
    const Vector log_sum = hn::LoadU(d, norm + half);
    const Vector minus = hn::LoadU(d, delta + half);
    for (int64_t r = 0; r < rows; ++r) {
      float* score = scores + 2 * r * N + half;
      float* dscore = dscores + 2 * r * N + half;
      const Vector weight = exp2(hn::Sub(hn::LoadU(d, score), log_sum));
      hn::StoreU(weight, d, score);
      hn::StoreU(hn::Mul(weight, hn::Sub(hn::LoadU(d, dscore), minus)), d, dscore);
    }
  }
}

/// A block of queries with their gradients. A row without keys or with zero dout takes no part, so
/// that nothing of it, NaN included, reaches a sum.
struct QueryGradientRows {
  Panels queries, queries_transposed;  ///< [C, D] and [D, C], times scale and log2(e)
  Panels dout, dout_transposed;        ///< [C, E] and [E, C]
  float* delta;                        ///< [C] dout . out
  float* norm;                         ///< [C] log2 of the denominator, infinite out of play
  QueryRows rows;
  bool take_part;  ///< some row does

  void place(ScratchLayout& layout, int64_t D, int64_t E) {
    queries = {layout.take(panel_floats(kQueryBlock, D)), kQueryBlock};
    queries_transposed = {layout.take(panel_floats(D, kQueryBlock)), D};
    dout = {layout.take(panel_floats(kQueryBlock, E)), kQueryBlock};
    dout_transposed = {layout.take(panel_floats(E, kQueryBlock)), E};
    delta = layout.take(kQueryBlock);
    norm = layout.take(kQueryBlock);
  }

  int64_t first_row() const { return rows.segment.q_begin + rows.positions.begin; }

  void load(const ExactPlan<float>& plan, const ExactGradients& grads, const QueryRows& wanted) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    rows = wanted;
    const int64_t n = rows.positions.size();
    const int64_t i = first_row();
    const float* normalizer = grads.normalizer + (rows.b * plan.H + rows.h) * plan.L + i;
    uint8_t skip[kQueryBlock];
    std::fill_n(delta, kQueryBlock, 0.0f);
    std::fill_n(norm, kQueryBlock, kInfinity);
    take_part = false;
    for (int64_t r = 0; r < n; ++r) {
      const InputElements g = grads.dout.row(rows.b, rows.h, i + r);
      skip[r] = normalizer[r] == -kInfinity || is_zero_row(g, plan.E);
      if (!skip[r]) {
        take_part = true;
        delta[r] = dot(g, grads.out.row(rows.b, rows.h, i + r), plan.E);
        norm[r] = normalizer[r];
      }
    }
    if (!take_part) {
      return;
    }
    const auto scale = static_cast<float>(plan.scale * std::numbers::log2e);
    pack_rows(plan.q.row(rows.b, rows.h, i), plan.q.strides[2], n, plan.D, scale, skip, queries);
    pack_rows(grads.dout.row(rows.b, rows.h, i), grads.dout.strides[2], n, plan.E, 1.0f, skip,
              dout);
    if (n < kQueryBlock) {
      std::fill_n(queries_transposed.data, panel_floats(plan.D, kQueryBlock), 0.0f);
      std::fill_n(dout_transposed.data, panel_floats(plan.E, kQueryBlock), 0.0f);
    }
    transpose(queries, n, plan.D, queries_transposed);
    transpose(dout, n, plan.E, dout_transposed);
  }
};

/// Weights of a block of keys for a block of queries, and the gradients of their logits.
struct PairGradients {
  Panels weights;  ///< [kKeyBlock, C]
  Panels dscores;  ///< [kKeyBlock, C]

  void place(ScratchLayout& layout) {
    weights = {layout.take(panel_floats(kKeyBlock, kQueryBlock)), kKeyBlock};
    dscores = {layout.take(panel_floats(kKeyBlock, kQueryBlock)), kKeyBlock};
  }

  /// Fills the rows of the keys that the queries meet, and returns these.
  KeyBlock::Rows compute(const ExactPlan<float>& plan, const KeyBlock& block,
                         const QueryGradientRows& queries) const {
    const int64_t NR = panel_width();
    const Positions& positions = queries.rows.positions;
    const KeyBlock::Rows all = block.rows_met_by(positions);
    for (int64_t x = 0; x < positions.size() && all.begin < all.end; x += NR) {
      const int64_t panel = x / NR;
      const int64_t first = positions.begin + x;
      KeyBlock::Rows rows = block.rows_met_by({first, std::min(first + NR, positions.end)});
      if (rows.begin == rows.end) {
        rows.begin = rows.end = all.end;
      }
      for (const Panels* matrix : {&weights, &dscores}) {
        std::fill(matrix->at(all.begin, panel), matrix->at(rows.begin, panel), 0.0f);
        std::fill(matrix->at(rows.end, panel), matrix->at(all.end, panel), 0.0f);
      }
      score(block, rows, plan.D, queries.queries_transposed.at(0, panel), first,
            weights.at(0, panel));
      const Panels dout{queries.dout_transposed.at(0, panel), queries.dout_transposed.rows};
      const Panels result{dscores.at(0, panel), dscores.rows};
      multiply<false>(block.values, dout, result, rows.begin, rows.end, 0, 1, plan.E);
      score_gradients(rows.end - rows.begin, queries.norm + x, queries.delta + x,
                      weights.at(rows.begin, panel), dscores.at(rows.begin, panel));
    }
    return all;
  }

  /// dq += dscores^T keys.
  void add_to_queries(const ExactPlan<float>& plan, const KeyBlock& block,
                      const KeyBlock::Rows& rows, int64_t num_queries, const Panels& dq) const {
    const Panels left{dscores.at(rows.begin, 0), kKeyBlock};
    const Panels right{block.keys.at(rows.begin, 0), kKeyBlock};
    multiply_transposed(left, right, dq, dq, num_queries, num_panels(plan.D),
                        rows.end - rows.begin);
  }
};

/// dk and dv of the keys [keys.begin, keys.end) of a segment, at most kHeldBlocks blocks.
class KeyWalk {
 public:
  KeyWalk(const ExactPlan<float>& plan, const ExactGradients& grads) : plan_(plan), grads_(grads) {
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
  }

  /// Adds to dq if `with_queries`.
  void run(int64_t b, int64_t g, const Segment& segment, Positions keys, bool with_queries) {
    const Positions all_keys = keys;
    const KeyStream stream(plan_, b, g, segment);
    int64_t held = 0;
    Positions queries{segment.num_queries(), 0};
    while (keys.begin < keys.end) {
      KeyBlock& block = blocks_[held];
      block.size = 0;
      block.has_weights = false;
      stream.fill(keys, block);
      if (block.size > 0) {
        const Positions met = block.all_queries();
        queries = {std::min(queries.begin, met.begin), std::max(queries.end, met.end)};
        std::fill_n(dk_[held].data, panel_floats(kKeyBlock, plan_.D), 0.0f);
        std::fill_n(dv_[held].data, panel_floats(kKeyBlock, plan_.E), 0.0f);
        ++held;
      }
    }
    for (int64_t h = g * plan_.group(); h < (g + 1) * plan_.group(); ++h) {
      for (int64_t i = queries.begin / kQueryBlock * kQueryBlock; i < queries.end;
           i += kQueryBlock) {
        const Positions positions{i, std::min(i + kQueryBlock, segment.num_queries())};
        rows_.load(plan_, grads_, {b, h, segment, positions});
        if (rows_.take_part) {
          absorb(held, with_queries);
        }
      }
    }
    write(b, g, segment, all_keys, held);
  }

 private:
  void place(ScratchLayout& layout) {
    for (int64_t i = 0; i < kHeldBlocks; ++i) {
      blocks_[i].place(layout, plan_.D, plan_.E);
      dk_[i] = {layout.take(panel_floats(kKeyBlock, plan_.D)), kKeyBlock};
      dv_[i] = {layout.take(panel_floats(kKeyBlock, plan_.E)), kKeyBlock};
    }
    rows_.place(layout, plan_.D, plan_.E);
    pair_.place(layout);
    dq_ = {layout.take(panel_floats(kQueryBlock, plan_.D)), kQueryBlock};
  }

  void absorb(int64_t held, bool with_queries) {
    const int64_t n = rows_.rows.positions.size();
    std::fill_n(dq_.data, panel_floats(kQueryBlock, plan_.D), 0.0f);
    for (int64_t i = 0; i < held; ++i) {
      const KeyBlock::Rows rows = pair_.compute(plan_, blocks_[i], rows_);
      if (rows.begin == rows.end) {
        continue;
      }
      multiply<true>(pair_.weights, rows_.dout, dv_[i], rows.begin, rows.end, 0,
                     num_panels(plan_.E), n);
      multiply<true>(pair_.dscores, rows_.queries, dk_[i], rows.begin, rows.end, 0,
                     num_panels(plan_.D), n);
      if (with_queries) {
        pair_.add_to_queries(plan_, blocks_[i], rows, n, dq_);
      }
    }
    if (with_queries) {
      add_rows(dq_, n, plan_.D, static_cast<float>(plan_.scale),
               grads_.dq.row(rows_.rows.b, rows_.rows.h, rows_.first_row()), grads_.dq.strides[2]);
    }
  }

  void write(int64_t b, int64_t g, const Segment& segment, const Positions& keys, int64_t held) {
    for (int64_t j = segment.k_begin + keys.begin; j < segment.k_begin + keys.end; ++j) {
      zero_row(grads_.dk.row(b, g, j), plan_.D);
      zero_row(grads_.dv.row(b, g, j), plan_.E);
    }
    float dk_factor[kKeyBlock];
    float dv_factor[kKeyBlock];
    std::fill_n(dk_factor, kKeyBlock, std::numbers::ln2_v<float>);
    std::fill_n(dv_factor, kKeyBlock, 1.0f);
    for (int64_t i = 0; i < held; ++i) {
      const KeyBlock& block = blocks_[i];
      for (int64_t r = 0; r < block.size;) {
        int64_t run = 1;
        while (r + run < block.size && block.position[r + run] == block.position[r] + run) {
          ++run;
        }
        const int64_t j = segment.k_begin + block.position[r];
        unpack_rows({dk_[i].at(r, 0), kKeyBlock}, run, plan_.D, dk_factor, grads_.dk.row(b, g, j),
                    grads_.dk.strides[2]);
        unpack_rows({dv_[i].at(r, 0), kKeyBlock}, run, plan_.E, dv_factor, grads_.dv.row(b, g, j),
                    grads_.dv.strides[2]);
        r += run;
      }
    }
  }

  const ExactPlan<float>& plan_;
  const ExactGradients& grads_;
  KeyBlock blocks_[kHeldBlocks];
  Panels dk_[kHeldBlocks];  ///< [kKeyBlock, D], times log2(e)
  Panels dv_[kHeldBlocks];  ///< [kKeyBlock, E]
  QueryGradientRows rows_;
  PairGradients pair_;
  Panels dq_;  ///< [C, D], without the scale
};

/// dq of a block of queries.
class QueryWalk {
 public:
  QueryWalk(const ExactPlan<float>& plan, const ExactGradients& grads)
      : plan_(plan), grads_(grads) {
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
  }

  void run(const QueryRows& wanted) {
    const int64_t n = wanted.positions.size();
    rows_.load(plan_, grads_, wanted);
    std::fill_n(dq_.data, panel_floats(kQueryBlock, plan_.D), 0.0f);
    if (rows_.take_part) {
      const KeyStream stream(plan_, wanted.b, wanted.h / plan_.group(), wanted.segment);
      for_each_key_block(stream, plan_.keys_of_queries(wanted.segment, wanted.positions), block_,
                         [&] {
                           const KeyBlock::Rows rows = pair_.compute(plan_, block_, rows_);
                           if (rows.begin < rows.end) {
                             pair_.add_to_queries(plan_, block_, rows, n, dq_);
                           }
                         });
    }
    float scales[kQueryBlock];
    std::fill_n(scales, kQueryBlock, static_cast<float>(plan_.scale));
    unpack_rows(dq_, n, plan_.D, scales, grads_.dq.row(wanted.b, wanted.h, rows_.first_row()),
                grads_.dq.strides[2]);
  }

 private:
  void place(ScratchLayout& layout) {
    block_.place(layout, plan_.D, plan_.E);
    rows_.place(layout, plan_.D, plan_.E);
    pair_.place(layout);
    dq_ = {layout.take(panel_floats(kQueryBlock, plan_.D)), kQueryBlock};
  }

  const ExactPlan<float>& plan_;
  const ExactGradients& grads_;
  KeyBlock block_;
  QueryGradientRows rows_;
  PairGradients pair_;
  Panels dq_;  ///< [C, D], without the scale
};

/// A piece of a segment.
struct Piece {
  Segment segment;
  Positions positions;
};

/// All segments cut into pieces of `length` queries or keys.
std::vector<Piece> cut(const ExactPlan<float>& plan, bool keys, int64_t length) {
  std::vector<Piece> pieces;
  for (const Segment& segment : plan.segments) {
    const int64_t size = keys ? segment.num_keys() : segment.num_queries();
    for (int64_t i = 0; i < size; i += length) {
      pieces.push_back({segment, {i, std::min(i + length, size)}});
    }
  }
  return pieces;
}

void run_exact_backward(const ExactPlan<float>& plan, const ExactGradients& grads) {
  constexpr int64_t kPiece = kHeldBlocks * kKeyBlock;
  const auto num_segments = static_cast<int64_t>(plan.segments.size());
  const int64_t key_heads = plan.B * plan.G;
  // Sums over many keys are not to be rounded to 16 bits on the way.
  const bool sums_in_place = grads.dq.elements.type == ElementType::kFloat32;
  if (key_heads * num_segments >= kEnoughTasks && sums_in_place) {
    parallel_for(key_heads * num_segments, [&](int64_t task) {
      const int64_t b = task / num_segments / plan.G;
      const int64_t g = task / num_segments % plan.G;
      const Segment& segment = plan.segments[static_cast<size_t>(task % num_segments)];
      for (int64_t h = g * plan.group(); h < (g + 1) * plan.group(); ++h) {
        for (int64_t i = segment.q_begin; i < segment.q_end; ++i) {
          zero_row(grads.dq.row(b, h, i), plan.D);
        }
      }
      KeyWalk walk(plan, grads);
      for (int64_t j = 0; j < segment.num_keys(); j += kPiece) {
        walk.run(b, g, segment, {j, std::min(j + kPiece, segment.num_keys())}, true);
      }
    });
    return;
  }
  const std::vector<Piece> keys = cut(plan, true, kPiece);
  parallel_for(key_heads * static_cast<int64_t>(keys.size()), [&](int64_t task) {
    const Piece& piece = keys[static_cast<size_t>(task / key_heads)];
    const int64_t row = task % key_heads;
    KeyWalk(plan, grads).run(row / plan.G, row % plan.G, piece.segment, piece.positions, false);
  });
  const std::vector<Piece> queries = cut(plan, false, kQueryBlock);
  const auto num_pieces = static_cast<int64_t>(queries.size());
  const int64_t heads = plan.B * plan.H;
  // Backwards, because the last queries of a causal call have the most keys.
  parallel_for(heads * num_pieces, [&](int64_t task) {
    const Piece& piece = queries[static_cast<size_t>(num_pieces - 1 - task / heads)];
    const int64_t row = task % heads;
    QueryWalk(plan, grads).run({row / plan.H, row % plan.H, piece.segment, piece.positions});
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_exact_backward);

void exact_backward_kernel(const ExactPlan<float>& plan, const ExactGradients& grads) {
  HWY_DYNAMIC_DISPATCH(run_exact_backward)(plan, grads);
}

}  // namespace favor
#endif  // HWY_ONCE
