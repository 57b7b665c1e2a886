// SPDX-License-Identifier: Apache-2.0
// Multi-head attention: one fused product for q, k and v, whose heads stay where they are in memory
// ([B, L, H, D] seen as [B, H, L, D]), so that no layout is ever copied on the FAVOR+ path. What
// happens between them is the matter of a core for each group of heads (attention_core.h).
#include "performer/nn/attention.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "favor/check.h"
#include "performer/nn/attention_core.h"
#include "performer/nn/attention_favor.h"
#include "performer/nn/linear.h"
#include "performer/nn/slice_attention.h"

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

}  // namespace

struct MultiHeadAttentionImpl::Parts {
  // Heads of one method.
  struct Group {
    int64_t first, count;
    std::unique_ptr<AttentionCore> core;
  };

  MultiHeadAttentionOptions options;
  torch::nn::Linear qkv{nullptr}, out{nullptr};
  std::vector<Group> groups;

  int64_t head_dim() const { return options.dim / options.num_heads; }
  bool is_favor() const { return options.attention.method == AttentionMethod::kFavor; }

  void add_group(int64_t first, int64_t count, AttentionMethod method, torch::nn::Module& owner) {
    AttentionCoreOptions core;
    core.num_heads = count;
    core.first_head = first;
    core.head_dim = head_dim();
    core.layer = options.layer;
    core.max_length = options.max_length;
    core.causal = options.causal;
    core.attention = options.attention;
    if (method != options.attention.method) core.attention.window = 0;
    core.attention.method = method;
    groups.push_back({first, count, make_attention_core(core, owner)});
  }

  // Calls attend(group, q, k, v) with the heads of each group and joins what it gives.
  template <class Attend>
  Tensor by_group(const Tensor& q, const Tensor& k, const Tensor& v, const Attend& attend) {
    if (groups.size() == 1) return attend(size_t{0}, q, k, v);
    std::vector<Tensor> outs;
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto heads = [&](const Tensor& x) {
        return x.narrow(1, groups[i].first, groups[i].count);
      };
      outs.push_back(attend(i, heads(q), heads(k), heads(v)));
    }
    return torch::cat(outs, 1);
  }

  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const BatchLayout& layout) {
    return by_group(q, k, v, [&](size_t i, const Tensor& qs, const Tensor& ks, const Tensor& vs) {
      return groups[i].core->forward(qs, ks, vs, layout);
    });
  }

  // q, k, v [B, H, L, D], strided views of one product.
  std::array<Tensor, 3> project(const Tensor& x, const Tensor& rotary) {
    Tensor fused = apply_linear(x, qkv->weight, qkv->bias)
                       .view({x.size(0), x.size(1), 3, options.num_heads, head_dim()});
    // Split before the transposition, so that the backward pass joins the three by one copy.
    const std::vector<Tensor> rows = fused.unbind(2);
    const Tensor q = rows[0].transpose(1, 2), k = rows[1].transpose(1, 2);
    const Tensor v = rows[2].transpose(1, 2);
    if (!rotary.defined()) return {q, k, v};
    return {rotate(q, rotary), rotate(k, rotary), v};
  }

  Tensor join(const Tensor& heads) {
    const Tensor rows = heads.transpose(1, 2).reshape({heads.size(0), heads.size(2), options.dim});
    return apply_linear(rows, out->weight, out->bias);
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
  FAVOR_CHECK(options.attention.local_heads < options.num_heads,
              "MultiHeadAttention: local_heads is ", options.attention.local_heads,
              ", expected less than num_heads = ", options.num_heads);
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
  const int64_t local = options.attention.local_heads;
  if (local > 0) parts.add_group(0, local, AttentionMethod::kWindow, *this);
  parts.add_group(local, options.num_heads - local, options.attention.method, *this);
}

MultiHeadAttentionImpl::~MultiHeadAttentionImpl() = default;

Tensor MultiHeadAttentionImpl::forward(const Tensor& x, const BatchLayout& layout,
                                       const Tensor& rotary) {
  Parts& parts = *parts_;
  parts.check_input("MultiHeadAttention", x);
  layout.check("MultiHeadAttention", x.size(0), x.size(1));
  const auto [q, k, v] = parts.project(x, rotary);
  return parts.join(parts.attend(q, k, v, layout));
}

Tensor MultiHeadAttentionImpl::forward_slice(const Tensor& x, const SliceLayout& layout,
                                             const Tensor& rotary, SliceState& state) {
  Parts& parts = *parts_;
  parts.check_input("MultiHeadAttention", x);
  FAVOR_CHECK(parts.options.causal, "MultiHeadAttention: causal is false, expected true to take ",
              "slices (tokens see those of later ones)");
  const auto [q, k, v] = parts.project(x, rotary);
  return parts.join(packed_slice_attention(q, k, v, favor_arguments(), layout, state));
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
    result.slice(3, begin, begin + count).copy_(parts.attend(q, k, values, {}));
  }
  return result;
}

AttentionDiagnostics MultiHeadAttentionImpl::diagnose(const Tensor& x, const Tensor& rotary) {
  Parts& parts = *parts_;
  FAVOR_CHECK(parts.is_favor(), "MultiHeadAttention: method is ",
              to_string(parts.options.attention.method), ", expected favor to diagnose");
  parts.check_input("MultiHeadAttention", x);
  const torch::NoGradGuard no_grad;
  const Parts::Group& group = parts.groups.back();
  std::array<Tensor, 3> rows = parts.project(x, rotary);
  for (Tensor& of : rows) of = of.narrow(1, group.first, group.count);
  const auto& [q, k, v] = rows;
  return diagnose_attention(q, k, v, group.core->forward(q, k, v, {}), parts.options.attention,
                            parts.options.causal);
}

Tensor MultiHeadAttentionImpl::decode(const Tensor& x, AttentionState& state,
                                      const Tensor& rotary) {
  Parts& parts = *parts_;
  FAVOR_CHECK(parts.options.causal,
              "MultiHeadAttention: causal is false, expected true to decode token by token");
  parts.check_input("MultiHeadAttention", x);
  const torch::NoGradGuard no_grad;
  const auto [q, k, v] = parts.project(x, rotary);
  if (state.groups.empty()) state.groups.resize(parts.groups.size());
  FAVOR_CHECK(state.groups.size() == parts.groups.size(), "MultiHeadAttention: state has ",
              state.groups.size(), " groups of heads, expected ", parts.groups.size());
  for (const HeadsState& heads : state.groups) {
    FAVOR_CHECK(heads.index() == 0 || num_streams(heads) == x.size(0), "MultiHeadAttention: x has ",
                x.size(0), " streams, expected ", num_streams(heads), " (as the state)");
  }
  return parts.join(
      parts.by_group(q, k, v, [&](size_t i, const Tensor& qs, const Tensor& ks, const Tensor& vs) {
        return parts.groups[i].core->decode(qs, ks, vs, state.groups[i]);
      }));
}

AttentionState MultiHeadAttentionImpl::blank_state(int64_t B, int64_t position) const {
  AttentionState state;
  for (const Parts::Group& group : parts_->groups) {
    state.groups.push_back(group.core->blank_state(B, position));
  }
  return state;
}

void MultiHeadAttentionImpl::check_state(const std::string& where, const AttentionState& state,
                                         int64_t B, int64_t position) const {
  FAVOR_CHECK(state.groups.size() == parts_->groups.size(), where, " has ", state.groups.size(),
              " groups of heads, expected ", parts_->groups.size());
  for (size_t i = 0; i < state.groups.size(); ++i) {
    parts_->groups[i].core->check_state(where, state.groups[i], B, position);
  }
}

FavorArguments MultiHeadAttentionImpl::favor_arguments() {
  const AttentionOptions& attention = parts_->options.attention;
  FAVOR_CHECK(
      attention.keeps_sums(), "MultiHeadAttention: method is ", to_string(attention.method),
      ", expected favor or linear in all heads and without a window (whose states are sums)");
  return static_cast<FavorCore&>(*parts_->groups.front().core).call_arguments();
}

void MultiHeadAttentionImpl::redraw(uint32_t index) {
  for (const Parts::Group& group : parts_->groups) group.core->redraw(index);
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
