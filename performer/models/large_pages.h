// SPDX-License-Identifier: Apache-2.0
// Where a model's weights lie in memory.
#ifndef PERFORMER_MODELS_LARGE_PAGES_H_
#define PERFORMER_MODELS_LARGE_PAGES_H_

#include <torch/nn/module.h>

namespace performer {

/// Moves parameters and buffers into one block of memory for which the system is asked for large
/// pages (Linux). Generation reads all weights once per token, and in pages of 4 KB a quarter of
/// that time and more goes into looking up addresses. Values stay as they are; tensors that share a
/// storage with others, are not contiguous or not on the CPU stay where they are, all of them where
/// the block cannot be had.
void move_to_large_pages(torch::nn::Module& module);

}  // namespace performer

#endif  // PERFORMER_MODELS_LARGE_PAGES_H_
