// SPDX-License-Identifier: Apache-2.0
// Hybrid attention in its plainest form: the weight of every key for every query, exact for near
// keys and sinks, by random features for all others, under one normaliser. Formulas: docs/math.md.
#ifndef FAVOR_REFERENCE_HYBRID_H_
#define FAVOR_REFERENCE_HYBRID_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "favor/attention.h"
#include "favor/reference_exact.h"
#include "favor/reference_pieces.h"

namespace favor::reference {

/// The logarithms of the weights of all keys of a piece for one query row at a time.
template <class T>
class HybridScores {
 public:
  HybridScores(const AttentionParams<T>& params, bool is_causal, View4<const T> k,
               const Piece<T>& piece)
      : params_(params), is_causal_(is_causal), k_(k), piece_(piece), query_(piece.map.M) {
    scale_ = static_cast<T>(resolve_scale(params, k.sizes[3]));
    for (int64_t j = piece.k0; j < piece.k1; ++j) {
      keys_.emplace_back(piece.map.M);
      const bool takes_part = allowed(params, piece.b, piece.g, k.sizes[2], j);
      allowed_.push_back(takes_part);
      weights_.push_back(key_log_weight(params, piece.b, piece.g, k.sizes[2], j));
      if (!takes_part) continue;
      piece.map.apply(k.row(piece.b, piece.g, j), Side::kKey, weights_.back(), keys_.back());
    }
  }

  int64_t num_keys() const { return piece_.k1 - piece_.k0; }
  bool sees(int64_t i, int64_t j) const { return allowed_[j] && !(is_causal_ && j > i); }
  bool near(int64_t i, int64_t j) const {
    return is_near(i, j, num_keys(), params_.window, params_.sinks, is_causal_);
  }

  /// For the query at position i of the segment; -inf where it does not see a key.
  std::vector<T> row(const T* q, int64_t i) {
    const T none = -std::numeric_limits<T>::infinity();
    piece_.map.apply(q, Side::kQuery, T{0}, query_);
    std::vector<T> scores(num_keys(), none);
    for (int64_t j = 0; j < num_keys(); ++j) {
      if (!sees(i, j)) continue;
      if (near(i, j)) {
        scores[j] = weights_[j];
        for (int64_t d = 0; d < piece_.map.D; ++d) scores[j] += scale_ * q[d] * key(j)[d];
        continue;
      }
      T top = none, total = 0;
      for (int64_t f = 0; f < piece_.map.M; ++f) top = std::max(top, feature(j, f));
      for (int64_t f = 0; f < piece_.map.M; ++f) total += std::exp(feature(j, f) - top);
      scores[j] = top + std::log(total);
    }
    return scores;
  }

  /// Of the last row: the logarithm of what feature f adds to the weight of far key j.
  T feature(int64_t j, int64_t f) const { return query_.log[f] + keys_[j].log[f]; }

  const T* key(int64_t j) const { return k_.row(piece_.b, piece_.g, piece_.k0 + j); }
  T scale() const { return scale_; }

 private:
  const AttentionParams<T>& params_;
  bool is_causal_;
  View4<const T> k_;
  const Piece<T>& piece_;
  T scale_;
  Features<T> query_;
  std::vector<Features<T>> keys_;
  std::vector<bool> allowed_;
  std::vector<T> weights_;
};

template <class T>
void hybrid_forward(const AttentionParams<T>& params, bool is_causal, View4<const T> q,
                    View4<const T> k, View4<const T> v, View4<T> out, Saved<T>* saved) {
  const int64_t H = q.sizes[1], L = q.sizes[2], E = v.sizes[3];
  const T none = -std::numeric_limits<T>::infinity();
  for_each_piece(params, q, k, [&](const Piece<T>& p) {
    HybridScores<T> all(params, is_causal, k, p);
    for (int64_t h = p.first_head; h < p.last_head; ++h) {
      for (int64_t i = p.q0; i < p.q1; ++i) {
        const std::vector<T> scores = all.row(q.row(p.b, h, i), i - p.q0);
        T top = none, total = 0;
        for (const T score : scores) top = std::max(top, score);
        T* row = out.row(p.b, h, i);
        std::fill_n(row, E, T{0});
        for (int64_t j = 0; j < all.num_keys(); ++j) {
          if (!all.sees(i - p.q0, j)) continue;
          const T weight = std::exp(scores[j] - top);
          total += weight;
          for (int64_t e = 0; e < E; ++e) row[e] += weight * v.row(p.b, p.g, p.k0 + j)[e];
        }
        for (int64_t e = 0; e < E; ++e) row[e] = total == 0 ? T{0} : row[e] / total;
        if (saved != nullptr && saved->normalizer != nullptr) {
          saved->normalizer[(p.b * H + h) * L + i] = top + std::log(total);
        }
      }
    }
  });
}

template <class T>
void hybrid_backward(const AttentionParams<T>& params, bool is_causal, View4<const T> q,
                     View4<const T> k, View4<const T> v, View4<const T> out, View4<const T> dout,
                     View4<T> dq, View4<T> dk, View4<T> dv) {
  const int64_t D = q.sizes[3], E = v.sizes[3];
  const T none = -std::numeric_limits<T>::infinity();
  set_zero(dq);
  set_zero(dk);
  set_zero(dv);
  for_each_piece(params, q, k, [&](const Piece<T>& p) {
    const int64_t M = p.map.M;
    HybridScores<T> all(params, is_causal, k, p);
    const int64_t keys = all.num_keys();
    std::vector<T> dkey(keys * M), dquery(M), row(D);
    const auto add_row = [&](T* to) {
      for (int64_t d = 0; d < D; ++d) to[d] += row[d];
    };
    for (int64_t h = p.first_head; h < p.last_head; ++h) {
      for (int64_t i = p.q0; i < p.q1; ++i) {
        const T* g = dout.row(p.b, h, i);
        if (is_zero(g, E)) continue;
        const T* x = q.row(p.b, h, i);
        const std::vector<T> scores = all.row(x, i - p.q0);
        T top = none, total = 0;
        for (const T score : scores) top = std::max(top, score);
        if (top == none) continue;
        for (const T score : scores) total += std::exp(score - top);
        const T log_sum = top + std::log(total);
        T delta = 0;
        for (int64_t e = 0; e < E; ++e) delta += g[e] * out.row(p.b, h, i)[e];
        std::fill(dquery.begin(), dquery.end(), T{0});
        for (int64_t j = 0; j < keys; ++j) {
          if (!all.sees(i - p.q0, j)) continue;
          const bool is_far = !all.near(i - p.q0, j);
          T weight = is_far ? T{0} : std::exp(scores[j] - log_sum);
          T dweight = -delta;
          for (int64_t e = 0; e < E; ++e) dweight += g[e] * v.row(p.b, p.g, p.k0 + j)[e];
          for (int64_t d = 0; d < D; ++d) {
            const T dscore = all.scale() * weight * dweight;
            dq.row(p.b, h, i)[d] += dscore * all.key(j)[d];
            dk.row(p.b, p.g, p.k0 + j)[d] += dscore * x[d];
          }
          for (int64_t f = 0; is_far && f < M; ++f) {
            const T part = std::exp(all.feature(j, f) - log_sum);
            weight += part;
            dquery[f] += part * dweight;
            dkey[j * M + f] += part * dweight;
          }
          for (int64_t e = 0; e < E; ++e) dv.row(p.b, p.g, p.k0 + j)[e] += weight * g[e];
        }
        // Values carry no gradient under log-linear maps.
        p.map.backward(x, Side::kQuery, dquery.data(), nullptr, row.data());
        add_row(dq.row(p.b, h, i));
      }
    }
    for (int64_t j = 0; j < keys; ++j) {
      if (!allowed(params, p.b, p.g, k.sizes[2], p.k0 + j)) continue;
      p.map.backward(all.key(j), Side::kKey, &dkey[j * M], nullptr, row.data());
      add_row(dk.row(p.b, p.g, p.k0 + j));
    }
  });
}

}  // namespace favor::reference

#endif  // FAVOR_REFERENCE_HYBRID_H_
