// SPDX-License-Identifier: Apache-2.0
// k-means of the tokens of each head: what attention with clustered keys or queries starts from.
// Dims legend: favor/favor.h.
#ifndef FAVOR_KMEANS_H_
#define FAVOR_KMEANS_H_

#include <cstdint>
#include <span>

#include "favor/half.h"
#include "favor/tensor_view.h"

namespace favor {

struct KMeansParams {
  int64_t num_clusters = 1;  ///< C
  int64_t iterations = 0;    ///< rounds of Lloyd's algorithm after the first centres
  /// [B, L] row-major, nonzero = leave this token out. Null: every token takes part.
  const uint8_t* key_padding_mask = nullptr;
  /// Packed segments: N + 1 ascending offsets from 0 to L, each clustered by itself. Empty: one.
  std::span<const int64_t> cu_seqlens;
};

/// Clusters the tokens x [B, H, L, D] of every item, head and segment.
///
/// The first centres are C of the n tokens that take part, those at n c / C for c = 0 to C - 1, so
/// that tokens left out at the end change nothing. A round takes each token to the centre at the
/// least Euclidean distance, in ties to the first, and moves each centre to the mean of its tokens;
/// one without tokens stays. After `iterations` rounds tokens are taken to centres once more.
/// `clusters` [B, H, L] receives 0 to C - 1, and -1 for tokens left out, which are not read.
///
/// `queries` [B, H, L, D], unless its data is null, go to the centre at the least distance among
/// those that have tokens, in `nearest` [B, H, L]; 0 where a segment has no token that takes part.
///
/// O((iterations + 2) L C D) time, scratch O(C D) per thread; nothing of size L x C is stored.
/// Parallel over items, heads and segments. float, bfloat16 and float16 compare distances in float,
/// double in double. Throws favor::Error for arguments that do not fit, before any work.
template <class T>
void kmeans(const KMeansParams& params, View4<const T> x, int64_t* clusters,
            View4<const T> queries = {}, int64_t* nearest = nullptr);

}  // namespace favor

#endif  // FAVOR_KMEANS_H_
