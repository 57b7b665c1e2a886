// SPDX-License-Identifier: Apache-2.0
// The independent pieces of work of an attention call: which queries see which keys through which
// feature map, and the statistics of fitted maps.
#ifndef FAVOR_REFERENCE_PIECES_H_
#define FAVOR_REFERENCE_PIECES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "favor/attention.h"
#include "favor/fitted_map.h"
#include "favor/reference_map.h"

namespace favor::reference {

/// One key head of one segment of a batch item, with the query heads that use it: rows [q0, q1)
/// attend to keys [k0, k1).
struct PieceRange {
  int64_t b, g, first_head, last_head, q0, q1, k0, k1;

  int64_t num_queries() const { return q1 - q0; }
};

/// A range with the feature map of its tokens.
template <class T>
struct Piece : PieceRange {
  FeatureMap<T> map;
};

/// Whether key j takes part, for key head g.
template <class T>
bool allowed(const AttentionParams<T>& params, int64_t b, int64_t g, int64_t S, int64_t j) {
  if (params.key_padding_mask != nullptr && params.key_padding_mask[b * S + j] != 0) return false;
  return key_log_weight(params, b, g, S, j) != -std::numeric_limits<T>::infinity();
}

/// No tokens yet; keeps what a fit of `kind` needs.
inline Moments moments_for(FeatureMapKind kind, int64_t D) {
  return Moments(D, kind == FeatureMapKind::kFavorSharp);
}

/// Adds the tokens of a range to `moments`: allowed keys, and queries except those at the positions
/// of masked keys where L = S. Sums are in T.
template <class T>
void add_moments(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                 const PieceRange& p, Moments& moments) {
  const int64_t L = q.sizes[2], S = k.sizes[2], D = q.sizes[3];
  const bool full = params.feature_map == FeatureMapKind::kFavorSharp;
  const double root = std::sqrt(resolve_scale(params, D));
  int64_t count = 0;
  std::vector<T> sum, square;
  const auto add = [&](const T* row) {
    ++count;
    for (int64_t i = 0; i < D; ++i) {
      sum[i] += row[i];
      for (int64_t j = full ? 0 : i; j <= i; ++j) square[full ? i * D + j : i] += row[i] * row[j];
    }
  };
  const auto start = [&] {
    count = 0;
    sum.assign(D, T{0});
    square.assign(full ? D * D : D, T{0});
  };
  const auto sums = [&] {
    return TokenSums{count, {sum.begin(), sum.end()}, {square.begin(), square.end()}};
  };
  start();
  for (int64_t j = p.k0; j < p.k1; ++j) {
    if (allowed(params, p.b, p.g, S, j)) add(k.row(p.b, p.g, j));
  }
  moments.add_keys(sums(), root);
  start();
  for (int64_t i = p.q0; i < p.q1; ++i) {
    if (L == S && !allowed(params, p.b, p.g, S, i)) continue;
    for (int64_t h = p.first_head; h < p.last_head; ++h) add(q.row(p.b, h, i));
  }
  moments.add_queries(sums(), root);
}

/// Calls body(range) for every independent piece of work.
template <class T, class Body>
void for_each_range(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                    const Body& body) {
  const int64_t B = q.sizes[0], H = q.sizes[1], L = q.sizes[2];
  const int64_t G = k.sizes[1], S = k.sizes[2];
  const int64_t group = G == 0 ? 0 : H / G;
  const bool packed = !params.cu_seqlens_q.empty();
  const size_t segments = packed ? params.cu_seqlens_q.size() - 1 : 1;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t g = 0; g < G; ++g) {
      for (size_t n = 0; n < segments; ++n) {
        body(PieceRange{b, g, g * group, (g + 1) * group, packed ? params.cu_seqlens_q[n] : 0,
                        packed ? params.cu_seqlens_q[n + 1] : L,
                        packed ? params.cu_seqlens_k[n] : 0,
                        packed ? params.cu_seqlens_k[n + 1] : S});
      }
    }
  }
}

/// Parameters of a range's fitted map, the given ones or those of its tokens; empty for maps that
/// are not fitted.
template <class T>
std::vector<double> fitted_parameters(const AttentionParams<T>& params, View4<const T> q,
                                      View4<const T> k, const PieceRange& range) {
  const int64_t D = q.sizes[3];
  const int64_t numbers = num_map_parameters(params.feature_map, D);
  if (numbers == 0) return {};
  if (params.map_parameters != nullptr) {
    const int64_t set = params.num_map_parameter_sets == 1 ? 0 : range.g;
    const T* from = params.map_parameters + set * numbers;
    return std::vector<double>(from, from + numbers);
  }
  Moments moments = moments_for(params.feature_map, D);
  add_moments(params, q, k, range, moments);
  return moments.fit(params.feature_map);
}

/// Calls body(piece) for every independent piece of work, its feature map made.
template <class T, class Body>
void for_each_piece(const AttentionParams<T>& params, View4<const T> q, View4<const T> k,
                    const Body& body) {
  for_each_range(params, q, k, [&](const PieceRange& range) {
    Piece<T> piece{
        range, FeatureMap<T>(params, range.g, q.sizes[3], fitted_parameters(params, q, k, range))};
    for (int64_t j = range.k0; j < range.k1; ++j) {
      if (allowed(params, range.b, range.g, k.sizes[2], j)) {
        piece.map.see_key(k.row(range.b, range.g, j));
      }
    }
    body(static_cast<const Piece<T>&>(piece));
  });
}

template <class T>
T inner(const T* a, const T* b, int64_t n) {
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <class T>
bool is_zero(const T* row, int64_t n) {
  return std::all_of(row, row + n, [](T x) { return x == 0; });
}

template <class T>
void set_zero(View4<T> view) {
  for (int64_t b = 0; b < view.sizes[0]; ++b) {
    for (int64_t h = 0; h < view.sizes[1]; ++h) {
      for (int64_t l = 0; l < view.sizes[2]; ++l) {
        std::fill_n(view.row(b, h, l), view.sizes[3], T{0});
      }
    }
  }
}

}  // namespace favor::reference

#endif  // FAVOR_REFERENCE_PIECES_H_
