// SPDX-License-Identifier: Apache-2.0
// What the passes of exact attention share: blocks of keys, packed without the masked ones, and
// scores of keys by queries. Keys lie in rows and queries in columns, so that a query's maximum and
// sum run down a column and need no work across lanes. Exponents are in base 2.

// clang-format off
#if defined(FAVOR_EXACT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_EXACT_INL_H_
#undef FAVOR_EXACT_INL_H_
#else
#define FAVOR_EXACT_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "favor/exact_plan.h"
#include "favor/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Keys handled at a time.
inline constexpr int64_t kKeyBlock = 64;

/// Queries of a segment by one head.
struct QueryRows {
  int64_t b, h;
  Segment segment;
  Positions positions;
};

/// A block of keys that may be met, packed.
struct KeyBlock {
  Panels keys;               ///< [kKeyBlock, D]
  Panels values;             ///< [kKeyBlock, E]
  float* log_weight;         ///< [kKeyBlock] in base 2; all 0 without weights
  bool has_weights = false;  ///< some log weight is not 0
  bool skip_self = false;    ///< no query meets the key at its own position
  int64_t size = 0;
  int64_t position[kKeyBlock];
  Positions queries[kKeyBlock];  ///< what each key is met by

  void place(ScratchLayout& layout, int64_t D, int64_t E) {
    keys = {layout.take(panel_floats(kKeyBlock, D)), kKeyBlock};
    values = {layout.take(panel_floats(kKeyBlock, E)), kKeyBlock};
    log_weight = layout.take(kKeyBlock);
  }

  /// The queries that meet any of the keys.
  Positions all_queries() const {
    Positions all = queries[0];
    for (int64_t r = 1; r < size; ++r) {
      all = {std::min(all.begin, queries[r].begin), std::max(all.end, queries[r].end)};
    }
    return all;
  }

  /// Rows [begin, end) hold every key that some of the queries meet; whole: all of them meet all
  /// of these keys.
  struct Rows {
    int64_t begin, end;
    bool whole;
  };
  Rows rows_met_by(const Positions& wanted) const {
    Rows rows{0, size, true};
    const auto apart = [&](const Positions& met) {
      return met.begin >= wanted.end || met.end <= wanted.begin;
    };
    while (rows.begin < size && apart(queries[rows.begin])) {
      ++rows.begin;
    }
    while (rows.end > rows.begin && apart(queries[rows.end - 1])) {
      --rows.end;
    }
    for (int64_t r = rows.begin; r < rows.end && rows.whole; ++r) {
      rows.whole = queries[r].begin <= wanted.begin && queries[r].end >= wanted.end &&
                   !(skip_self && position[r] >= wanted.begin && position[r] < wanted.end);
    }
    return rows;
  }
};

/// Packs the keys of one head and segment block by block. Those that are masked, or whose weight is
/// 0, are left out without being read.
class KeyStream {
 public:
  KeyStream(const ExactPlan<float>& plan, int64_t b, int64_t g, const Segment& segment)
      : plan_(plan), b_(b), g_(g), segment_(segment), weights_(plan.log_weight_row(b, g)) {}

  bool allowed(int64_t position) const {
    return plan_.allows_key(b_, g_, segment_.k_begin + position);
  }

  /// Adds keys of [range.begin, range.end) to the block until it is full; range.begin becomes the
  /// first key that was not looked at.
  HWY_NOINLINE void fill(Positions& range, KeyBlock& block) const {
    while (range.begin < range.end && block.size < kKeyBlock) {
      if (!allowed(range.begin)) {
        ++range.begin;
        continue;
      }
      const int64_t limit = std::min(range.end, range.begin + kKeyBlock - block.size);
      int64_t end = range.begin + 1;
      while (end < limit && allowed(end)) {
        ++end;
      }
      add(range.begin, end, block);
      range.begin = end;
    }
  }

 private:
  void add(int64_t begin, int64_t end, KeyBlock& block) const {
    const int64_t j = segment_.k_begin + begin;
    const Panels keys{block.keys.at(block.size, 0), kKeyBlock};
    const Panels values{block.values.at(block.size, 0), kKeyBlock};
    pack_rows(plan_.k.row(b_, g_, j), plan_.k.strides[2], end - begin, plan_.D, 1.0f, nullptr,
              keys);
    pack_rows(plan_.v.row(b_, g_, j), plan_.v.strides[2], end - begin, plan_.E, 1.0f, nullptr,
              values);
    for (int64_t i = begin; i < end; ++i) {
      const float weight = weights_ == nullptr ? 0.0f : weights_[segment_.k_begin + i];
      block.log_weight[block.size] = weight * std::numbers::log2e_v<float>;
      block.has_weights = block.has_weights || weight != 0.0f;
      block.position[block.size] = i;
      block.queries[block.size] = plan_.queries_of_key(segment_, i);
      block.skip_self = plan_.skip_self;
      ++block.size;
    }
  }

  const ExactPlan<float>& plan_;
  int64_t b_, g_;
  Segment segment_;
  const float* weights_;
};

/// Calls body(block) for blocks of all keys that the ranges hold and the masks allow.
template <class Body>
HWY_INLINE void for_each_key_block(const KeyStream& stream, ExactPlan<float>::KeyRanges ranges,
                                   KeyBlock& block, const Body& body) {
  block.size = 0;
  block.has_weights = false;
  for (int64_t i = 0; i < ranges.count;) {
    Positions& range = ranges.ranges[static_cast<size_t>(i)];
    stream.fill(range, block);
    i += range.begin == range.end;
    if (block.size == kKeyBlock || (i == ranges.count && block.size > 0)) {
      body();
      block.size = 0;
      block.has_weights = false;
    }
  }
}

/// Logits of the block's keys [rows.begin, rows.end) for one panel of packed queries, whose first
/// is at position `first` of the segment: q.k + log weight, or -inf where the query does not meet
/// the key.
inline HWY_NOINLINE void score(const KeyBlock& block, const KeyBlock::Rows& rows, int64_t D,
                               const float* queries, int64_t first, float* HWY_RESTRICT scores) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  multiply_rows<false>(rows.end - rows.begin, block.keys.at(rows.begin, 0), block.keys.stride(),
                       queries, nullptr, scores + rows.begin * NR, D);
  if (rows.whole && !block.has_weights) {
    return;
  }
  const Vector none = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const Vector weight = hn::Set(d, block.log_weight[r]);
    for (int64_t half = 0; half < NR; half += N) {
      const auto lanes = [&](int64_t position) HWY_ATTR {
        return hn::FirstN(d,
                          static_cast<size_t>(std::clamp<int64_t>(position - first - half, 0, N)));
      };
      float* at = scores + r * NR + half;
      const auto met = hn::AndNot(lanes(block.queries[r].begin), lanes(block.queries[r].end));
      hn::StoreU(hn::IfThenElse(met, hn::Add(hn::LoadU(d, at), weight), none), d, at);
    }
    const int64_t own = block.position[r] - first;
    if (block.skip_self && own >= 0 && own < NR) {
      scores[r * NR + own] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_EXACT_INL_H_
