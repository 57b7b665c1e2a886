// SPDX-License-Identifier: Apache-2.0
// Exact softmax attention in its plainest form: every query by every key it sees, one row at a
// time. Serves double tensors and judges the kernels, as reference.h does for random features.
#ifndef FAVOR_REFERENCE_EXACT_H_
#define FAVOR_REFERENCE_EXACT_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "favor/exact.h"

namespace favor::reference {

/// Whether the query at position i of a segment is near the key at position j: in the same or a
/// neighbouring block of `window` tokens, or the key is a sink.
inline bool is_near(int64_t i, int64_t j, int64_t num_keys, int64_t window, int64_t sinks,
                    bool is_causal) {
  if (window == 0 || j < sinks || (!is_causal && j >= num_keys - sinks)) return true;
  return std::abs(i / window - j / window) <= 1;
}

/// One query head with its key head, in one segment of a batch item: rows [q0, q1) attend to keys
/// [k0, k1).
struct ExactPiece {
  int64_t b, h, g, q0, q1, k0, k1;
};

template <class T, class Body>
void for_each_exact_piece(const ExactParams<T>& params, View4<const T> q, View4<const T> k,
                          const Body& body) {
  const bool packed = !params.cu_seqlens_q.empty();
  const size_t segments = packed ? params.cu_seqlens_q.size() - 1 : 1;
  for (int64_t b = 0; b < q.sizes[0]; ++b) {
    for (int64_t h = 0; h < q.sizes[1]; ++h) {
      const int64_t g = h / (q.sizes[1] / k.sizes[1]);
      for (size_t n = 0; n < segments; ++n) {
        body(packed ? ExactPiece{b, h, g, params.cu_seqlens_q[n], params.cu_seqlens_q[n + 1],
                                 params.cu_seqlens_k[n], params.cu_seqlens_k[n + 1]}
                    : ExactPiece{b, h, g, 0, q.sizes[2], 0, k.sizes[2]});
      }
    }
  }
}

/// scale q_i.k_j plus the key's log weight for every key of the piece; -inf for those that query i
/// does not see, which are not read.
template <class T>
std::vector<T> exact_scores(const ExactParams<T>& params, View4<const T> q, View4<const T> k,
                            const ExactPiece& p, int64_t i) {
  const int64_t D = q.sizes[3], S = k.sizes[2], W = params.num_key_log_weights;
  const T scale = static_cast<T>(resolve_scale(params, D));
  std::vector<T> scores(p.k1 - p.k0, -std::numeric_limits<T>::infinity());
  for (int64_t j = p.k0; j < p.k1; ++j) {
    const int64_t row = i - p.q0, col = j - p.k0;
    if ((params.is_causal && col > row) || (params.skip_self && col == row)) continue;
    if (!is_near(row, col, p.k1 - p.k0, params.window, params.sinks, params.is_causal)) continue;
    if (params.key_padding_mask != nullptr && params.key_padding_mask[p.b * S + j] != 0) continue;
    T score = 0;
    if (params.key_log_weight != nullptr) {
      score = params.key_log_weight[(p.b * W + (W == 1 ? 0 : p.g)) * S + j];
      if (score == -std::numeric_limits<T>::infinity()) continue;
    }
    for (int64_t d = 0; d < D; ++d) score += scale * q.row(p.b, p.h, i)[d] * k.row(p.b, p.g, j)[d];
    scores[col] = score;
  }
  return scores;
}

template <class T>
void exact_forward(const ExactParams<T>& params, View4<const T> q, View4<const T> k,
                   View4<const T> v, View4<T> out, T* normalizer = nullptr) {
  const int64_t H = q.sizes[1], L = q.sizes[2], E = v.sizes[3];
  const T none = -std::numeric_limits<T>::infinity();
  for_each_exact_piece(params, q, k, [&](const ExactPiece& p) {
    for (int64_t i = p.q0; i < p.q1; ++i) {
      const std::vector<T> scores = exact_scores(params, q, k, p, i);
      T top = none, total = 0;
      for (const T score : scores) top = std::max(top, score);
      T* row = out.row(p.b, p.h, i);
      std::fill_n(row, E, T{0});
      for (int64_t j = p.k0; j < p.k1; ++j) {
        if (scores[j - p.k0] == none) continue;
        const T weight = std::exp(scores[j - p.k0] - top);
        total += weight;
        for (int64_t e = 0; e < E; ++e) row[e] += weight * v.row(p.b, p.g, j)[e];
      }
      for (int64_t e = 0; e < E; ++e) row[e] = total == 0 ? T{0} : row[e] / total;
      if (normalizer != nullptr) {
        normalizer[(p.b * H + p.h) * L + i] = top + std::log(total);
      }
    }
  });
}

/// `normalizer`: natural logarithms of the denominators.
template <class T>
void exact_backward(const ExactParams<T>& params, View4<const T> q, View4<const T> k,
                    View4<const T> v, View4<const T> out, View4<const T> dout, const T* normalizer,
                    View4<T> dq, View4<T> dk, View4<T> dv) {
  const int64_t H = q.sizes[1], L = q.sizes[2], D = q.sizes[3], E = v.sizes[3];
  const T none = -std::numeric_limits<T>::infinity();
  const T scale = static_cast<T>(resolve_scale(params, D));
  for (View4<T>* gradient : {&dq, &dk, &dv}) {
    for (int64_t b = 0; b < gradient->sizes[0]; ++b) {
      for (int64_t h = 0; h < gradient->sizes[1]; ++h) {
        for (int64_t l = 0; l < gradient->sizes[2]; ++l) {
          std::fill_n(gradient->row(b, h, l), gradient->sizes[3], T{0});
        }
      }
    }
  }
  for_each_exact_piece(params, q, k, [&](const ExactPiece& p) {
    for (int64_t i = p.q0; i < p.q1; ++i) {
      const T* g = dout.row(p.b, p.h, i);
      const T log_sum = normalizer[(p.b * H + p.h) * L + i];
      if (log_sum == none || std::all_of(g, g + E, [](T x) { return x == 0; })) continue;
      const std::vector<T> scores = exact_scores(params, q, k, p, i);
      T delta = 0;
      for (int64_t e = 0; e < E; ++e) delta += g[e] * out.row(p.b, p.h, i)[e];
      for (int64_t j = p.k0; j < p.k1; ++j) {
        if (scores[j - p.k0] == none) continue;
        const T weight = std::exp(scores[j - p.k0] - log_sum);
        T dweight = 0;
        for (int64_t e = 0; e < E; ++e) {
          dweight += g[e] * v.row(p.b, p.g, j)[e];
          dv.row(p.b, p.g, j)[e] += weight * g[e];
        }
        const T dscore = scale * weight * (dweight - delta);
        for (int64_t d = 0; d < D; ++d) {
          dq.row(p.b, p.h, i)[d] += dscore * k.row(p.b, p.g, j)[d];
          dk.row(p.b, p.g, j)[d] += dscore * q.row(p.b, p.h, i)[d];
        }
      }
    }
  });
}

}  // namespace favor::reference

#endif  // FAVOR_REFERENCE_EXACT_H_
