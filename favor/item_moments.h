// SPDX-License-Identifier: Apache-2.0
// Internal: the moments of an attention item's tokens, by a kernel.
#ifndef FAVOR_ITEM_MOMENTS_H_
#define FAVOR_ITEM_MOMENTS_H_

#include <vector>

#include "favor/fitted_map.h"
#include "favor/plan.h"

namespace favor {

/// Moments of an item's tokens: its allowed keys, and its queries except, where L = S, those at the
/// positions of masked keys. Products of two elements are summed in float over a chunk of tokens,
/// all else in double.
Moments item_moments(const Plan<float>& plan, const Item& item);

/// The same for all items, in parallel.
std::vector<Moments> all_item_moments(const Plan<float>& plan);

/// For each key head the moments of all its items, in parallel.
std::vector<Moments> head_moments(const Plan<float>& plan);

}  // namespace favor

#endif  // FAVOR_ITEM_MOMENTS_H_
