// SPDX-License-Identifier: Apache-2.0
// FAVOR+ attention kernels: everything of the torch-free library in one include.
//
// Dims legend, used by every header, error message and formula of the project:
//   B batch, H heads, G key heads, L query length, S key length, D head dim, E value dim,
//   M features, C chunk.
// Layout is [B, H, L, D] with a contiguous last dimension and strides in elements.
//
// Errors: a wrong argument throws favor::Error (check.h). Threads: parallel.h. Accuracy: measured
// against the double form of reference.h, the tests allow a kernel twice the error of the naive
// float32 form of the same formulas plus a few rounding errors of the result; testing.h has the
// rule.
#ifndef FAVOR_FAVOR_H_
#define FAVOR_FAVOR_H_

#include "favor/attention.h"
#include "favor/check.h"
#include "favor/exact.h"
#include "favor/feature_map.h"
#include "favor/hybrid_state.h"
#include "favor/isa.h"
#include "favor/kmeans.h"
#include "favor/method.h"
#include "favor/parallel.h"
#include "favor/projection.h"
#include "favor/random.h"
#include "favor/slices.h"
#include "favor/snapshot.h"
#include "favor/state.h"
#include "favor/tensor_view.h"

#endif  // FAVOR_FAVOR_H_
