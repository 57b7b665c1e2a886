// SPDX-License-Identifier: Apache-2.0
// Hybrid attention, forward: the exact kernel answers every query from its near keys and leaves a
// log-sum; sweeps over the far keys of either side then join what they find to both.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/hybrid_forward.cpp"
#include "hwy/foreach_target.h"
#include "favor/hybrid-inl.h"
// clang-format on

#include <vector>

#include "favor/hybrid_plan.h"
#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Joins n rows of sums over far keys to rows `out` that are normalised by `normalizer`, base 2,
/// which becomes that of all keys. far_log: log2 of the rows' sums of weights, of which `sums` are
/// the part `denominator`.
HWY_NOINLINE void join_rows(const Panels& sums, int64_t n, int64_t E,
                            const float* HWY_RESTRICT far_log,
                            const float* HWY_RESTRICT denominator, float* HWY_RESTRICT normalizer,
                            const OutputElements& out, int64_t stride) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t NR = 2 * N;
  HWY_ALIGN float joined[kChunk];
  HWY_ALIGN float near_factor[kChunk];
  HWY_ALIGN float far_factor[kChunk];
  std::copy_n(normalizer, n, joined);
  std::fill(joined + n, joined + kChunk, 0.0f);
  for (int64_t r = 0; r < n; r += N) {
    const Vector near = hn::LoadU(d, joined + r);
    const Vector far = hn::LoadU(d, far_log + r);
    const Vector top = hn::Max(near, far);
    const Vector near_weight = exp2(hn::Sub(near, top));
    const Vector far_weight = exp2(hn::Sub(far, top));
    const Vector total = hn::Add(near_weight, far_weight);
    hn::StoreU(hn::Add(top, hn::Log2(d, total)), d, joined + r);
    hn::StoreU(hn::Div(near_weight, total), d, near_factor + r);
    hn::StoreU(hn::Div(hn::Div(far_weight, total), hn::LoadU(d, denominator + r)), d,
               far_factor + r);
  }
  std::copy_n(joined, n, normalizer);
  for (int64_t c = 0; c < E; c += NR) {
    const int64_t width = std::min(NR, E - c);
    for (int64_t r = 0; r < n; ++r) {
      float* to = reinterpret_cast<float*>((out + r * stride).data) + c;
      const float* from = sums.at(r, c / NR);
      const Vector keep = hn::Set(d, near_factor[r]);
      const Vector add = hn::Set(d, far_factor[r]);
      Vector low, high;
      load_pair(to, width, low, high);
      store_pair(hn::MulAdd(add, hn::LoadU(d, from), hn::Mul(keep, low)),
                 hn::MulAdd(add, hn::LoadU(d, from + N), hn::Mul(keep, high)), to, width);
    }
  }
}

class FarForward {
 public:
  FarForward(const HybridPlan& plan, const HeadPlans& heads, const Item& item,
             const OutputRows& out, float* normalizer)
      : plan_(plan), head_(heads.common()), item_(item), out_(out), normalizer_(normalizer) {
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(
        thread_scratch(heads.head_floats() + std::max(heads.scratch_floats(), measure.used())));
    head_ = heads.item_head(item, layout);
    place(layout);
  }

  /// Joins the keys of one side to every query.
  void run(bool later) {
    const FarSteps steps(plan_.near, item_.segment, later);
    state_.clear(head_);
    seen_ = false;
    for (int64_t t = 0; t < steps.count(); ++t) {
      const Positions keys = steps.keys(t);
      for (int64_t j = keys.begin; j < keys.end; j += kChunk) {
        absorb(j, std::min(kChunk, keys.end - j));
      }
      const Positions queries = steps.queries(t);
      for (int64_t h = item_.first_head; seen_ && h < item_.last_head; ++h) {
        for (int64_t i = queries.begin; i < queries.end; i += kChunk) {
          answer(h, item_.segment.q_begin + i, std::min(kChunk, queries.end - i));
        }
      }
    }
  }

 private:
  void place(ScratchLayout& layout) {
    state_.place(layout, head_);
    keys_.place(layout, head_, kChunk);
    key_features_ = {layout.take(panel_floats(kChunk, head_.M)), kChunk};
    queries_ = {layout.take(panel_floats(kChunk, head_.D)), kChunk};
    query_.place(layout, head_, kChunk);
    sums_ = {layout.take(panel_floats(kChunk, head_.E)), kChunk};
    buffer_ = layout.take(logit_floats(head_));
    added_ = layout.take(panel_width());
  }

  void absorb(int64_t j, int64_t n) {
    if (!load_far_keys(plan_.far, head_, item_, j, n, keys_)) {
      return;
    }
    const int64_t NR = panel_width();
    seen_ = true;
    for (int64_t panel = 0; panel < num_panels(head_.M); ++panel) {
      const int64_t f = panel * NR;
      const int64_t rows = std::min(NR, head_.M - f);
      const float* u = project(head_, head_.key, keys_.tokens, n, panel, buffer_);
      key_features(head_, f, u, keys_, n, 1.0f, state_.c + f, key_features_.at(0, panel), nullptr,
                   added_, [&](const float* factor) {
                     scale_rows(state_.S, head_.E, f, rows, factor);
                     for (int64_t i = 0; i < rows; ++i) {
                       state_.z[f + i] *= factor[i];
                     }
                   });
      for (int64_t i = 0; i < rows; ++i) {
        state_.z[f + i] += added_[i];
      }
    }
    multiply_transposed(key_features_, keys_.values, state_.S, state_.S, head_.M,
                        num_panels(head_.E), n);
  }

  void answer(int64_t h, int64_t i, int64_t n) {
    const InputElements q = plan_.far.q.row(item_.b, h, i);
    const int64_t stride = plan_.far.q.strides[2];
    pack_rows(q, stride, n, head_.D, head_.token_scale, nullptr, queries_);
    query_offsets(head_, q, stride, n, nullptr, queries_, buffer_, query_.offset, query_.floor);
    query_features(head_, queries_, n, state_.c, state_.z, buffer_, query_);
    multiply<false>(query_.features, state_.S, sums_, 0, n, 0, num_panels(head_.E), head_.M);
    HWY_ALIGN float far_log[kChunk] = {};
    std::fill(query_.denominator + n, query_.denominator + kChunk, 1.0f);
    for (int64_t r = 0; r < n; ++r) {
      // In double, because the sum may be far smaller than its terms.
      far_log[r] = static_cast<float>(double{query_.top[r]} + std::log2(query_.denominator[r]) -
                                      double{query_.offset[r]});
    }
    join_rows(sums_, n, head_.E, far_log, query_.denominator,
              normalizer_ + (item_.b * plan_.near.H + h) * plan_.near.L + i,
              out_.row(item_.b, h, i), out_.strides[2]);
  }

  const HybridPlan& plan_;
  HeadPlan head_;
  const Item& item_;
  const OutputRows& out_;
  float* normalizer_;
  bool seen_;  ///< the state holds a key

  KeyState state_;
  KeyChunk keys_;
  Panels key_features_;  ///< [C, M]
  Panels queries_;       ///< [C, D]
  QueryFeatures query_;
  Panels sums_;    ///< [C, E]
  float* buffer_;  ///< of project()
  float* added_;   ///< [NR]
};

void run_far_forward(const HybridPlan& plan, const OutputRows& out, float* normalizer) {
  const HeadPlans heads(plan.far);
  parallel_for(plan.far.num_items(), [&](int64_t index) {
    const Item item(plan.far, index);
    FarForward pass(plan, heads, item, out, normalizer);
    pass.run(false);
    if (!plan.near.is_causal) {
      pass.run(true);
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace favor {

HWY_EXPORT(run_far_forward);

void hybrid_forward_kernel(const Plan<float>& far, bool is_causal, OutputRows out,
                           Saved<float>* saved) {
  const HybridPlan plan(far, is_causal);
  std::vector<float> own;
  float* normalizer = saved == nullptr ? nullptr : saved->normalizer;
  if (normalizer == nullptr) {
    own.resize(static_cast<size_t>(far.B * far.H * far.L));
    normalizer = own.data();
  }
  exact_forward_kernel(plan.near, out, normalizer);
  HWY_DYNAMIC_DISPATCH(run_far_forward)(plan, out, normalizer);
}

}  // namespace favor
#endif  // HWY_ONCE
