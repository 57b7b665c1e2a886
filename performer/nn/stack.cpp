// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/stack.h"

#include <memory>

#include "performer/nn/reversible.h"

namespace performer {
namespace {

using torch::Tensor;

// {x or x1, x2, others...} -> the same after a layer of f and g, as reversible.h has them; a plain
// layer gives f and g the stream that it adds to.
TensorBody layer_of(const TensorBody& f, const TensorBody& g, bool reversible) {
  return [=](const TensorList& in) {
    const size_t streams = reversible ? 2 : 1;
    TensorList f_in = {in[streams - 1]};
    f_in.insert(f_in.end(), in.begin() + static_cast<std::ptrdiff_t>(streams), in.end());
    TensorList out = f(f_in);
    out[0] = in[0] + out[0];
    const Tensor last = in[streams - 1];
    const Tensor gained = g({out[0]})[0];
    if (!reversible) {
      out[0] = out[0] + gained;
    } else {
      out.insert(out.begin() + 1, last + gained);
    }
    return out;
  };
}

}  // namespace

Tensor Residual::value() const {
  return second.defined() ? (first + second) * 0.5 : first;
}

BlockStack::BlockStack(const ModelConfig& config) : config_(config) {
  for (int64_t i = 0; i < config.num_layers; ++i) blocks_.push_back(Block(config, i));
}

void BlockStack::set_memory(const MemoryOptions& options) {
  options.check(config_);
  memory_ = options;
  for (Block& block : blocks_) block->set_ff_chunk(options.ff_chunk);
}

Residual BlockStack::open(const Tensor& embedded) const {
  return {embedded, config_.reversible ? embedded : Tensor()};
}

Residual BlockStack::advance(int64_t block, const Residual& x,
                             const std::function<Tensor(const Tensor&)>& attend) {
  const Tensor first = x.first + attend(x.attended());
  const Tensor gained = blocks_[static_cast<size_t>(block)]->transform(first, /*drops=*/false);
  if (!x.second.defined()) return {first + gained, {}};
  return {first, x.second + gained};
}

Residual BlockStack::forward(const Tensor& x, int64_t count, const BatchLayout& layout,
                             const Tensor& rotary) {
  // By value: what is computed again may come after the caller's objects have gone.
  return run(
      x, count,
      [layout, rotary](Block& block, const Tensor& in, SliceState*) {
        return block->attend(in, layout, rotary);
      },
      nullptr);
}

Residual BlockStack::forward_slice(const Tensor& x, const SliceLayout& layout, const Tensor& rotary,
                                   std::vector<SliceState>& states) {
  return run(
      x, size(),
      [layout, rotary](Block& block, const Tensor& in, SliceState* state) {
        return block->attend_slice(in, layout, rotary, *state);
      },
      &states);
}

Residual BlockStack::run(const Tensor& x, int64_t count, const Attend& attend,
                         std::vector<SliceState>* states) {
  const bool records = at::GradMode::is_enabled();
  const ActivationPolicy policy = records ? memory_.resolve(config_) : ActivationPolicy::kStore;
  const bool has_state = states != nullptr;
  const auto tape = std::make_shared<ReversibleTape>();
  const Residual start = open(x);
  TensorList stream = {start.first};
  if (config_.reversible) stream.push_back(start.second);
  const size_t streams = stream.size();
  for (int64_t i = 0; i < count; ++i) {
    const Block& block = blocks_[static_cast<size_t>(i)];
    const TensorBody f = [block, attend, has_state](const TensorList& in) {
      Block own = block;
      SliceState state;
      if (has_state) state = {in[1], in[2], in[3]};
      const Tensor gained = attend(own, in[0], has_state ? &state : nullptr);
      if (!has_state) return TensorList{gained};
      return TensorList{gained, state.c, state.S, state.z};
    };
    const TensorBody g = [block](const TensorList& in) {
      Block own = block;
      return TensorList{own->transform(in[0])};
    };
    if (has_state) {
      const SliceState& state = (*states)[static_cast<size_t>(i)];
      stream.insert(stream.end(), {state.c, state.S, state.z});
    }
    const bool draws = block->is_training() && config_.dropout > 0;
    if (policy == ActivationPolicy::kReverse) {
      stream = reversible_layer(
          {f, g, block->attend_parameters(), block->transform_parameters(), draws}, tape, stream);
    } else if (policy == ActivationPolicy::kCheckpoint) {
      stream = recompute(layer_of(f, g, config_.reversible), stream, block->parameters(), draws);
    } else {
      stream = layer_of(f, g, config_.reversible)(stream);
    }
    if (has_state) {
      (*states)[static_cast<size_t>(i)] = {stream[streams], stream[streams + 1],
                                           stream[streams + 2]};
      stream.resize(streams);
    }
  }
  return {stream[0], config_.reversible ? stream[1] : Tensor()};
}

}  // namespace performer
