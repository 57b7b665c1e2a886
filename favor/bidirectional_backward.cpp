// SPDX-License-Identifier: Apache-2.0
// Bidirectional attention, backward: a sweep over queries for dq and the sums that the keys need,
// then a sweep over keys for dk and dv.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/bidirectional_backward.cpp"
#include "hwy/foreach_target.h"
#include "favor/bidirectional-inl.h"
#include "favor/gradients-inl.h"
#include "favor/pair_gradients-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Sums over queries that the keys' gradients need, and dq on the way.
struct QueryGradientSweep {
  QueryGradients rows;
  Panels features;  ///< [C, M]
  Panels dlogits;   ///< [C, M]
  Panels product;   ///< [C, D]
  Panels S;         ///< [E, M], the state transposed
  float* buffer;    ///< of project()
  float* row_sums;  ///< [C, N]

  void place(ScratchLayout& layout, const HeadPlan& head) {
    rows.place(layout, head, kChunk);
    features = {layout.take(panel_floats(kChunk, head.M)), kChunk};
    dlogits = {layout.take(panel_floats(kChunk, head.M)), kChunk};
    product = {layout.take(panel_floats(kChunk, head.D)), kChunk};
    S = {layout.take(panel_floats(head.E, head.M)), head.E};
    buffer = layout.take(logit_floats(head));
    row_sums = layout.take(kChunk * panel_width() / 2);
  }

  /// `sums`: its S gains features^T dout, its z loses features^T delta.
  void run(const Plan<float>& plan, const HeadPlan& head, const Item& item, int64_t h,
           const Block& block, const KeyState& state, const InputRows& out, const InputRows& dout,
           const float* normalizer, const OutputRows& dq, const KeyState& sums) {
    const int64_t NR = panel_width();
    const int64_t panels = num_panels(head.M);
    std::fill_n(S.data, panel_floats(head.E, head.M), 0.0f);
    transpose(state.S, head.M, head.E, S);
    for (int64_t i = block.begin; i < block.end; i += kChunk) {
      const int64_t n = std::min(kChunk, block.end - i);
      const NextRows next(i + n, block.end, kChunk);
      const Lines lines[] = {{plan.q, item.b, h, next.first, next.last},
                             {dout, item.b, h, next.first, next.last},
                             {out, item.b, h, next.first, next.last},
                             {dq, item.b, h, i, i + n}};
      PrefetchJob job(lines);
      rows.load(plan, head, item.b, h, i, n, out, dout, normalizer, buffer);
      rows.settle(head, n, state.c[0], nullptr);
      float* totals = clear_query_row_sums(head, n, row_sums);
      for (int64_t panel = 0; panel < panels; ++panel) {
        const int64_t f = panel * NR;
        normalized_query_features(head, f, project(head, head.query, rows.tokens, n, panel, buffer),
                                  state.c + f, rows.norm, rows.offset, rows.floor, n,
                                  features.at(0, panel), buffer);
        multiply<false>(rows.dout, S, dlogits, 0, n, panel, panel + 1, head.E, job);
        query_logit_gradients(head, features.at(0, panel), buffer, rows, n, state.z + f,
                              dlogits.at(0, panel), sums.z + f, totals);
      }
      multiply_transposed(features, rows.dout, sums.S, sums.S, head.M, num_panels(head.E), n, job);
      token_gradients(head, head.query, dlogits, n, rows.tokens, totals, product,
                      dq.row(item.b, h, i), dq.strides[2]);
    }
  }
};

/// dk and dv from the sums over queries.
struct KeyGradientSweep {
  KeyChunk keys;
  Panels features;  ///< [C, M]
  Panels dlogits;   ///< [C, M]
  Panels product;   ///< [C, D] or [C, E]
  Panels R;         ///< [E, M], the sums transposed
  float* buffer;    ///< of project()
  float* row_sums;  ///< [C, N]
  float* unused;    ///< [NR]

  void place(ScratchLayout& layout, const HeadPlan& head) {
    keys.place(layout, head, kChunk);
    features = {layout.take(panel_floats(kChunk, head.M)), kChunk};
    dlogits = {layout.take(panel_floats(kChunk, head.M)), kChunk};
    product = {layout.take(panel_floats(kChunk, std::max(head.D, head.E))), kChunk};
    R = {layout.take(panel_floats(head.E, head.M)), head.E};
    buffer = layout.take(logit_floats(head));
    row_sums = layout.take(kChunk * panel_width() / 2);
    unused = layout.take(panel_width());
  }

  void run(const Plan<float>& plan, const HeadPlan& head, const Item& item, const Block& block,
           const KeyState& state, const KeyState& sums, const OutputRows& dk,
           const OutputRows& dv) const {
    const int64_t NR = panel_width();
    const int64_t panels = num_panels(head.M);
    std::fill_n(R.data, panel_floats(head.E, head.M), 0.0f);
    transpose(sums.S, head.M, head.E, R);
    float ones[kChunk];
    std::fill_n(ones, kChunk, 1.0f);
    for (int64_t j = block.begin; j < block.end; j += kChunk) {
      const int64_t n = std::min(kChunk, block.end - j);
      const NextRows next(j + n, block.end, kChunk);
      const Lines lines[] = {{plan.k, item.b, item.g, next.first, next.last},
                             {plan.v, item.b, item.g, next.first, next.last},
                             {dv, item.b, item.g, j, j + n},
                             {dk, item.b, item.g, j, j + n}};
      PrefetchJob job(lines);
      keys.load(plan, head, item, j, n);
      weigh_keys(head, keys, n, state.c);
      std::fill_n(row_sums, n * panel_width() / 2, 0.0f);
      for (int64_t panel = 0; panel < panels; ++panel) {
        const int64_t f = panel * NR;
        const float* u = project(head, head.key, keys.tokens, n, panel, buffer);
        if (head.log_linear) {
          exponential_keys(head, u, keys, n, state.c + f, features.at(0, panel), buffer, unused);
        } else {
          value_features(head, f, u, keys.weight, n, features.at(0, panel), buffer, unused);
        }
        multiply<false>(keys.values, R, dlogits, 0, n, panel, panel + 1, head.E, job);
        key_logit_gradients(head, features.at(0, panel), buffer, keys, n, sums.z + f,
                            dlogits.at(0, panel), row_sums);
      }
      multiply<false>(features, sums.S, product, 0, n, 0, num_panels(head.E), head.M, job);
      unpack_rows(product, n, head.E, ones, dv.row(item.b, item.g, j), dv.strides[2]);
      token_gradients(head, head.key, dlogits, n, keys.tokens, row_sums, product,
                      dk.row(item.b, item.g, j), dk.strides[2]);
    }
  }
};

/// Each task copies the prototype of its sweep and places the copy's scratch.
template <class QuerySide, class KeySide>
void run_sweeps(const Plan<float>& plan, const InputRows& out, const InputRows& dout,
                const Saved<float>& saved, const OutputRows& dq, const OutputRows& dk,
                const OutputRows& dv, const QuerySide& query_prototype,
                const KeySide& key_prototype) {
  const HeadPlans heads(plan);
  const Cut cut(plan);
  const int64_t blocks = cut.blocks;
  const bool has_state = saved.state != nullptr && plan.num_segments() == 1;
  const auto load = [&](const HeadPlan& head, const Item& item, const KeyState& state) {
    import_state(head, saved.state + (item.b * plan.G + item.g) * plan.M * (plan.E + 2), 0, plan.M,
                 state);
  };
  const auto query_side = [&](const HeadPlan& head, const Item& item, int64_t h, const Block& block,
                              ScratchLayout layout, const KeyState& state, const KeyState& sums) {
    QuerySide sweep = query_prototype;
    sweep.place(layout, head);
    sweep.run(plan, head, item, h, block, state, out, dout,
              saved.normalizer + (item.b * plan.H + h) * plan.L, dq, sums);
  };
  const auto key_side = [&](const HeadPlan& head, const Item& item, const Block& block,
                            ScratchLayout layout, const KeyState& state, const KeyState& sums) {
    KeySide sweep = key_prototype;
    sweep.place(layout, head);
    sweep.run(plan, head, item, block, state, sums, dk, dv);
  };
  if (cut.whole_items) {
    parallel_for(cut.items, [&](int64_t index) {
      const Item item(plan, index);
      const HeadPlan& common = heads.common();
      ScratchLayout layout(thread_scratch(
          heads.head_floats() + 2 * scratch_floats<KeyState>(common) +
          std::max({heads.scratch_floats(), scratch_floats<KeySweep>(common),
                    scratch_floats<QuerySide>(common), scratch_floats<KeySide>(common)})));
      KeyState state;
      KeyState sums;
      state.place(layout, common);
      sums.place(layout, common);
      const HeadPlan head = heads.item_head(item, layout);
      const Block keys(item.segment.k_begin, item.segment.k_end, 1, 0);
      if (has_state) {
        load(head, item, state);
      } else {
        absorb_block(plan, head, item, keys, layout, state);
      }
      sums.clear(head);
      for (int64_t h = item.first_head; h < item.last_head; ++h) {
        query_side(head, item, h, Block(item.segment.q_begin, item.segment.q_end, 1, 0), layout,
                   state, sums);
      }
      key_side(head, item, keys, layout, state, sums);
    });
    return;
  }
  const ItemHeads item_heads(plan, heads);
  const int64_t state_stride = has_state ? 1 : blocks;
  const StateStore states =
      has_state ? StateStore(cut.items, plan.M, plan.E) : absorb_all(plan, item_heads, cut);
  if (has_state) {
    parallel_for(cut.items, [&](int64_t index) {
      load(item_heads[index], Item(plan, index), states.at(index));
    });
  }
  const StateStore sums(cut.query_tasks(), plan.M, plan.E);
  parallel_for(cut.query_tasks(), [&](int64_t task) {
    const int64_t index = cut.item_of(task);
    const Item item(plan, index);
    const HeadPlan& head = item_heads[index];
    sums.at(task).clear(head);
    query_side(head, item, item.first_head + cut.head_of(task),
               Block(item.segment.q_begin, item.segment.q_end, blocks, cut.block_of(task)),
               ScratchLayout(thread_scratch(scratch_floats<QuerySide>(head))),
               states.at(index * state_stride), sums.at(task));
  });
  const int64_t parts = cut.group * blocks;
  parallel_for(cut.items, [&](int64_t index) {
    for (int64_t part = 1; part < parts; ++part) {
      add(item_heads[index], sums.at(index * parts + part), sums.at(index * parts));
    }
  });
  parallel_for(cut.items * blocks, [&](int64_t task) {
    const int64_t index = task / blocks;
    const Item item(plan, index);
    const HeadPlan& head = item_heads[index];
    key_side(head, item, Block(item.segment.k_begin, item.segment.k_end, blocks, task % blocks),
             ScratchLayout(thread_scratch(scratch_floats<KeySide>(head))),
             states.at(index * state_stride), sums.at(index * parts));
  });
}

void run_bidirectional_backward(const Plan<float>& plan, const InputRows& out,
                                const InputRows& dout, const Saved<float>& saved,
                                const OutputRows& dq, const OutputRows& dk, const OutputRows& dv) {
#if FAVOR_HAS_PAIRS
  if (pair_gradients_serve(plan)) {
    const PairMatrices matrices(plan, PairSizes(plan), /*with_rows=*/true);
    run_sweeps(plan, out, dout, saved, dq, dk, dv, PairQueryGradientSweep{&matrices},
               PairKeyGradientSweep{&matrices});
    return;
  }
#endif
  run_sweeps(plan, out, dout, saved, dq, dk, dv, QueryGradientSweep(), KeyGradientSweep());
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_bidirectional_backward);

void bidirectional_backward_kernel(const Plan<float>& plan, InputRows out, InputRows dout,
                                   const Saved<float>& saved, OutputRows dq, OutputRows dk,
                                   OutputRows dv) {
  HWY_DYNAMIC_DISPATCH(run_bidirectional_backward)(plan, out, dout, saved, dq, dk, dv);
}

}  // namespace favor
#endif  // HWY_ONCE
