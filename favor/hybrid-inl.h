// SPDX-License-Identifier: Apache-2.0
// What the passes of hybrid attention share. A segment is cut into blocks of `window` tokens. The
// keys far from a block of queries are whole blocks before it or, when bidirectional, after it, so
// a sweep over the blocks carries the state of all far keys of one side, and no key has to be told
// from its neighbours within a block. Near keys and sinks belong to the exact part.

// clang-format off
#if defined(FAVOR_HYBRID_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_HYBRID_INL_H_
#undef FAVOR_HYBRID_INL_H_
#else
#define FAVOR_HYBRID_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "favor/exact_plan.h"
#include "favor/heads-inl.h"
#include "favor/query_features-inl.h"
#include "favor/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

/// The steps of a sweep over one side of one segment. Step t absorbs the keys of keys(t), then
/// answers the queries of queries(t), in positions of the segment.
class FarSteps {
 public:
  FarSteps(const ExactPlan<float>& plan, const Segment& segment, bool later)
      : window_(plan.window),
        num_queries_(segment.num_queries()),
        num_keys_(segment.num_keys()),
        first_key_(std::min(plan.sinks, num_keys_)),
        last_key_(plan.is_causal ? num_keys_ : std::max(num_keys_ - plan.sinks, first_key_)),
        later_(later) {
    const int64_t query_blocks = (num_queries_ + window_ - 1) / window_;
    const int64_t key_blocks = (num_keys_ + window_ - 1) / window_;
    // Before, and after the last, there are no keys or no queries.
    begin_ = later ? std::max(query_blocks, key_blocks - 2) : 2;
    count_ = later ? (key_blocks > 2 ? begin_ : 0) : std::max<int64_t>(query_blocks - 2, 0);
  }

  int64_t count() const { return count_; }
  Positions queries(int64_t t) const { return block(query_block(t), 0, num_queries_); }
  Positions keys(int64_t t) const {
    return block(query_block(t) + (later_ ? 2 : -2), first_key_, last_key_);
  }

 private:
  int64_t query_block(int64_t t) const { return later_ ? begin_ - 1 - t : begin_ + t; }
  Positions block(int64_t n, int64_t begin, int64_t end) const {
    begin = std::clamp(n * window_, begin, end);
    return {begin, std::clamp((n + 1) * window_, begin, end)};
  }

  int64_t window_, num_queries_, num_keys_, first_key_, last_key_;
  bool later_;
  int64_t begin_, count_;
};

/// Packs n keys from position `j` of the segment on, at most kChunk; those that are masked, or
/// whose weight is 0, become zeros without being read. Returns whether any takes part.
inline HWY_NOINLINE bool load_far_keys(const Plan<float>& plan, const HeadPlan& head,
                                       const Item& item, int64_t j, int64_t n, const KeyChunk& to) {
  j += item.segment.k_begin;
  to.load(plan, head, item, j, n);
  return plan.first_allowed_key(item.b, item.g, j, j + n) < j + n;
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_HYBRID_INL_H_
