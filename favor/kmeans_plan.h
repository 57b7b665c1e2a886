// SPDX-License-Identifier: Apache-2.0
// Internal: one checked call of k-means as the kernel sees it.
#ifndef FAVOR_KMEANS_PLAN_H_
#define FAVOR_KMEANS_PLAN_H_

#include <cstdint>
#include <vector>

#include "favor/plan.h"

namespace favor {

struct KMeansPlan {
  int64_t B, H, L, D, C, iterations;
  const uint8_t* key_padding_mask;
  std::vector<Segment> segments;
  InputRows x, queries;
  bool has_queries;
  int64_t *clusters, *nearest;
};

/// Defined once per instruction set and dispatched at run time.
void kmeans_kernel(const KMeansPlan& plan);

}  // namespace favor

#endif  // FAVOR_KMEANS_PLAN_H_
