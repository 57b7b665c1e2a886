// SPDX-License-Identifier: Apache-2.0
// k-means in its plainest form: serves double tensors and judges the kernel.
#ifndef FAVOR_REFERENCE_KMEANS_H_
#define FAVOR_REFERENCE_KMEANS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "favor/kmeans.h"

namespace favor::reference {

/// The centres of one head in one segment.
template <class T>
struct Centres {
  int64_t C, D;
  std::vector<T> rows;         ///< [C, D]
  std::vector<int64_t> count;  ///< [C] tokens that belong to each

  /// The centre next to `x`; `filled`: among those that have tokens. `margin` becomes at most the
  /// difference to the second one's squared distance.
  int64_t nearest(const T* x, bool filled, T* margin) const {
    const T infinity = std::numeric_limits<T>::infinity();
    T least = infinity, second = infinity;
    int64_t best = 0;
    for (int64_t c = 0; c < C; ++c) {
      if (filled && count[c] == 0) continue;
      T distance = 0;
      for (int64_t d = 0; d < D; ++d) {
        const T step = x[d] - rows[c * D + d];
        distance += step * step;
      }
      const T* row = rows.data() + c * D;
      const bool twin = least < infinity && std::equal(row, row + D, rows.data() + best * D);
      if (twin) continue;  // equal centres tie on any machine, and the first of them wins
      if (distance < least) {
        second = least;
        least = distance;
        best = c;
      } else {
        second = std::min(second, distance);
      }
    }
    if (margin != nullptr && second - least < *margin) *margin = second - least;
    return best;
  }
};

/// `margin`, if not null, becomes at most the least difference between the squared distances of the
/// two centres next to a token: how far from a tie all decisions were.
template <class T>
void kmeans(const KMeansParams& params, View4<const T> x, int64_t* clusters, View4<const T> queries,
            int64_t* nearest, T* margin = nullptr) {
  const int64_t B = x.sizes[0], H = x.sizes[1], L = x.sizes[2], D = x.sizes[3];
  const int64_t C = params.num_clusters;
  const int64_t whole[] = {0, L};
  const std::span<const int64_t> offsets =
      params.cu_seqlens.empty() ? std::span<const int64_t>(whole) : params.cu_seqlens;
  for (int64_t row = 0; row < B * H; ++row) {
    const int64_t b = row / H, h = row % H;
    for (size_t n = 0; n + 1 < offsets.size(); ++n) {
      std::vector<int64_t> tokens;
      for (int64_t i = offsets[n]; i < offsets[n + 1]; ++i) {
        const bool masked =
            params.key_padding_mask != nullptr && params.key_padding_mask[b * L + i] != 0;
        clusters[row * L + i] = -1;
        if (!masked) tokens.push_back(i);
      }
      const auto size = static_cast<int64_t>(tokens.size());
      Centres<T> centres{C, D, std::vector<T>(C * D, T{0}), std::vector<int64_t>(C, 0)};
      for (int64_t c = 0; c < C && size > 0; ++c) {
        std::copy_n(x.row(b, h, tokens[size * c / C]), D, centres.rows.begin() + c * D);
      }
      for (int64_t round = 0; size > 0; ++round) {
        std::fill(centres.count.begin(), centres.count.end(), 0);
        std::vector<double> sums(C * D, 0.0);
        for (const int64_t i : tokens) {
          const T* token = x.row(b, h, i);
          const int64_t c = centres.nearest(token, false, margin);
          clusters[row * L + i] = c;
          ++centres.count[c];
          for (int64_t d = 0; d < D; ++d) sums[c * D + d] += static_cast<double>(token[d]);
        }
        if (round == params.iterations) break;
        for (int64_t j = 0; j < C * D; ++j) {
          const int64_t count = centres.count[j / D];
          if (count > 0) centres.rows[j] = static_cast<T>(sums[j] / static_cast<double>(count));
        }
      }
      for (int64_t i = offsets[n]; i < offsets[n + 1] && queries.data != nullptr; ++i) {
        nearest[row * L + i] = centres.nearest(queries.row(b, h, i), true, margin);
      }
    }
  }
}

}  // namespace favor::reference

#endif  // FAVOR_REFERENCE_KMEANS_H_
