// SPDX-License-Identifier: Apache-2.0
// CPU kernels of the operators: checks what the views of favor cannot show (types, ranks, shapes of
// the side tensors), allocates results and calls favor, whose threads are torch's own here.
#include "performer/ops/kernels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "favor/check.h"
#include "favor/parallel.h"

namespace performer::ops {
namespace {

// Tasks are claimed one by one, because causal and masked tasks differ in length.
void parallel_for_torch(int64_t num_tasks, const std::function<void(int64_t)>& body) {
  const int64_t workers = std::min<int64_t>(num_tasks, at::get_num_threads());
  if (workers <= 1 || at::in_parallel_region()) {
    for (int64_t i = 0; i < num_tasks; ++i) body(i);
    return;
  }
  std::atomic<int64_t> next{0};
  at::parallel_for(0, workers, 1, [&](int64_t, int64_t) {
    for (int64_t i = next.fetch_add(1); i < num_tasks; i = next.fetch_add(1)) body(i);
  });
}

[[maybe_unused]] const bool parallel_for_installed = [] {
  favor::set_parallel_for(parallel_for_torch);
  return true;
}();

std::string shape_of(const at::Tensor& tensor) {
  std::string text = "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.size(i));
  }
  return text + "]";
}

void check_rows(const char* op, const char* name, const at::Tensor& tensor, const char* dims,
                at::ScalarType type) {
  FAVOR_CHECK(tensor.dim() == 4, op, ": ", name, " has shape ", shape_of(tensor),
              ", expected 4 dimensions ", dims);
  FAVOR_CHECK(tensor.scalar_type() == type, op, ": ", name, " has dtype ", tensor.scalar_type(),
              ", expected ", type, " (the dtype of q)");
  FAVOR_CHECK(tensor.device().is_cpu(), op, ": ", name, " is on device ", tensor.device().str(),
              ", expected cpu");
}

void check_inputs(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  FAVOR_CHECK(q.scalar_type() == at::kFloat || q.scalar_type() == at::kDouble, op, ": q has dtype ",
              q.scalar_type(), ", expected Float or Double");
  check_rows(op, "q", q, "[B, H, L, D]", q.scalar_type());
  check_rows(op, "k", k, "[B, H, S, D]", q.scalar_type());
  check_rows(op, "v", v, "[B, H, S, E]", q.scalar_type());
}

at::Tensor rows_contiguous(const at::Tensor& tensor) {
  if (tensor.size(3) <= 1 || tensor.stride(3) == 1) return tensor;
  // To torch, a tensor without elements is contiguous whatever its strides are.
  return tensor.numel() == 0 ? at::empty(tensor.sizes(), tensor.options()) : tensor.contiguous();
}

template <class T>
favor::View4<T> view_of(const at::Tensor& tensor) {
  favor::View4<T> view;
  if constexpr (std::is_const_v<T>) {
    view.data = tensor.const_data_ptr<std::remove_const_t<T>>();
  } else {
    view.data = tensor.mutable_data_ptr<T>();
  }
  for (int i = 0; i < 4; ++i) {
    view.sizes[i] = tensor.size(i);
    view.strides[i] = tensor.stride(i);
  }
  return view;
}

at::Tensor checked_offsets(const char* op, const char* name, const at::Tensor& offsets) {
  FAVOR_CHECK(offsets.dim() == 1 && offsets.device().is_cpu() &&
                  (offsets.scalar_type() == at::kLong || offsets.scalar_type() == at::kInt),
              op, ": ", name, " is ", offsets.scalar_type(), " of shape ", shape_of(offsets),
              ", expected int64 or int32 on the CPU with 1 dimension");
  FAVOR_CHECK(offsets.numel() >= 2, op, ": ", name, " has ", offsets.numel(),
              " entries, expected at least 2 (one segment)");
  return offsets.to(at::kLong).contiguous();
}

// favor's parameters together with the tensors that own what they point to.
template <class T>
struct Parameters {
  favor::AttentionParams<T> value;
  at::Tensor projection, key_padding_mask, cu_seqlens_q, cu_seqlens_k;

  Parameters(const char* op, const at::Tensor& q, const at::Tensor& k,
             const FavorArguments& arguments) {
    value.feature_map = favor::feature_map_from_string(arguments.feature_map);
    value.scale = arguments.scale;
    value.feature_eps = arguments.feature_eps;
    if (arguments.projection) {
      const at::Tensor& given = *arguments.projection;
      FAVOR_CHECK((given.dim() == 2 || given.dim() == 3) && given.device().is_cpu() &&
                      given.is_floating_point() && given.size(-1) == q.size(3),
                  op, ": projection is ", given.scalar_type(), " of shape ", shape_of(given),
                  ", expected [M, ", q.size(3), "] or [P, M, ", q.size(3),
                  "], floating point, on the CPU (P is 1 or H = ", q.size(1), ")");
      const int64_t P = given.dim() == 3 ? given.size(0) : 1;
      FAVOR_CHECK(P == 1 || P == q.size(1), op, ": projection has shape ", shape_of(given),
                  ", expected 1 or H = ", q.size(1), " matrices");
      projection = given.to(q.scalar_type()).contiguous();
      value.projection = projection.const_data_ptr<T>();
      value.num_projections = P;
      value.num_features = given.size(-2);
    }
    if (arguments.key_padding_mask) {
      const at::Tensor& given = *arguments.key_padding_mask;
      FAVOR_CHECK(given.scalar_type() == at::kBool && given.device().is_cpu() && given.dim() == 2 &&
                      given.size(0) == k.size(0) && given.size(1) == k.size(2),
                  op, ": key_padding_mask is ", given.scalar_type(), " of shape ", shape_of(given),
                  ", expected Bool of shape [", k.size(0), ", ", k.size(2),
                  "] on the CPU (true = ignore this key)");
      key_padding_mask = given.contiguous();
      value.key_padding_mask =
          reinterpret_cast<const uint8_t*>(key_padding_mask.const_data_ptr<bool>());
    }
    FAVOR_CHECK(arguments.cu_seqlens_q.has_value() == arguments.cu_seqlens_k.has_value(), op, ": ",
                arguments.cu_seqlens_q ? "cu_seqlens_k" : "cu_seqlens_q",
                " is missing, expected both cu_seqlens or none");
    if (arguments.cu_seqlens_q) {
      cu_seqlens_q = checked_offsets(op, "cu_seqlens_q", *arguments.cu_seqlens_q);
      cu_seqlens_k = checked_offsets(op, "cu_seqlens_k", *arguments.cu_seqlens_k);
      value.cu_seqlens_q = {cu_seqlens_q.const_data_ptr<int64_t>(),
                            static_cast<size_t>(cu_seqlens_q.numel())};
      value.cu_seqlens_k = {cu_seqlens_k.const_data_ptr<int64_t>(),
                            static_cast<size_t>(cu_seqlens_k.numel())};
    }
  }
};

template <class T>
ForwardResult forward_typed(const char* op, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const FavorArguments& arguments, bool save,
                            bool is_causal) {
  const Parameters<T> params(op, q, k, arguments);
  at::Tensor out = empty_rows(q, v.size(3));
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2);
  const int64_t M = arguments.projection ? params.value.num_features : q.size(3);
  const int64_t segments =
      arguments.cu_seqlens_q ? static_cast<int64_t>(params.value.cu_seqlens_q.size()) - 1 : 1;
  at::Tensor normalizer = at::empty({0}, q.options());
  at::Tensor state = at::empty({0}, q.options());
  at::Tensor chunk_starts = at::empty({0}, q.options().dtype(at::kByte));
  favor::Saved<T> saved;
  if (save) {
    // The double path leaves what it does not need unwritten; results must not show stray memory.
    const auto make = [](at::IntArrayRef sizes, const at::TensorOptions& options) {
      return std::is_same_v<T, double> ? at::zeros(sizes, options) : at::empty(sizes, options);
    };
    normalizer = make({B, H, L}, q.options());
    state =
        make({favor::saved_state_size(B, H, L, M, v.size(3), is_causal, segments)}, q.options());
    saved.normalizer = normalizer.template mutable_data_ptr<T>();
    if (state.numel() > 0) saved.state = state.template mutable_data_ptr<T>();
    if (is_causal) {
      chunk_starts = make({B, H, L}, q.options().dtype(at::kByte));
      saved.chunk_starts = chunk_starts.mutable_data_ptr<uint8_t>();
    }
  }
  const at::Tensor q_rows = rows_contiguous(q), k_rows = rows_contiguous(k);
  const at::Tensor v_rows = rows_contiguous(v);
  favor::Saved<T>* kept = save ? &saved : nullptr;
  if (is_causal) {
    favor::causal_forward<T>(params.value, view_of<const T>(q_rows), view_of<const T>(k_rows),
                             view_of<const T>(v_rows), view_of<T>(out), kept);
  } else {
    favor::bidirectional_forward<T>(params.value, view_of<const T>(q_rows),
                                    view_of<const T>(k_rows), view_of<const T>(v_rows),
                                    view_of<T>(out), kept);
  }
  return {out, normalizer, state, chunk_starts};
}

template <class T>
BackwardResult backward_typed(const char* op, const at::Tensor& dout, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v,
                              const ForwardResult& forward, const FavorArguments& arguments,
                              bool is_causal) {
  const Parameters<T> params(op, q, k, arguments);
  const auto& [out, normalizer, state, chunk_starts] = forward;
  const int64_t rows = q.size(0) * q.size(1) * q.size(2);
  FAVOR_CHECK(normalizer.numel() == rows && (!is_causal || chunk_starts.numel() == rows), op,
              ": normalizer has ", normalizer.numel(), " and chunk_starts ", chunk_starts.numel(),
              " elements, expected ", rows, " of each (from a forward pass with save = true)");
  FAVOR_CHECK(normalizer.scalar_type() == q.scalar_type() && state.scalar_type() == q.scalar_type(),
              op, ": normalizer has dtype ", normalizer.scalar_type(), " and state ",
              state.scalar_type(), ", expected ", q.scalar_type());
  at::Tensor dq = empty_rows(q, q.size(3));
  at::Tensor dk = empty_rows(k, k.size(3));
  at::Tensor dv = empty_rows(v, v.size(3));
  const at::Tensor normalizer_rows = normalizer.contiguous();
  const at::Tensor state_rows = state.contiguous();
  const at::Tensor starts = chunk_starts.contiguous();
  // favor only reads what a backward pass is given; Saved serves both directions.
  favor::Saved<T> saved;
  saved.normalizer = const_cast<T*>(normalizer_rows.template const_data_ptr<T>());
  if (state.numel() > 0) saved.state = const_cast<T*>(state_rows.template const_data_ptr<T>());
  if (is_causal) saved.chunk_starts = const_cast<uint8_t*>(starts.const_data_ptr<uint8_t>());
  const at::Tensor q_rows = rows_contiguous(q), k_rows = rows_contiguous(k);
  const at::Tensor v_rows = rows_contiguous(v), out_rows = rows_contiguous(out);
  const at::Tensor dout_rows = rows_contiguous(dout);
  const auto run = is_causal ? favor::causal_backward<T> : favor::bidirectional_backward<T>;
  run(params.value, view_of<const T>(q_rows), view_of<const T>(k_rows), view_of<const T>(v_rows),
      view_of<const T>(out_rows), view_of<const T>(dout_rows), saved, view_of<T>(dq),
      view_of<T>(dk), view_of<T>(dv));
  return {dq, dk, dv};
}

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  const float* data = flat.const_data_ptr<float>();
  return {data, data + flat.numel()};
}

at::Tensor tensor_of(const std::vector<float>& values, const at::Tensor& model) {
  at::Tensor tensor = at::empty(model.sizes(), at::kFloat);
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

void check_float(const char* op, const at::Tensor& q) {
  FAVOR_CHECK(q.scalar_type() == at::kFloat, op, ": q has dtype ", q.scalar_type(),
              ", expected Float (decoding states are float32)");
}

}  // namespace

at::Tensor empty_rows(const at::Tensor& model, const c10::SymInt& width) {
  const auto sizes = model.sym_sizes();
  const auto strides = model.sym_strides();
  const bool heads_inside = strides[1] < strides[2];
  if (!heads_inside) {
    return at::empty_symint({sizes[0], sizes[1], sizes[2], width}, model.options());
  }
  return at::empty_symint({sizes[0], sizes[2], sizes[1], width}, model.options()).transpose(1, 2);
}

ForwardResult forward_cpu(const char* op, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const FavorArguments& arguments, bool save,
                          bool is_causal) {
  check_inputs(op, q, k, v);
  const auto run = q.scalar_type() == at::kFloat ? forward_typed<float> : forward_typed<double>;
  return run(op, q, k, v, arguments, save, is_causal);
}

BackwardResult backward_cpu(const char* op, const at::Tensor& dout, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, const ForwardResult& forward,
                            const FavorArguments& arguments, bool is_causal) {
  check_inputs(op, q, k, v);
  check_rows(op, "dout", dout, "[B, H, L, E]", q.scalar_type());
  check_rows(op, "out", std::get<0>(forward), "[B, H, L, E]", q.scalar_type());
  const auto run = q.scalar_type() == at::kFloat ? backward_typed<float> : backward_typed<double>;
  return run(op, dout, q, k, v, forward, arguments, is_causal);
}

DecodeResult decode_step_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& c, const at::Tensor& S, const at::Tensor& z,
                             int64_t position, const FavorArguments& arguments) {
  const char* op = "decode_step";
  check_inputs(op, q, k, v);
  check_float(op, q);
  const Parameters<float> params(op, q, k, arguments);
  const int64_t B = q.size(0), H = q.size(1), E = v.size(3);
  const int64_t M = arguments.projection ? params.value.num_features : q.size(3);
  check_state(op, "c", c, {B, H, M});
  check_state(op, "S", S, {B, H, M, E});
  check_state(op, "z", z, {B, H, M});
  favor::DecodeState state;
  state.B = B;
  state.H = H;
  state.M = M;
  state.E = E;
  state.position = position;
  state.c = values_of(c);
  state.S = values_of(S);
  state.z = values_of(z);
  at::Tensor out = empty_rows(q, E);
  const at::Tensor q_rows = rows_contiguous(q), k_rows = rows_contiguous(k);
  const at::Tensor v_rows = rows_contiguous(v);
  favor::decode_step(params.value, view_of<const float>(q_rows), view_of<const float>(k_rows),
                     view_of<const float>(v_rows), state, view_of<float>(out));
  favor::flush(state);  // the operator's state is c, S and z alone
  return {out, tensor_of(state.c, c), tensor_of(state.S, S), tensor_of(state.z, z)};
}

}  // namespace performer::ops

namespace performer {

at::Tensor favor_decode(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const FavorArguments& arguments, favor::DecodeState& state) {
  using namespace ops;
  const char* op = "favor_decode";
  check_inputs(op, q, k, v);
  check_float(op, q);
  const Parameters<float> params(op, q, k, arguments);
  if (state.B == 0 && state.position == 0) {
    const int64_t M = arguments.projection ? params.value.num_features : q.size(3);
    state = favor::DecodeState(q.size(0), q.size(1), M, v.size(3));
  }
  at::Tensor out = empty_rows(q, v.size(3));
  const at::Tensor q_rows = rows_contiguous(q), k_rows = rows_contiguous(k);
  const at::Tensor v_rows = rows_contiguous(v);
  if (q.size(2) == 1) {
    favor::decode_step(params.value, view_of<const float>(q_rows), view_of<const float>(k_rows),
                       view_of<const float>(v_rows), state, view_of<float>(out));
    return out;
  }
  favor::DecodeState final_state(state.B, state.H, state.M, state.E);
  favor::causal_forward<float>(params.value, view_of<const float>(q_rows),
                               view_of<const float>(k_rows), view_of<const float>(v_rows),
                               view_of<float>(out), nullptr, &state, &final_state);
  state = std::move(final_state);
  return out;
}

}  // namespace performer
