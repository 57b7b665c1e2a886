// SPDX-License-Identifier: Apache-2.0
#include "performer/models/memory.h"

#include "favor/check.h"
#include "favor/words.h"

namespace performer {
namespace {

constexpr favor::Word<ActivationPolicy> kPolicies[] = {
    {ActivationPolicy::kAuto, "auto"},
    {ActivationPolicy::kStore, "store"},
    {ActivationPolicy::kCheckpoint, "checkpoint"},
    {ActivationPolicy::kReverse, "reverse"},
};

}  // namespace

std::string to_string(ActivationPolicy policy) {
  return favor::word_of(kPolicies, policy);
}

ActivationPolicy activation_policy_from_string(std::string_view word) {
  return favor::value_of(kPolicies, word, "activation");
}

ActivationPolicy MemoryOptions::resolve(const ModelConfig& model) const {
  if (activation != ActivationPolicy::kAuto) return activation;
  return model.reversible ? ActivationPolicy::kReverse : ActivationPolicy::kStore;
}

void MemoryOptions::check(const ModelConfig& model) const {
  FAVOR_CHECK(activation != ActivationPolicy::kReverse || model.reversible,
              "activation is reverse, expected auto, store or checkpoint with reversible = false "
              "(inputs of a layer follow from its outputs in reversible models only)");
  const auto not_negative = [](const char* name, int64_t value) {
    FAVOR_CHECK(value >= 0, name, " is ", value, ", expected 0 (all at once) or more tokens");
  };
  not_negative("ff_chunk", ff_chunk);
  not_negative("loss_chunk", loss_chunk);
  not_negative("slice_tokens", slice_tokens);
  FAVOR_CHECK(loss_chunk == 0 || model.head == HeadKind::kTokens, "loss_chunk is ", loss_chunk,
              ", expected 0 with head ", to_string(model.head),
              " (a row has the logits of its classes alone)");
  if (slice_tokens == 0) return;
  FAVOR_CHECK(model.causal, "slice_tokens is ", slice_tokens,
              ", expected 0 with causal = false (tokens of an encoder see those of later slices)");
  FAVOR_CHECK(model.attention.keeps_sums(), "slice_tokens is ", slice_tokens,
              ", expected 0 with attention ", to_string(model.attention.method),
              model.attention.window > 0        ? " and a window"
              : model.attention.local_heads > 0 ? " and local_heads"
                                                : "",
              " (it has no sums that stand for the tokens of earlier slices)");
}

bool MemoryOptions::fits(const ModelConfig& model) const {
  try {
    check(model);
    return true;
  } catch (const favor::Error&) {
    return false;
  }
}

}  // namespace performer
