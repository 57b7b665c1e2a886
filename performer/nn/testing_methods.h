// SPDX-License-Identifier: Apache-2.0
// Every method of attention written out by its definition (docs/methods.md): one sequence of one
// head at a time, keys and groups found by plain loops, scores as dense double matrices that
// autograd differentiates.
#ifndef PERFORMER_NN_TESTING_METHODS_H_
#define PERFORMER_NN_TESTING_METHODS_H_

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "performer/nn/attention_core.h"

namespace performer::brute {

using torch::Tensor;

/// One sequence of one head: q, k [n, D], v [n, E] float64; whether each token is allowed.
struct Sequence {
  const AttentionCoreOptions& options;
  Tensor projection;  ///< of favor: [M, D] of this head; of lsh: [rounds, buckets / 2, D]
  Tensor key_mixtures, value_mixtures;
  Tensor q, k, v;
  std::vector<bool> allowed;

  int64_t n() const { return q.size(0); }
  const AttentionOptions& attention() const { return options.attention; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(q.size(1))); }
};

/// [n, n] float64 with 1 (or a count) where see(i, j) says so.
template <class See>
Tensor matrix(int64_t n, const See& see) {
  Tensor result = torch::zeros({n, n}, torch::kDouble);
  auto at = result.accessor<double, 2>();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) at[i][j] = static_cast<double>(see(i, j));
  }
  return result;
}

/// Rows of weights over their sums; a row without weights stays 0.
inline Tensor normalised(const Tensor& weights) {
  const Tensor sums = weights.sum(1, true);
  return weights / torch::where(sums.eq(0), torch::ones_like(sums), sums);
}

inline bool is_near(const Sequence& s, int64_t window, int64_t i, int64_t j) {
  const int64_t sinks = s.attention().sinks;
  return j < sinks || (!s.options.causal && j >= s.n() - sinks) ||
         std::abs(i / window - j / window) <= 1;
}

inline bool may_see(const Sequence& s, int64_t i, int64_t j) {
  return s.allowed[static_cast<size_t>(j)] && !(s.options.causal && j > i);
}

/// exp of the scores; keys under a mask are zeros before.
inline Tensor exponentials(const Sequence& s) {
  return (s.q.matmul(s.k.t()) * s.scale()).exp();
}

/// The paper's positive features of rows x.
inline Tensor positive_features(const Sequence& s, const Tensor& x) {
  const Tensor y = x * std::sqrt(s.scale());
  const double M = static_cast<double>(s.projection.size(0));
  return (y.matmul(s.projection.t()) - y.square().sum(1, true) / 2).exp() / std::sqrt(M);
}

inline Tensor linear(const Sequence& s) {
  const Tensor kernel = (torch::elu(s.q) + 1).matmul((torch::elu(s.k) + 1).t());
  return normalised(kernel * matrix(s.n(), [&](int64_t i, int64_t j) { return may_see(s, i, j); }))
      .matmul(s.v);
}

inline Tensor window(const Sequence& s) {
  const Tensor seen = matrix(s.n(), [&](int64_t i, int64_t j) {
    return may_see(s, i, j) && is_near(s, s.attention().local_window, i, j);
  });
  return normalised(exponentials(s) * seen).matmul(s.v);
}

inline Tensor favor(const Sequence& s) {
  const int64_t w = s.attention().window;
  const Tensor near = matrix(s.n(), [&](int64_t i, int64_t j) {
    return w > 0 && may_see(s, i, j) && is_near(s, w, i, j);
  });
  const Tensor seen = matrix(s.n(), [&](int64_t i, int64_t j) { return may_see(s, i, j); });
  const Tensor features = positive_features(s, s.q).matmul(positive_features(s, s.k).t());
  return normalised(exponentials(s) * near + features * (seen - near)).matmul(s.v);
}

inline Tensor linformer(const Sequence& s) {
  const Tensor keys = s.key_mixtures.narrow(1, 0, s.n()).matmul(s.k);
  const Tensor values = s.value_mixtures.narrow(1, 0, s.n()).matmul(s.v);
  return normalised((s.q.matmul(keys.t()) * s.scale()).exp()).matmul(values);
}

inline Tensor lsh(const Sequence& s) {
  const int64_t n = s.n(), w = s.attention().bucket_block;
  Tensor times = torch::zeros({n, n}, torch::kDouble);
  for (int64_t r = 0; r < s.projection.size(0); ++r) {
    // Buckets, and places in them of the allowed tokens.
    std::vector<int64_t> bucket(static_cast<size_t>(n)), place(static_cast<size_t>(n));
    std::vector<int64_t> filled(static_cast<size_t>(s.attention().hash_buckets), 0);
    const Tensor along = s.q.detach().matmul(s.projection[r].t());
    const auto at = along.accessor<double, 2>();
    for (int64_t i = 0; i < n; ++i) {
      double best = -std::numeric_limits<double>::infinity();
      for (const int64_t opposite : {0, 1}) {
        for (int64_t c = 0; c < along.size(1); ++c) {
          const double value = opposite == 0 ? at[i][c] : -at[i][c];
          if (value <= best) continue;
          best = value;
          bucket[i] = c + opposite * along.size(1);
        }
      }
      place[i] = s.allowed[i] ? filled[bucket[i]]++ : -1;
    }
    times = times + matrix(n, [&](int64_t i, int64_t j) {
              return i != j && s.allowed[i] && may_see(s, i, j) && bucket[i] == bucket[j] &&
                     std::abs(place[i] / w - place[j] / w) <= 1;
            });
  }
  const Tensor alone = times.sum(1).eq(0);
  times = times + torch::diag(alone.to(torch::kDouble)) *
                      matrix(n, [&](int64_t i, int64_t j) { return i == j && s.allowed[i]; });
  const Tensor unit = s.q / s.q.norm(2, 1, true).clamp_min(1e-6);
  return normalised((s.q.matmul(unit.t()) * s.scale()).exp() * times).matmul(s.v);
}

/// k-means of the allowed rows of x, and the centres.
struct Clusters {
  std::vector<int64_t> of;  ///< -1: left out
  std::vector<std::vector<double>> centres;
  std::vector<int64_t> count;

  template <class Row>
  int64_t nearest(const Row& row, bool filled_only) const {
    int64_t best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (size_t c = 0; c < centres.size(); ++c) {
      if (filled_only && count[c] == 0) continue;
      double distance = 0;
      for (size_t d = 0; d < centres[c].size(); ++d) {
        const double step = row[static_cast<int64_t>(d)] - centres[c][d];
        distance += step * step;
      }
      if (distance >= least) continue;
      least = distance;
      best = static_cast<int64_t>(c);
    }
    return best;
  }
};

inline Clusters k_means(const Sequence& s, const Tensor& given) {
  const Tensor rows = given.detach().contiguous();
  const auto x = rows.accessor<double, 2>();
  const int64_t n = s.n(), D = rows.size(1), C = s.attention().num_clusters;
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < n; ++i) {
    if (s.allowed[i]) chosen.push_back(i);
  }
  Clusters result;
  result.of.assign(static_cast<size_t>(n), -1);
  result.count.assign(static_cast<size_t>(C), 0);
  const int64_t m = std::ssize(chosen);
  if (m == 0) return result;
  for (int64_t c = 0; c < C; ++c) {
    const auto row = x[chosen[c * m / C]];
    result.centres.emplace_back(row.data(), row.data() + D);
  }
  for (int64_t round = 0;; ++round) {
    std::fill(result.count.begin(), result.count.end(), 0);
    std::vector<std::vector<double>> sums(static_cast<size_t>(C), std::vector<double>(D, 0.0));
    for (const int64_t i : chosen) {
      const int64_t c = result.of[i] = result.nearest(x[i], false);
      ++result.count[c];
      for (int64_t d = 0; d < D; ++d) sums[c][d] += x[i][d];
    }
    if (round == s.attention().cluster_iterations) return result;
    for (int64_t c = 0; c < C; ++c) {
      for (int64_t d = 0; d < D && result.count[c] > 0; ++d) {
        result.centres[c][d] = sums[c][d] / static_cast<double>(result.count[c]);
      }
    }
  }
}

inline Tensor clustered(const Sequence& s) {
  const Clusters clusters = k_means(s, s.q);
  const Tensor seen = matrix(s.n(), [&](int64_t, int64_t j) { return s.allowed[j]; })[0];
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < s.n(); ++i) {
    if (clusters.of[i] < 0) {
      rows.push_back(torch::zeros({s.v.size(1)}, torch::kDouble));
      continue;
    }
    std::vector<int64_t> members;
    for (int64_t j = 0; j < s.n(); ++j) {
      if (clusters.of[j] == clusters.of[i]) members.push_back(j);
    }
    const Tensor mean = s.q.index_select(0, torch::tensor(members)).mean(0);
    const Tensor shared = normalised(((s.k.matmul(mean) * s.scale()).exp() * seen).unsqueeze(0))[0];
    const int64_t top = std::min(s.attention().cluster_top, s.n());
    if (top == 0) {
      rows.push_back(shared.matmul(s.v));
      continue;
    }
    Tensor listed = torch::zeros({s.n()}, torch::kDouble);
    listed.index_fill_(0, std::get<1>(shared.detach().topk(top)), 1);
    const Tensor own = (s.k.matmul(s.q[i]) * s.scale()).exp() * seen * listed;
    const Tensor weights = shared * (1 - listed) + (shared * listed).sum() * own / own.sum();
    rows.push_back(weights.matmul(s.v));
  }
  return torch::stack(rows);
}

inline Tensor favor_clusters(const Sequence& s) {
  const Clusters clusters = k_means(s, s.k);
  const Tensor queries = s.q.detach().contiguous();
  const auto rows = queries.accessor<double, 2>();
  std::vector<int64_t> of_query;
  for (int64_t i = 0; i < s.n(); ++i) of_query.push_back(clusters.nearest(rows[i], true));
  const Tensor seen = matrix(
      s.n(), [&](int64_t i, int64_t j) { return s.allowed[j] && clusters.of[j] == of_query[i]; });
  const Tensor features = positive_features(s, s.q).matmul(positive_features(s, s.k).t());
  return normalised(features * seen).matmul(s.v);
}

inline Tensor centroids(const Sequence& s) {
  const Clusters clusters = k_means(s, s.k);
  const int64_t n = s.n(), w = s.attention().window;
  const auto is_exact = [&](int64_t i, int64_t j) { return w > 0 && is_near(s, w, i, j); };
  const Tensor near = exponentials(s) * matrix(n, [&](int64_t i, int64_t j) {
                        return s.allowed[j] && is_exact(i, j);
                      });
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < n; ++i) {
    Tensor sum = near[i].matmul(s.v), total = near[i].sum();
    for (int64_t c = 0; c < s.attention().num_clusters; ++c) {
      std::vector<int64_t> far;
      for (int64_t j = 0; j < n; ++j) {
        if (clusters.of[j] == c && !is_exact(i, j)) far.push_back(j);
      }
      if (far.empty()) continue;
      const Tensor index = torch::tensor(far);
      const Tensor key = s.k.index_select(0, index).mean(0);
      const Tensor weight = (key.dot(s.q[i]) * s.scale()).exp() * static_cast<double>(far.size());
      sum = sum + weight * s.v.index_select(0, index).mean(0);
      total = total + weight;
    }
    rows.push_back(total.item<double>() == 0 ? sum : sum / total);
  }
  return torch::stack(rows);
}

inline Tensor attend(const Sequence& s) {
  switch (s.attention().method) {
    case AttentionMethod::kFavor:
      return favor(s);
    case AttentionMethod::kExact:
      return normalised(exponentials(s) *
                        matrix(s.n(), [&](int64_t i, int64_t j) { return may_see(s, i, j); }))
          .matmul(s.v);
    case AttentionMethod::kLinear:
      return linear(s);
    case AttentionMethod::kWindow:
      return window(s);
    case AttentionMethod::kLinformer:
      return linformer(s);
    case AttentionMethod::kLsh:
      return lsh(s);
    case AttentionMethod::kClustered:
      return clustered(s);
    case AttentionMethod::kFavorClusters:
      return favor_clusters(s);
    case AttentionMethod::kCentroids:
      return centroids(s);
  }
  return {};
}

/// All heads and sequences. q, k, v float64; `owner` holds what the core registered.
inline Tensor attend(const AttentionCoreOptions& options, torch::nn::Module& owner, const Tensor& q,
                     const Tensor& k, const Tensor& v, const BatchLayout& layout) {
  const std::vector<int64_t> offsets = layout.offsets(q.size(2));
  std::vector<Tensor> items;
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t h = 0; h < q.size(1); ++h) {
      for (size_t part = 0; part + 1 < offsets.size(); ++part) {
        const int64_t begin = offsets[part], n = offsets[part + 1] - begin;
        if (n == 0) continue;
        Sequence s{options, {}, {}, {},
                   {},      {}, {}, std::vector<bool>(static_cast<size_t>(n), true)};
        Tensor hidden = torch::zeros({n, 1}, torch::kBool);
        for (int64_t i = 0; i < n && layout.key_padding_mask.defined(); ++i) {
          if (!layout.key_padding_mask[b][begin + i].item<bool>()) continue;
          s.allowed[i] = false;
          hidden[i] = true;
        }
        s.q = q[b][h].narrow(0, begin, n);
        s.k = k[b][h].narrow(0, begin, n).masked_fill(hidden, 0);
        s.v = v[b][h].narrow(0, begin, n).masked_fill(hidden, 0);
        const auto buffers = owner.named_buffers();
        if (buffers.contains("projection")) {
          const Tensor all = buffers["projection"].to(torch::kDouble);
          const bool of_head = options.attention.method != AttentionMethod::kLsh;
          s.projection = of_head ? all[all.size(0) == 1 ? 0 : h] : all;
        }
        const auto parameters = owner.named_parameters();
        if (parameters.contains("key_mixtures")) {
          s.key_mixtures = parameters["key_mixtures"].to(torch::kDouble);
          s.value_mixtures = parameters["value_mixtures"].to(torch::kDouble);
        }
        items.push_back(attend(s));
      }
    }
  }
  return torch::cat(items).view(v.sizes());
}

}  // namespace performer::brute

#endif  // PERFORMER_NN_TESTING_METHODS_H_
