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

  void run(const Plan<float>& plan, const HeadPlan& head, const Item& item, int64_t begin,
           int64_t end, const KeyState& state, const OutputRows& result, float* normalizer) const {
    const Segment& segment = item.segment;
    const bool has_keys =
        plan.first_allowed_key(item.b, segment.k_begin, segment.k_end) < segment.k_end;
    for (int64_t i = begin; i < end; i += kChunk) {
      const int64_t n = std::min(kChunk, end - i);
      const NextRows next(i + n, end, kChunk);
      pack_rows(plan.q.row(item.b, item.h, i), plan.q.strides[2], n, head.D, head.token_scale,
                nullptr, tokens);
      query_features(head, tokens, n, state.c, state.z, buffer, features, [&](int64_t panel) {
        prefetch_rows(plan.q, item.b, item.h, next.first, next.last, panel, num_panels(head.M));
        prefetch_rows(result, item.b, item.h, i, i + n, panel, num_panels(head.M));
      });
      multiply<false>(features.features, state.S, out, 0, n, 0, num_panels(head.E), head.M);
      finish_rows(head, features, out, n, has_keys ? 0 : n, result.row(item.b, item.h, i),
                  result.strides[2], normalizer == nullptr ? nullptr : normalizer + i);
    }
  }
};

void run_bidirectional_forward(const Plan<float>& plan, const OutputRows& out,
                               Saved<float>* saved) {
  const HeadPlans heads(plan);
  const int64_t items = plan.num_items();
  const int64_t blocks = num_blocks(std::max(plan.L, plan.S), items);
  const auto answer = [&](const Item& item, const Block& block, ScratchLayout layout,
                          const KeyState& state) {
    QuerySweep sweep;
    sweep.place(layout, heads[item.h]);
    float* normalizer = saved == nullptr || saved->normalizer == nullptr
                            ? nullptr
                            : saved->normalizer + (item.b * plan.H + item.h) * plan.L;
    sweep.run(plan, heads[item.h], item, block.begin, block.end, state, out, normalizer);
  };
  const auto keep = [&](const Item& item, const KeyState& state) {
    if (saved != nullptr && saved->state != nullptr && plan.num_segments() == 1) {
      export_state(heads[item.h], state,
                   saved->state + (item.b * plan.H + item.h) * plan.M * (plan.E + 2));
    }
  };
  if (blocks == 1) {
    // Enough items for every thread: a task does both sweeps and needs no state beyond its own.
    parallel_for(items, [&](int64_t index) {
      const Item item(plan, index);
      const HeadPlan& head = heads[item.h];
      ScratchLayout layout(thread_scratch(
          scratch_floats<KeyState>(head) +
          std::max(scratch_floats<KeySweep>(head), scratch_floats<QuerySweep>(head))));
      KeyState state;
      state.place(layout, head);
      absorb_block(plan, head, item, Block(item.segment.k_begin, item.segment.k_end, 1, 0), layout,
                   state);
      keep(item, state);
      answer(item, Block(item.segment.q_begin, item.segment.q_end, 1, 0), layout, state);
    });
    return;
  }
  const StateStore states = absorb_all(plan, heads, blocks);
  parallel_for(items * blocks, [&](int64_t task) {
    const Item item(plan, task / blocks);
    const KeyState state = states.at(task / blocks * blocks);
    if (task % blocks == 0) {
      keep(item, state);
    }
    answer(item, Block(item.segment.q_begin, item.segment.q_end, blocks, task % blocks),
           ScratchLayout(thread_scratch(scratch_floats<QuerySweep>(heads[item.h]))), state);
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
