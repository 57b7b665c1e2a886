// SPDX-License-Identifier: Apache-2.0
#include "performer/models/token_step.h"

#include <ATen/autocast_mode.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "performer/ops/favor_attention.h"

namespace performer {
namespace {

using torch::Tensor;

// Beyond so many streams torch's matrix products are faster.
constexpr int64_t kMostStreams = 8;

const float* data(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

LinearRows rows_of(const Tensor& weight, const Tensor& bias) {
  return {data(weight), data(bias), weight.size(0), weight.size(1)};
}

}  // namespace

TokenStep::TokenStep(torch::nn::Module& model, const ModelConfig& config) : config_(config) {
  auto parameters = model.named_parameters();
  const auto take = [&](const std::string& name) {
    const Tensor* found = parameters.find(name);
    if (found == nullptr) return Tensor();
    all_.push_back(*found);
    return *found;
  };
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* attention = module->as<MultiHeadAttentionImpl>()) attention_.push_back(attention);
  }
  tokens_ = take("embed.tokens.weight");
  positions_ = take("embed.positions");
  if (config.positions == PositionKind::kAxial) {
    for (const char* axis : {"rows", "columns", "channels"}) {
      axes_.push_back(take(std::string("embed.position_") + axis));
    }
  }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    const auto part = [&](const char* name) { return take(prefix + name); };
    layers_.push_back({part("norm1.weight"), part("norm1.bias"), part("norm2.weight"),
                       part("norm2.bias"), part("attention.qkv.weight"), part("attention.qkv.bias"),
                       part("attention.out.weight"), part("attention.out.bias"),
                       part("feed_forward.up.weight"), part("feed_forward.up.bias"),
                       part("feed_forward.down.weight"), part("feed_forward.down.bias")});
  }
  norm_weight_ = take("norm.weight");
  norm_bias_ = take("norm.bias");
  output_weight_ = take("output.weight");
  output_bias_ = take("output.bias");
  const auto has_all = [](const Layer& layer) {
    return layer.norm1_weight.defined() && layer.norm2_weight.defined() &&
           layer.qkv_weight.defined() && layer.out_weight.defined() && layer.up_weight.defined() &&
           layer.down_weight.defined();
  };
  is_known_ = config.causal && !config.reversible && config.attention.keeps_sums() &&
              all_.size() == parameters.size() && attention_.size() == layers_.size() &&
              tokens_.defined() && norm_weight_.defined() &&
              std::all_of(layers_.begin(), layers_.end(), has_all);
  if (config.positions == PositionKind::kSinusoidal) {
    const int64_t half = config.dim / 2;
    const double step = std::log(10000.0) / static_cast<double>(std::max<int64_t>(half - 1, 1));
    for (int64_t i = 0; i < half; ++i) frequencies_.push_back(std::exp(-step * double(i)));
  } else if (config.positions == PositionKind::kRotary) {
    const int64_t D = config.head_dim();
    const double step = std::log(10000.0) / static_cast<double>(D);
    for (int64_t i = 0; i < D; i += 2) frequencies_.push_back(std::exp(-step * double(i)));
  }
}

bool TokenStep::knows_positions(int64_t last) const {
  return last < config_.max_positions();
}

bool TokenStep::serves(const Tensor& tokens, const DecoderState& state) const {
  const int64_t B = tokens.size(0);
  if (!is_known_ || tokens.size(1) != 1 || B < 1 || B > kMostStreams || state.position == 0 ||
      tokens.scalar_type() != torch::kLong || !tokens.device().is_cpu() ||
      !tokens.is_contiguous() || at::autocast::is_autocast_enabled(at::kCPU)) {
    return false;
  }
  // The state's own position is that of its longest stream.
  if (!knows_positions(state.position)) return false;
  const int64_t* ids = tokens.const_data_ptr<int64_t>();
  const auto is_known = [&](int64_t id) { return id >= 0 && id < config_.vocab_size; };
  return std::all_of(ids, ids + B, is_known) &&
         std::all_of(all_.begin(), all_.end(), [](const Tensor& parameter) {
           return parameter.scalar_type() == torch::kFloat && parameter.device().is_cpu() &&
                  parameter.is_contiguous();
         });
}

void TokenStep::embed(const int64_t* tokens, const std::vector<int64_t>& positions,
                      float* x) const {
  const int64_t dim = config_.dim, half = std::ssize(frequencies_);
  for (size_t b = 0; b < positions.size(); ++b, x += dim) {
    std::copy_n(data(tokens_) + tokens[b] * dim, dim, x);
    if (config_.positions == PositionKind::kLearned) {
      const float* row = data(positions_) + positions[b] * dim;
      for (int64_t i = 0; i < dim; ++i) x[i] += row[i];
    } else if (config_.positions == PositionKind::kAxial) {
      const int64_t pixel = positions[b] / config_.axial_channels;
      const float* row = data(axes_[0]) + pixel / config_.axial_columns * dim;
      const float* column = data(axes_[1]) + pixel % config_.axial_columns * dim;
      const float* channel = data(axes_[2]) + positions[b] % config_.axial_channels * dim;
      for (int64_t i = 0; i < dim; ++i) x[i] += row[i] + column[i] + channel[i];
    } else if (config_.positions == PositionKind::kSinusoidal) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(positions[b]) * frequencies_[i];
        x[i] += static_cast<float>(std::sin(angle));
        x[half + i] += static_cast<float>(std::cos(angle));
      }
    }
  }
}

void TokenStep::set_angles(const std::vector<int64_t>& positions) {
  cosine_.clear();
  sine_.clear();
  for (const int64_t position : positions) {
    for (const double frequency : frequencies_) {
      const double angle = static_cast<double>(position) * frequency;
      cosine_.push_back(static_cast<float>(std::cos(angle)));
      sine_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

// Turns the pairs (i, i + D / 2) of the queries and keys of all heads.
void TokenStep::turn(int64_t B, float* qkv) const {
  const int64_t dim = config_.dim, D = config_.head_dim(), half = D / 2;
  for (int64_t b = 0; b < B; ++b) {
    const float* cosine = cosine_.data() + b * half;
    const float* sine = sine_.data() + b * half;
    float* head = qkv + b * 3 * dim;
    for (int64_t h = 0; h < 2 * config_.num_heads; ++h, head += D) {
      for (int64_t i = 0; i < half; ++i) {
        const float low = head[i], high = head[half + i];
        head[i] = low * cosine[i] - high * sine[i];
        head[half + i] = high * cosine[i] + low * sine[i];
      }
    }
  }
}

LinearRows TokenStep::output() const {
  return output_weight_.defined() ? rows_of(output_weight_, output_bias_)
                                  : rows_of(tokens_, Tensor());
}

Tensor TokenStep::run(const Tensor& tokens, DecoderState& state) {
  const int64_t B = tokens.size(0), dim = config_.dim, H = config_.num_heads;
  const int64_t D = config_.head_dim(), ff = config_.ff_dim;
  const std::vector<int64_t> positions =
      state.positions.empty() ? std::vector<int64_t>(static_cast<size_t>(B), state.position)
                              : state.positions;
  x_.resize(static_cast<size_t>(B * dim));
  normal_.resize(x_.size());
  heads_.resize(x_.size());
  wide_.resize(static_cast<size_t>(B * std::max(3 * dim, 2 * ff)));
  embed(tokens.const_data_ptr<int64_t>(), positions, x_.data());
  const bool rotary = config_.positions == PositionKind::kRotary;
  if (rotary) set_angles(positions);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    normalize_rows(x_.data(), data(layer.norm1_weight), data(layer.norm1_bias), B, dim,
                   normal_.data());
    float* qkv = wide_.data();
    multiply_rows(rows_of(layer.qkv_weight, layer.qkv_bias), normal_.data(), B, false, qkv);
    if (rotary) turn(B, qkv);
    const auto view = [&](int64_t part) {
      return favor::View4<const float>{qkv + part * dim, {B, H, 1, D}, {3 * dim, D, 3 * dim, 1}};
    };
    favor_decode(view(0), view(1), view(2), attention_[i]->favor_arguments(),
                 std::get<favor::DecodeState>(state.layers[i].groups[0]),
                 favor::View4<float>{heads_.data(), {B, H, 1, D}, {dim, D, dim, 1}});
    multiply_rows(rows_of(layer.out_weight, layer.out_bias), heads_.data(), B, true, x_.data());
    normalize_rows(x_.data(), data(layer.norm2_weight), data(layer.norm2_bias), B, dim,
                   normal_.data());
    const LinearRows up = rows_of(layer.up_weight, layer.up_bias);
    multiply_rows(up, normal_.data(), B, false, wide_.data());
    for (int64_t b = 0; b < B; ++b) {
      // The gate of a gated block follows what it gates; the results close ranks.
      float* row = wide_.data() + b * up.rows;
      gelu_rows(config_.ff_glu ? row + ff : row, config_.ff_glu ? row : nullptr, ff,
                wide_.data() + b * ff);
    }
    multiply_rows(rows_of(layer.down_weight, layer.down_bias), wide_.data(), B, true, x_.data());
  }
  state.position += 1;
  for (int64_t& position : state.positions) ++position;
  normalize_rows(x_.data(), data(norm_weight_), data(norm_bias_), B, dim, normal_.data());
  if (!output_weight_.defined()) {
    const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
    for (float& x : normal_) x *= factor;
  }
  Tensor logits = torch::empty({B, config_.vocab_size}, torch::kFloat);
  multiply_rows(output(), normal_.data(), B, false, logits.mutable_data_ptr<float>());
  return logits;
}

}  // namespace performer
