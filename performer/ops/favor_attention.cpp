// SPDX-License-Identifier: Apache-2.0
// Schemas, registration and meta kernels of the operators, and their C++ entry points, which go
// through torch's dispatcher. Registered on ATen/core and torch/library.h rather than the stable
// headers: shapes must stay symbolic under torch.compile, and exceptions keep their type.
#include "performer/ops/favor_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <vector>

#include "favor/check.h"
#include "favor/method.h"
#include "favor/projection.h"
#include "performer/ops/compact_rows.h"
#include "performer/ops/kernels.h"
#include "performer/ops/signatures.h"

namespace performer {
namespace ops {
namespace {

using at::Tensor;

template <bool kCausal>
ForwardResult forward_kernel(const Tensor& q, const Tensor& k, const Tensor& v, bool save,
                             const FavorArguments& arguments) {
  const char* op = kCausal ? "causal_forward" : "bidirectional_forward";
  return forward_cpu(op, kCausal, q, k, v, save, arguments);
}

// What a meta kernel needs of its inputs; kernels check the rest.
void check_ranks(const Tensor& q, const Tensor& k, const Tensor& v) {
  FAVOR_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "attention: q, k, v have ", q.dim(),
              ", ", k.dim(), ", ", v.dim(), " dimensions, expected 4 each");
}

// The type that kernels compute in, and keep beside q, k and v.
at::TensorOptions compute_options(const Tensor& q) {
  return q.options().dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

// M in symbolic form.
c10::SymInt num_state_features(const Tensor& q, const FavorArguments& arguments) {
  if (!arguments.projection) return q.sym_size(3);
  const auto kind = favor::feature_map_from_string(arguments.feature_map);
  return arguments.projection->sym_size(-2) * favor::num_state_features(kind, 1);
}

template <bool kCausal>
ForwardResult forward_meta(const Tensor& q, const Tensor& k, const Tensor& v, bool save,
                           const FavorArguments& arguments) {
  check_ranks(q, k, v);
  const c10::SymInt B = q.sym_size(0), L = q.sym_size(2), G = k.sym_size(1), E = v.sym_size(3);
  const at::TensorOptions compute = compute_options(q);
  Tensor normalizer = at::empty({0}, compute);
  Tensor state = at::empty({0}, compute);
  Tensor chunk_starts = at::empty({0}, q.options().dtype(at::kByte));
  if (save) normalizer = at::empty_symint({B, q.sym_size(1), L}, compute);
  if (save && arguments.window == 0) {
    // favor::saved_state_size in symbolic form; only the number of segments must be known.
    c10::SymInt state_size = B * G * num_state_features(q, arguments) * (E + 2);
    if (kCausal) {
      state_size = state_size * ((L + (favor::kStateInterval - 1)) / favor::kStateInterval);
    } else if (arguments.cu_seqlens_q && arguments.cu_seqlens_q->sym_size(0) != 2) {
      state_size = 0;
    }
    state = at::empty_symint({state_size}, compute);
    if (kCausal) chunk_starts = at::empty_symint({B, G, L}, q.options().dtype(at::kByte));
  }
  return {empty_rows(q, E), normalizer, state, chunk_starts};
}

template <bool kCausal>
BackwardResult backward_kernel(const Tensor& dout, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& out, const Tensor& normalizer,
                               const Tensor& state, const Tensor& chunk_starts,
                               const FavorArguments& arguments) {
  const char* op = kCausal ? "causal_backward" : "bidirectional_backward";
  return backward_cpu(op, kCausal, dout, q, k, v, {out, normalizer, state, chunk_starts},
                      arguments);
}

BackwardResult backward_meta(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const FavorArguments&) {
  return {empty_rows(q, q.sym_size(3)), empty_rows(k, k.sym_size(3)), empty_rows(v, v.sym_size(3))};
}

// Without a gradient to record: the forward operator of whatever backend the tensors have.
Tensor attention_forward_only(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                              const FavorArguments& arguments) {
  return std::get<0>(favor_forward(q, k, v, arguments, /*save=*/false, is_causal));
}

ExactForwardResult exact_forward_meta(const Tensor& q, const Tensor& k, const Tensor& v, bool,
                                      bool save, const ExactArguments&) {
  check_ranks(q, k, v);
  Tensor normalizer = at::empty({0}, compute_options(q));
  if (save) normalizer = at::empty_symint(q.sym_sizes().slice(0, 3), compute_options(q));
  return {empty_rows(q, v.sym_size(3)), normalizer};
}

BackwardResult exact_backward_meta(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor&, const Tensor&, bool, const ExactArguments&) {
  return {empty_rows(q, q.sym_size(3)), empty_rows(k, k.sym_size(3)), empty_rows(v, v.sym_size(3))};
}

Tensor exact_forward_only(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                          const ExactArguments& arguments) {
  return std::get<0>(exact_forward(q, k, v, arguments, /*save=*/false, is_causal));
}

DecodeResult decode_step_meta(const Tensor& q, const Tensor&, const Tensor& v, const Tensor& c,
                              const Tensor& S, const Tensor& z, c10::SymInt,
                              const FavorArguments&) {
  const auto contiguous = at::MemoryFormat::Contiguous;
  return {empty_rows(q, v.sym_size(3)), at::empty_like(c, {}, contiguous),
          at::empty_like(S, {}, contiguous), at::empty_like(z, {}, contiguous)};
}

Tensor fit_feature_map_meta(const Tensor& q, const Tensor& k, const FavorArguments& arguments) {
  const auto kind = favor::feature_map_from_string(arguments.feature_map);
  const int64_t D = q.sym_size(3).guard_int(__FILE__, __LINE__);
  return at::empty_symint({k.sym_size(1), favor::num_map_parameters(kind, D)}, compute_options(q));
}

Tensor draw_projection_kernel(int64_t num_rows, int64_t head_dim, std::string_view kind,
                              std::string_view row_norm, int64_t seed, int64_t layer, int64_t head,
                              int64_t redraw, bool compact) {
  FAVOR_CHECK(layer >= 0 && head >= 0 && redraw >= 0, "draw_projection: layer, head, redraw are ",
              layer, ", ", head, ", ", redraw, ", expected 0 or more");
  favor::ProjectionSpec spec;
  spec.kind = favor::projection_kind_from_string(kind);
  spec.row_norm = favor::row_norm_from_string(row_norm);
  spec.num_features = num_rows;
  spec.head_dim = head_dim;
  spec.seed = static_cast<uint64_t>(seed);
  spec.layer = static_cast<uint32_t>(layer);
  spec.head = static_cast<uint32_t>(head);
  spec.redraw = static_cast<uint32_t>(redraw);
  if (compact) return compact_rows(favor::draw_structured_projection(spec));
  const std::vector<float> rows = favor::draw_projection(spec);
  Tensor projection = at::empty({num_rows, head_dim}, at::kFloat);
  std::copy(rows.begin(), rows.end(), projection.mutable_data_ptr<float>());
  return projection;
}

int64_t num_projection_rows_kernel(std::string_view feature_map, int64_t num_features) {
  const auto kind = favor::feature_map_from_string(feature_map);
  const int64_t rows = favor::num_projection_rows(kind, num_features);
  FAVOR_CHECK(favor::num_state_features(kind, rows) == num_features,
              "num_projection_rows: num_features is ", num_features,
              ", expected an even number (feature_map ", feature_map, " makes two of each row)");
  return rows;
}

std::string resolve_method_kernel(std::string_view feature_map, int64_t L, int64_t S, int64_t D,
                                  int64_t E, int64_t M, bool is_causal) {
  FAVOR_CHECK(favor::estimates_softmax(favor::feature_map_from_string(feature_map)),
              "resolve_method: feature_map is ", feature_map,
              ", expected one that estimates softmax");
  const favor::MethodShape shape = {L, S, D, E, M, is_causal};
  return favor::to_string(favor::resolve_method(favor::Method::kAuto, shape));
}

}  // namespace
}  // namespace ops

at::Tensor favor_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const FavorArguments& arguments, bool is_causal) {
  static const ops::Operator<decltype(ops::attention_forward_only)> op("performer::attention");
  return op(q, k, v, is_causal, arguments);
}

ForwardResult favor_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const FavorArguments& arguments, bool save, bool is_causal) {
  using Pass = ops::Operator<decltype(ops::forward_kernel<true>)>;
  static const Pass bidirectional("performer::bidirectional_forward");
  static const Pass causal("performer::causal_forward");
  return (is_causal ? causal : bidirectional)(q, k, v, save, arguments);
}

BackwardResult favor_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const ForwardResult& forward,
                              const FavorArguments& arguments, bool is_causal) {
  using Pass = ops::Operator<decltype(ops::backward_kernel<true>)>;
  static const Pass bidirectional("performer::bidirectional_backward");
  static const Pass causal("performer::causal_backward");
  const auto& [out, normalizer, state, chunk_starts] = forward;
  return (is_causal ? causal : bidirectional)(dout, q, k, v, out, normalizer, state, chunk_starts,
                                              arguments);
}

at::Tensor exact_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const ExactArguments& arguments, bool is_causal) {
  static const ops::Operator<decltype(ops::exact_forward_only)> op("performer::exact_attention");
  return op(q, k, v, is_causal, arguments);
}

ExactForwardResult exact_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const ExactArguments& arguments, bool save, bool is_causal) {
  static const ops::Operator<decltype(ops::exact_forward_cpu)> op("performer::exact_forward");
  return op(q, k, v, is_causal, save, arguments);
}

BackwardResult exact_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const ExactForwardResult& forward,
                              const ExactArguments& arguments, bool is_causal) {
  static const ops::Operator<decltype(ops::exact_backward_cpu)> op("performer::exact_backward");
  const auto& [out, normalizer] = forward;
  return op(dout, q, k, v, out, normalizer, is_causal, arguments);
}

}  // namespace performer

TORCH_LIBRARY(performer, m) {
  const auto define = [&m](const std::string& schema) { m.def(schema.c_str()); };
  const std::string arguments = performer::schema_of(performer::FavorArguments());
  const std::string exact_arguments = performer::schema_of(performer::ExactArguments());
  define("attention(Tensor q, Tensor k, Tensor v, bool is_causal=False, *, " + arguments +
         ") -> Tensor");
  define("exact_attention(Tensor q, Tensor k, Tensor v, bool is_causal=False, *, " +
         exact_arguments + ") -> Tensor");
  define("exact_forward(Tensor q, Tensor k, Tensor v, bool is_causal=False, bool save=True, *, " +
         exact_arguments + ") -> (Tensor out, Tensor normalizer)");
  define(
      "exact_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor normalizer, "
      "bool is_causal=False, *, " +
      exact_arguments + ") -> (Tensor dq, Tensor dk, Tensor dv)");
  for (const std::string direction : {"bidirectional", "causal"}) {
    define(direction + "_forward(Tensor q, Tensor k, Tensor v, bool save=True, *, " + arguments +
           ") -> (Tensor out, Tensor normalizer, Tensor state, Tensor chunk_starts)");
    define(direction +
           "_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor normalizer, "
           "Tensor state, Tensor chunk_starts, *, " +
           arguments + ") -> (Tensor dq, Tensor dk, Tensor dv)");
  }
  define(
      "decode_step(Tensor q, Tensor k, Tensor v, Tensor c, Tensor S, Tensor z, SymInt position, "
      "*, " +
      arguments + ") -> (Tensor out, Tensor c, Tensor S, Tensor z)");
  define("fit_feature_map(Tensor q, Tensor k, *, " + arguments + ") -> Tensor");
  define(
      "draw_projection(int num_rows, int head_dim, str kind=\"orthogonal\", "
      "str row_norm=\"chi\", int seed=0, int layer=0, int head=0, int redraw=0, "
      "bool compact=False) -> Tensor");
  define("compact_columns(int head_dim) -> int");
  define(
      "resolve_method(str feature_map, int L, int S, int D, int E, int M, bool is_causal) -> str");
  define("num_projection_rows(str feature_map, int num_features) -> int");
}

TORCH_LIBRARY_IMPL(performer, CompositeExplicitAutograd, m) {
  using namespace performer::ops;
  m.impl("attention", kernel_of<attention_forward_only>);
  m.impl("exact_attention", kernel_of<exact_forward_only>);
  m.impl("draw_projection", draw_projection_kernel);
  m.impl("resolve_method", resolve_method_kernel);
  m.impl("num_projection_rows", num_projection_rows_kernel);
  m.impl("compact_columns", compact_columns);
}

TORCH_LIBRARY_IMPL(performer, CPU, m) {
  using namespace performer::ops;
  m.impl("bidirectional_forward", kernel_of<forward_kernel<false>>);
  m.impl("bidirectional_backward", kernel_of<backward_kernel<false>>);
  m.impl("causal_forward", kernel_of<forward_kernel<true>>);
  m.impl("causal_backward", kernel_of<backward_kernel<true>>);
  m.impl("exact_forward", kernel_of<exact_forward_cpu>);
  m.impl("exact_backward", kernel_of<exact_backward_cpu>);
  m.impl("decode_step", kernel_of<decode_step_cpu>);
  m.impl("fit_feature_map", kernel_of<fit_feature_map_cpu>);
}

TORCH_LIBRARY_IMPL(performer, Meta, m) {
  using namespace performer::ops;
  m.impl("bidirectional_forward", kernel_of<forward_meta<false>>);
  m.impl("bidirectional_backward", kernel_of<backward_meta>);
  m.impl("causal_forward", kernel_of<forward_meta<true>>);
  m.impl("causal_backward", kernel_of<backward_meta>);
  m.impl("exact_forward", kernel_of<exact_forward_meta>);
  m.impl("exact_backward", kernel_of<exact_backward_meta>);
  m.impl("decode_step", kernel_of<decode_step_meta>);
  m.impl("fit_feature_map", kernel_of<fit_feature_map_meta>);
}

TORCH_LIBRARY_IMPL(performer, Autograd, m) {
  performer::ops::register_autograd(m);
}

TORCH_LIBRARY_IMPL(performer, AutocastCPU, m) {
  performer::ops::register_autocast(m);
}
