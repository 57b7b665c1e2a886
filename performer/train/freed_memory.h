// SPDX-License-Identifier: Apache-2.0
// What the process does with memory that it has freed: keep it, give it back at once, or when holes
// in it have grown. Allocators other than glibc's go their own way. No torch here.
#ifndef PERFORMER_TRAIN_FREED_MEMORY_H_
#define PERFORMER_TRAIN_FREED_MEMORY_H_

#include <cstdint>

#include "performer/models/config.h"
#include "performer/models/memory.h"

namespace performer {

/// Freed memory stays with the process. Otherwise temporaries as large as activations go back to
/// the system at the end of every operator, and return from it page by page, each cleared anew.
/// Where the sizes change from step to step this leaves holes: HoleTrimmer.
void keep_freed_memory();

/// Where `memory` saves any, lets glibc take blocks from 4 MB on from the system one by one and
/// give them back when they are freed, and all but 32 MB of what smaller ones leave at the top, for
/// the rest of the process. Kept, what is computed twice, with other sizes in between, takes more
/// than twice the memory of its tensors; given back to the last byte, slices and chunks take up to
/// a quarter more time, because their pages are cleared anew.
void give_back_freed_memory(const MemoryOptions& memory, const ModelConfig& model);

/// Keeps holes between allocations small: rows of changing length leave some that no later tensor
/// fits, more with every step.
class HoleTrimmer {
 public:
  /// At the end of a step, when its activations are freed. Gives all freed memory back when the
  /// process holds a quarter more than after a first step.
  void step();

 private:
  int64_t held_ = 0;  // after the largest first step
  bool first_ = true;
};

}  // namespace performer

#endif  // PERFORMER_TRAIN_FREED_MEMORY_H_
