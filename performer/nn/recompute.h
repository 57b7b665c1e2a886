// SPDX-License-Identifier: Apache-2.0
// Gradient checkpointing: parts of a model whose activations are not kept but computed again when
// the backward pass comes to them. Two passes over a part give the same numbers, dropout included.
#ifndef PERFORMER_NN_RECOMPUTE_H_
#define PERFORMER_NN_RECOMPUTE_H_

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace performer {

using TensorList = std::vector<torch::Tensor>;
/// A part of a model: a function of its inputs and of parameters that it holds itself.
using TensorBody = std::function<TensorList(const TensorList&)>;

/// Returns body(inputs). While a gradient is recorded nothing of it is kept but the inputs, and the
/// backward pass runs the body again, under the autocast and the random state of the first time.
/// `parameters` are the leaves that the body uses beside its inputs; `draws` says whether it draws
/// random numbers. First derivatives only.
TensorList recompute(TensorBody body, const TensorList& inputs, const TensorList& parameters,
                     bool draws);

/// The same for a function of tokens that treats each alone: x [..., dim] -> [..., n] in pieces of
/// `chunk` tokens, so that one piece's activations are alive at a time. 0: all at once, recorded.
torch::Tensor by_chunks(const std::function<torch::Tensor(const torch::Tensor&)>& body,
                        const torch::Tensor& x, int64_t chunk, const TensorList& parameters);

/// The state of torch's CPU generator, bytes.
torch::Tensor random_state();
void set_random_state(const torch::Tensor& state);

/// For its lifetime torch's generator goes on from `state` (undefined: from where it is); then it
/// is put back to where it was.
class ReplayRandom {
 public:
  explicit ReplayRandom(const torch::Tensor& state);
  ~ReplayRandom();
  ReplayRandom(const ReplayRandom&) = delete;
  ReplayRandom& operator=(const ReplayRandom&) = delete;

 private:
  torch::Tensor before_;
};

/// For its lifetime no weight that autocast casts is kept: one cast without a gradient must not
/// serve a later use that records one.
class NoCastCache {
 public:
  NoCastCache();
  ~NoCastCache();
  NoCastCache(const NoCastCache&) = delete;
  NoCastCache& operator=(const NoCastCache&) = delete;

 private:
  bool was_enabled_;
};

/// Whether this thread runs under autocast.
bool is_autocast();

/// Gradients of sum(outputs . douts) by `wanted`, each undefined where nothing reaches it. Outputs
/// without a gradient or a dout count nothing.
TensorList gradients_of(const TensorList& outputs, const TensorList& douts,
                        const TensorList& wanted);

/// Copies of tensors as leaves of a graph of their own, on the same memory; those that no gradient
/// was asked of stay without.
TensorList as_leaves(const TensorList& tensors, const std::vector<bool>& wanted);

}  // namespace performer

#endif  // PERFORMER_NN_RECOMPUTE_H_
