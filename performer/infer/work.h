// SPDX-License-Identifier: Apache-2.0
// How work on sequences of very different lengths is divided: longest first, in batches of bounded
// size that are halved when memory does not suffice. No torch here.
#ifndef PERFORMER_INFER_WORK_H_
#define PERFORMER_INFER_WORK_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace performer {

/// Batches of indices into `lengths`, longest first and equal lengths in their order, such that
/// items x longest of each stays within `tokens_per_batch`; an item above it stands alone. Items of
/// length 0 are left out. A function of its arguments alone.
std::vector<std::vector<int64_t>> plan_batches(const std::vector<int64_t>& lengths,
                                               int64_t tokens_per_batch);

/// Whether an exception says that an allocation failed, here or inside torch.
bool is_out_of_memory(const std::exception& error);

struct WorkFailure {
  int64_t item = 0;
  std::string reason;
};

/// Calls compute(batch). Where that fails for want of memory, calls it for each half, down to
/// single items; a single item that still fails is returned with the reason. Other exceptions pass.
/// compute must leave no result behind when it throws.
std::vector<WorkFailure> compute_halving(
    std::span<const int64_t> batch, const std::function<void(std::span<const int64_t>)>& compute);

/// Bounds the memory this process may allocate from here on, so that an allocation that does not
/// fit fails instead of ending the process. 0: what the machine has free at this moment, if it can
/// be told. Returns the bound in bytes, what is in use already included; 0 where there is none.
int64_t limit_memory(int64_t bytes);

}  // namespace performer

#endif  // PERFORMER_INFER_WORK_H_
