// SPDX-License-Identifier: Apache-2.0
// Decoding: the functional operator of one token, and streams that continue a state in place.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "favor/attention.h"
#include "favor/check.h"
#include "favor/hybrid_state.h"
#include "favor/snapshot.h"
#include "performer/ops/kernels.h"
#include "performer/ops/parameters.h"
#include "performer/ops/signatures.h"

namespace performer {
namespace ops {
namespace {

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  const float* data = flat.const_data_ptr<float>();
  return {data, data + flat.numel()};
}

at::Tensor tensor_of(const std::vector<float>& values, at::IntArrayRef sizes) {
  at::Tensor tensor = at::empty(sizes, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

void check_state(const char* op, const char* name, const at::Tensor& tensor,
                 at::IntArrayRef expected) {
  FAVOR_CHECK(
      tensor.scalar_type() == at::kFloat && tensor.device().is_cpu() && tensor.sizes() == expected,
      op, ": ", name, " is ", tensor.scalar_type(), " of shape ", shape_of(tensor),
      ", expected Float of shape ", expected, " on the CPU");
}

void check_not_double(const char* op, const at::Tensor& q) {
  FAVOR_CHECK(
      q.scalar_type() != at::kDouble, op,
      ": q has dtype Double, expected Float, BFloat16 or Half (decoding states are float32)");
}

// for_type_of, without double.
template <class Run>
void for_state_type_of(const at::Tensor& q, const Run& run) {
  for_type_of(q, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, double>) run(T());
  });
}

// Token t alone.
template <class T>
favor::View4<T> token_of(favor::View4<T> view, int64_t t) {
  view.data += t * view.strides[2];
  view.sizes[2] = 1;
  return view;
}

// A state that Python holds: torch.classes.performer.DecodeState.
struct HeldState : torch::CustomClassHolder {
  std::variant<favor::DecodeState, favor::HybridState> value;

  static c10::intrusive_ptr<HeldState> clone(const c10::intrusive_ptr<HeldState>& self) {
    auto copy = c10::make_intrusive<HeldState>();
    copy->value = self->value;
    return copy;
  }
  static c10::intrusive_ptr<HeldState> merge(const c10::intrusive_ptr<HeldState>& self,
                                             const c10::intrusive_ptr<HeldState>& other) {
    auto merged = clone(self);
    auto* into = std::get_if<favor::DecodeState>(&merged->value);
    const auto* added = std::get_if<favor::DecodeState>(&other->value);
    FAVOR_CHECK(
        into != nullptr && added != nullptr,
        "merge: the states have a window, expected none (which keys are near depends on the "
        "position)");
    favor::merge(*into, *added);
    return merged;
  }
  static int64_t position(const c10::intrusive_ptr<HeldState>& self) {
    return std::visit([](const auto& value) { return value.position; }, self->value);
  }
};

bool is_empty(const HeldState& state) {
  return std::visit([](const auto& value) { return value.B == 0 && value.position == 0; },
                    state.value);
}

at::Tensor stream_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const c10::intrusive_ptr<HeldState>& state, const FavorArguments& arguments) {
  if (arguments.window > 0 && is_empty(*state)) state->value = favor::HybridState();
  return std::visit([&](auto& value) { return favor_decode(q, k, v, arguments, value); },
                    state->value);
}

using StatePointer = c10::intrusive_ptr<HeldState>;

template <class State>
StatePointer hold(State state) {
  auto held = c10::make_intrusive<HeldState>();
  held->value = std::move(state);
  return held;
}

// The parameters of a stream, without the tensors of a call.
Parameters<float> stream_parameters(const char* op, int64_t num_heads, int64_t head_dim,
                                    const FavorArguments& arguments) {
  const at::Tensor none = at::empty({0, num_heads, 0, head_dim}, at::kFloat);
  return Parameters<float>(op, none, none, arguments);
}

int64_t heads_of(const HeldState& state) {
  return std::visit([](const auto& value) { return value.H; }, state.value);
}

// Key heads of a state that is still to be read: one matrix serves any number of them.
int64_t heads_of(const FavorArguments& arguments) {
  const auto& matrix = arguments.projection;
  return matrix && matrix->dim() == 3 ? matrix->size(0) : 1;
}

at::Tensor state_to_bytes(const StatePointer& state, int64_t head_dim,
                          const FavorArguments& arguments) {
  const auto params = stream_parameters("state_to_bytes", heads_of(*state), head_dim, arguments);
  const auto* hybrid = std::get_if<favor::HybridState>(&state->value);
  const std::string bytes = hybrid != nullptr
                                ? favor::state_to_bytes(*hybrid, params.value)
                                : favor::state_to_bytes(std::get<favor::DecodeState>(state->value),
                                                        params.value, head_dim);
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), tensor.mutable_data_ptr<uint8_t>());
  return tensor;
}

StatePointer state_from_bytes(const at::Tensor& bytes, int64_t head_dim,
                              const FavorArguments& arguments) {
  const char* op = "state_from_bytes";
  FAVOR_CHECK(bytes.scalar_type() == at::kByte && bytes.device().is_cpu() && bytes.dim() == 1, op,
              ": bytes is ", bytes.scalar_type(), " of shape ", shape_of(bytes),
              ", expected Byte with 1 dimension on the CPU");
  const auto params = stream_parameters(op, heads_of(arguments), head_dim, arguments);
  const at::Tensor flat = bytes.contiguous();
  const std::string_view view(static_cast<const char*>(flat.const_data_ptr()),
                              static_cast<size_t>(flat.numel()));
  const char* name = "bytes of a state";
  if (arguments.window > 0) {
    return hold(favor::hybrid_state_from_bytes(view, params.value, head_dim, name));
  }
  return hold(favor::state_from_bytes(view, params.value, head_dim, name));
}

void save_state(const StatePointer& state, std::string_view path, int64_t head_dim,
                const FavorArguments& arguments) {
  const auto params = stream_parameters("save_state", heads_of(*state), head_dim, arguments);
  const std::string to(path);
  if (const auto* hybrid = std::get_if<favor::HybridState>(&state->value)) {
    favor::save_state(to, *hybrid, params.value);
  } else {
    favor::save_state(to, std::get<favor::DecodeState>(state->value), params.value, head_dim);
  }
}

StatePointer load_state(std::string_view path, int64_t head_dim, const FavorArguments& arguments) {
  const auto params = stream_parameters("load_state", heads_of(arguments), head_dim, arguments);
  const std::string from(path);
  if (arguments.window > 0) return hold(favor::load_hybrid_state(from, params.value, head_dim));
  return hold(favor::load_state(from, params.value, head_dim));
}

}  // namespace

DecodeResult decode_step_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& c, const at::Tensor& S, const at::Tensor& z,
                             int64_t position, const FavorArguments& arguments) {
  const char* op = "decode_step";
  check_inputs(op, q, k, v);
  check_not_double(op, q);
  const Parameters<float> params(op, q, k, arguments);
  favor::DecodeState state;
  state.B = q.size(0);
  state.H = k.size(1);
  state.M = params.M;
  state.E = v.size(3);
  check_state(op, "c", c, {state.B, state.H, state.M});
  check_state(op, "S", S, {state.B, state.H, state.M, state.E});
  check_state(op, "z", z, {state.B, state.H, state.M});
  state.position = position;
  state.c = values_of(c);
  state.S = values_of(S);
  state.z = values_of(z);
  at::Tensor out = empty_rows(q, state.E);
  for_state_type_of(q, [&]<class T>(T) {
    const Inputs<T> in(q, k, v);
    favor::decode_step(params.value, in.q, in.k, in.v, state, view_of<T>(out));
  });
  favor::flush(state);  // the operator's state is c, S and z alone
  return {out, tensor_of(state.c, c.sizes()), tensor_of(state.S, S.sizes()),
          tensor_of(state.z, z.sizes())};
}

}  // namespace ops

at::Tensor favor_decode(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const FavorArguments& arguments, favor::HybridState& state) {
  using namespace ops;
  const char* op = "favor_decode";
  check_inputs(op, q, k, v);
  check_not_double(op, q);
  const int64_t T = q.size(2);
  FAVOR_CHECK(k.size(2) == T, op, ": k has ", k.size(2), " tokens, expected ", T, " (as q)");
  const Inputs<float> in(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat));
  at::Tensor out = empty_rows(in.q_rows, v.size(3));
  const favor::View4<float> out_view = view_of<float>(out);
  const Parameters<float> params(op, q, k, arguments);
  if (state.B == 0 && state.position == 0) {
    favor::causal_forward<float>(params.value, in.q, in.k, in.v, out_view);
    favor::HybridState started(q.size(0), k.size(1), params.M, q.size(3), v.size(3),
                               arguments.window, arguments.sinks);
    favor::hybrid_absorb(params.value, in.k, in.v, started);
    state = std::move(started);
    return out.to(q.scalar_type());
  }
  FavorArguments token = arguments;
  for (int64_t t = 0; t < T; ++t) {
    const auto of_token = [t](const std::optional<at::Tensor>& keys) {
      return keys ? std::optional<at::Tensor>(keys->slice(-1, t, t + 1)) : std::nullopt;
    };
    token.key_padding_mask = of_token(arguments.key_padding_mask);
    token.key_log_weight = of_token(arguments.key_log_weight);
    const Parameters<float> of_one(op, q, k.slice(2, t, t + 1), token);
    favor::hybrid_decode_step(of_one.value, token_of(in.q, t), token_of(in.k, t), token_of(in.v, t),
                              state, token_of(out_view, t));
  }
  return out.to(q.scalar_type());
}

at::Tensor favor_decode(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const FavorArguments& arguments, favor::DecodeState& state) {
  using namespace ops;
  const char* op = "favor_decode";
  check_inputs(op, q, k, v);
  check_not_double(op, q);
  const Parameters<float> params(op, q, k, arguments);
  at::Tensor out = empty_rows(q, v.size(3));
  const bool is_new = state.B == 0 && state.position == 0;
  for_state_type_of(q, [&]<class T>(T) {
    const Inputs<T> in(q, k, v);
    if (q.size(2) == 1 && k.size(2) == 1 && !is_new) {
      favor::decode_step(params.value, in.q, in.k, in.v, state, view_of<T>(out));
      return;
    }
    favor::DecodeState final_state(q.size(0), k.size(1), params.M, v.size(3));
    favor::causal_forward<T>(params.value, in.q, in.k, in.v, view_of<T>(out), nullptr,
                             is_new ? nullptr : &state, &final_state);
    state = std::move(final_state);
  });
  return out;
}

void favor_decode(const favor::View4<const float>& q, const favor::View4<const float>& k,
                  const favor::View4<const float>& v, const FavorArguments& arguments,
                  favor::DecodeState& state, const favor::View4<float>& out) {
  // What is checked against the arguments are the shapes.
  const auto shape = [](const favor::View4<const float>& view) {
    return at::from_blob(const_cast<float*>(view.data), view.sizes, view.strides, at::kFloat);
  };
  const ops::Parameters<float> params("favor_decode", shape(q), shape(k), arguments);
  favor::decode_step(params.value, q, k, v, state, out);
}

}  // namespace performer

TORCH_LIBRARY_FRAGMENT(performer, m) {
  using namespace performer::ops;
  m.class_<HeldState>("DecodeState")
      .def(torch::init<>())
      .def("clone", HeldState::clone)
      .def("merge", HeldState::merge)
      .def("position", HeldState::position);
  const std::string state = "__torch__.torch.classes.performer.DecodeState";
  const std::string arguments = performer::schema_of(performer::FavorArguments());
  const auto define = [&](const std::string& schema) { m.def(schema.c_str()); };
  define("stream(Tensor q, Tensor k, Tensor v, " + state + " state, *, " + arguments +
         ") -> Tensor");
  define("state_to_bytes(" + state + " state, int head_dim, *, " + arguments + ") -> Tensor");
  define("state_from_bytes(Tensor bytes, int head_dim, *, " + arguments + ") -> " + state);
  define("save_state(" + state + " state, str path, int head_dim, *, " + arguments + ") -> ()");
  define("load_state(str path, int head_dim, *, " + arguments + ") -> " + state);
}

TORCH_LIBRARY_IMPL(performer, CPU, m) {
  using namespace performer::ops;
  m.impl("stream", kernel_of<stream_cpu>);
}

TORCH_LIBRARY_IMPL(performer, CompositeExplicitAutograd, m) {
  using namespace performer::ops;
  m.impl("state_to_bytes", kernel_of<state_to_bytes>);
  m.impl("state_from_bytes", kernel_of<state_from_bytes>);
  m.impl("save_state", kernel_of<save_state>);
  m.impl("load_state", kernel_of<load_state>);
}
