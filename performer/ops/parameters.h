// SPDX-License-Identifier: Apache-2.0
// From tensors and argument structs to the views and parameters of favor, with the checks that
// these can no longer make: types, ranks and shapes of the side tensors. Internal to this folder.
#ifndef PERFORMER_OPS_PARAMETERS_H_
#define PERFORMER_OPS_PARAMETERS_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <type_traits>
#include <vector>

#include "favor/attention.h"
#include "favor/check.h"
#include "favor/projection.h"
#include "performer/ops/arguments.h"

namespace performer::ops {

/// "[2, 8, 100, 64]"
std::string shape_of(const at::Tensor& tensor);

/// Throws unless q, k and v are 4-dimensional, on the CPU, and of one type that has kernels.
void check_inputs(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Throws unless `tensor` is 4-dimensional, on the CPU and of `type`, which is q's.
void check_rows(const char* op, const char* name, const at::Tensor& tensor, const char* dims,
                at::ScalarType type);

/// The tensor, or a copy of it whose last dimension is contiguous.
at::Tensor rows_contiguous(const at::Tensor& tensor);

/// torch's type of an element type of favor.
template <class T>
inline constexpr at::ScalarType kTypeOf = c10::CppTypeToScalarType<T>::value;
template <>
inline constexpr at::ScalarType kTypeOf<favor::bfloat16> = at::kBFloat16;
template <>
inline constexpr at::ScalarType kTypeOf<favor::float16> = at::kHalf;

/// Calls run(T()) for the element type T of `tensor`, one that check_inputs lets pass.
template <class Run>
auto for_type_of(const at::Tensor& tensor, const Run& run) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return run(double());
    case at::kBFloat16:
      return run(favor::bfloat16());
    case at::kHalf:
      return run(favor::float16());
    default:
      return run(float());
  }
}

/// T const: a view to read.
template <class T>
favor::View4<T> view_of(const at::Tensor& tensor) {
  favor::View4<T> view;
  if constexpr (std::is_const_v<T>) {
    view.data = static_cast<T*>(tensor.const_data_ptr());
  } else {
    view.data = static_cast<T*>(tensor.mutable_data_ptr());
  }
  for (int i = 0; i < 4; ++i) {
    view.sizes[i] = tensor.size(i);
    view.strides[i] = tensor.stride(i);
  }
  return view;
}

/// q, k and v as favor reads them, with the tensors that own what the views point to.
template <class T>
struct Inputs {
  at::Tensor q_rows, k_rows, v_rows;
  favor::View4<const T> q, k, v;

  Inputs(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in)
      : q_rows(rows_contiguous(q_in)),
        k_rows(rows_contiguous(k_in)),
        v_rows(rows_contiguous(v_in)),
        q(view_of<const T>(q_rows)),
        k(view_of<const T>(k_rows)),
        v(view_of<const T>(v_rows)) {}
};

/// Checked and converted members of ExactArguments: what favor's parameters point to.
struct KeyTensors {
  at::Tensor key_padding_mask, key_log_weight, cu_seqlens_q, cu_seqlens_k;

  KeyTensors(const char* op, const at::Tensor& k, const ExactArguments& arguments,
             at::ScalarType type);
};

/// Checked and converted matrices of FavorArguments.
struct MapTensors {
  at::Tensor projection, map_parameters;
  std::vector<favor::StructuredProjection> structured;  ///< of compact rows, else empty

  MapTensors(const char* op, const at::Tensor& q, const at::Tensor& k,
             const FavorArguments& arguments, at::ScalarType type);
};

/// Throws favor::Error, listing the known words.
favor::Compatibility compatibility_from_string(std::string_view word);

/// Fills the members that the parameters of exact attention and of random features share.
template <class T, class Params>
void set_keys(const ExactArguments& arguments, const KeyTensors& tensors, Params& params) {
  params.scale = arguments.scale;
  params.window = arguments.window;
  params.sinks = arguments.sinks;
  if (tensors.key_padding_mask.defined()) {
    params.key_padding_mask =
        reinterpret_cast<const uint8_t*>(tensors.key_padding_mask.const_data_ptr<bool>());
  }
  if (tensors.key_log_weight.defined()) {
    params.key_log_weight = tensors.key_log_weight.const_data_ptr<T>();
    params.num_key_log_weights = tensors.key_log_weight.size(1);
  }
  if (tensors.cu_seqlens_q.defined()) {
    const auto span = [](const at::Tensor& offsets) {
      return std::span<const int64_t>(offsets.const_data_ptr<int64_t>(),
                                      static_cast<size_t>(offsets.numel()));
    };
    params.cu_seqlens_q = span(tensors.cu_seqlens_q);
    params.cu_seqlens_k = span(tensors.cu_seqlens_k);
  }
}

/// favor's parameters, in the type T that kernels compute in, together with the tensors that own
/// what they point to.
template <class T>
struct Parameters {
  KeyTensors keys;
  MapTensors map;
  favor::AttentionParams<T> value;
  int64_t M;  ///< features of the state

  Parameters(const char* op, const at::Tensor& q, const at::Tensor& k,
             const FavorArguments& arguments)
      : keys(op, k, arguments, kTypeOf<T>), map(op, q, k, arguments, kTypeOf<T>), M(q.size(3)) {
    set_keys<T>(arguments, keys, value);
    value.feature_map = favor::feature_map_from_string(arguments.feature_map);
    value.feature_eps = arguments.feature_eps;
    value.compatibility = compatibility_from_string(arguments.compatibility);
    value.renormalize = arguments.renormalize;
    if (map.projection.defined()) {
      M = favor::num_state_features(value.feature_map, map.projection.size(1));
      if (map.structured.empty()) {
        value.projection = map.projection.template const_data_ptr<T>();
      } else {
        value.structured = map.structured.data();
      }
      value.num_projections = map.projection.size(0);
      value.num_features = M;
    }
    if (map.map_parameters.defined()) {
      value.map_parameters = map.map_parameters.template const_data_ptr<T>();
      value.num_map_parameter_sets = map.map_parameters.size(0);
    }
  }

  int64_t num_segments() const {
    return keys.cu_seqlens_q.defined() ? keys.cu_seqlens_q.numel() - 1 : 1;
  }
};

}  // namespace performer::ops

#endif  // PERFORMER_OPS_PARAMETERS_H_
