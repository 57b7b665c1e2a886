// SPDX-License-Identifier: Apache-2.0
// Multi-head attention: one fused product for q, k and v, whose heads stay where they are in memory
// ([B, L, H, D] seen as [B, H, L, D]), so that no layout is ever copied on the FAVOR+ path.
#include "performer/nn/attention.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "favor/check.h"
#include "favor/projection.h"
#include "performer/nn/slice_attention.h"
#include "performer/ops/compact_rows.h"
#include "performer/ops/favor_attention.h"

namespace performer {
namespace {

using torch::Tensor;

// Turns the pairs (x_i, x_{i + D/2}) by the angles of `rotary` [2, ..., L, D / 2].
Tensor rotate(const Tensor& x, const Tensor& rotary) {
  const std::vector<Tensor> halves = x.chunk(2, -1);
  const Tensor cosine = rotary[0], sine = rotary[1];
  return torch::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine},
                    -1);
}

// Softmax attention. Keys may outnumber queries: the queries are then the last ones of the stream.
Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& key_padding_mask, bool causal) {
  const int64_t L = q.size(2), S = k.size(2);
  const bool plain_causal = causal && !key_padding_mask.defined() && L == S;
  std::optional<Tensor> allowed;
  if (key_padding_mask.defined()) {
    allowed = key_padding_mask.logical_not().reshape({q.size(0), 1, 1, S});
  }
  if (causal && !plain_causal && L > 1) {
    const Tensor past = torch::ones({L, S}, torch::kBool).tril(S - L);
    allowed = allowed ? allowed->logical_and(past) : past;
  }
  return at::scaled_dot_product_attention(q, k, v, allowed, /*dropout_p=*/0.0, plain_causal);
}

// Each packed sequence by itself. Splitting, not slicing: its backward pass is one copy.
Tensor packed_softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const BatchLayout& layout, bool causal) {
  if (!layout.is_packed()) return softmax_attention(q, k, v, layout.key_padding_mask, causal);
  const std::vector<int64_t> offsets = layout.offsets(q.size(2));
  std::vector<int64_t> lengths;
  for (size_t n = 0; n + 1 < offsets.size(); ++n) lengths.push_back(offsets[n + 1] - offsets[n]);
  const std::vector<Tensor> qs = q.split_with_sizes(lengths, 2);
  const std::vector<Tensor> ks = k.split_with_sizes(lengths, 2);
  const std::vector<Tensor> vs = v.split_with_sizes(lengths, 2);
  std::vector<Tensor> outs;
  for (size_t n = 0; n < lengths.size(); ++n) {
    if (lengths[n] == 0) continue;
    Tensor mask;
    if (layout.key_padding_mask.defined()) {
      mask = layout.key_padding_mask.slice(1, offsets[n], offsets[n + 1]);
    }
    outs.push_back(softmax_attention(qs[n], ks[n], vs[n], mask, causal));
  }
  return outs.empty() ? v : torch::cat(outs, 2);
}

}  // namespace

struct MultiHeadAttentionImpl::Parts {
  MultiHeadAttentionOptions options;
  torch::nn::Linear qkv{nullptr}, out{nullptr};
  FavorArguments arguments;  // its projection is the registered buffer
  uint32_t redraw_index = 0;
  Tensor compact;              // what redraw drew, where a fast transform serves it
  bool holds_drawn = false;    // whether the buffer's rows are the drawn ones
  uint32_t known_version = 0;  // of the buffer when holds_drawn was found

  int64_t head_dim() const { return options.dim / options.num_heads; }
  bool is_favor() const { return options.attention.method == AttentionMethod::kFavor; }

  favor::ProjectionSpec spec_of_head(int64_t head) const {
    favor::ProjectionSpec spec;
    spec.kind = options.attention.projection;
    spec.row_norm = options.attention.row_norm;
    spec.num_features = arguments.projection->size(1);
    spec.head_dim = head_dim();
    spec.seed = options.attention.projection_seed;
    spec.layer = static_cast<uint32_t>(options.layer);
    spec.redraw = redraw_index;
    spec.head = static_cast<uint32_t>(head);
    return spec;
  }

  Tensor draw() const {
    std::vector<Tensor> matrices;
    for (int64_t head = 0; head < arguments.projection->size(0); ++head) {
      const favor::ProjectionSpec spec = spec_of_head(head);
      std::vector<float> rows = favor::draw_projection(spec);
      matrices.push_back(
          torch::from_blob(rows.data(), {spec.num_features, spec.head_dim}, torch::kFloat).clone());
    }
    return torch::stack(matrices);
  }

  // Maps that change or double the rows have no transform.
  bool has_transform() const {
    const AttentionOptions& attention = options.attention;
    return attention.projection == favor::ProjectionKind::kHadamard &&
           !favor::is_fitted(attention.feature_map) &&
           favor::num_projection_rows(attention.feature_map, 2) == 2;
  }

  // The arguments of a call. The buffer is what checkpoints hold, and may have been written to.
  FavorArguments call_arguments() {
    FavorArguments call = arguments;
    if (!compact.defined()) return call;
    const Tensor& rows = *arguments.projection;
    if (rows.is_inference() || rows.scalar_type() != torch::kFloat) return call;
    if (rows._version() != known_version) {
      holds_drawn = torch::equal(rows, draw());
      known_version = static_cast<uint32_t>(rows._version());
    }
    if (holds_drawn) call.projection = compact;
    return call;
  }

  // q, k, v [B, H, L, D], strided views of one product.
  std::array<Tensor, 3> project(const Tensor& x, const Tensor& rotary) {
    Tensor fused = qkv->forward(x).view({x.size(0), x.size(1), 3, options.num_heads, head_dim()});
    // Split before the transposition, so that the backward pass joins the three by one copy.
    const std::vector<Tensor> rows = fused.unbind(2);
    const Tensor q = rows[0].transpose(1, 2), k = rows[1].transpose(1, 2);
    const Tensor v = rows[2].transpose(1, 2);
    if (!rotary.defined()) return {q, k, v};
    return {rotate(q, rotary), rotate(k, rotary), v};
  }

  Tensor join(const Tensor& heads) {
    return out->forward(heads.transpose(1, 2).reshape({heads.size(0), heads.size(2), options.dim}));
  }

  void check_input(const char* op, const Tensor& x) const {
    FAVOR_CHECK(x.dim() == 3 && x.size(2) == options.dim, op, ": x has shape ", x.sizes(),
                ", expected [B, L, ", options.dim, "]");
  }
};

MultiHeadAttentionImpl::MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options)
    : parts_(std::make_unique<Parts>()) {
  options.attention.check();
  FAVOR_CHECK(options.num_heads >= 1 && options.dim >= 1 && options.dim % options.num_heads == 0,
              "MultiHeadAttention: num_heads is ", options.num_heads,
              ", expected a divisor of dim = ", options.dim);
  Parts& parts = *parts_;
  parts.options = options;
  const int64_t dim = options.dim;
  parts.qkv = register_module(
      "qkv", torch::nn::Linear(torch::nn::LinearOptions(dim, 3 * dim).bias(options.bias)));
  parts.out = register_module(
      "out", torch::nn::Linear(torch::nn::LinearOptions(dim, dim).bias(options.bias)));
  {
    const torch::NoGradGuard no_grad;
    // Each of the three is drawn as the [dim, dim] matrix that it is.
    for (Tensor& part : parts.qkv->weight.chunk(3)) torch::nn::init::xavier_uniform_(part);
    torch::nn::init::xavier_uniform_(parts.out->weight);
    if (options.bias) {
      parts.qkv->bias.zero_();
      parts.out->bias.zero_();
    }
  }
  if (!parts.is_favor()) return;
  const AttentionOptions& attention = options.attention;
  parts.arguments.feature_map = favor::to_string(attention.feature_map);
  if (attention.feature_eps >= 0) parts.arguments.feature_eps = attention.feature_eps;
  if (!attention.use_projection) return;
  const int64_t P = attention.per_head_projection ? options.num_heads : 1;
  const int64_t rows = favor::num_projection_rows(attention.feature_map, attention.num_features);
  parts.arguments.projection =
      register_buffer("projection", torch::empty({P, rows, parts.head_dim()}));
  redraw(0);
}

MultiHeadAttentionImpl::~MultiHeadAttentionImpl() = default;

Tensor MultiHeadAttentionImpl::forward(const Tensor& x, const BatchLayout& layout,
                                       const Tensor& rotary) {
  Parts& parts = *parts_;
  parts.check_input("MultiHeadAttention", x);
  layout.check("MultiHeadAttention", x.size(0), x.size(1));
  const auto [q, k, v] = parts.project(x, rotary);
  if (!parts.is_favor()) {
    return parts.join(packed_softmax_attention(q, k, v, layout, parts.options.causal));
  }
  FavorArguments arguments = parts.call_arguments();
  if (layout.key_padding_mask.defined()) arguments.key_padding_mask = layout.key_padding_mask;
  if (layout.is_packed()) arguments.cu_seqlens_q = arguments.cu_seqlens_k = layout.cu_seqlens;
  return parts.join(favor_attention(q, k, v, arguments, parts.options.causal));
}

Tensor MultiHeadAttentionImpl::forward_slice(const Tensor& x, const SliceLayout& layout,
                                             const Tensor& rotary, SliceState& state) {
  Parts& parts = *parts_;
  parts.check_input("MultiHeadAttention", x);
  FAVOR_CHECK(parts.is_favor() && parts.options.causal, "MultiHeadAttention: method is ",
              to_string(parts.options.attention.method), " with causal = ", parts.options.causal,
              ", expected favor and true to take slices (their states stand for earlier tokens)");
  const auto [q, k, v] = parts.project(x, rotary);
  return parts.join(packed_slice_attention(q, k, v, parts.call_arguments(), layout, state));
}

Tensor MultiHeadAttentionImpl::weights(const Tensor& x, const Tensor& rotary) {
  Parts& parts = *parts_;
  parts.check_input("MultiHeadAttention", x);
  const torch::NoGradGuard no_grad;
  const auto [q, k, v] = parts.project(x, rotary);
  const int64_t L = x.size(1);
  Tensor result = torch::empty({x.size(0), q.size(1), L, L}, q.options());
  // Blocks of columns: the values of all at once would be as large as the result.
  constexpr int64_t kColumns = 256;
  for (int64_t begin = 0; begin < L; begin += kColumns) {
    const int64_t count = std::min(kColumns, L - begin);
    Tensor one_hot = torch::zeros({L, count}, q.options());
    one_hot.slice(0, begin, begin + count).fill_diagonal_(1);
    const Tensor values = one_hot.expand({x.size(0), q.size(1), L, count});
    result.slice(3, begin, begin + count)
        .copy_(parts.is_favor()
                   ? favor_attention(q, k, values, parts.call_arguments(), parts.options.causal)
                   : softmax_attention(q, k, values, {}, parts.options.causal));
  }
  return result;
}

AttentionDiagnostics MultiHeadAttentionImpl::diagnose(const Tensor& x, const Tensor& rotary) {
  Parts& parts = *parts_;
  FAVOR_CHECK(parts.is_favor(), "MultiHeadAttention: method is exact, expected favor to diagnose");
  parts.check_input("MultiHeadAttention", x);
  const torch::NoGradGuard no_grad;
  const auto [q, k, v] = parts.project(x, rotary);
  return diagnose_attention(q, k, v,
                            favor_attention(q, k, v, parts.call_arguments(), parts.options.causal),
                            parts.options.attention, parts.options.causal);
}

Tensor MultiHeadAttentionImpl::decode(const Tensor& x, AttentionState& state,
                                      const Tensor& rotary) {
  Parts& parts = *parts_;
  FAVOR_CHECK(parts.options.causal,
              "MultiHeadAttention: causal is false, expected true to decode token by token");
  parts.check_input("MultiHeadAttention", x);
  const torch::NoGradGuard no_grad;
  auto [q, k, v] = parts.project(x, rotary);
  if (parts.is_favor()) {
    return parts.join(favor_decode(q, k, v, parts.call_arguments(), state.favor));
  }
  if (state.keys.defined()) {
    FAVOR_CHECK(state.keys.size(0) == x.size(0), "MultiHeadAttention: x has ", x.size(0),
                " streams, expected ", state.keys.size(0), " (as the state)");
    k = torch::cat({state.keys, k}, 2);
    v = torch::cat({state.values, v}, 2);
  }
  state.keys = k;
  state.values = v;
  return parts.join(softmax_attention(q, k, v, {}, /*causal=*/true));
}

FavorArguments MultiHeadAttentionImpl::favor_arguments() {
  FAVOR_CHECK(parts_->is_favor(), "MultiHeadAttention: method is exact, expected favor");
  return parts_->call_arguments();
}

void MultiHeadAttentionImpl::redraw(uint32_t index) {
  Parts& parts = *parts_;
  if (!parts.arguments.projection) return;
  const torch::NoGradGuard no_grad;
  const Tensor& projection = *parts.arguments.projection;
  parts.redraw_index = index;
  projection.copy_(parts.draw());
  if (!parts.has_transform()) return;
  std::vector<Tensor> matrices;
  for (int64_t head = 0; head < projection.size(0); ++head) {
    const auto matrix = favor::draw_structured_projection(parts.spec_of_head(head));
    matrices.push_back(ops::compact_rows(matrix));
  }
  parts.compact = torch::stack(matrices);
  if (projection.is_inference()) return;
  parts.holds_drawn = true;
  parts.known_version = static_cast<uint32_t>(projection._version());
}

Tensor rotary_table(const Tensor& positions, int64_t head_dim) {
  // In double: the angle of a far position has no correct digit left in float.
  const Tensor frequencies = torch::exp(torch::arange(0, head_dim, 2, positions.options()) *
                                        (-std::log(10000.0) / head_dim));
  const Tensor angles = torch::outer(positions, frequencies);
  return torch::stack({angles.cos(), angles.sin()}).to(torch::kFloat);
}

Tensor rotary_table(int64_t begin, int64_t length, int64_t head_dim) {
  return rotary_table(torch::arange(begin, begin + length, torch::kDouble), head_dim);
}

}  // namespace performer
