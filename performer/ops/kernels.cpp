// SPDX-License-Identifier: Apache-2.0
// CPU kernels of the passes: checks what the views of favor cannot show (types, ranks, shapes of
// the side tensors), allocates results and calls favor, whose threads are torch's own here.
#include "performer/ops/kernels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "favor/check.h"
#include "favor/exact.h"
#include "favor/parallel.h"
#include "favor/words.h"
#include "performer/ops/compact_rows.h"
#include "performer/ops/parameters.h"

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

at::Tensor checked_offsets(const char* op, const char* name, const at::Tensor& offsets) {
  FAVOR_CHECK(offsets.dim() == 1 && offsets.device().is_cpu() &&
                  (offsets.scalar_type() == at::kLong || offsets.scalar_type() == at::kInt),
              op, ": ", name, " is ", offsets.scalar_type(), " of shape ", shape_of(offsets),
              ", expected int64 or int32 on the CPU with 1 dimension");
  FAVOR_CHECK(offsets.numel() >= 2, op, ": ", name, " has ", offsets.numel(),
              " entries, expected at least 2 (one segment)");
  return offsets.to(at::kLong).contiguous();
}

constexpr favor::Word<favor::Compatibility> kCompatibilities[] = {
    {favor::Compatibility::kNone, "none"},
    {favor::Compatibility::kOfficial, "official"},
};

template <class T>
ForwardResult forward_typed(const char* op, bool is_causal, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, bool save,
                            const FavorArguments& arguments) {
  using C = favor::Compute<T>;
  const Parameters<C> params(op, q, k, arguments);
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2), G = k.size(1), E = v.size(3);
  at::Tensor out = empty_rows(q, E);
  const auto compute = at::TensorOptions(kTypeOf<C>);
  at::Tensor normalizer = at::empty({0}, compute);
  at::Tensor state = at::empty({0}, compute);
  at::Tensor chunk_starts = at::empty({0}, at::kByte);
  favor::Saved<C> saved;
  if (save) {
    // Zeros, because not every path writes all of it, and results must not show stray memory.
    normalizer = at::zeros({B, H, L}, compute);
    saved.normalizer = normalizer.template mutable_data_ptr<C>();
  }
  if (save && arguments.window == 0) {
    const int64_t segments = params.num_segments();
    state =
        at::zeros({favor::saved_state_size(B, G, L, params.M, E, is_causal, segments)}, compute);
    if (state.numel() > 0) saved.state = state.template mutable_data_ptr<C>();
    if (is_causal) {
      chunk_starts = at::zeros({B, G, L}, at::kByte);
      saved.chunk_starts = chunk_starts.mutable_data_ptr<uint8_t>();
    }
  }
  const Inputs<T> in(q, k, v);
  favor::Saved<C>* kept = save ? &saved : nullptr;
  if (is_causal) {
    favor::causal_forward<T>(params.value, in.q, in.k, in.v, view_of<T>(out), kept);
  } else {
    favor::bidirectional_forward<T>(params.value, in.q, in.k, in.v, view_of<T>(out), kept);
  }
  return {out, normalizer, state, chunk_starts};
}

template <class T>
BackwardResult backward_typed(const char* op, bool is_causal, const at::Tensor& dout,
                              const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const ForwardResult& forward, const FavorArguments& arguments) {
  using C = favor::Compute<T>;
  const Parameters<C> params(op, q, k, arguments);
  const auto& [out, normalizer, state, chunk_starts] = forward;
  const int64_t rows = q.size(0) * q.size(1) * q.size(2);
  const bool has_chunks = is_causal && arguments.window == 0;
  const int64_t key_rows = has_chunks ? q.size(0) * k.size(1) * q.size(2) : 0;
  FAVOR_CHECK(normalizer.numel() == rows && chunk_starts.numel() == key_rows, op,
              ": normalizer has ", normalizer.numel(), " and chunk_starts ", chunk_starts.numel(),
              " elements, expected ", rows, " and ", key_rows,
              " (from a forward pass with save = true)");
  const at::ScalarType type = kTypeOf<C>;
  FAVOR_CHECK(normalizer.scalar_type() == type && state.scalar_type() == type, op,
              ": normalizer has dtype ", normalizer.scalar_type(), " and state ",
              state.scalar_type(), ", expected ", type);
  at::Tensor dq = empty_rows(q, q.size(3));
  at::Tensor dk = empty_rows(k, k.size(3));
  at::Tensor dv = empty_rows(v, v.size(3));
  const at::Tensor normalizer_rows = normalizer.contiguous();
  const at::Tensor state_rows = state.contiguous();
  const at::Tensor starts = chunk_starts.contiguous();
  // favor only reads what a backward pass is given; Saved serves both directions.
  favor::Saved<C> saved;
  saved.normalizer = const_cast<C*>(normalizer_rows.template const_data_ptr<C>());
  if (state.numel() > 0) saved.state = const_cast<C*>(state_rows.template const_data_ptr<C>());
  if (has_chunks) saved.chunk_starts = const_cast<uint8_t*>(starts.const_data_ptr<uint8_t>());
  const Inputs<T> in(q, k, v);
  const at::Tensor out_rows = rows_contiguous(out), dout_rows = rows_contiguous(dout);
  const auto run = is_causal ? favor::causal_backward<T> : favor::bidirectional_backward<T>;
  run(params.value, in.q, in.k, in.v, view_of<const T>(out_rows), view_of<const T>(dout_rows),
      saved, view_of<T>(dq), view_of<T>(dk), view_of<T>(dv));
  return {dq, dk, dv};
}

// favor's parameters of exact attention with the tensors that own what they point to.
template <class T>
struct ExactParameters {
  KeyTensors keys;
  favor::ExactParams<T> value;

  ExactParameters(const char* op, const at::Tensor& k, bool is_causal,
                  const ExactArguments& arguments)
      : keys(op, k, arguments, kTypeOf<T>) {
    set_keys<T>(arguments, keys, value);
    value.is_causal = is_causal;
  }
};

template <class T>
ExactForwardResult exact_forward_typed(const char* op, const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, bool is_causal, bool save,
                                       const ExactArguments& arguments) {
  using C = favor::Compute<T>;
  const ExactParameters<C> params(op, k, is_causal, arguments);
  at::Tensor out = empty_rows(q, v.size(3));
  at::Tensor normalizer =
      at::empty(save ? at::IntArrayRef(q.sizes().data(), 3) : at::IntArrayRef{0}, kTypeOf<C>);
  const Inputs<T> in(q, k, v);
  favor::exact_forward<T>(params.value, in.q, in.k, in.v, view_of<T>(out),
                          save ? normalizer.template mutable_data_ptr<C>() : nullptr);
  return {out, normalizer};
}

template <class T>
BackwardResult exact_backward_typed(const char* op, const at::Tensor& dout, const at::Tensor& q,
                                    const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                    const at::Tensor& normalizer, bool is_causal,
                                    const ExactArguments& arguments) {
  using C = favor::Compute<T>;
  const ExactParameters<C> params(op, k, is_causal, arguments);
  const int64_t rows = q.size(0) * q.size(1) * q.size(2);
  const at::ScalarType type = kTypeOf<C>;
  FAVOR_CHECK(normalizer.numel() == rows && normalizer.scalar_type() == type, op,
              ": normalizer is ", normalizer.scalar_type(), " with ", normalizer.numel(),
              " elements, expected ", type, " with ", rows,
              " (from a forward pass with save = true)");
  at::Tensor dq = empty_rows(q, q.size(3));
  at::Tensor dk = empty_rows(k, k.size(3));
  at::Tensor dv = empty_rows(v, v.size(3));
  const Inputs<T> in(q, k, v);
  const at::Tensor out_rows = rows_contiguous(out), dout_rows = rows_contiguous(dout);
  const at::Tensor normalizer_rows = normalizer.contiguous();
  favor::exact_backward<T>(
      params.value, in.q, in.k, in.v, view_of<const T>(out_rows), view_of<const T>(dout_rows),
      normalizer_rows.template const_data_ptr<C>(), view_of<T>(dq), view_of<T>(dk), view_of<T>(dv));
  return {dq, dk, dv};
}

template <class T>
at::Tensor fit_typed(const char* op, const at::Tensor& q, const at::Tensor& k,
                     const FavorArguments& arguments) {
  using C = favor::Compute<T>;
  const Parameters<C> params(op, q, k, arguments);
  const Inputs<T> in(q, k, k);
  const std::vector<C> numbers = favor::fit_feature_map<T>(params.value, in.q, in.k);
  const int64_t count = favor::num_map_parameters(params.value.feature_map, q.size(3));
  at::Tensor result = at::empty({k.size(1), count}, kTypeOf<C>);
  std::copy(numbers.begin(), numbers.end(), result.template mutable_data_ptr<C>());
  return result;
}

}  // namespace

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
  const at::ScalarType type = q.scalar_type();
  FAVOR_CHECK(
      type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf, op,
      ": q has dtype ", type, ", expected Float, BFloat16, Half or Double");
  check_rows(op, "q", q, "[B, H, L, D]", q.scalar_type());
  check_rows(op, "k", k, "[B, G, S, D]", q.scalar_type());
  check_rows(op, "v", v, "[B, G, S, E]", q.scalar_type());
}

at::Tensor rows_contiguous(const at::Tensor& tensor) {
  if (tensor.size(3) <= 1 || tensor.stride(3) == 1) return tensor;
  // To torch, a tensor without elements is contiguous whatever its strides are.
  return tensor.numel() == 0 ? at::empty(tensor.sizes(), tensor.options()) : tensor.contiguous();
}

KeyTensors::KeyTensors(const char* op, const at::Tensor& k, const ExactArguments& arguments,
                       at::ScalarType type) {
  const int64_t B = k.size(0), G = k.size(1), S = k.size(2);
  if (arguments.key_padding_mask) {
    const at::Tensor& given = *arguments.key_padding_mask;
    FAVOR_CHECK(given.scalar_type() == at::kBool && given.device().is_cpu() && given.dim() == 2 &&
                    given.size(0) == B && given.size(1) == S,
                op, ": key_padding_mask is ", given.scalar_type(), " of shape ", shape_of(given),
                ", expected Bool of shape [", B, ", ", S, "] on the CPU (true = ignore this key)");
    key_padding_mask = given.contiguous();
  }
  if (arguments.key_log_weight) {
    const at::Tensor& given = *arguments.key_log_weight;
    const bool per_head = given.dim() == 3;
    FAVOR_CHECK(given.is_floating_point() && given.device().is_cpu() &&
                    (given.dim() == 2 || per_head) && given.size(0) == B && given.size(-1) == S &&
                    (!per_head || given.size(1) == 1 || given.size(1) == G),
                op, ": key_log_weight is ", given.scalar_type(), " of shape ", shape_of(given),
                ", expected floating point of shape [", B, ", ", S, "] or [", B, ", W, ", S,
                "] on the CPU (W is 1 or the number of key heads, ", G, ")");
    key_log_weight = (per_head ? given : given.unsqueeze(1)).to(type).contiguous();
  }
  FAVOR_CHECK(arguments.cu_seqlens_q.has_value() == arguments.cu_seqlens_k.has_value(), op, ": ",
              arguments.cu_seqlens_q ? "cu_seqlens_k" : "cu_seqlens_q",
              " is missing, expected both cu_seqlens or none");
  if (arguments.cu_seqlens_q) {
    cu_seqlens_q = checked_offsets(op, "cu_seqlens_q", *arguments.cu_seqlens_q);
    cu_seqlens_k = checked_offsets(op, "cu_seqlens_k", *arguments.cu_seqlens_k);
  }
}

MapTensors::MapTensors(const char* op, const at::Tensor& q, const at::Tensor& k,
                       const FavorArguments& arguments, at::ScalarType type) {
  const int64_t D = q.size(3), G = k.size(1);
  if (arguments.projection) {
    const at::Tensor& given = *arguments.projection;
    const bool is_compact = given.scalar_type() == at::kInt;
    FAVOR_CHECK(
        (given.dim() == 2 || given.dim() == 3) && given.device().is_cpu() &&
            (is_compact || (given.is_floating_point() && given.size(-1) == D)),
        op, ": projection is ", given.scalar_type(), " of shape ", shape_of(given),
        ", expected [R, ", D, "] or [P, R, ", D,
        "], floating point or in compact form, on the CPU (P is 1 or the number of key heads, ", G,
        ")");
    const int64_t P = given.dim() == 3 ? given.size(0) : 1;
    FAVOR_CHECK(P == 1 || P == G, op, ": projection has shape ", shape_of(given),
                ", expected 1 or ", G, " matrices (key heads)");
    projection = given.dim() == 3 ? given : given.unsqueeze(0);
    for (int64_t p = 0; is_compact && p < P; ++p) {
      structured.push_back(structured_of(op, projection.select(0, p), D));
    }
    if (!is_compact) projection = projection.to(type).contiguous();
  }
  if (arguments.map_parameters) {
    const at::Tensor& given = *arguments.map_parameters;
    const int64_t count =
        favor::num_map_parameters(favor::feature_map_from_string(arguments.feature_map), D);
    FAVOR_CHECK((given.dim() == 1 || given.dim() == 2) && given.device().is_cpu() &&
                    given.is_floating_point() && given.size(-1) == count,
                op, ": map_parameters is ", given.scalar_type(), " of shape ", shape_of(given),
                ", expected [", count, "] or [Q, ", count,
                "], floating point, on the CPU (Q is 1 or the number of key heads, ", G, ")");
    map_parameters = (given.dim() == 2 ? given : given.unsqueeze(0)).to(type).contiguous();
  }
}

favor::Compatibility compatibility_from_string(std::string_view word) {
  return favor::value_of(kCompatibilities, word, "compatibility_from_string: compatibility");
}

at::Tensor empty_rows(const at::Tensor& model, const c10::SymInt& width) {
  const auto sizes = model.sym_sizes();
  const auto strides = model.sym_strides();
  const bool heads_inside = strides[1] < strides[2];
  if (!heads_inside) {
    return at::empty_symint({sizes[0], sizes[1], sizes[2], width}, model.options());
  }
  return at::empty_symint({sizes[0], sizes[2], sizes[1], width}, model.options()).transpose(1, 2);
}

ForwardResult forward_cpu(const char* op, bool is_causal, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, bool save, const FavorArguments& arguments) {
  check_inputs(op, q, k, v);
  return for_type_of(
      q, [&]<class T>(T) { return forward_typed<T>(op, is_causal, q, k, v, save, arguments); });
}

BackwardResult backward_cpu(const char* op, bool is_causal, const at::Tensor& dout,
                            const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const ForwardResult& forward, const FavorArguments& arguments) {
  check_inputs(op, q, k, v);
  check_rows(op, "dout", dout, "[B, H, L, E]", q.scalar_type());
  check_rows(op, "out", std::get<0>(forward), "[B, H, L, E]", q.scalar_type());
  return for_type_of(q, [&]<class T>(T) {
    return backward_typed<T>(op, is_causal, dout, q, k, v, forward, arguments);
  });
}

ExactForwardResult exact_forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     bool is_causal, bool save, const ExactArguments& arguments) {
  const char* op = "exact_forward";
  check_inputs(op, q, k, v);
  return for_type_of(q, [&]<class T>(T) {
    return exact_forward_typed<T>(op, q, k, v, is_causal, save, arguments);
  });
}

BackwardResult exact_backward_cpu(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const at::Tensor& out,
                                  const at::Tensor& normalizer, bool is_causal,
                                  const ExactArguments& arguments) {
  const char* op = "exact_backward";
  check_inputs(op, q, k, v);
  check_rows(op, "dout", dout, "[B, H, L, E]", q.scalar_type());
  check_rows(op, "out", out, "[B, H, L, E]", q.scalar_type());
  return for_type_of(q, [&]<class T>(T) {
    return exact_backward_typed<T>(op, dout, q, k, v, out, normalizer, is_causal, arguments);
  });
}

at::Tensor fit_feature_map_cpu(const at::Tensor& q, const at::Tensor& k,
                               const FavorArguments& arguments) {
  const char* op = "fit_feature_map";
  check_inputs(op, q, k, k);
  return for_type_of(q, [&]<class T>(T) { return fit_typed<T>(op, q, k, arguments); });
}

}  // namespace performer::ops
