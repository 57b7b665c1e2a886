// SPDX-License-Identifier: Apache-2.0
// One method of attention, as the layer around it sees it: queries, keys and values of some heads
// in, outputs out. Formulas of all methods: docs/methods.md.
#ifndef PERFORMER_NN_ATTENTION_CORE_H_
#define PERFORMER_NN_ATTENTION_CORE_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "performer/models/config.h"
#include "performer/nn/attention_state.h"
#include "performer/nn/layout.h"

namespace performer {

/// What one core is made of.
struct AttentionCoreOptions {
  int64_t num_heads = 1;   ///< H, those of this core
  int64_t first_head = 0;  ///< the layer's number of the first of them
  int64_t head_dim = 1;    ///< D
  int64_t layer = 0;
  int64_t max_length = 0;  ///< of a row; for parameters whose size depends on it
  bool causal = true;
  AttentionOptions attention;
};

/// Attention of H heads by one method. Implementations keep their parameters and buffers in the
/// layer (`owner`), under names that do not depend on the heads.
class AttentionCore {
 public:
  virtual ~AttentionCore() = default;

  /// q, k [B, H, L, D], v [B, H, L, E] -> [B, H, L, E], linear in v and differentiable in all.
  /// The layout has been checked. Rows of padded queries are whatever the method gives, without
  /// effect on others; a query that sees no key gives 0.
  virtual torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k,
                                const torch::Tensor& v, const BatchLayout& layout) = 0;

  /// The rows of forward for tokens that follow those in `state`, which then holds them too.
  /// Causal cores only; records no gradient.
  virtual torch::Tensor decode(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, HeadsState& state);

  /// A state as B streams have it after `position` >= 1 tokens, whose arrays are still to be
  /// filled.
  virtual HeadsState blank_state(int64_t B, int64_t position) const;

  /// Throws favor::Error, opening with `where`, for a state that is not of B streams of this core
  /// after `position` tokens.
  virtual void check_state(const std::string& where, const HeadsState& state, int64_t B,
                           int64_t position) const;

  /// Draws the random matrices of redraw index `index` in place.
  virtual void redraw(uint32_t) {}
};

/// The core of options.attention.method, which registers what it has with `owner`. Throws
/// favor::Error for options out of range or a method without a causal form.
std::unique_ptr<AttentionCore> make_attention_core(const AttentionCoreOptions& options,
                                                   torch::nn::Module& owner);

/// Calls attend(q, k, v, key_padding_mask) for each sequence of the rows by itself and joins the
/// results; without packing once, for whole rows.
torch::Tensor for_each_sequence(
    const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
    const BatchLayout& layout,
    const std::function<torch::Tensor(const torch::Tensor& q, const torch::Tensor& k,
                                      const torch::Tensor& v, const torch::Tensor& mask)>& attend);

}  // namespace performer

#endif  // PERFORMER_NN_ATTENTION_CORE_H_
