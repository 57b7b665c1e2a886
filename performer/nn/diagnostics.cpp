// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/diagnostics.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace performer {
namespace {

using torch::Tensor;

// docs/math.md, (4.1) to (4.3), divided by the square of the kernel value.
std::optional<double> relative_variance(const AttentionOptions& options, double sum_square,
                                        double difference_square) {
  const double rows =
      static_cast<double>(favor::num_projection_rows(options.feature_map, options.num_features));
  // Beyond, a double holds no exponential.
  const double z = std::min(sum_square, 700.0), d = std::min(difference_square, 700.0);
  switch (options.feature_map) {
    case favor::FeatureMapKind::kPositive:
      return std::expm1(z) / rows;
    case favor::FeatureMapKind::kHyperbolic:
      return -std::expm1(-z) * std::expm1(z) / (2 * rows);
    case favor::FeatureMapKind::kTrig:
      return std::exp(d) * std::expm1(-d) * std::expm1(-d) / (2 * rows);
    default:
      return std::nullopt;
  }
}

}  // namespace

AttentionDiagnostics diagnose_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const Tensor& out, const AttentionOptions& options,
                                        bool causal) {
  const torch::NoGradGuard no_grad;
  const int64_t L = q.size(2);
  const double root_scale = std::pow(static_cast<double>(q.size(3)), -0.25);
  // A few queries tell as much as all, for the price of O(L).
  constexpr int64_t kQueries = 64;
  const int64_t stride = std::max<int64_t>(1, (L + kQueries - 1) / kQueries);
  const Tensor chosen = torch::arange(L - 1, -1, -stride, torch::kLong);
  const Tensor queries = q.index_select(2, chosen).to(torch::kDouble) * root_scale;
  const Tensor keys = k.to(torch::kDouble) * root_scale, values = v.to(torch::kDouble);
  const Tensor features = out.index_select(2, chosen).to(torch::kDouble);

  Tensor scores = queries.matmul(keys.transpose(-1, -2));
  Tensor reach = torch::ones({chosen.size(0), L}, torch::kBool);
  if (causal) reach = torch::arange(L).unsqueeze(0).le(chosen.unsqueeze(1));
  const Tensor weights =
      scores.masked_fill(reach.logical_not(), -std::numeric_limits<double>::infinity()).softmax(-1);
  const Tensor exact = weights.matmul(values);
  const Tensor uniform_weights = reach.to(torch::kDouble) / reach.sum(-1, true);
  const Tensor uniform = uniform_weights.matmul(values);

  const Tensor query_squares = queries.square().sum(-1), key_squares = keys.square().sum(-1);
  const Tensor squares = query_squares.unsqueeze(-1) + key_squares.unsqueeze(-2);
  const auto weighed = [&](const Tensor& pairs) {
    return (weights * pairs).sum(-1).mean().item<double>();
  };
  // An output of exactly 0 has no relative error.
  const double size = std::max(exact.norm().item<double>(), std::numeric_limits<double>::min());
  AttentionDiagnostics result;
  result.query_norm =
      root_scale * std::sqrt(q.to(torch::kDouble).square().sum(-1).mean().item<double>());
  result.key_norm = std::sqrt(key_squares.mean().item<double>());
  result.relative_variance =
      relative_variance(options, weighed(squares + 2 * scores), weighed(squares - 2 * scores));
  result.output_error = (features - exact).norm().item<double>() / size;
  result.uniform_error = (uniform - exact).norm().item<double>() / size;
  result.uniform_distance = (features - uniform).norm().item<double>() / size;
  return result;
}

}  // namespace performer
