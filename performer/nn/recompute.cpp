// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/recompute.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "performer/nn/autocast.h"

namespace performer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;

// What the backward pass needs beside tensors.
struct Part : torch::CustomClassHolder {
  TensorBody body;
  bool autocast = false;
  Tensor random;  // before the body ran, or undefined
  size_t num_inputs = 0;
  std::vector<bool> wanted;  // of the inputs
};

struct Recompute : torch::autograd::Function<Recompute> {
  static TensorList forward(AutogradContext* context, at::TensorList inputs,
                            at::TensorList parameters, const c10::intrusive_ptr<Part>& part) {
    const NoCastCache no_cache;
    TensorList kept = inputs.vec();
    const TensorList outputs = part->body(kept);
    kept.insert(kept.end(), parameters.begin(), parameters.end());
    context->save_for_backward(std::move(kept));
    context->saved_data["part"] = c10::IValue::make_capsule(part);
    context->set_materialize_grads(false);
    return outputs;
  }

  static TensorList backward(AutogradContext* context, const TensorList& douts) {
    const auto part =
        c10::static_intrusive_pointer_cast<Part>(context->saved_data["part"].toCapsule());
    const TensorList saved = context->get_saved_variables();
    const auto split = saved.begin() + static_cast<std::ptrdiff_t>(part->num_inputs);
    TensorList wanted = as_leaves({saved.begin(), split}, part->wanted);
    TensorList outputs;
    {
      const torch::AutoGradMode enable(true);
      const ReplayRandom replay(part->random);
      const Autocast autocast(part->autocast);
      outputs = part->body(wanted);
    }
    wanted.insert(wanted.end(), split, saved.end());
    TensorList gradients = gradients_of(outputs, douts, wanted);
    gradients.emplace_back();  // of the part
    return gradients;
  }
};

}  // namespace

Tensor random_state() {
  return at::globalContext().defaultGenerator(at::kCPU).get_state();
}

void set_random_state(const Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_state(state);
}

ReplayRandom::ReplayRandom(const Tensor& state) {
  if (!state.defined()) return;
  before_ = random_state();
  set_random_state(state);
}

ReplayRandom::~ReplayRandom() {
  if (before_.defined()) set_random_state(before_);
}

NoCastCache::NoCastCache() : was_enabled_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

NoCastCache::~NoCastCache() {
  at::autocast::set_autocast_cache_enabled(was_enabled_);
}

bool is_autocast() {
  return at::autocast::is_autocast_enabled(at::kCPU);
}

TensorList as_leaves(const TensorList& tensors, const std::vector<bool>& wanted) {
  TensorList leaves;
  for (size_t i = 0; i < tensors.size(); ++i) {
    leaves.push_back(tensors[i].detach());
    if (wanted[i]) leaves.back().requires_grad_(true);
  }
  return leaves;
}

TensorList gradients_of(const TensorList& outputs, const TensorList& douts,
                        const TensorList& wanted) {
  TensorList from, weights, leaves;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad() || !douts[i].defined()) continue;
    from.push_back(outputs[i]);
    weights.push_back(douts[i]);
  }
  for (const Tensor& leaf : wanted) {
    if (leaf.requires_grad()) leaves.push_back(leaf);
  }
  TensorList gradients(wanted.size());
  if (from.empty() || leaves.empty()) return gradients;
  const TensorList found =
      torch::autograd::grad(from, leaves, weights, /*retain_graph=*/std::nullopt,
                            /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0, next = 0; i < wanted.size(); ++i) {
    if (wanted[i].requires_grad()) gradients[i] = found[next++];
  }
  return gradients;
}

TensorList recompute(TensorBody body, const TensorList& inputs, const TensorList& parameters,
                     bool draws) {
  const auto needs = [](const Tensor& x) { return x.requires_grad(); };
  const bool records =
      at::GradMode::is_enabled() && (std::any_of(inputs.begin(), inputs.end(), needs) ||
                                     std::any_of(parameters.begin(), parameters.end(), needs));
  if (!records) return body(inputs);
  auto part = c10::make_intrusive<Part>();
  part->body = std::move(body);
  part->autocast = is_autocast();
  if (draws) part->random = random_state();
  part->num_inputs = inputs.size();
  for (const Tensor& input : inputs) part->wanted.push_back(input.requires_grad());
  return Recompute::apply(at::TensorList(inputs), at::TensorList(parameters), part);
}

Tensor by_chunks(const std::function<Tensor(const Tensor&)>& body, const Tensor& x, int64_t chunk,
                 const TensorList& parameters) {
  const int64_t tokens = x.numel() / std::max<int64_t>(x.size(-1), 1);
  if (chunk <= 0 || tokens <= chunk) return body(x);
  TensorList results;
  // Split, not sliced: the backward pass of a split is one copy.
  for (const Tensor& piece : x.reshape({tokens, x.size(-1)}).split(chunk)) {
    results.push_back(recompute([body](const TensorList& in) { return TensorList{body(in[0])}; },
                                {piece}, parameters, /*draws=*/false)[0]);
  }
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = results[0].size(-1);
  return torch::cat(results).view(sizes);
}

}  // namespace performer
