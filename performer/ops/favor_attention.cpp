// SPDX-License-Identifier: Apache-2.0
// Schemas, registration and meta kernels of the operators, and their C++ entry points, which go
// through torch's dispatcher. Registered on ATen/core and torch/library.h rather than the stable
// headers: shapes must stay symbolic under torch.compile, and exceptions keep their type.
#include "performer/ops/favor_attention.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <vector>

#include "favor/check.h"
#include "favor/projection.h"
#include "performer/ops/kernels.h"

namespace performer {
namespace ops {
namespace {

FavorArguments pack(const OptionalTensor& projection, const OptionalTensor& key_padding_mask,
                    const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k,
                    std::string_view feature_map, std::optional<double> scale,
                    std::optional<double> feature_eps) {
  return {projection, key_padding_mask, cu_seqlens_q, cu_seqlens_k, std::string(feature_map),
          scale,      feature_eps};
}

template <bool kCausal>
ForwardResult forward_kernel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const OptionalTensor& projection,
                             const OptionalTensor& key_padding_mask,
                             const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k,
                             std::string_view feature_map, std::optional<double> scale,
                             std::optional<double> feature_eps, bool save) {
  return forward_cpu(kCausal ? "causal_forward" : "bidirectional_forward", q, k, v,
                     pack(projection, key_padding_mask, cu_seqlens_q, cu_seqlens_k, feature_map,
                          scale, feature_eps),
                     save, kCausal);
}

template <bool kCausal>
ForwardResult forward_meta(const at::Tensor& q, const at::Tensor&, const at::Tensor& v,
                           const OptionalTensor& projection, const OptionalTensor&,
                           const OptionalTensor& cu_seqlens_q, const OptionalTensor&,
                           std::string_view, std::optional<double>, std::optional<double>,
                           bool save) {
  FAVOR_CHECK(q.dim() == 4 && v.dim() == 4, "attention: q has ", q.dim(), " and v ", v.dim(),
              " dimensions, expected 4 and 4");
  const auto& sizes = q.sym_sizes();
  const c10::SymInt E = v.sym_size(3);
  at::Tensor normalizer = at::empty({0}, q.options());
  at::Tensor state = at::empty({0}, q.options());
  at::Tensor chunk_starts = at::empty({0}, q.options().dtype(at::kByte));
  if (save) {
    const c10::SymInt M = projection ? projection->sym_size(-2) : sizes[3];
    // favor::saved_state_size in symbolic form; only the number of segments must be known.
    c10::SymInt state_size = sizes[0] * sizes[1] * M * (E + 2);
    if (kCausal) {
      state_size = state_size * ((sizes[2] + (favor::kStateInterval - 1)) / favor::kStateInterval);
    } else if (cu_seqlens_q && cu_seqlens_q->sym_size(0) != 2) {
      state_size = 0;
    }
    normalizer = at::empty_symint({sizes[0], sizes[1], sizes[2]}, q.options());
    state = at::empty_symint({state_size}, q.options());
    if (kCausal) {
      chunk_starts = at::empty_symint({sizes[0], sizes[1], sizes[2]}, q.options().dtype(at::kByte));
    }
  }
  return {empty_rows(q, E), normalizer, state, chunk_starts};
}

template <bool kCausal>
BackwardResult backward_kernel(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& out,
                               const at::Tensor& normalizer, const at::Tensor& state,
                               const at::Tensor& chunk_starts, const OptionalTensor& projection,
                               const OptionalTensor& key_padding_mask,
                               const OptionalTensor& cu_seqlens_q,
                               const OptionalTensor& cu_seqlens_k, std::string_view feature_map,
                               std::optional<double> scale, std::optional<double> feature_eps) {
  return backward_cpu(kCausal ? "causal_backward" : "bidirectional_backward", dout, q, k, v,
                      {out, normalizer, state, chunk_starts},
                      pack(projection, key_padding_mask, cu_seqlens_q, cu_seqlens_k, feature_map,
                           scale, feature_eps),
                      kCausal);
}

BackwardResult backward_meta(const at::Tensor&, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                             const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                             std::string_view, std::optional<double>, std::optional<double>) {
  return {empty_rows(q, q.sym_size(3)), empty_rows(k, k.sym_size(3)), empty_rows(v, v.sym_size(3))};
}

// Without a gradient to record: the forward operator of whatever backend the tensors have.
at::Tensor attention_forward_only(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const OptionalTensor& projection,
                                  const OptionalTensor& key_padding_mask,
                                  const OptionalTensor& cu_seqlens_q,
                                  const OptionalTensor& cu_seqlens_k, bool is_causal,
                                  std::string_view feature_map, std::optional<double> scale,
                                  std::optional<double> feature_eps) {
  return std::get<0>(favor_forward(q, k, v,
                                   pack(projection, key_padding_mask, cu_seqlens_q, cu_seqlens_k,
                                        feature_map, scale, feature_eps),
                                   /*save=*/false, is_causal));
}

DecodeResult decode_step_kernel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const at::Tensor& c, const at::Tensor& S, const at::Tensor& z,
                                int64_t position, const OptionalTensor& projection,
                                const OptionalTensor& key_padding_mask,
                                std::string_view feature_map, std::optional<double> scale,
                                std::optional<double> feature_eps) {
  return decode_step_cpu(
      q, k, v, c, S, z, position,
      pack(projection, key_padding_mask, {}, {}, feature_map, scale, feature_eps));
}

DecodeResult decode_step_meta(const at::Tensor& q, const at::Tensor&, const at::Tensor& v,
                              const at::Tensor& c, const at::Tensor& S, const at::Tensor& z,
                              c10::SymInt, const OptionalTensor&, const OptionalTensor&,
                              std::string_view, std::optional<double>, std::optional<double>) {
  const auto contiguous = at::MemoryFormat::Contiguous;
  return {empty_rows(q, v.sym_size(3)), at::empty_like(c, {}, contiguous),
          at::empty_like(S, {}, contiguous), at::empty_like(z, {}, contiguous)};
}

at::Tensor draw_projection_kernel(int64_t num_features, int64_t head_dim, std::string_view kind,
                                  std::string_view row_norm, int64_t seed, int64_t layer,
                                  int64_t head, int64_t redraw) {
  FAVOR_CHECK(layer >= 0 && head >= 0 && redraw >= 0, "draw_projection: layer, head, redraw are ",
              layer, ", ", head, ", ", redraw, ", expected 0 or more");
  favor::ProjectionSpec spec;
  spec.kind = favor::projection_kind_from_string(kind);
  spec.row_norm = favor::row_norm_from_string(row_norm);
  spec.num_features = num_features;
  spec.head_dim = head_dim;
  spec.seed = static_cast<uint64_t>(seed);
  spec.layer = static_cast<uint32_t>(layer);
  spec.head = static_cast<uint32_t>(head);
  spec.redraw = static_cast<uint32_t>(redraw);
  const std::vector<float> rows = favor::draw_projection(spec);
  at::Tensor projection = at::empty({num_features, head_dim}, at::kFloat);
  std::copy(rows.begin(), rows.end(), projection.mutable_data_ptr<float>());
  return projection;
}

using ForwardSignature = ForwardResult(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                       const OptionalTensor&, const OptionalTensor&,
                                       const OptionalTensor&, const OptionalTensor&,
                                       std::string_view, std::optional<double>,
                                       std::optional<double>, bool);
using BackwardSignature = BackwardResult(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                         const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                         const at::Tensor&, const at::Tensor&,
                                         const OptionalTensor&, const OptionalTensor&,
                                         const OptionalTensor&, const OptionalTensor&,
                                         std::string_view, std::optional<double>,
                                         std::optional<double>);
using AttentionSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                      const OptionalTensor&, const OptionalTensor&,
                                      const OptionalTensor&, const OptionalTensor&, bool,
                                      std::string_view, std::optional<double>,
                                      std::optional<double>);

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace
}  // namespace ops

at::Tensor favor_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const FavorArguments& arguments, bool is_causal) {
  static const auto op = ops::find<ops::AttentionSignature>("performer::attention");
  return op.call(q, k, v, arguments.projection, arguments.key_padding_mask, arguments.cu_seqlens_q,
                 arguments.cu_seqlens_k, is_causal, arguments.feature_map, arguments.scale,
                 arguments.feature_eps);
}

ForwardResult favor_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const FavorArguments& arguments, bool save, bool is_causal) {
  static const auto bidirectional =
      ops::find<ops::ForwardSignature>("performer::bidirectional_forward");
  static const auto causal = ops::find<ops::ForwardSignature>("performer::causal_forward");
  return (is_causal ? causal : bidirectional)
      .call(q, k, v, arguments.projection, arguments.key_padding_mask, arguments.cu_seqlens_q,
            arguments.cu_seqlens_k, arguments.feature_map, arguments.scale, arguments.feature_eps,
            save);
}

BackwardResult favor_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const ForwardResult& forward,
                              const FavorArguments& arguments, bool is_causal) {
  static const auto bidirectional =
      ops::find<ops::BackwardSignature>("performer::bidirectional_backward");
  static const auto causal = ops::find<ops::BackwardSignature>("performer::causal_backward");
  const auto& [out, normalizer, state, chunk_starts] = forward;
  return (is_causal ? causal : bidirectional)
      .call(dout, q, k, v, out, normalizer, state, chunk_starts, arguments.projection,
            arguments.key_padding_mask, arguments.cu_seqlens_q, arguments.cu_seqlens_k,
            arguments.feature_map, arguments.scale, arguments.feature_eps);
}

}  // namespace performer

TORCH_LIBRARY(performer, m) {
  const auto define = [&m](const std::string& schema) { m.def(schema.c_str()); };
  const std::string side =
      "Tensor? projection=None, Tensor? key_padding_mask=None, Tensor? cu_seqlens_q=None, "
      "Tensor? cu_seqlens_k=None, ";
  const std::string map =
      "str feature_map=\"positive\", float? scale=None, float? feature_eps=None";
  define("attention(Tensor q, Tensor k, Tensor v, " + side + "bool is_causal=False, " + map +
         ") -> Tensor");
  for (const std::string direction : {"bidirectional", "causal"}) {
    define(direction + "_forward(Tensor q, Tensor k, Tensor v, " + side + map +
           ", bool save=True) -> (Tensor out, Tensor normalizer, Tensor state, "
           "Tensor chunk_starts)");
    define(direction +
           "_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor normalizer, "
           "Tensor state, Tensor chunk_starts, " +
           side + map + ") -> (Tensor dq, Tensor dk, Tensor dv)");
  }
  define(
      "decode_step(Tensor q, Tensor k, Tensor v, Tensor c, Tensor S, Tensor z, SymInt position, "
      "Tensor? projection=None, Tensor? key_padding_mask=None, " +
      map + ") -> (Tensor out, Tensor c, Tensor S, Tensor z)");
  m.def(
      "draw_projection(int num_features, int head_dim, str kind=\"orthogonal\", "
      "str row_norm=\"chi\", int seed=0, int layer=0, int head=0, int redraw=0) -> Tensor",
      performer::ops::draw_projection_kernel);
}

TORCH_LIBRARY_IMPL(performer, CompositeExplicitAutograd, m) {
  m.impl("attention", performer::ops::attention_forward_only);
}

TORCH_LIBRARY_IMPL(performer, Autograd, m) {
  m.impl("attention", performer::ops::attention_autograd);
}

TORCH_LIBRARY_IMPL(performer, CPU, m) {
  m.impl("bidirectional_forward", performer::ops::forward_kernel<false>);
  m.impl("bidirectional_backward", performer::ops::backward_kernel<false>);
  m.impl("causal_forward", performer::ops::forward_kernel<true>);
  m.impl("causal_backward", performer::ops::backward_kernel<true>);
  m.impl("decode_step", performer::ops::decode_step_kernel);
}

TORCH_LIBRARY_IMPL(performer, Meta, m) {
  m.impl("bidirectional_forward", performer::ops::forward_meta<false>);
  m.impl("bidirectional_backward", performer::ops::backward_meta);
  m.impl("causal_forward", performer::ops::forward_meta<true>);
  m.impl("causal_backward", performer::ops::backward_meta);
  m.impl("decode_step", performer::ops::decode_step_meta);
}
