// SPDX-License-Identifier: Apache-2.0
// Internal: the states at the borders of a slice, and the backward kernel between them.
#ifndef FAVOR_SLICE_PLAN_H_
#define FAVOR_SLICE_PLAN_H_

#include "favor/plan.h"
#include "favor/slices.h"

namespace favor {

/// Null pointers: a stream that starts here, that ends here, a gradient that is not wanted.
struct SliceBorders {
  const DecodeState* initial = nullptr;
  const StateGradient* dfinal = nullptr;
  StateGradient* dinitial = nullptr;  ///< of the right size, its c that of `initial`, S and z 0
};

/// Needs L > 0 of items with `borders`.
void causal_slice_backward_kernel(const Plan<float>& plan, InputRows out, InputRows dout,
                                  const Saved<float>& saved, const SliceBorders& borders,
                                  OutputRows dq, OutputRows dk, OutputRows dv);

}  // namespace favor

#endif  // FAVOR_SLICE_PLAN_H_
