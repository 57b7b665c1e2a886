// SPDX-License-Identifier: Apache-2.0
// Internal: one checked call of hybrid attention, and its kernels.
#ifndef FAVOR_HYBRID_PLAN_H_
#define FAVOR_HYBRID_PLAN_H_

#include "favor/exact_plan.h"
#include "favor/plan.h"

namespace favor {

/// The two parts of a call. Their tensors, masks and segments are the same.
struct HybridPlan {
  const Plan<float>& far;
  ExactPlan<float> near;

  HybridPlan(const Plan<float>& plan, bool is_causal) : far(plan) {
    near.scale = plan.scale;
    near.is_causal = is_causal;
    near.B = plan.B;
    near.H = plan.H;
    near.G = plan.G;
    near.L = plan.L;
    near.S = plan.S;
    near.D = plan.D;
    near.E = plan.E;
    near.set_window(plan.window, plan.sinks);
    near.key_padding_mask = plan.key_padding_mask;
    near.key_log_weight = plan.key_log_weight;
    near.num_key_log_weights = plan.num_key_log_weights;
    near.segments = plan.segments;
    near.q = plan.q;
    near.k = plan.k;
    near.v = plan.v;
  }
};

// Elements are floats. Saved: the normalizers only, log2 of the denominators over all keys.
void hybrid_forward_kernel(const Plan<float>& plan, bool is_causal, OutputRows out,
                           Saved<float>* saved);
void hybrid_backward_kernel(const Plan<float>& plan, bool is_causal, InputRows out, InputRows dout,
                            const Saved<float>& saved, OutputRows dq, OutputRows dk, OutputRows dv);

}  // namespace favor

#endif  // FAVOR_HYBRID_PLAN_H_
