// SPDX-License-Identifier: Apache-2.0
#include "performer/train/step.h"

#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "performer/nn/autocast.h"

namespace performer {
namespace {

using torch::Tensor;

// A slice's states as leaves whose gradients are wanted; c carries none.
std::vector<SliceState> with_gradients(const std::vector<SliceState>& states) {
  std::vector<SliceState> leaves;
  for (const SliceState& state : states) {
    leaves.push_back(
        {state.c, state.S.detach().requires_grad_(true), state.z.detach().requires_grad_(true)});
  }
  return leaves;
}

double add_slice_gradients(LanguageModel& model, const BatchTensors& batch, double divisor,
                           bool bfloat16) {
  const int64_t L = batch.tokens.size(1), C = model->memory().slice_tokens;
  const int64_t slices = (L + C - 1) / C;
  const bool draws = model->is_training() && model->config().dropout > 0;
  const auto run = [&](int64_t slice, std::vector<SliceState>& states) {
    return model->hidden_slice(batch.tokens, batch.layout, slice * C, std::min(L, (slice + 1) * C),
                               states);
  };
  std::vector<std::vector<SliceState>> before(static_cast<size_t>(slices));
  std::vector<Tensor> random(static_cast<size_t>(slices));  // the last one goes on from here
  std::vector<SliceState> states;
  {
    const torch::NoGradGuard no_grad;
    const Autocast autocast(bfloat16);
    for (int64_t slice = 0; slice + 1 < slices; ++slice) {
      before[slice] = states;
      if (draws) random[slice] = random_state();
      run(slice, states);
    }
  }
  before.back() = states;
  double loss = 0;
  std::vector<Tensor> wanted;  // gradients of S and z after the slice at hand
  for (int64_t slice = slices - 1; slice >= 0; --slice) {
    const ReplayRandom replay(random[slice]);
    std::vector<SliceState> leaves = with_gradients(before[slice]);
    states = leaves;
    Tensor summed;
    {
      const Autocast autocast(bfloat16);
      const Tensor hidden = run(slice, states);
      summed = output_loss(model, hidden,
                           batch.targets.slice(1, slice * C, std::min(L, (slice + 1) * C)));
    }
    loss += summed.item<double>();
    std::vector<Tensor> roots = {summed / divisor}, weights = {Tensor()};
    for (size_t i = 0; i < states.size() && !wanted.empty(); ++i) {
      roots.insert(roots.end(), {states[i].S, states[i].z});
      weights.insert(weights.end(), {wanted[2 * i], wanted[2 * i + 1]});
    }
    states.clear();
    torch::autograd::backward(roots, weights);
    wanted.clear();
    for (const SliceState& leaf : leaves) {
      // Where a sequence ends at the border, nothing is wanted of the state before.
      const auto of = [](const Tensor& x) {
        return x.grad().defined() ? x.grad() : torch::zeros_like(x);
      };
      wanted.push_back(of(leaf.S));
      wanted.push_back(of(leaf.z));
    }
    before[slice].clear();
  }
  return loss;
}

}  // namespace

Tensor output_loss(LanguageModel& model, const Tensor& hidden, const Tensor& targets) {
  const int64_t chunk = model->memory().loss_chunk;
  if (chunk <= 0 || targets.numel() <= chunk) {
    return summed_loss(model->logits(hidden), targets);
  }
  const TensorList parameters = model->output_parameters();
  const TensorList rows = hidden.flatten(0, 1).split(chunk);
  const TensorList wanted = targets.flatten().split(chunk);
  TensorList losses;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto body = [model, target = wanted[i].unsqueeze(0)](const TensorList& in) mutable {
      return TensorList{summed_loss(model->logits(in[0]).unsqueeze(0), target)};
    };
    losses.push_back(recompute(body, {rows[i]}, parameters, /*draws=*/false)[0]);
  }
  return torch::stack(losses).sum();
}

double add_gradients(LanguageModel& model, const BatchTensors& batch, double divisor,
                     bool bfloat16) {
  const int64_t C = model->memory().slice_tokens;
  if (C > 0 && batch.tokens.size(1) > C) {
    return add_slice_gradients(model, batch, divisor, bfloat16);
  }
  Tensor summed;
  {
    const Autocast autocast(bfloat16);
    summed = model->config().head == HeadKind::kTokens
                 ? output_loss(model, model->hidden(batch.tokens, batch.layout), batch.targets)
                 : summed_loss(model->forward(batch.tokens, batch.layout), batch.targets);
  }
  const double loss = summed.item<double>();
  (summed / divisor).backward();
  return loss;
}

}  // namespace performer
