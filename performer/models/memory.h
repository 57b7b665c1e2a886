// SPDX-License-Identifier: Apache-2.0
// What a training step keeps in memory and what it computes again. None of it changes what a model
// is or what it learns, but for rounding. No torch here.
#ifndef PERFORMER_MODELS_MEMORY_H_
#define PERFORMER_MODELS_MEMORY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "performer/models/config.h"

namespace performer {

/// What the forward pass leaves of a block for the backward pass.
enum class ActivationPolicy {
  kAuto,        ///< kReverse for reversible models, kStore for others
  kStore,       ///< everything that its gradient needs
  kCheckpoint,  ///< its input; the rest is computed again
  kReverse,     ///< nothing: inputs are found from outputs (reversible models only)
};

std::string to_string(ActivationPolicy policy);
/// Throws favor::Error, listing the known words.
ActivationPolicy activation_policy_from_string(std::string_view word);

struct MemoryOptions {
  ActivationPolicy activation = ActivationPolicy::kAuto;
  int64_t ff_chunk = 0;    ///< tokens in the feed-forward at a time, all rows together; 0: all
  int64_t loss_chunk = 0;  ///< tokens whose logits are held at a time; 0: all
  /// Tokens of each row that go through all layers at a time, the attention's states being kept
  /// between such slices; 0: all. Causal models whose attention has a state only.
  int64_t slice_tokens = 0;

  /// `activation`, or what kAuto stands for.
  ActivationPolicy resolve(const ModelConfig& model) const;
  /// Throws favor::Error naming the first field that is out of range or does not fit the model.
  void check(const ModelConfig& model) const;
  /// Whether check() has nothing to say.
  bool fits(const ModelConfig& model) const;
};

}  // namespace performer

#endif  // PERFORMER_MODELS_MEMORY_H_
