// SPDX-License-Identifier: Apache-2.0
// What the bidirectional passes share: the fixed blocks that work is cut into, and the first sweep,
// in which the keys of every item become one state.

// clang-format off
#if defined(FAVOR_BIDIRECTIONAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_BIDIRECTIONAL_INL_H_
#undef FAVOR_BIDIRECTIONAL_INL_H_
#else
#define FAVOR_BIDIRECTIONAL_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>

#include "favor/features-inl.h"
#include "favor/parallel.h"
#include "favor/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// How many pieces a range of tokens is cut into: enough pieces over all items to keep many threads
/// busy, none shorter than needed to pay for its state. Independent of the number of threads.
inline int64_t num_blocks(int64_t tokens, int64_t items) {
  constexpr int64_t kWantedTasks = 64;
  constexpr int64_t kSmallestBlock = 1024;
  return std::clamp<int64_t>(kWantedTasks / std::max<int64_t>(items, 1), 1,
                             std::max<int64_t>(tokens / kSmallestBlock, 1));
}

/// Block `index` of [begin, end) cut into `blocks` pieces, each a whole number of chunks.
struct Block {
  int64_t begin, end;
  Block(int64_t range_begin, int64_t range_end, int64_t blocks, int64_t index) {
    const int64_t chunks = (range_end - range_begin + kChunk - 1) / kChunk;
    const int64_t length = (chunks + blocks - 1) / blocks * kChunk;
    begin = std::min(range_begin + index * length, range_end);
    end = std::min(begin + length, range_end);
  }
};

/// Absorbs the keys [begin, end) of an item into `state`.
struct KeySweep {
  KeyChunk keys;
  Panels features;  ///< [C, M]
  float* buffer;    ///< of project()
  float* sums;      ///< [NR]

  void place(ScratchLayout& layout, const HeadPlan& head) {
    keys.place(layout, head, kChunk);
    features = {layout.take(panel_floats(kChunk, head.M)), kChunk};
    buffer = layout.take(logit_floats(head));
    sums = layout.take(panel_width());
  }

  void run(const Plan<float>& plan, const HeadPlan& head, const Item& item, int64_t begin,
           int64_t end, const KeyState& state) const {
    const int64_t NR = panel_width();
    const int64_t panels = num_panels(head.M);
    for (int64_t j = begin; j < end; j += kChunk) {
      const int64_t n = std::min(kChunk, end - j);
      const NextRows next(j + n, end, kChunk);
      keys.load(plan, head, item, j, n);
      for (int64_t panel = 0; panel < panels; ++panel) {
        const int64_t f = panel * NR;
        const int64_t rows = std::min(NR, head.M - f);
        prefetch_rows(plan.k, item.b, item.h, next.first, next.last, panel, panels);
        prefetch_rows(plan.v, item.b, item.h, next.first, next.last, panel, panels);
        key_features(head, project(head, keys.tokens, n, panel, buffer), keys.offset, n,
                     state.c + f, features.at(0, panel), sums, [&](const float* factor) {
                       scale_rows(state.S, head.E, f, rows, factor);
                       for (int64_t i = 0; i < rows; ++i) {
                         state.z[f + i] *= factor[i];
                       }
                     });
        for (int64_t i = 0; i < rows; ++i) {
          state.z[f + i] += sums[i];
        }
      }
      multiply_transposed(features, keys.values, state.S, state.S, head.M, num_panels(head.E), n);
    }
  }
};

/// The state of every item: a block of memory per item, or per item and block of keys.
class StateStore {
 public:
  StateStore(int64_t count, int64_t M, int64_t E) {
    ScratchLayout one;
    KeyState state;
    state.place(one, M, E);
    floats_ = one.used();
    memory_ = allocate_floats(count * floats_);
    M_ = M;
    E_ = E;
  }

  KeyState at(int64_t index) const {
    ScratchLayout layout(memory_.get() + index * floats_);
    KeyState state;
    state.place(layout, M_, E_);
    return state;
  }

 private:
  int64_t floats_, M_, E_;
  hwy::AlignedFreeUniquePtr<float[]> memory_;
};

/// Fills `state` with all keys of an item's block.
inline void absorb_block(const Plan<float>& plan, const HeadPlan& head, const Item& item,
                         const Block& block, ScratchLayout layout, const KeyState& state) {
  KeySweep sweep;
  sweep.place(layout, head);
  state.clear(head);
  sweep.run(plan, head, item, block.begin, block.end, state);
}

/// Scratch floats of a task that places Parts one after the other.
template <class... Parts>
int64_t scratch_floats(const HeadPlan& head) {
  ScratchLayout layout;
  (Parts().place(layout, head), ...);
  return layout.used();
}

/// States of all items, their keys cut into `blocks` and merged in order.
inline StateStore absorb_all(const Plan<float>& plan, const HeadPlans& heads, int64_t blocks) {
  const int64_t items = plan.num_items();
  StateStore states(items * blocks, plan.M, plan.E);
  parallel_for(items * blocks, [&](int64_t task) {
    const Item item(plan, task / blocks);
    const HeadPlan& head = heads[item.h];
    const Block block(item.segment.k_begin, item.segment.k_end, blocks, task % blocks);
    absorb_block(plan, head, item, block,
                 ScratchLayout(thread_scratch(scratch_floats<KeySweep>(head))), states.at(task));
  });
  if (blocks > 1) {
    parallel_for(items, [&](int64_t index) {
      for (int64_t block = 1; block < blocks; ++block) {
        merge(heads[Item(plan, index).h], states.at(index * blocks + block),
              states.at(index * blocks));
      }
    });
  }
  return states;
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_BIDIRECTIONAL_INL_H_
