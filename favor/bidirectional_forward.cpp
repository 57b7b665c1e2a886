// SPDX-License-Identifier: Apache-2.0
// Bidirectional attention, forward: keys become one state per head (a first sweep over fixed
// blocks, merged in order), queries are answered from it (a second sweep).

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/bidirectional_forward.cpp"
#include "hwy/foreach_target.h"
#include "favor/bidirectional-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Answers the queries [begin, end) of an item from the whole state.
struct QuerySweep {
  Panels tokens;  ///< [C, D]
  Panels out;     ///< [C, E]
  QueryFeatures features;
  float* buffer;  ///< of project()

  void place(ScratchLayout& layout, const HeadPlan& head) {
    tokens = {layout.take(panel_floats(kChunk, head.D)), kChunk};
    out = {layout.take(panel_floats(kChunk, head.E)), kChunk};
    features.place(layout, head, kChunk);
    buffer = layout.take(logit_floats(head));
  }

  void run(const Plan<float>& plan, const HeadPlan& head, const Item& item, int64_t h,
           const Block& block, const KeyState& state, const OutputRows& result,
           float* normalizer) const {
    const Segment& segment = item.segment;
    const bool has_keys =
        plan.first_allowed_key(item.b, item.g, segment.k_begin, segment.k_end) < segment.k_end;
    for (int64_t i = block.begin; i < block.end; i += kChunk) {
      const int64_t n = std::min(kChunk, block.end - i);
      const NextRows next(i + n, block.end, kChunk);
      const Lines lines[] = {{result, item.b, h, i, i + n},
                             {plan.q, item.b, h, next.first, next.last}};
      PrefetchJob job(lines);
      const InputElements q = plan.q.row(item.b, h, i);
      pack_rows(q, plan.q.strides[2], n, head.D, head.token_scale, nullptr, tokens);
      query_offsets(head, q, plan.q.strides[2], n, nullptr, tokens, buffer, features.offset,
                    features.floor);
      query_features(head, tokens, n, state.c, state.z, buffer, features);
      multiply<false>(features.features, state.S, out, 0, n, 0, num_panels(head.E), head.M, job);
      finish_rows(head, features, out, n, has_keys ? 0 : n, nullptr, result.row(item.b, h, i),
                  result.strides[2], normalizer == nullptr ? nullptr : normalizer + i);
    }
  }
};

void run_bidirectional_forward(const Plan<float>& plan, const OutputRows& out,
                               Saved<float>* saved) {
  const HeadPlans heads(plan);
  const Cut cut(plan);
  const auto answer = [&](const HeadPlan& head, const Item& item, int64_t h, const Block& block,
                          ScratchLayout layout, const KeyState& state) {
    QuerySweep sweep;
    sweep.place(layout, head);
    float* normalizer = saved == nullptr || saved->normalizer == nullptr
                            ? nullptr
                            : saved->normalizer + (item.b * plan.H + h) * plan.L;
    sweep.run(plan, head, item, h, block, state, out, normalizer);
  };
  const auto keep = [&](const HeadPlan& head, const Item& item, const KeyState& state) {
    if (saved != nullptr && saved->state != nullptr && plan.num_segments() == 1) {
      export_state(head, state, saved->state + (item.b * plan.G + item.g) * plan.M * (plan.E + 2),
                   0, plan.M);
    }
  };
  if (cut.whole_items) {
    // Enough items for every thread: a task does both sweeps and needs no state beyond its own.
    parallel_for(cut.items, [&](int64_t index) {
      const Item item(plan, index);
      const Segment& segment = item.segment;
      const HeadPlan& common = heads.common();
      ScratchLayout layout(
          thread_scratch(heads.head_floats() + scratch_floats<KeyState>(common) +
                         std::max({heads.scratch_floats(), scratch_floats<KeySweep>(common),
                                   scratch_floats<QuerySweep>(common)})));
      KeyState state;
      state.place(layout, common);
      const HeadPlan head = heads.item_head(item, layout);
      absorb_block(plan, head, item, Block(segment.k_begin, segment.k_end, 1, 0), layout, state);
      keep(head, item, state);
      for (int64_t h = item.first_head; h < item.last_head; ++h) {
        answer(head, item, h, Block(segment.q_begin, segment.q_end, 1, 0), layout, state);
      }
    });
    return;
  }
  const ItemHeads item_heads(plan, heads);
  const StateStore states = absorb_all(plan, item_heads, cut);
  parallel_for(cut.query_tasks(), [&](int64_t task) {
    const int64_t index = cut.item_of(task);
    const Item item(plan, index);
    const HeadPlan& head = item_heads[index];
    const KeyState state = states.at(index * cut.blocks);
    if (task % (cut.group * cut.blocks) == 0) {
      keep(head, item, state);
    }
    answer(head, item, item.first_head + cut.head_of(task),
           Block(item.segment.q_begin, item.segment.q_end, cut.blocks, cut.block_of(task)),
           ScratchLayout(thread_scratch(scratch_floats<QuerySweep>(head))), state);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_bidirectional_forward);

void bidirectional_forward_kernel(const Plan<float>& plan, OutputRows out, Saved<float>* saved) {
  HWY_DYNAMIC_DISPATCH(run_bidirectional_forward)(plan, out, saved);
}

}  // namespace favor
#endif  // HWY_ONCE
