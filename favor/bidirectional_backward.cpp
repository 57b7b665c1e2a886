// SPDX-License-Identifier: Apache-2.0
// Bidirectional attention, backward: a sweep over queries for dq and the sums that the keys need,
// then a sweep over keys for dk and dv.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/bidirectional_backward.cpp"
#include "hwy/foreach_target.h"
#include "favor/bidirectional-inl.h"
#include "favor/gradients-inl.h"
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

  void place(ScratchLayout& layout, const HeadPlan& head) {
    rows.place(layout, head, kChunk);
    features = {layout.take(panel_floats(kChunk, head.M)), kChunk};
    dlogits = {layout.take(panel_floats(kChunk, head.M)), kChunk};
    product = {layout.take(panel_floats(kChunk, head.D)), kChunk};
    S = {layout.take(panel_floats(head.E, head.M)), head.E};
    buffer = layout.take(logit_floats(head));
  }

  /// `sums`: its S gains features^T dout, its z loses features^T delta.
  void run(const Plan<float>& plan, const HeadPlan& head, const Item& item, const Block& block,
           const KeyState& state, const InputRows& out, const InputRows& dout,
           const float* normalizer, const OutputRows& dq, const KeyState& sums) {
    const int64_t NR = panel_width();
    std::fill_n(S.data, panel_floats(head.E, head.M), 0.0f);
    transpose(state.S, head.M, head.E, S);
    for (int64_t i = block.begin; i < block.end; i += kChunk) {
      const int64_t n = std::min(kChunk, block.end - i);
      const NextRows next(i + n, block.end, kChunk);
      rows.load(plan, head, item.b, item.h, i, n, out, dout, normalizer);
      for (int64_t panel = 0; panel < num_panels(head.M); ++panel) {
        const int64_t f = panel * NR;
        prefetch_rows(plan.q, item.b, item.h, next.first, next.last, panel, num_panels(head.M));
        prefetch_rows(out, item.b, item.h, next.first, next.last, panel, num_panels(head.M));
        prefetch_rows(dout, item.b, item.h, next.first, next.last, panel, num_panels(head.M));
        prefetch_rows(dq, item.b, item.h, i, i + n, panel, num_panels(head.M));
        normalized_query_features(head, project(head, rows.tokens, n, panel, buffer), state.c + f,
                                  rows.norm, n, head.M - f, features.at(0, panel));
        multiply<false>(rows.dout, S, dlogits, 0, n, panel, panel + 1, head.E);
        query_logit_gradients(head, features.at(0, panel), rows.delta, rows.norm, n, state.z + f,
                              dlogits.at(0, panel), sums.z + f);
      }
      multiply_transposed(features, rows.dout, sums.S, sums.S, head.M, num_panels(head.E), n);
      token_gradients(head, dlogits, n, rows.tokens, nullptr, product, dq.row(item.b, item.h, i),
                      dq.strides[2]);
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
      keys.load(plan, head, item, j, n);
      std::fill_n(row_sums, n * panel_width() / 2, 0.0f);
      for (int64_t panel = 0; panel < panels; ++panel) {
        const int64_t f = panel * NR;
        prefetch_rows(plan.k, item.b, item.h, next.first, next.last, panel, panels);
        prefetch_rows(plan.v, item.b, item.h, next.first, next.last, panel, panels);
        prefetch_rows(dk, item.b, item.h, j, j + n, panel, panels);
        prefetch_rows(dv, item.b, item.h, j, j + n, panel, panels);
        const float* u = project(head, keys.tokens, n, panel, buffer);
        if (head.positive) {
          positive_keys(u, keys.offset, n, state.c + f, features.at(0, panel), unused);
        } else {
          relu_keys(head, u, keys.offset, n, features.at(0, panel), unused);
        }
        multiply<false>(keys.values, R, dlogits, 0, n, panel, panel + 1, head.E);
        key_logit_gradients(head, features.at(0, panel), keys.offset, n, sums.z + f,
                            dlogits.at(0, panel), row_sums);
      }
      multiply<false>(features, sums.S, product, 0, n, 0, num_panels(head.E), head.M);
      unpack_rows(product, n, head.E, ones, dv.row(item.b, item.h, j), dv.strides[2]);
      token_gradients(head, dlogits, n, keys.tokens, row_sums, product, dk.row(item.b, item.h, j),
                      dk.strides[2]);
    }
  }
};

void run_bidirectional_backward(const Plan<float>& plan, const InputRows& out,
                                const InputRows& dout, const Saved<float>& saved,
                                const OutputRows& dq, const OutputRows& dk, const OutputRows& dv) {
  const HeadPlans heads(plan);
  const int64_t items = plan.num_items();
  const int64_t blocks = num_blocks(std::max(plan.L, plan.S), items);
  const bool has_state = saved.state != nullptr && plan.num_segments() == 1;
  const auto load = [&](const Item& item, const KeyState& state) {
    import_state(heads[item.h], saved.state + (item.b * plan.H + item.h) * plan.M * (plan.E + 2),
                 state);
  };
  const auto query_side = [&](const Item& item, const Block& block, ScratchLayout layout,
                              const KeyState& state, const KeyState& sums) {
    QueryGradientSweep sweep;
    sweep.place(layout, heads[item.h]);
    sums.clear(heads[item.h]);
    sweep.run(plan, heads[item.h], item, block, state, out, dout,
              saved.normalizer + (item.b * plan.H + item.h) * plan.L, dq, sums);
  };
  const auto key_side = [&](const Item& item, const Block& block, ScratchLayout layout,
                            const KeyState& state, const KeyState& sums) {
    KeyGradientSweep sweep;
    sweep.place(layout, heads[item.h]);
    sweep.run(plan, heads[item.h], item, block, state, sums, dk, dv);
  };
  if (blocks == 1) {
    parallel_for(items, [&](int64_t index) {
      const Item item(plan, index);
      const HeadPlan& head = heads[item.h];
      ScratchLayout layout(thread_scratch(
          2 * scratch_floats<KeyState>(head) +
          std::max({scratch_floats<KeySweep>(head), scratch_floats<QueryGradientSweep>(head),
                    scratch_floats<KeyGradientSweep>(head)})));
      KeyState state;
      KeyState sums;
      state.place(layout, head);
      sums.place(layout, head);
      const Block keys(item.segment.k_begin, item.segment.k_end, 1, 0);
      if (has_state) {
        load(item, state);
      } else {
        absorb_block(plan, head, item, keys, layout, state);
      }
      query_side(item, Block(item.segment.q_begin, item.segment.q_end, 1, 0), layout, state, sums);
      key_side(item, keys, layout, state, sums);
    });
    return;
  }
  const int64_t state_stride = has_state ? 1 : blocks;
  const StateStore states =
      has_state ? StateStore(items, plan.M, plan.E) : absorb_all(plan, heads, blocks);
  if (has_state) {
    parallel_for(items, [&](int64_t index) { load(Item(plan, index), states.at(index)); });
  }
  const StateStore sums(items * blocks, plan.M, plan.E);
  parallel_for(items * blocks, [&](int64_t task) {
    const Item item(plan, task / blocks);
    query_side(item, Block(item.segment.q_begin, item.segment.q_end, blocks, task % blocks),
               ScratchLayout(thread_scratch(scratch_floats<QueryGradientSweep>(heads[item.h]))),
               states.at(task / blocks * state_stride), sums.at(task));
  });
  parallel_for(items, [&](int64_t index) {
    for (int64_t block = 1; block < blocks; ++block) {
      add(heads[Item(plan, index).h], sums.at(index * blocks + block), sums.at(index * blocks));
    }
  });
  parallel_for(items * blocks, [&](int64_t task) {
    const Item item(plan, task / blocks);
    key_side(item, Block(item.segment.k_begin, item.segment.k_end, blocks, task % blocks),
             ScratchLayout(thread_scratch(scratch_floats<KeyGradientSweep>(heads[item.h]))),
             states.at(task / blocks * state_stride), sums.at(task / blocks * blocks));
  });
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
