// SPDX-License-Identifier: Apache-2.0
// Internal: one checked attention call, as the kernels see it, and their scratch memory.
#ifndef FAVOR_PLAN_H_
#define FAVOR_PLAN_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "favor/attention.h"
#include "favor/rows.h"
#include "hwy/aligned_allocator.h"

namespace favor {

/// Queries [q_begin, q_end) see keys [k_begin, k_end) only.
struct Segment {
  int64_t q_begin, q_end, k_begin, k_end;
  int64_t num_queries() const { return q_end - q_begin; }
  int64_t num_keys() const { return k_end - k_begin; }
};

/// What every checked call of attention has, whichever way its scores are computed: sizes, tensors,
/// and which keys take part.
template <class T>
struct AttentionCall {
  double scale;
  int64_t B, H, G, L, S, D, E;
  const uint8_t* key_padding_mask;
  const T* key_log_weight;
  int64_t num_key_log_weights;
  int64_t window, sinks;
  std::vector<Segment> segments;
  InputRows q, k, v;

  /// Query heads of a key head.
  int64_t group() const { return G == 0 ? 1 : H / G; }
  int64_t num_segments() const { return static_cast<int64_t>(segments.size()); }
  /// Independent pieces of work: one per batch item, key head and segment.
  int64_t num_items() const { return B * G * num_segments(); }
  /// Mask of batch item b, or null.
  const uint8_t* mask_row(int64_t b) const {
    return key_padding_mask ? key_padding_mask + b * S : nullptr;
  }
  /// The logarithms of key weights for batch item b and key head g, or null.
  const T* log_weight_row(int64_t b, int64_t g) const {
    if (key_log_weight == nullptr) return nullptr;
    return key_log_weight + (b * num_key_log_weights + (num_key_log_weights == 1 ? 0 : g)) * S;
  }
  /// Whether key j takes part, for key head g.
  bool allows_key(int64_t b, int64_t g, int64_t j) const {
    const uint8_t* mask = mask_row(b);
    const T* log_weight = log_weight_row(b, g);
    return (mask == nullptr || mask[j] == 0) &&
           (log_weight == nullptr || log_weight[j] != -std::numeric_limits<T>::infinity());
  }
  /// The first of the keys [begin, end) that takes part; end if there is none.
  int64_t first_allowed_key(int64_t b, int64_t g, int64_t begin, int64_t end) const {
    while (begin < end && !allows_key(b, g, begin)) {
      ++begin;
    }
    return begin;
  }
};

/// A checked call through features, with every default resolved.
template <class T>
struct Plan : AttentionCall<T> {
  FeatureMapKind feature_map;
  double eps;
  bool official;  ///< eps is relative to the row's or the keys' largest w.x
  bool renormalize;
  int64_t M, P;
  int64_t rows;                            ///< R, rows of a random matrix
  const T* projection;                     ///< [P, R, D] or null
  const StructuredProjection* structured;  ///< [P] or null
  std::vector<T> expanded;                 ///< structured matrices where no transform serves them
  const T* map_parameters;
  int64_t num_map_parameter_sets;
};

/// Whether products of bfloat16 pairs serve the call, if its tensors are bfloat16 and the CPU has
/// such products.
inline bool pairs_serve(const Plan<float>& plan) {
  return plan.feature_map == FeatureMapKind::kPositive && plan.eps == 0 && plan.renormalize &&
         !plan.official && plan.window == 0 && plan.sinks == 0 && plan.structured == nullptr;
}

/// Item `index` of a plan, in the order batch, key head, segment.
struct Item {
  int64_t b, g;
  int64_t first_head, last_head;  ///< the query heads that use the key head
  Segment segment;
  int64_t segment_index;

  template <class T>
  Item(const Plan<T>& plan, int64_t index)
      : b(index / plan.num_segments() / plan.G),
        g(index / plan.num_segments() % plan.G),
        first_head(g * plan.group()),
        last_head(first_head + plan.group()),
        segment(plan.segments[static_cast<size_t>(index % plan.num_segments())]),
        segment_index(index % plan.num_segments()) {}
};

/// Rows of the largest block of a structured matrix that the kernels transform.
inline constexpr int64_t kLargestFastBlock = 1024;

/// Which of the states kept for the causal backward pass holds the tokens of `segment` before its
/// token t, a positive multiple of kStateInterval. Distinct over all segments of a call.
inline int64_t saved_state_slot(const Segment& segment, int64_t t) {
  return (segment.q_begin + t) / kStateInterval - 1;
}

/// Aligned memory for kernels. Throws std::bad_alloc.
hwy::AlignedFreeUniquePtr<float[]> allocate_floats(int64_t floats);

/// Scratch of the calling thread, at least `floats` long and aligned for any vector. Kept for the
/// thread's lifetime, so that repeated calls cause no page faults; the next call from the same
/// thread hands out the same memory.
float* thread_scratch(int64_t floats);

/// Tests: fill scratch and allocated memory with NaN each time it is handed out.
void set_poison_scratch(bool poison);

/// Hands out consecutive aligned pieces of one thread_scratch, measured first (base null), then
/// placed. The same code runs for both, so sizes and pointers can't disagree.
class ScratchLayout {
 public:
  explicit ScratchLayout(float* base = nullptr) : base_(base) {}
  float* take(int64_t floats) {
    float* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (floats + 31) / 32 * 32;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

// The float kernels, defined once per instruction set and dispatched at run time.
void bidirectional_forward_kernel(const Plan<float>& plan, OutputRows out, Saved<float>* saved);
/// The same on bfloat16 tensors and the positive map. Returns false, with nothing done, where the
/// CPU has no products of bfloat16 pairs.
bool bfloat16_forward_kernel(const Plan<float>& plan, OutputRows out, Saved<float>* saved);
void bidirectional_backward_kernel(const Plan<float>& plan, InputRows out, InputRows dout,
                                   const Saved<float>& saved, OutputRows dq, OutputRows dk,
                                   OutputRows dv);
void causal_forward_kernel(const Plan<float>& plan, OutputRows out, Saved<float>* saved,
                           const DecodeState* initial, DecodeState* final_state);
void causal_backward_kernel(const Plan<float>& plan, InputRows out, InputRows dout,
                            const Saved<float>& saved, OutputRows dq, OutputRows dk, OutputRows dv);
/// Needs a state that make_steppable has prepared.
/// log_sums [B, H] receives natural logarithms of the denominators of a log-linear map, those of
/// the estimates of exp(q.k) if the plan has a window; null: it is not wanted.
void decode_step_kernel(const Plan<float>& plan, DecodeState& state, OutputRows out,
                        float* log_sums = nullptr);
/// Adds the hot tokens to c, S, z and the rests, which the state must have.
void flush_kernel(DecodeState& state);

/// Gives a state rests, zeros where it has none.
void make_rests(DecodeState& state);
/// Gives a state rests and room for hot tokens, where it has none.
void make_steppable(DecodeState& state);

/// The checks that every call makes, alone.
void check_call(const char* op, const AttentionParams<float>& params, View4<const float> q,
                View4<const float> k, View4<const float> v);

/// decode_step with the log sums of decode_step_kernel, with the far keys' state and a window.
void answer_from_state(const AttentionParams<float>& params, View4<const float> q,
                       View4<const float> k, View4<const float> v, DecodeState& state,
                       View4<float> out, float* log_sums);

}  // namespace favor

#endif  // FAVOR_PLAN_H_
