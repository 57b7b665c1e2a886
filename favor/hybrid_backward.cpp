// SPDX-License-Identifier: Apache-2.0
// Hybrid attention, backward. Under the log-sum over all keys that the forward pass saved, near and
// far keys no longer depend on each other: the exact kernel writes the gradients of its part, then
// sweeps over the far keys of either side add theirs.

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "favor/hybrid_backward.cpp"
#include "hwy/foreach_target.h"
#include "favor/gradients-inl.h"
#include "favor/hybrid-inl.h"
// clang-format on

#include <vector>

#include "favor/hybrid_plan.h"
#include "favor/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {
namespace {

/// Sums of the rows of gradients of logits [n, M], lane by lane: [n, N].
HWY_NOINLINE void sum_rows(const Panels& dlogits, int64_t n, int64_t M,
                           float* HWY_RESTRICT row_sums) {
  const FloatTag d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < n; ++r) {
    Vector total = hn::Zero(d);
    for (int64_t panel = 0; panel < num_panels(M); ++panel) {
      const float* at = dlogits.at(r, panel);
      total = hn::Add(total, hn::Add(hn::LoadU(d, at), hn::LoadU(d, at + N)));
    }
    hn::StoreU(total, d, row_sums + r * N);
  }
}

/// A sweep goes twice over the steps of one side. On the way out the state grows as in the forward
/// pass and gives dq; on the way back the sums over the queries met so far, all of which see the
/// keys at hand, give dk and dv. Every rise of a stabiliser is noted on the way out and undone on
/// the way back, so that each step is taken under the same stabilisers twice.
class FarBackward {
 public:
  FarBackward(const HybridPlan& plan, const HeadPlan& head, const FarItem& item,
              const ExactGradients& grads)
      : plan_(plan), head_(head), item_(item), grads_(grads), panels_(num_panels(head.M)) {
    ScratchLayout measure;
    place(measure);
    ScratchLayout layout(thread_scratch(measure.used()));
    place(layout);
    // Columns beyond M are read by whole vectors, so they must be finite.
    std::fill_n(sums_transposed_.data, panel_floats(head.E, head.M), 0.0f);
  }

  void run(bool later) {
    const FarSteps steps(plan_.near, item_.segment, later);
    state_.clear(head_);
    std::fill_n(state_transposed_.data, panel_floats(head_.E, head_.M), 0.0f);
    rises_.clear();
    int64_t first = steps.count();  // step from which on there are keys
    for (int64_t t = 0; t < steps.count(); ++t) {
      for_each_chunk(steps.keys(t), [&](int64_t j, int64_t n) {
        if (load_far_keys(plan_.far, plan_.near, head_, item_, j, n, keys_)) {
          first = std::min(first, t);
          absorb(t, n);
        }
      });
      if (first <= t) {
        for_each_row_chunk(steps.queries(t),
                           [&](int64_t h, int64_t i, int64_t n) { query_gradients(h, i, n); });
      }
    }
    sums_.clear(head_);
    for (int64_t t = steps.count() - 1; t >= first; --t) {
      for_each_row_chunk(steps.queries(t),
                         [&](int64_t h, int64_t i, int64_t n) { add_to_sums(h, i, n); });
      transpose(sums_.S, head_.M, head_.E, sums_transposed_);
      for_each_chunk(steps.keys(t), [&](int64_t j, int64_t n) {
        if (load_far_keys(plan_.far, plan_.near, head_, item_, j, n, keys_)) {
          key_gradients(item_.segment.k_begin + j, n);
        }
      });
      undo_rises(t);
    }
  }

 private:
  /// The stabilisers of one panel before they rose in a step.
  struct Rise {
    int64_t step, panel;
    std::vector<float> before;
  };

  template <class Body>
  static void for_each_chunk(const Positions& positions, const Body& body) {
    for (int64_t i = positions.begin; i < positions.end; i += kChunk) {
      body(i, std::min(kChunk, positions.end - i));
    }
  }

  /// Calls body(head, row, count) for chunks of rows that these queries take in every head.
  template <class Body>
  void for_each_row_chunk(const Positions& positions, const Body& body) const {
    const int64_t group = plan_.near.group();
    for (int64_t h = item_.g * group; h < (item_.g + 1) * group; ++h) {
      for_each_chunk(positions,
                     [&](int64_t i, int64_t n) { body(h, item_.segment.q_begin + i, n); });
    }
  }

  void place(ScratchLayout& layout) {
    state_.place(layout, head_);
    sums_.place(layout, head_);
    state_transposed_ = {layout.take(panel_floats(head_.E, head_.M)), head_.E};
    sums_transposed_ = {layout.take(panel_floats(head_.E, head_.M)), head_.E};
    keys_.place(layout, head_, kChunk);
    rows_.place(layout, head_, kChunk);
    features_ = {layout.take(panel_floats(kChunk, head_.M)), kChunk};
    dlogits_ = {layout.take(panel_floats(kChunk, head_.M)), kChunk};
    product_ = {layout.take(panel_floats(kChunk, std::max(head_.D, head_.E))), kChunk};
    buffer_ = layout.take(logit_floats(head_));
    added_ = layout.take(panels_ * panel_width());
    row_sums_ = layout.take(kChunk * panel_width() / 2);
  }

  void absorb(int64_t step, int64_t n) {
    const int64_t NR = panel_width();
    HWY_ALIGN float before[kChunk];
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const int64_t f = panel * NR;
      std::copy_n(state_.c + f, NR, before);
      key_features(head_, project(head_, keys_.tokens, n, panel, buffer_), keys_.offset, n,
                   state_.c + f, features_.at(0, panel), added_, [&](const float* factor) {
                     rises_.push_back({step, panel, {before, before + NR}});
                     scale_columns(state_transposed_, head_.E, panel, factor);
                     for (int64_t i = 0; i < NR; ++i) {
                       state_.z[f + i] *= factor[i];
                     }
                   });
      for (int64_t i = 0; i < std::min(NR, head_.M - f); ++i) {
        state_.z[f + i] += added_[i];
      }
    }
    multiply_transposed(keys_.values, features_, state_transposed_, state_transposed_, head_.E,
                        panels_, n);
  }

  void load_rows(int64_t h, int64_t i, int64_t n) {
    const int64_t head_row = (item_.b * plan_.near.H + h) * plan_.near.L;
    rows_.load(plan_.far, head_, item_.b, h, i, n, grads_.out, grads_.dout,
               grads_.normalizer + head_row);
    for (int64_t r = 0; r < n; ++r) {
      if (rows_.skip[r] == 0) {
        const InputElements q = plan_.far.q.row(item_.b, h, i + r);
        rows_.norm[r] = static_cast<float>(rows_.norm[r] + query_offset(head_, q));
      }
    }
  }

  void row_features(int64_t n, int64_t panel) const {
    const int64_t f = panel * panel_width();
    normalized_query_features(head_, project(head_, rows_.tokens, n, panel, buffer_), state_.c + f,
                              rows_.norm, n, head_.M - f, features_.at(0, panel));
  }

  void query_gradients(int64_t h, int64_t i, int64_t n) {
    const int64_t NR = panel_width();
    load_rows(h, i, n);
    std::fill_n(added_, panels_ * NR, 0.0f);
    for (int64_t panel = 0; panel < panels_; ++panel) {
      row_features(n, panel);
      multiply<false>(rows_.dout, state_transposed_, dlogits_, 0, n, panel, panel + 1, head_.E);
      query_logit_gradients(head_, features_.at(0, panel), rows_.delta, rows_.norm, n,
                            state_.z + panel * NR, dlogits_.at(0, panel), added_ + panel * NR);
    }
    sum_rows(dlogits_, n, head_.M, row_sums_);
    add_rows(token_gradient_panels(head_, dlogits_, n, rows_.tokens, row_sums_, product_), n,
             head_.D, head_.out_scale, grads_.dq.row(item_.b, h, i), grads_.dq.strides[2]);
  }

  /// S of the sums gains features^T dout, its z loses features^T delta.
  void add_to_sums(int64_t h, int64_t i, int64_t n) {
    const int64_t NR = panel_width();
    load_rows(h, i, n);
    for (int64_t panel = 0; panel < panels_; ++panel) {
      row_features(n, panel);
      for (int64_t r = 0; r < n; ++r) {
        const float* feature = features_.at(r, panel);
        for (int64_t x = 0; x < NR; ++x) {
          sums_.z[panel * NR + x] -= feature[x] * rows_.delta[r];
        }
      }
    }
    multiply_transposed(features_, rows_.dout, sums_.S, sums_.S, head_.M, num_panels(head_.E), n);
  }

  void key_gradients(int64_t j, int64_t n) {
    const int64_t NR = panel_width();
    std::fill_n(row_sums_, n * NR / 2, 0.0f);
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const int64_t f = panel * NR;
      positive_keys(project(head_, keys_.tokens, n, panel, buffer_), keys_.offset, n, state_.c + f,
                    features_.at(0, panel), added_);
      multiply<false>(keys_.values, sums_transposed_, dlogits_, 0, n, panel, panel + 1, head_.E);
      key_logit_gradients(head_, features_.at(0, panel), keys_.offset, n, sums_.z + f,
                          dlogits_.at(0, panel), row_sums_);
    }
    multiply<false>(features_, sums_.S, product_, 0, n, 0, num_panels(head_.E), head_.M);
    add_rows(product_, n, head_.E, 1.0f, grads_.dv.row(item_.b, item_.g, j), grads_.dv.strides[2]);
    add_rows(token_gradient_panels(head_, dlogits_, n, keys_.tokens, row_sums_, product_), n,
             head_.D, head_.out_scale, grads_.dk.row(item_.b, item_.g, j), grads_.dk.strides[2]);
  }

  /// Takes the sums to the stabilisers before the step.
  void undo_rises(int64_t step) {
    const int64_t NR = panel_width();
    for (; !rises_.empty() && rises_.back().step == step; rises_.pop_back()) {
      const int64_t f = rises_.back().panel * NR;
      for (int64_t x = 0; x < std::min(NR, head_.M - f); ++x) {
        const float before = rises_.back().before[static_cast<size_t>(x)];
        const float factor = std::exp2(before - state_.c[f + x]);
        scale_rows(sums_.S, head_.E, f + x, 1, &factor);
        sums_.z[f + x] *= factor;
        state_.c[f + x] = before;
      }
    }
  }

  const HybridPlan& plan_;
  const HeadPlan& head_;
  const FarItem& item_;
  const ExactGradients& grads_;
  int64_t panels_;
  std::vector<Rise> rises_;

  KeyState state_;           ///< z and c of the keys absorbed so far
  KeyState sums_;            ///< over the queries met on the way back
  Panels state_transposed_;  ///< [E, M] S of the keys absorbed so far
  Panels sums_transposed_;   ///< [E, M]
  KeyChunk keys_;
  QueryGradients rows_;
  Panels features_;  ///< [C, M]
  Panels dlogits_;   ///< [C, M]
  Panels product_;   ///< [C, D] or [C, E]
  float* buffer_;    ///< of project()
  float* added_;     ///< [M] padded
  float* row_sums_;  ///< [C, N]
};

void run_far_backward(const HybridPlan& plan, const ExactGradients& grads) {
  const HeadPlans heads(plan.far);
  parallel_for(FarItem::count(plan.near), [&](int64_t index) {
    const FarItem item(plan.near, index);
    FarBackward pass(plan, heads[item.g], item, grads);
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

HWY_EXPORT(run_far_backward);

void hybrid_backward_kernel(const Plan<float>& far, bool is_causal, InputRows out, InputRows dout,
                            const Saved<float>& saved, OutputRows dq, OutputRows dk,
                            OutputRows dv) {
  const HybridPlan plan(far, is_causal);
  const ExactGradients grads{out, dout, saved.normalizer, dq, dk, dv};
  exact_backward_kernel(plan.near, grads);
  HWY_DYNAMIC_DISPATCH(run_far_backward)(plan, grads);
}

}  // namespace favor
#endif  // HWY_ONCE
