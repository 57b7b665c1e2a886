// SPDX-License-Identifier: Apache-2.0
// Bidirectional attention, forward, on bfloat16 tensors and the positive map, by products of
// bfloat16 pairs.
//
// Only operands of products are rounded: the features, and the state where queries meet it. The
// random matrix is split into two bfloat16 numbers per entry, so that the logits keep 16 bits.
// Logits, stabilisers, z and all sums are float, and z sums the rounded features, as S does.
// Weighted means of rounded sums may leave the range of the values by half a spacing, so results
// are brought back into it.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/bfloat16_forward.cpp"
#include "hwy/foreach_target.h"
#include "favor/bidirectional-inl.h"
#include "favor/pairs-inl.h"
// clang-format on

#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

#if FAVOR_HAS_PAIRS

/// Absorbs the keys of a block.
struct PairKeys {
  uint32_t* tokens;    ///< d_panels of [C, N]
  uint32_t* values;    ///< e_panels of [C / 2, 2 N]
  uint32_t* features;  ///< [C / 2, 2 N]
  float* logits;       ///< [C, 2 N]
  float* offset;       ///< [C]
  float* sums;         ///< [2 N]

  void place(ScratchLayout& layout, const PairSizes& s) {
    const int64_t N = row_words();
    tokens = take_words(layout, s.d_panels * kChunk * N);
    values = take_words(layout, s.e_panels * kChunk * N);
    features = take_words(layout, kChunk * N);
    logits = layout.take(kChunk * 2 * N);
    offset = layout.take(kChunk);
    sums = layout.take(2 * N);
  }

  void run(const Plan<float>& plan, const PairSizes& s, const PairMatrices& matrices,
           const Item& item, const Block& block, const PairState& state) const {
    for (int64_t j = block.begin; j < block.end; j += kChunk) {
      const int64_t n = std::min(kChunk, block.end - j);
      const NextRows next(j + n, block.end, kChunk);
      uint8_t skip[kChunk];
      load_pair_keys(plan, item, j, n, skip, offset);
      pack_tokens(bfloat16_row(plan.k, item.b, item.g, j), plan.k.strides[2], s.D, skip, tokens);
      pack_token_pairs<true>(bfloat16_row(plan.v, item.b, item.g, j), plan.v.strides[2], s.E, skip,
                             state.least, state.most, values);
      for (int64_t panel = 0; panel < s.m_panels; ++panel) {
        prefetch_rows(plan.k, item.b, item.g, next.first, next.last, panel, s.m_panels);
        prefetch_rows(plan.v, item.b, item.g, next.first, next.last, panel, s.m_panels);
        absorb_panel(s, matrices.columns(s, item.g, panel), panel, state);
      }
    }
  }

  void absorb_panel(const PairSizes& s, const uint32_t* matrix, int64_t panel,
                    const PairState& state) const {
    const int64_t N = row_words();
    const int64_t NR = 2 * N;
    const int64_t f = panel * NR;
    multiply_pairs<false, true>(tokens, kChunk * N, matrix, nullptr, logits, s.d_words,
                                kChunk / kPairRows);
    if (!(pair_features(logits, offset, state.c + f, features, sums) <= kPairRaise)) {
      HWY_ALIGN float factor[64];
      raise_pair_stabilisers(logits, offset, state.c + f, factor);
      for (int64_t i = 0; i < std::min(NR, s.M - f); ++i) {
        if (factor[i] != 1.0f) {
          state.scale_row(s, f + i, factor[i]);
        }
      }
      pair_features(logits, offset, state.c + f, features, sums);
    }
    for (int64_t i = 0; i < NR; ++i) {
      state.z[f + i] += sums[i];
    }
    for (int64_t e_panel = 0; e_panel < s.e_panels; ++e_panel) {
      float* S = state.row(s, f, e_panel);
      multiply_pairs<true, false>(features, 0, values + e_panel * kChunk * N, S, S, kChunk / 2,
                                  NR / kPairRows);
    }
  }
};

/// Answers the queries of a block.
struct PairQueries {
  uint32_t* tokens;    ///< d_panels of [C, N]
  uint32_t* features;  ///< m_panels of [C, N]
  uint32_t* S;         ///< e_panels of [M / 2 padded, 2 N]
  float* logits;       ///< m_panels of [C, 2 N]
  float* out;          ///< [C, 2 N]
  float* shift;        ///< [M padded]
  float *top, *denominator;

  void place(ScratchLayout& layout, const PairSizes& s) {
    const int64_t N = row_words();
    tokens = take_words(layout, s.d_panels * kChunk * N);
    features = take_words(layout, s.m_panels * kChunk * N);
    S = take_words(layout, s.e_panels * s.m_panels * N * 2 * N);
    logits = layout.take(s.m_panels * kChunk * 2 * N);
    out = layout.take(kChunk * 2 * N);
    shift = layout.take(s.m_panels * 2 * N);
    top = layout.take(kChunk);
    denominator = layout.take(kChunk);
  }

  /// Rounds the state to pairs of features.
  HWY_NOINLINE void load_state(const PairSizes& s, const PairState& state) const {
    const int64_t rows = s.m_panels * panel_width();
    for (int64_t panel = 0; panel < s.e_panels; ++panel) {
      pair_rows(state.row(s, 0, panel), rows, S + panel * rows / 2 * panel_width());
    }
    std::copy_n(state.c, s.M, shift);
    std::fill(shift + s.M, shift + rows, 2 * kNoKey);
  }

  /// Features 2^(u + c - top) of all rows, rounded, and their products with z.
  HWY_NOINLINE void row_features(const PairSizes& s, const PairState& state) const {
    const FloatTag d;
    const WordTag du;
    const PairTag dp;
    const int64_t N = row_words();
    const int64_t NR = 2 * N;
    for (int64_t r = 0; r < kChunk; ++r) {
      Vector largest = hn::Set(d, 2 * kNoKey);
      for (int64_t panel = 0; panel < s.m_panels; ++panel) {
        const float* u = logits + (panel * kChunk + r) * NR;
        const float* c = shift + panel * NR;
        largest = hn::Max(largest, hn::Add(hn::LoadU(d, u), hn::LoadU(d, c)));
        largest = hn::Max(largest, hn::Add(hn::LoadU(d, u + N), hn::LoadU(d, c + N)));
      }
      top[r] = hn::GetLane(hn::MaxOfLanes(d, largest));
      const Vector minus = hn::Set(d, top[r]);
      Vector sum = hn::Zero(d);
      for (int64_t panel = 0; panel < s.m_panels; ++panel) {
        const float* u = logits + (panel * kChunk + r) * NR;
        const float* c = shift + panel * NR;
        const float* z = state.z + panel * NR;
        const Vector e0 = coarse_exp2(hn::Sub(hn::Add(hn::LoadU(d, u), hn::LoadU(d, c)), minus));
        const Vector e1 =
            coarse_exp2(hn::Sub(hn::Add(hn::LoadU(d, u + N), hn::LoadU(d, c + N)), minus));
        const auto pairs = hn::OrderedDemote2To(dp, e0, e1);
        sum = hn::MulAdd(hn::PromoteLowerTo(d, pairs), hn::LoadU(d, z), sum);
        sum = hn::MulAdd(hn::PromoteUpperTo(d, pairs), hn::LoadU(d, z + N), sum);
        hn::StoreU(hn::BitCast(du, pairs), du, features + (panel * kChunk + r) * N);
      }
      denominator[r] = hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }

  void run(const Plan<float>& plan, const PairSizes& s, const PairMatrices& matrices,
           const Item& item, int64_t h, const Block& block, const PairState& state,
           const OutputRows& result, float* normalizer) const {
    const int64_t N = row_words();
    const int64_t NR = 2 * N;
    const Segment& segment = item.segment;
    const bool has_keys =
        plan.first_allowed_key(item.b, item.g, segment.k_begin, segment.k_end) < segment.k_end;
    load_state(s, state);
    for (int64_t i = block.begin; i < block.end; i += kChunk) {
      const int64_t n = std::min(kChunk, block.end - i);
      if (!has_keys) {
        for (int64_t r = i; r < i + n; ++r) {
          zero_row(result.row(item.b, h, r), s.E);
          if (normalizer != nullptr) {
            normalizer[r] = -std::numeric_limits<float>::infinity();
          }
        }
        continue;
      }
      const NextRows next(i + n, block.end, kChunk);
      uint8_t skip[kChunk];
      std::fill_n(skip, n, uint8_t{0});
      std::fill_n(skip + n, kChunk - n, uint8_t{1});
      pack_tokens(bfloat16_row(plan.q, item.b, h, i), plan.q.strides[2], s.D, skip, tokens);
      for (int64_t panel = 0; panel < s.m_panels; ++panel) {
        prefetch_rows(plan.q, item.b, h, next.first, next.last, panel, s.m_panels);
        prefetch_rows(result, item.b, h, i, i + n, panel, s.m_panels);
        multiply_pairs<false, true>(tokens, kChunk * N, matrices.columns(s, item.g, panel), nullptr,
                                    logits + panel * kChunk * NR, s.d_words, kChunk / kPairRows);
      }
      row_features(s, state);
      for (int64_t panel = 0; panel < s.e_panels; ++panel) {
        multiply_pairs<false, false>(features, kChunk * N, S + panel * s.m_panels * N * NR, nullptr,
                                     out, s.m_panels * N, kChunk / kPairRows);
        write(s, result.row(item.b, h, i), result.strides[2], n, panel, state);
      }
      for (int64_t r = 0; normalizer != nullptr && r < n; ++r) {
        normalizer[i + r] = top[r] + std::log2(denominator[r]);
      }
    }
  }

  /// Divides n rows of one panel by their denominators and brings them into the values' range.
  HWY_NOINLINE void write(const PairSizes& s, const OutputElements& to, int64_t stride, int64_t n,
                          int64_t panel, const PairState& state) const {
    const FloatTag d;
    const int64_t N = row_words();
    const int64_t NR = 2 * N;
    const int64_t width = std::min(NR, s.E - panel * NR);
    const float* least = state.least + panel * NR;
    const float* most = state.most + panel * NR;
    for (int64_t r = 0; r < n; ++r) {
      const Vector inverse = hn::Set(d, 1.0f / denominator[r]);
      const auto mean = [&](int64_t half) HWY_ATTR {
        const Vector value = hn::Mul(inverse, hn::LoadU(d, out + r * NR + half));
        // A NaN must stay, whichever operand the CPU's minimum returns then.
        const Vector bounded =
            hn::Min(hn::Max(value, hn::LoadU(d, least + half)), hn::LoadU(d, most + half));
        return hn::IfThenElse(hn::IsNaN(value), value, bounded);
      };
      auto* row = reinterpret_cast<bfloat16*>((to + (r * stride + panel * NR)).data);
      store_pair(mean(0), mean(N), row, width);
    }
  }
};

template <class Part>
int64_t part_floats(const PairSizes& s) {
  ScratchLayout layout;
  Part().place(layout, s);
  return layout.used();
}

bool run_bfloat16_forward(const Plan<float>& plan, const OutputRows& out, Saved<float>* saved) {
  const PairSizes s(plan);
  const PairMatrices matrices(plan, s, /*with_rows=*/false);
  const Cut cut(plan);
  const int64_t items = cut.items, pieces = cut.blocks;
  const auto absorb = [&](const Item& item, int64_t index, ScratchLayout layout,
                          const PairState& state) {
    PairKeys keys;
    keys.place(layout, s);
    state.clear(s);
    keys.run(plan, s, matrices, item,
             Block(item.segment.k_begin, item.segment.k_end, pieces, index), state);
  };
  const auto keep = [&](const Item& item, const PairState& state) {
    if (saved != nullptr && saved->state != nullptr && plan.num_segments() == 1) {
      state.write(s, saved->state + (item.b * plan.G + item.g) * plan.M * (plan.E + 2));
    }
  };
  const auto answer = [&](const Item& item, int64_t h, int64_t index, ScratchLayout layout,
                          const PairState& state) {
    PairQueries queries;
    queries.place(layout, s);
    float* normalizer = saved == nullptr || saved->normalizer == nullptr
                            ? nullptr
                            : saved->normalizer + (item.b * plan.H + h) * plan.L;
    queries.run(plan, s, matrices, item, h,
                Block(item.segment.q_begin, item.segment.q_end, pieces, index), state, out,
                normalizer);
  };
  const int64_t state_floats = part_floats<PairState>(s);
  if (cut.whole_items) {
    // Enough items for every thread: a task does both sweeps and needs no state beyond its own.
    parallel_for(items, [&](int64_t index) {
      const Item item(plan, index);
      ScratchLayout layout(thread_scratch(
          state_floats + std::max(part_floats<PairKeys>(s), part_floats<PairQueries>(s))));
      PairState state;
      state.place(layout, s);
      absorb(item, 0, layout, state);
      keep(item, state);
      for (int64_t h = item.first_head; h < item.last_head; ++h) answer(item, h, 0, layout, state);
    });
    return true;
  }
  const auto memory = allocate_floats(items * pieces * state_floats);
  const auto state_at = [&](int64_t index) {
    ScratchLayout layout(memory.get() + index * state_floats);
    PairState state;
    state.place(layout, s);
    return state;
  };
  parallel_for(items * pieces, [&](int64_t task) {
    absorb(Item(plan, task / pieces), task % pieces,
           ScratchLayout(thread_scratch(part_floats<PairKeys>(s))), state_at(task));
  });
  parallel_for(items, [&](int64_t index) {
    for (int64_t other = 1; other < pieces; ++other) {
      state_at(index * pieces).merge(s, state_at(index * pieces + other));
    }
    keep(Item(plan, index), state_at(index * pieces));
  });
  parallel_for(cut.query_tasks(), [&](int64_t task) {
    const int64_t index = cut.item_of(task);
    const Item item(plan, index);
    answer(item, item.first_head + cut.head_of(task), cut.block_of(task),
           ScratchLayout(thread_scratch(part_floats<PairQueries>(s))), state_at(index * pieces));
  });
  return true;
}

#else

bool run_bfloat16_forward(const Plan<float>&, const OutputRows&, Saved<float>*) {
  return false;
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_bfloat16_forward);

bool bfloat16_forward_kernel(const Plan<float>& plan, OutputRows out, Saved<float>* saved) {
  return HWY_DYNAMIC_DISPATCH(run_bfloat16_forward)(plan, out, saved);
}

}  // namespace favor
#endif  // HWY_ONCE
