// SPDX-License-Identifier: Apache-2.0
// The blocks of a model one after another: plain or reversible, over whole rows or over slices of
// them, and with what memory.
#ifndef PERFORMER_NN_STACK_H_
#define PERFORMER_NN_STACK_H_

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "performer/models/memory.h"
#include "performer/nn/layers.h"
#include "performer/nn/layout.h"
#include "performer/ops/slice_attention.h"

namespace performer {

/// What runs between blocks: one stream, or the two of reversible layers, which both start as the
/// embedding and are averaged in the end.
struct Residual {
  torch::Tensor first;
  torch::Tensor second;  ///< undefined in plain models

  /// What the next block's attention reads.
  const torch::Tensor& attended() const { return second.defined() ? second : first; }
  /// The hidden states: first, or the mean of both.
  torch::Tensor value() const;
};

class BlockStack {
 public:
  BlockStack() = default;
  /// Makes the blocks.
  explicit BlockStack(const ModelConfig& config);

  const std::vector<Block>& blocks() const { return blocks_; }
  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }

  /// How later calls of forward and forward_slice use memory while a gradient is recorded. Throws
  /// favor::Error for options that do not fit the model.
  void set_memory(const MemoryOptions& options);
  const MemoryOptions& memory() const { return memory_; }

  Residual open(const torch::Tensor& embedded) const;

  /// One block, whose attention is attend(what it reads). Without dropout after it.
  Residual advance(int64_t block, const Residual& x,
                   const std::function<torch::Tensor(const torch::Tensor&)>& attend);

  /// The first `count` blocks. x [B, L, dim]; layout and rotary as MultiHeadAttention::forward.
  Residual forward(const torch::Tensor& x, int64_t count, const BatchLayout& layout,
                   const torch::Tensor& rotary);

  /// All blocks over a slice of the rows, whose earlier tokens `states` stand for, one a block;
  /// they then hold those of the slice too. See MultiHeadAttention::forward_slice.
  Residual forward_slice(const torch::Tensor& x, const SliceLayout& layout,
                         const torch::Tensor& rotary, std::vector<SliceState>& states);

 private:
  /// Attention of a block; the state is null unless slices are run.
  using Attend = std::function<torch::Tensor(Block&, const torch::Tensor&, SliceState*)>;
  Residual run(const torch::Tensor& x, int64_t count, const Attend& attend,
               std::vector<SliceState>* states);

  ModelConfig config_;
  MemoryOptions memory_;
  std::vector<Block> blocks_;
};

}  // namespace performer

#endif  // PERFORMER_NN_STACK_H_
