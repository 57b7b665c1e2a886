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
#include <vector>

#include "favor/parallel.h"
#include "favor/query_features-inl.h"
#include "favor/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// Tasks enough to keep many threads busy.
inline constexpr int64_t kWantedTasks = 64;

/// How the work of a call is cut, independently of the number of threads. A task answers for one
/// block of tokens of one query head, or, where there are items enough and blocks would be too
/// short to pay for their states, for a whole item.
struct Cut {
  int64_t items, group;
  int64_t blocks;    ///< pieces of an item's keys, and of each head's queries
  bool whole_items;  ///< a task does all of an item

  explicit Cut(const Plan<float>& plan) : items(plan.num_items()), group(plan.group()) {
    constexpr int64_t kSmallestBlock = 1024;
    blocks = std::clamp<int64_t>(kWantedTasks / std::max<int64_t>(items * group, 1), 1,
                                 std::max<int64_t>(std::max(plan.L, plan.S) / kSmallestBlock, 1));
    whole_items = blocks == 1 && (group == 1 || items >= kWantedTasks);
  }

  /// Tasks that answer for queries.
  int64_t query_tasks() const { return items * group * blocks; }
  int64_t item_of(int64_t query_task) const { return query_task / (group * blocks); }
  /// Which of the item's query heads.
  int64_t head_of(int64_t query_task) const { return query_task / blocks % group; }
  int64_t block_of(int64_t query_task) const { return query_task % blocks; }
};

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
  float* sums;      ///< [M] padded

  void place(ScratchLayout& layout, const HeadPlan& head) {
    keys.place(layout, head, kChunk);
    features = {layout.take(panel_floats(kChunk, head.M)), kChunk};
    buffer = layout.take(logit_floats(head));
    sums = layout.take(num_panels(head.M) * panel_width());
  }

  void run(const Plan<float>& plan, const HeadPlan& head, const Item& item, int64_t begin,
           int64_t end, const KeyState& state) const {
    const int64_t NR = panel_width();
    for (int64_t j = begin; j < end; j += kChunk) {
      const int64_t n = std::min(kChunk, end - j);
      const NextRows next(j + n, end, kChunk);
      const Lines lines[] = {{plan.k, item.b, item.g, next.first, next.last},
                             {plan.v, item.b, item.g, next.first, next.last}};
      PrefetchJob job(lines);
      keys.load(plan, head, item, j, n);
      chunk_key_features(head, keys, n, state.c, features, Panels{nullptr, 0}, sums, buffer,
                         [&](int64_t panel, const float* factor) {
                           const int64_t f = panel * NR;
                           const int64_t rows = std::min(NR, head.M - f);
                           scale_rows(state.S, head.E, f, rows, factor);
                           for (int64_t i = 0; i < rows; ++i) {
                             state.z[f + i] *= factor[i];
                           }
                         });
      for (int64_t f = 0; f < head.M; ++f) {
        state.z[f] += sums[f];
      }
      multiply_transposed(features, keys.values, state.S, state.S, head.M, num_panels(head.E), n,
                          job);
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

/// The head of every item, where tasks are smaller than items.
class ItemHeads {
 public:
  ItemHeads(const Plan<float>& plan, const HeadPlans& heads) : plan_(plan), heads_(heads) {
    if (!heads.depend_on_items()) {
      return;
    }
    const int64_t items = plan.num_items();
    const int64_t floats = heads.head_floats() + heads.scratch_floats();
    memory_ = allocate_floats(items * floats);
    made_.resize(static_cast<size_t>(items));
    std::vector<Moments> moments;
    if (heads.fitted_to_items()) {
      moments = all_item_moments(plan);
    }
    parallel_for(items, [&](int64_t index) {
      const Item item(plan, index);
      const auto i = static_cast<size_t>(index);
      ScratchLayout layout(memory_.get() + index * floats);
      made_[i] = moments.empty() ? heads.item_head(item, layout)
                                 : heads.item_head(item, moments[i], layout);
    });
  }

  const HeadPlan& operator[](int64_t item) const {
    return made_.empty() ? heads_[Item(plan_, item).g] : made_[static_cast<size_t>(item)];
  }

 private:
  const Plan<float>& plan_;
  const HeadPlans& heads_;
  hwy::AlignedFreeUniquePtr<float[]> memory_;
  std::vector<HeadPlan> made_;
};

/// States of all items, their keys cut into blocks and merged in order into the first of each.
inline StateStore absorb_all(const Plan<float>& plan, const ItemHeads& heads, const Cut& cut) {
  const int64_t blocks = cut.blocks;
  StateStore states(cut.items * blocks, plan.M, plan.E);
  parallel_for(cut.items * blocks, [&](int64_t task) {
    const Item item(plan, task / blocks);
    const HeadPlan& head = heads[task / blocks];
    const Block block(item.segment.k_begin, item.segment.k_end, blocks, task % blocks);
    absorb_block(plan, head, item, block,
                 ScratchLayout(thread_scratch(scratch_floats<KeySweep>(head))), states.at(task));
  });
  if (blocks > 1) {
    parallel_for(cut.items, [&](int64_t index) {
      for (int64_t block = 1; block < blocks; ++block) {
        merge(heads[index], states.at(index * blocks + block), states.at(index * blocks));
      }
    });
  }
  return states;
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_BIDIRECTIONAL_INL_H_
