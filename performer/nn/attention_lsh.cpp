// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/attention_lsh.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

#include "favor/check.h"
#include "favor/projection.h"
#include "performer/nn/clusters.h"
#include "performer/ops/joint_attention.h"

namespace performer {
namespace {

using torch::Tensor;

Tensor unit_rows(const Tensor& q) {
  return q / q.norm(2, -1, true).clamp_min(1e-6);
}

}  // namespace

LshCore::LshCore(const AttentionCoreOptions& options, torch::nn::Module& owner)
    : options_(options) {
  const AttentionOptions& attention = options.attention;
  projection_ = owner.register_buffer(
      "projection",
      torch::empty({attention.hash_rounds, attention.hash_buckets / 2, options.head_dim}));
  LshCore::redraw(0);
}

void LshCore::redraw(uint32_t index) {
  const torch::NoGradGuard no_grad;
  favor::ProjectionSpec spec;
  spec.kind = favor::ProjectionKind::kIid;
  spec.num_features = projection_.size(0) * projection_.size(1);
  spec.head_dim = options_.head_dim;
  spec.seed = options_.attention.projection_seed;
  spec.layer = static_cast<uint32_t>(options_.layer);
  spec.redraw = index;
  std::vector<float> rows = favor::draw_projection(spec);
  projection_.copy_(torch::from_blob(rows.data(), projection_.sizes(), torch::kFloat));
}

// [rounds, B, H, L] int64: the direction that a query points to most, of those drawn and their
// opposites.
Tensor LshCore::hashes(const Tensor& q) const {
  const torch::NoGradGuard no_grad;
  // Which group a token falls into is not to depend on 16 bits.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const Tensor x = q.to(projection_.scalar_type());
  std::vector<Tensor> rounds;
  for (int64_t r = 0; r < projection_.size(0); ++r) {
    const Tensor along = x.matmul(projection_[r].t());
    rounds.push_back(torch::cat({along, -along}, -1).argmax(-1));
  }
  return torch::stack(rounds);
}

Tensor LshCore::forward(const Tensor& q, const Tensor&, const Tensor& v,
                        const BatchLayout& layout) {
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2), D = q.size(3), E = v.size(3);
  const int64_t buckets = options_.attention.hash_buckets;
  const std::vector<int64_t> offsets = layout.offsets(L);
  const int64_t N = std::ssize(offsets) - 1;
  Tensor sequence = torch::zeros({L}, torch::kLong);
  for (int64_t n = 0; n < N; ++n) {
    sequence.narrow(0, offsets[n], offsets[n + 1] - offsets[n]).fill_(n);
  }
  const Tensor heads = torch::arange(B * H, torch::kLong).view({B, H, 1});
  const Tensor first = (heads * N + sequence) * buckets;
  const Tensor codes = hashes(q);
  // One sequence of all heads, in which every bucket of a head is a segment.
  const Tensor flat_q = q.reshape({B * H * L, D}), flat_v = v.reshape({B * H * L, E});
  std::vector<JointPart> parts;
  for (int64_t r = 0; r < codes.size(0); ++r) {
    Tensor group = first + codes[r];
    if (layout.key_padding_mask.defined()) {
      group = group.masked_fill(layout.key_padding_mask.unsqueeze(1), -1);
    }
    const RowGroups sorted = group_rows(group, B * H * N * buckets);
    const auto rows = [&](const Tensor& x) {
      return x.index_select(0, sorted.order).unsqueeze(0).unsqueeze(0);
    };
    JointPart part;
    part.q = rows(flat_q);
    part.k = unit_rows(part.q);
    part.v = rows(flat_v);
    part.arguments.window = options_.attention.bucket_block;
    part.arguments.cu_seqlens_q = part.arguments.cu_seqlens_k = sorted.offsets;
    part.is_causal = options_.causal;
    part.skip_self = true;
    part.rows = sorted.order;
    parts.push_back(std::move(part));
  }
  const JointResult result = joint_attention(parts, B * H * L);
  const Tensor out = result.out.view({B, H, L, E});
  Tensor alone = result.has_key.view({B, H, L, 1}).logical_not();
  if (layout.key_padding_mask.defined()) {
    alone = alone.logical_and(layout.key_padding_mask.logical_not().reshape({B, 1, L, 1}));
  }
  return torch::where(alone, v.to(out.scalar_type()), out);
}

Tensor LshCore::decode(const Tensor& q, const Tensor& k, const Tensor& v, HeadsState& state) {
  if (state.index() == 0) {
    const Tensor codes = hashes(q).permute({1, 2, 0, 3}).to(torch::kFloat).contiguous();
    state = KeyCache{unit_rows(q), v.contiguous(), codes, q.size(2)};
    return forward(q, k, v, {});
  }
  auto& cache = std::get<KeyCache>(state);
  std::vector<Tensor> outs;
  for (int64_t t = 0; t < q.size(2); ++t) {
    outs.push_back(step(q.narrow(2, t, 1), v.narrow(2, t, 1), cache));
  }
  return torch::cat(outs, 2);
}

// One token: the buckets of all earlier ones are looked through.
Tensor LshCore::step(const Tensor& q, const Tensor& v, KeyCache& cache) const {
  const double none = -std::numeric_limits<double>::infinity();
  const Tensor codes = hashes(q).permute({1, 2, 0, 3}).to(torch::kFloat);  // [B, H, rounds, 1]
  const Tensor same = cache.hashes.eq(codes);
  const Tensor place = same.cumsum(-1) - 1;  // of each key in the token's bucket
  const Tensor block = same.sum(-1, true).div(options_.attention.bucket_block, "floor") - 1;
  const Tensor met = same.logical_and(place.ge(block * options_.attention.bucket_block));
  const Tensor times = met.sum(2, true).to(q.scalar_type());  // [B, H, 1, S]
  const double scale = 1 / std::sqrt(static_cast<double>(options_.head_dim));
  const Tensor scores = q.matmul(cache.keys.transpose(2, 3)) * scale + times.log();
  const Tensor alone = scores.amax(-1, true).eq(none);
  const Tensor out = torch::where(alone, v, scores.softmax(-1).matmul(cache.values));
  cache.keys = torch::cat({cache.keys, unit_rows(q)}, 2);
  cache.values = torch::cat({cache.values, v}, 2);
  cache.hashes = torch::cat({cache.hashes, codes}, 3);
  ++cache.position;
  return out;
}

HeadsState LshCore::blank_state(int64_t B, int64_t position) const {
  const int64_t H = options_.num_heads;
  const std::vector<int64_t> shape = {B, H, position, options_.head_dim};
  return KeyCache{torch::empty(shape), torch::empty(shape),
                  torch::empty({B, H, options_.attention.hash_rounds, position}), position};
}

}  // namespace performer
