// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/attention_favor.h"

#include <torch/torch.h>

#include <vector>

#include "favor/check.h"
#include "performer/nn/clusters.h"
#include "performer/ops/compact_rows.h"
#include "performer/ops/favor_attention.h"

namespace performer {

using torch::Tensor;

FavorCore::FavorCore(const AttentionCoreOptions& options, torch::nn::Module& owner)
    : options_(options) {
  const AttentionOptions& attention = options.attention;
  arguments_.feature_map = favor::to_string(attention.feature_map);
  if (attention.feature_eps >= 0) arguments_.feature_eps = attention.feature_eps;
  if (attention.method == AttentionMethod::kFavor && attention.window > 0) {
    arguments_.window = attention.window;
    arguments_.sinks = attention.sinks;
  }
  if (!attention.use_projection) return;
  const int64_t P = attention.per_head_projection ? options.num_heads : 1;
  const int64_t rows = favor::num_projection_rows(attention.feature_map, attention.num_features);
  arguments_.projection =
      owner.register_buffer("projection", torch::empty({P, rows, options.head_dim}));
  FavorCore::redraw(0);
}

favor::ProjectionSpec FavorCore::spec_of_head(int64_t head) const {
  favor::ProjectionSpec spec;
  spec.kind = options_.attention.projection;
  spec.row_norm = options_.attention.row_norm;
  spec.num_features = arguments_.projection->size(1);
  spec.head_dim = options_.head_dim;
  spec.seed = options_.attention.projection_seed;
  spec.layer = static_cast<uint32_t>(options_.layer);
  spec.redraw = redraw_index_;
  // A matrix of one head is that of the layer's head, one for all is the first.
  const int64_t first = options_.attention.per_head_projection ? options_.first_head : 0;
  spec.head = static_cast<uint32_t>(first + head);
  return spec;
}

Tensor FavorCore::draw() const {
  std::vector<Tensor> matrices;
  for (int64_t head = 0; head < arguments_.projection->size(0); ++head) {
    const favor::ProjectionSpec spec = spec_of_head(head);
    std::vector<float> rows = favor::draw_projection(spec);
    matrices.push_back(
        torch::from_blob(rows.data(), {spec.num_features, spec.head_dim}, torch::kFloat).clone());
  }
  return torch::stack(matrices);
}

// Maps that change or double the rows have no transform.
bool FavorCore::has_transform() const {
  const AttentionOptions& attention = options_.attention;
  return attention.projection == favor::ProjectionKind::kHadamard &&
         !favor::is_fitted(attention.feature_map) &&
         favor::num_projection_rows(attention.feature_map, 2) == 2;
}

int64_t FavorCore::num_state_features() const {
  return arguments_.projection ? options_.attention.num_features : options_.head_dim;
}

FavorArguments FavorCore::call_arguments() {
  FavorArguments call = arguments_;
  if (!compact_.defined()) return call;
  const Tensor& rows = *arguments_.projection;
  if (rows.is_inference() || rows.scalar_type() != torch::kFloat) return call;
  if (rows._version() != known_version_) {
    holds_drawn_ = torch::equal(rows, draw());
    known_version_ = static_cast<uint32_t>(rows._version());
  }
  if (holds_drawn_) call.projection = compact_;
  return call;
}

Tensor FavorCore::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                          const BatchLayout& layout) {
  FavorArguments arguments = call_arguments();
  if (layout.key_padding_mask.defined()) arguments.key_padding_mask = layout.key_padding_mask;
  if (layout.is_packed()) arguments.cu_seqlens_q = arguments.cu_seqlens_k = layout.cu_seqlens;
  return favor_attention(q, k, v, arguments, options_.causal);
}

Tensor FavorCore::decode(const Tensor& q, const Tensor& k, const Tensor& v, HeadsState& state) {
  const FavorArguments arguments = call_arguments();
  if (arguments.window > 0) {
    if (state.index() == 0) state = favor::HybridState();
    return favor_decode(q, k, v, arguments, std::get<favor::HybridState>(state));
  }
  if (state.index() == 0) state = favor::DecodeState();
  return favor_decode(q, k, v, arguments, std::get<favor::DecodeState>(state));
}

HeadsState FavorCore::blank_state(int64_t B, int64_t position) const {
  const int64_t H = options_.num_heads, D = options_.head_dim, M = num_state_features();
  if (arguments_.window > 0) {
    favor::HybridState state(B, H, M, D, D, arguments_.window, arguments_.sinks);
    state.position = position;
    return state;
  }
  favor::DecodeState state(B, H, M, D);
  state.position = position;
  return state;
}

void FavorCore::check_state(const std::string& where, const HeadsState& state, int64_t B,
                            int64_t position) const {
  const int64_t H = options_.num_heads, D = options_.head_dim, M = num_state_features();
  const bool has_window = arguments_.window > 0;
  const auto* hybrid = std::get_if<favor::HybridState>(&state);
  const auto* sums = hybrid != nullptr ? &hybrid->far : std::get_if<favor::DecodeState>(&state);
  FAVOR_CHECK(sums != nullptr && has_window == (hybrid != nullptr), where,
              " is of another method of attention, expected sums of features",
              has_window ? " with near keys" : "");
  FAVOR_CHECK(sums->B == B && sums->H == H && sums->M == M && sums->E == D &&
                  position_of(state) == position && std::ssize(sums->S) == B * H * M * D,
              where, " has B, H, M, E = ", sums->B, ", ", sums->H, ", ", sums->M, ", ", sums->E,
              " at position ", position_of(state), ", expected ", B, ", ", H, ", ", M, ", ", D,
              " at position ", position);
  if (hybrid == nullptr) return;
  FAVOR_CHECK(hybrid->B == B && hybrid->H == H && hybrid->D == D && hybrid->E == D &&
                  hybrid->window == arguments_.window && hybrid->sinks == arguments_.sinks,
              where, " has D, window, sinks = ", hybrid->D, ", ", hybrid->window, ", ",
              hybrid->sinks, ", expected ", D, ", ", arguments_.window, ", ", arguments_.sinks);
}

void FavorCore::redraw(uint32_t index) {
  if (!arguments_.projection) return;
  const torch::NoGradGuard no_grad;
  const Tensor& projection = *arguments_.projection;
  redraw_index_ = index;
  projection.copy_(draw());
  if (!has_transform()) return;
  std::vector<Tensor> matrices;
  for (int64_t head = 0; head < projection.size(0); ++head) {
    const auto matrix = favor::draw_structured_projection(spec_of_head(head));
    matrices.push_back(ops::compact_rows(matrix));
  }
  compact_ = torch::stack(matrices);
  if (projection.is_inference()) return;
  holds_drawn_ = true;
  known_version_ = static_cast<uint32_t>(projection._version());
}

std::unique_ptr<AttentionCore> make_linear_core(AttentionCoreOptions options,
                                                torch::nn::Module& owner) {
  options.attention.feature_map = favor::FeatureMapKind::kElu1;
  options.attention.use_projection = false;
  options.attention.feature_eps = -1;
  return std::make_unique<FavorCore>(options, owner);
}

Tensor FavorClustersCore::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const BatchLayout& layout) {
  const AttentionOptions& attention = options().attention;
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2), C = attention.num_clusters;
  // Within sequences, too: packed ones are cut first.
  const ClusteredTokens clusters = cluster_tokens(k, layout, {C, attention.cluster_iterations}, q);
  FavorArguments arguments = call_arguments();
  const int64_t P = arguments.projection ? arguments.projection->size(0) : 1;
  const int64_t heads = P == 1 ? H : 1;
  std::vector<Tensor> outs;
  for (int64_t h = 0; h < H; h += heads) {
    // One sequence of all heads, in which every cluster of a head is a segment.
    const auto flat = [&](const Tensor& x) {
      return x.narrow(1, h, heads).reshape({B * heads * L, x.size(3)});
    };
    const auto groups = [&](const Tensor& x) {
      return group_rows(x.narrow(1, h, heads), clusters.num_groups);
    };
    const RowGroups of_queries = groups(clusters.nearest), of_keys = groups(clusters.assignment);
    arguments.cu_seqlens_q = of_queries.offsets;
    arguments.cu_seqlens_k = of_keys.offsets;
    if (P > 1) arguments.projection = call_arguments().projection->narrow(0, h, 1);
    const auto rows = [&](const Tensor& x, const RowGroups& of) {
      return flat(x).index_select(0, of.order).unsqueeze(0).unsqueeze(0);
    };
    const Tensor out = favor_attention(rows(q, of_queries), rows(k, of_keys), rows(v, of_keys),
                                       arguments, /*is_causal=*/false);
    outs.push_back(ungroup_rows(out[0][0], of_queries, {B, heads, L, v.size(3)}));
  }
  return torch::cat(outs, 1);
}

}  // namespace performer
