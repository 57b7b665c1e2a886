// SPDX-License-Identifier: Apache-2.0
// Causal passes over few heads: the features of a head are cut into slabs, each of which walks all
// tokens with its own part of the state, and what slabs know of a token is summed up. So the order
// of tokens binds none but the slab itself, and threads share a head whatever its length.
//
// Slabs walk a round of tokens at a time, which bounds what they leave for each other. The sums of
// a round are made while slabs walk the next one, by threads that have no slab left to walk, so
// what slabs leave is kept twice. How a call is cut depends on its shape alone, never on threads.

// clang-format off
#if defined(FAVOR_SLABS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_SLABS_INL_H_
#undef FAVOR_SLABS_INL_H_
#else
#define FAVOR_SLABS_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "favor/heads-inl.h"
#include "favor/parallel.h"
#include "favor/query_features-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Calls with fewer items are cut, unless all of their segments are shorter than kShortStream.
inline constexpr int64_t kFewItems = 4;
inline constexpr int64_t kShortStream = 128;
/// Each slab repeats the products of a chunk's scores with its values, so slabs are wide and few.
inline constexpr int64_t kSlabFeatures = 64;
inline constexpr int64_t kMaxSlabs = 2;

/// Rounds whose results a slab keeps: the one it walks, and the one that is summed up.
inline constexpr int64_t kKeptRounds = 2;
/// Tokens of a round: few enough that what slabs leave of them stays in the cache, and in the
/// backward pass those that start from a kept state.
inline constexpr int64_t kOutputRound = 256;
inline constexpr int64_t kGradientRound = kStateInterval;
/// Tokens whose sums over slabs are one task.
inline constexpr int64_t kMergedRows = kChunk;
static_assert(kOutputRound % kCausalChunk == 0 && kStateInterval % kOutputRound == 0);
static_assert(kOutputRound % kMergedRows == 0 && kGradientRound % kMergedRows == 0);

/// Features of a head, as a head of their own.
struct Slab {
  HeadPlan head;
  int64_t index = 0;  ///< among the slabs of the head
  int64_t first = 0;  ///< the first feature

  explicit Slab(const HeadPlan& whole) : head(whole) {}

  /// Slab `part` of `count`. Borders stand between panels, and between blocks of a structured
  /// matrix.
  Slab(const HeadPlan& whole, int64_t part, int64_t count) : head(whole), index(part) {
    const int64_t unit = whole.unit_panels() * panel_width();
    const int64_t units = (whole.M + unit - 1) / unit;
    first = units * index / count * unit;
    head.M = std::min(units * (index + 1) / count * unit, whole.M) - first;
    const auto skip = [this](const float*& vector) {
      vector = vector == nullptr ? nullptr : vector + first;
    };
    skip(head.quarters);
    for (MapSide* side : {&head.query, &head.key}) {
      Matrix& matrix = side->matrix;
      skip(side->shift);
      if (matrix.hadamard.size != 0) {
        matrix.hadamard.signs += first;
        matrix.hadamard.scales += first;
      } else {
        matrix.columns.data = matrix.columns.at(0, first / panel_width());
        matrix.rows.data = matrix.rows.at(first, 0);
      }
    }
  }
};

/// Slabs of each head of a causal call.
inline int64_t num_slabs(const Plan<float>& plan, const HeadPlan& head) {
  if (plan.num_items() >= kFewItems || head.identity) {
    return 1;
  }
  int64_t longest = 0;
  for (const Segment& segment : plan.segments) {
    longest = std::max(longest, segment.num_queries());
  }
  if (longest < kShortStream) {
    return 1;
  }
  const int64_t unit = head.unit_panels() * panel_width();
  const int64_t units = (head.M + unit - 1) / unit;
  return std::clamp<int64_t>(std::min(units, head.M / kSlabFeatures), 1, kMaxSlabs);
}

/// Part of several slabs' sums: rows [row, row + n) of each, row r of slab s to be multiplied by
/// weights[s kMergedRows + r].
struct SlabRows {
  const Panels* slabs;
  int64_t num_slabs;
  int64_t row, n;
  const float* weights;
};

/// Writes the sum over slabs of `cols` columns to the caller's rows.
template <class T>
HWY_NOINLINE void write_sums(const SlabRows& rows, int64_t cols, T* to, int64_t stride) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  for (int64_t r = 0; r < rows.n; ++r, to += stride) {
    for (int64_t c = 0; c < cols; c += NR) {
      Vector low = hn::Zero(d);
      Vector high = hn::Zero(d);
      for (int64_t s = 0; s < rows.num_slabs; ++s) {
        const float* HWY_RESTRICT from = rows.slabs[s].at(rows.row + r, c / NR);
        const Vector weight = hn::Set(d, rows.weights[s * kMergedRows + r]);
        low = hn::MulAdd(weight, hn::LoadU(d, from), low);
        high = hn::MulAdd(weight, hn::LoadU(d, from + N), high);
      }
      store_pair(low, high, to + c, std::min(NR, cols - c));
    }
  }
}

inline void write_sums(const SlabRows& rows, int64_t cols, const OutputElements& to,
                       int64_t stride) {
  with_type(to, [&](auto* elements) HWY_ATTR { write_sums(rows, cols, elements, stride); });
}

/// Adds n rows in panel layout to what is to be asked for.
inline void add_lines(const Panels& rows, int64_t n, int64_t cols, std::vector<Lines>& lines) {
  for (int64_t panel = 0; panel < num_panels(cols); ++panel) {
    lines.emplace_back(rows.at(0, panel), n * panel_width());
  }
}

/// What a slab knows of the outputs of a round's rows; row (h - first head) kOutputRound + t.
struct SlabOutputs {
  Panels sums;  ///< [group kOutputRound, E] not divided
  float* top;   ///< [group kOutputRound] exponents that sums and denominators are relative to
  float* denominator;  ///< [group kOutputRound]
  float* offset;       ///< [group kOutputRound] as in QueryFeatures
  float* own;  ///< [group kOutputRound] the rows' own stabilisers, of maps known by their values
  uint8_t* starts;  ///< [kOutputRound] 1 where one of the slab's chunks starts

  void place(ScratchLayout& layout, const HeadPlan& head, int64_t group) {
    const int64_t rows = group * kOutputRound;
    sums = {layout.take(panel_floats(rows, head.E)), rows};
    top = layout.take(rows);
    denominator = layout.take(rows);
    offset = layout.take(rows);
    own = layout.take(rows);
    starts = reinterpret_cast<uint8_t*>(layout.take(kOutputRound / 4));
  }

  Panels sums_at(int64_t row) const { return {sums.at(row, 0), sums.rows}; }

  /// Keeps n rows, whose sums are there, from `row` on.
  void keep(const HeadPlan& head, const QueryFeatures& rows, const float* stabilisers, int64_t row,
            int64_t n) const {
    std::copy_n(rows.denominator, n, denominator + row);
    std::copy_n(rows.top, n, top + row);
    std::copy_n(rows.offset, n, offset + row);
    if (!head.log_linear) {
      std::copy_n(stabilisers, n, own + row);
    }
  }
};

/// Outputs and normalisers of n rows from what all slabs know of them, as finish_rows.
inline HWY_NOINLINE void finish_slabs(const HeadPlan& head,
                                      std::span<const SlabOutputs* const> slabs, int64_t row,
                                      int64_t n, int64_t without_keys, const OutputElements& out,
                                      int64_t stride, float* normalizer) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const auto num_slabs = static_cast<int64_t>(slabs.size());
  HWY_ALIGN float weights[kMaxSlabs * kMergedRows];
  HWY_ALIGN float factor[kMergedRows];
  HWY_ALIGN float tops[kMergedRows];
  HWY_ALIGN float denominators[kMergedRows];
  Panels sums[kMaxSlabs];
  std::transform(slabs.begin(), slabs.end(), sums, [](const auto* slab) { return slab->sums; });
  // Blocks of rows are whole in memory, so that what lies behind the last row may be computed.
  for (int64_t r = 0; r < n; r += N) {
    Vector top = hn::LoadU(d, slabs[0]->top + row + r);
    for (const SlabOutputs* slab : slabs) {
      top = hn::Max(top, hn::LoadU(d, slab->top + row + r));
    }
    Vector denominator = hn::Zero(d);
    for (int64_t s = 0; s < num_slabs; ++s) {
      const SlabOutputs& slab = *slabs[static_cast<size_t>(s)];
      const Vector weight = exp2(hn::Sub(hn::LoadU(d, slab.top + row + r), top));
      hn::StoreU(weight, d, weights + s * kMergedRows + r);
      denominator = hn::MulAdd(weight, hn::LoadU(d, slab.denominator + row + r), denominator);
    }
    hn::StoreU(top, d, tops + r);
    hn::StoreU(denominator, d, denominators + r);
  }
  QueryFeatures rows = {};
  rows.top = tops;
  rows.denominator = denominators;
  rows.offset = slabs[0]->offset + row;
  row_factors(head, rows, n, without_keys, slabs[0]->own + row, factor, normalizer);
  for (int64_t s = 0; s < num_slabs; ++s) {
    for (int64_t r = 0; r < n; ++r) {
      weights[s * kMergedRows + r] *= factor[r];
    }
  }
  write_sums(SlabRows{sums, num_slabs, row, n, weights}, head.E, out, stride);
  for (int64_t r = 0; r < without_keys; ++r) {
    zero_row(out + r * stride, head.E);
  }
}

/// Writes for n tokens the numbers of the slabs that start a chunk there, as bits.
inline void add_starts(std::span<const SlabOutputs* const> slabs, int64_t first, int64_t n,
                       uint8_t* to) {
  for (int64_t t = 0; t < n; ++t) {
    unsigned bits = 0;
    for (size_t s = 0; s < slabs.size(); ++s) {
      bits |= static_cast<unsigned>(slabs[s]->starts[first + t]) << s;
    }
    to[t] = static_cast<uint8_t>(bits);
  }
}

/// Results of n tokens of an item from its token t on, all within a block of kMergedRows:
/// outputs, normalisers [B, H, L] and the segment's chunk starts (null: not wanted).
inline void write_outputs(const Plan<float>& plan, const HeadPlan& head, const Item& item,
                          std::span<const SlabOutputs* const> slabs, int64_t t, int64_t n,
                          int64_t without_keys, const OutputRows& out, float* normalizer,
                          uint8_t* chunk_starts) {
  const int64_t first = t % kOutputRound;
  const int64_t i = item.segment.q_begin + t;
  for (int64_t h = item.first_head; h < item.last_head; ++h) {
    finish_slabs(head, slabs, (h - item.first_head) * kOutputRound + first, n, without_keys,
                 out.row(item.b, h, i), out.strides[2],
                 normalizer == nullptr ? nullptr : normalizer + (item.b * plan.H + h) * plan.L + i);
  }
  if (chunk_starts != nullptr) {
    add_starts(slabs, first, n, chunk_starts + t);
  }
}

/// What a slab knows of the gradients of a round's rows.
struct SlabGradients {
  Panels dq;  ///< [group kGradientRound, D] row (h - first head) kGradientRound + t
  Panels dk;  ///< [kGradientRound, D]
  Panels dv;  ///< [kGradientRound, E]

  void place(ScratchLayout& layout, const HeadPlan& head, int64_t group) {
    dq = {layout.take(panel_floats(group * kGradientRound, head.D)), group * kGradientRound};
    dk = {layout.take(panel_floats(kGradientRound, head.D)), kGradientRound};
    dv = {layout.take(panel_floats(kGradientRound, head.E)), kGradientRound};
  }
};

/// Writes n rows of one gradient, summed over slabs and times `factor`.
inline void write_gradients(std::span<const Panels> slabs, int64_t row, int64_t n, int64_t cols,
                            float factor, const OutputElements& to, int64_t stride) {
  float weights[kMaxSlabs * kMergedRows];
  std::fill_n(weights, kMaxSlabs * kMergedRows, factor);
  const auto num_slabs = static_cast<int64_t>(slabs.size());
  write_sums(SlabRows{slabs.data(), num_slabs, row, n, weights}, cols, to, stride);
}

/// Runs a Pass over every slab of every item, in rounds. Passes are made of (plan, slab, item,
/// arguments); each has kRound tokens a round, num_rounds(), place_slab(layout), run_round(round),
/// and merge(passes of the item's slabs, round, first token within the round), which may run while
/// the next round does.
template <class Pass, class... Arguments>
void run_in_slabs(const Plan<float>& plan, const HeadPlans& heads, int64_t slabs,
                  const Arguments&... arguments) {
  std::vector<Item> items;
  std::vector<Slab> parts;
  std::vector<Pass> passes;
  const auto count = static_cast<size_t>(plan.num_items() * slabs);
  items.reserve(count);
  parts.reserve(count);
  passes.reserve(count);
  ScratchLayout measure;
  int64_t rounds = 0;
  for (int64_t index = 0; index < plan.num_items(); ++index) {
    items.emplace_back(plan, index);
    for (int64_t s = 0; s < slabs; ++s) {
      parts.emplace_back(heads[items.back().g], s, slabs);
      passes.emplace_back(plan, parts.back(), items.back(), arguments...);
      passes.back().place_slab(measure);
    }
    rounds = std::max(rounds, passes.back().num_rounds());
  }
  // Of the calling thread, for all: tasks of one pass may run on any thread.
  ScratchLayout layout(thread_scratch(measure.used()));
  for (Pass& pass : passes) {
    pass.place_slab(layout);
  }
  constexpr int64_t kBlocks = Pass::kRound / kMergedRows;
  const int64_t num_passes = plan.num_items() * slabs;
  const int64_t num_merges = plan.num_items() * kBlocks;
  const auto run = [&](int64_t index, int64_t round) {
    Pass& pass = passes[static_cast<size_t>(index)];
    if (round < pass.num_rounds()) {
      pass.run_round(round);
    }
  };
  const auto merge = [&](int64_t index, int64_t round) {
    const auto first = static_cast<size_t>(index / kBlocks * slabs);
    const std::span<const Pass> own(&passes[first], static_cast<size_t>(slabs));
    if (round < own[0].num_rounds()) {
      Pass::merge(own, round, index % kBlocks * kMergedRows);
    }
  };
  if (rounds == 0) {
    return;
  }
  parallel_for(num_passes, [&](int64_t task) { run(task, 0); });
  for (int64_t round = 1; round < rounds; ++round) {
    parallel_for(num_passes + num_merges, [&](int64_t task) {
      if (task < num_passes) {
        run(task, round);
      } else {
        merge(task - num_passes, round - 1);
      }
    });
  }
  parallel_for(num_merges, [&](int64_t task) { merge(task, rounds - 1); });
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_SLABS_INL_H_
