// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/reversible.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "performer/nn/autocast.h"

namespace performer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;

// What the backward pass of a layer needs beside tensors.
struct LayerCall : torch::CustomClassHolder {
  ReversibleLayer layer;
  std::shared_ptr<ReversibleTape> tape;
  int64_t depth = 0;
  bool autocast = false;
  Tensor f_random, g_random;  // before f and g ran, or undefined
  std::vector<bool> wanted;   // of the others
};

Tensor sum(const Tensor& a, const Tensor& b) {
  return !a.defined() ? b : !b.defined() ? a : a + b;
}

// A body run with recording on leaves of its own.
TensorList replay(const TensorBody& body, const TensorList& leaves, const Tensor& random,
                  bool autocast) {
  const torch::AutoGradMode enable(true);
  const ReplayRandom replayed(random);
  const Autocast cast(autocast);
  return body(leaves);
}

struct Reversible : torch::autograd::Function<Reversible> {
  static TensorList forward(AutogradContext* context, const Tensor& x1, const Tensor& x2,
                            at::TensorList others, at::TensorList /*f_parameters*/,
                            at::TensorList /*g_parameters*/,
                            const c10::intrusive_ptr<LayerCall>& call) {
    const NoCastCache no_cache;
    if (call->layer.draws) call->f_random = random_state();
    TensorList inputs = {x2};
    inputs.insert(inputs.end(), others.begin(), others.end());
    TensorList outputs = call->layer.f(inputs);
    const Tensor y1 = x1 + outputs[0];
    if (call->layer.draws) call->g_random = random_state();
    const Tensor y2 = x2 + call->layer.g({y1})[0];
    // The others are states between slices, small beside activations.
    context->save_for_backward(others.vec());
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->set_materialize_grads(false);
    ReversibleTape& tape = *call->tape;
    tape.y1 = y1.detach();
    tape.y2 = y2.detach();
    call->depth = ++tape.depth;
    outputs[0] = y2;
    outputs.insert(outputs.begin(), y1);
    return outputs;
  }

  static TensorList backward(AutogradContext* context, const TensorList& douts) {
    const auto call =
        c10::static_intrusive_pointer_cast<LayerCall>(context->saved_data["call"].toCapsule());
    const ReversibleLayer& layer = call->layer;
    ReversibleTape& tape = *call->tape;
    if (tape.depth != call->depth) {
      throw std::logic_error(
          "reversible_layer: a backward pass takes the layers out of order or "
          "a second time, expected each once from the last to the first");
    }
    // g, and x2 from it.
    const Tensor y1 = as_leaves({tape.y1}, {true})[0];
    const TensorList g_out = replay(layer.g, {y1}, call->g_random, call->autocast);
    const Tensor x2_value = tape.y2 - g_out[0].detach();
    TensorList wanted = {y1};
    wanted.insert(wanted.end(), layer.g_parameters.begin(), layer.g_parameters.end());
    const TensorList g_gradients = gradients_of(g_out, {douts[1]}, wanted);
    const Tensor dy1 = sum(douts[0], g_gradients[0]);
    // f, and x1 from it.
    const TensorList others = as_leaves(context->get_saved_variables(), call->wanted);
    TensorList leaves = as_leaves({x2_value}, {true});
    leaves.insert(leaves.end(), others.begin(), others.end());
    const TensorList f_out = replay(layer.f, leaves, call->f_random, call->autocast);
    tape.y1 = tape.y1 - f_out[0].detach();
    tape.y2 = x2_value;
    --tape.depth;
    TensorList f_douts = {dy1};
    f_douts.insert(f_douts.end(), douts.begin() + 2, douts.end());
    leaves.insert(leaves.end(), layer.f_parameters.begin(), layer.f_parameters.end());
    const TensorList f_gradients = gradients_of(f_out, f_douts, leaves);
    TensorList gradients = {dy1, sum(douts[1], f_gradients[0])};
    gradients.insert(gradients.end(), f_gradients.begin() + 1, f_gradients.end());
    gradients.insert(gradients.end(), g_gradients.begin() + 1, g_gradients.end());
    gradients.emplace_back();  // of the call
    return gradients;
  }
};

}  // namespace

TensorList reversible_layer(ReversibleLayer layer, const std::shared_ptr<ReversibleTape>& tape,
                            const TensorList& inputs) {
  auto call = c10::make_intrusive<LayerCall>();
  call->layer = std::move(layer);
  call->tape = tape;
  call->autocast = is_autocast();
  const TensorList others(inputs.begin() + 2, inputs.end());
  for (const Tensor& other : others) call->wanted.push_back(other.requires_grad());
  return Reversible::apply(inputs[0], inputs[1], at::TensorList(others),
                           at::TensorList(call->layer.f_parameters),
                           at::TensorList(call->layer.g_parameters), call);
}

}  // namespace performer
