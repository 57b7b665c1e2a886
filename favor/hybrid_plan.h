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

  HybridPlan(const Plan<float>& plan, bool is_causal) : far(plan), near(plan, is_causal) {}
};

// Elements are floats. Saved: the normalizers only, log2 of the denominators over all keys.
void hybrid_forward_kernel(const Plan<float>& plan, bool is_causal, OutputRows out,
                           Saved<float>* saved);
void hybrid_backward_kernel(const Plan<float>& plan, bool is_causal, InputRows out, InputRows dout,
                            const Saved<float>& saved, OutputRows dq, OutputRows dk, OutputRows dv);

}  // namespace favor

#endif  // FAVOR_HYBRID_PLAN_H_
