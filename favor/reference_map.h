// SPDX-License-Identifier: Apache-2.0
// The feature maps in their plainest form: a row of q or k becomes M features, and gradients of the
// features become a gradient of the row. Formulas: docs/math.md, section 2.
#ifndef FAVOR_REFERENCE_MAP_H_
#define FAVOR_REFERENCE_MAP_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "favor/attention.h"
#include "favor/fitted_map.h"

namespace favor::reference {

enum class Side { kQuery, kKey };

/// g(u) of the generalised maps, and its derivative.
template <class T>
T generalised_feature(FeatureMapKind kind, T u) {
  switch (kind) {
    case FeatureMapKind::kRelu:
      return std::max(u, T{0});
    case FeatureMapKind::kRelu2:
      return u > 0 ? u * u : T{0};
    case FeatureMapKind::kElu1:
      return u > 0 ? u + 1 : std::exp(u);
    case FeatureMapKind::kSigmoid:
      return 1 / (1 + std::exp(-u));
    case FeatureMapKind::kSoftplus:
      return std::max(u, T{0}) + std::log1p(std::exp(-std::abs(u)));
    case FeatureMapKind::kGelu:
      return u / 2 * std::erfc(-u / std::sqrt(T{2}));
    case FeatureMapKind::kAbs:
      return std::abs(u);
    case FeatureMapKind::kTanh:
      return std::tanh(u);
    case FeatureMapKind::kCos:
      return std::cos(u);
    case FeatureMapKind::kSin:
      return std::sin(u);
    default:
      return u;
  }
}

template <class T>
T generalised_slope(FeatureMapKind kind, T u) {
  switch (kind) {
    case FeatureMapKind::kRelu:
      return u > 0 ? T{1} : T{0};
    case FeatureMapKind::kRelu2:
      return u > 0 ? 2 * u : T{0};
    case FeatureMapKind::kElu1:
      return u > 0 ? T{1} : std::exp(u);
    case FeatureMapKind::kSigmoid: {
      const T y = 1 / (1 + std::exp(-std::abs(u)));
      return y * (1 - y);
    }
    case FeatureMapKind::kSoftplus:
      return 1 / (1 + std::exp(-u));
    case FeatureMapKind::kGelu: {
      const T root_two_pi = static_cast<T>(2.5066282746310002);
      return std::erfc(-u / std::sqrt(T{2})) / 2 + u * std::exp(-u * u / 2) / root_two_pi;
    }
    case FeatureMapKind::kAbs:
      return u > 0 ? T{1} : u < 0 ? T{-1} : T{0};
    case FeatureMapKind::kTanh: {
      const T y = std::tanh(u);
      return 1 - y * y;
    }
    case FeatureMapKind::kCos:
      return -std::sin(u);
    case FeatureMapKind::kSin:
      return std::cos(u);
    default:
      return 1;
  }
}

/// Features of one row: phi_f = value_f exp(log_f). Log-linear maps have value 1; the others have
/// one log for all features.
template <class T>
struct Features {
  std::vector<T> log, value;
  explicit Features(int64_t M) : log(M), value(M, T{1}) {}
};

/// The map of one key head and the query heads that use it.
template <class T>
struct FeatureMap {
  int64_t M, D;
  bool log_linear;
  /// Whether a query's features keep its |q|^2 and constants, which cancel in a plain ratio.
  bool whole_queries;

  FeatureMap(const FeatureMap&) = delete;
  FeatureMap(FeatureMap&&) = default;  // an expanded matrix stays in place
  FeatureMap& operator=(FeatureMap&&) = default;
  /// `fitted`: the parameters of a fitted map (num_map_parameters), else empty.
  FeatureMap(const AttentionParams<T>& params, int64_t key_head, int64_t head_dim,
             std::span<const double> fitted = {})
      : M(num_features(params, head_dim)),
        D(head_dim),
        log_linear(is_log_linear(params.feature_map)),
        whole_queries(!params.renormalize || params.window > 0 || params.sinks > 0 ||
                      (log_linear && resolve_feature_eps(params) > 0)),
        kind_(params.feature_map),
        official_(params.compatibility == Compatibility::kOfficial),
        R_(num_projection_rows(kind_, M)),
        w_(params.projection),
        root_scale_(static_cast<T>(std::sqrt(resolve_scale(params, head_dim)))),
        eps_(static_cast<T>(resolve_feature_eps(params))),
        x_(D),
        u_(M) {
    const int64_t matrix = params.num_projections > 1 ? key_head : 0;
    if (w_ != nullptr) w_ += matrix * R_ * D;
    if (params.structured != nullptr) {
      const std::vector<float> dense = params.structured[matrix].to_dense();
      expanded_.assign(dense.begin(), dense.end());
      w_ = expanded_.data();
    }
    if (log_linear) {
      const LogLinearMap map = make_log_linear_map(kind_, w_, M, D, fitted);
      const auto convert = [](const std::vector<double>& from) {
        return std::vector<T>(from.begin(), from.end());
      };
      query_ = {convert(map.query_rows), convert(map.query_norm), convert(map.query_constant)};
      key_ = {convert(map.key_rows), convert(map.key_norm), std::vector<T>(M)};
    }
  }

  /// Features of one row; a key's are multiplied by exp(log_weight).
  void apply(const T* row, Side side, T log_weight, Features<T>& out) const {
    load(row);
    if (log_linear) {
      project_log_linear(side);
      const T norm = half_norm(side);
      const T floor = log_floor(side);
      for (int64_t f = 0; f < M; ++f) {
        out.log[f] = add_exp(u_[f] - norm, floor) + log_weight;
      }
      return;
    }
    const bool trig = kind_ == FeatureMapKind::kTrig;
    T log = log_weight;
    if (trig && (side == Side::kKey || whole_queries)) log += half_square();
    if (trig && side == Side::kQuery) log -= std::log(static_cast<T>(R_));
    std::fill(out.log.begin(), out.log.end(), log);
    for (int64_t f = 0; f < M; ++f) {
      const T u = project(f % R_);
      out.value[f] =
          trig ? (f < R_ ? std::sin(u) : std::cos(u)) : generalised_feature(kind_, u) + eps_;
    }
  }

  /// The gradient of `row` from the gradients dlog[M] of the logarithms and dvalue[M] of the values
  /// (read only by the maps that have some).
  void backward(const T* row, Side side, const T* dlog, const T* dvalue, T* drow) const {
    load(row);
    std::fill(drow, drow + D, T{0});
    if (log_linear) {
      const Matrices& map = side == Side::kKey ? key_ : query_;
      const T floor = log_floor(side);
      T norm = 0;
      if (eps_ > 0) {
        project_log_linear(side);
        norm = half_norm(side);
      }
      T total = 0;
      for (int64_t f = 0; f < M; ++f) {
        const T a = u_[f] - norm;
        const T da = eps_ > 0 ? dlog[f] * std::exp(a - add_exp(a, floor)) : dlog[f];
        total += da;
        for (int64_t i = 0; i < D; ++i) drow[i] += da * map.rows[f * D + i];
      }
      const bool has_norm = side == Side::kKey || whole_queries;
      for (int64_t i = 0; has_norm && i < D; ++i) drow[i] -= total * map.norm[i] * x_[i];
    } else {
      T total = 0;
      for (int64_t f = 0; f < M; ++f) {
        const int64_t r = f % R_;
        const T u = project(r);
        total += dlog[f];
        const T du =
            dvalue[f] * (kind_ == FeatureMapKind::kTrig ? (f < R_ ? std::cos(u) : -std::sin(u))
                                                        : generalised_slope(kind_, u));
        if (w_ == nullptr) drow[r] += du;
        for (int64_t i = 0; w_ != nullptr && i < D; ++i) drow[i] += du * w_[r * D + i];
      }
      const bool has_norm = kind_ == FeatureMapKind::kTrig && (side == Side::kKey || whole_queries);
      for (int64_t i = 0; has_norm && i < D; ++i) drow[i] += total * x_[i];
    }
    for (int64_t i = 0; i < D; ++i) drow[i] *= root_scale_;
  }

  /// Compatibility with the official code: the largest w_f.k of all keys, to which its epsilon is
  /// relative. To be called with every allowed key before any apply.
  void see_key(const T* row) {
    if (!official_) return;
    load(row);
    project_log_linear(Side::kKey);
    key_top_ = std::max(key_top_, *std::max_element(u_.begin(), u_.end()));
  }

 private:
  struct Matrices {
    std::vector<T> rows;      // [M, D]
    std::vector<T> norm;      // [D]
    std::vector<T> constant;  // [M]
  };

  static int64_t num_features(const AttentionParams<T>& params, int64_t head_dim) {
    return has_projection(params) ? params.num_features : head_dim;
  }

  static T minus_infinity() { return -std::numeric_limits<T>::infinity(); }

  /// log(exp(a) + exp(b)).
  static T add_exp(T a, T b) {
    return b == minus_infinity() ? a : std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
  }

  void load(const T* row) const {
    for (int64_t i = 0; i < D; ++i) x_[i] = root_scale_ * row[i];
  }

  T half_square() const {
    T sum = 0;
    for (int64_t i = 0; i < D; ++i) sum += x_[i] * x_[i] / 2;
    return sum;
  }

  T half_norm(Side side) const {
    if (side == Side::kQuery && !whole_queries) return 0;
    const Matrices& map = side == Side::kKey ? key_ : query_;
    T sum = 0;
    for (int64_t i = 0; i < D; ++i) sum += map.norm[i] * x_[i] * x_[i] / 2;
    return sum;
  }

  /// The logarithm of what feature_eps adds to each feature of the loaded and projected row. The
  /// constants of both sides stand on the query's.
  T log_floor(Side side) const {
    if (eps_ == 0) return minus_infinity();
    const T floor = std::log(eps_) + (side == Side::kQuery ? query_.constant[0] : T{0});
    if (!official_) return floor;
    if (side == Side::kKey) return floor + key_top_;
    return std::log(eps_) + *std::max_element(u_.begin(), u_.end());
  }

  void project_log_linear(Side side) const {
    const Matrices& map = side == Side::kKey ? key_ : query_;
    for (int64_t f = 0; f < M; ++f) {
      u_[f] = map.constant[f];
      for (int64_t i = 0; i < D; ++i) u_[f] += map.rows[f * D + i] * x_[i];
    }
  }

  T project(int64_t r) const {
    if (w_ == nullptr) return x_[r];
    T u = 0;
    for (int64_t i = 0; i < D; ++i) u += w_[r * D + i] * x_[i];
    return u;
  }

  FeatureMapKind kind_;
  bool official_;
  int64_t R_;
  const T* w_;               // [R, D], or null: the features are those of x itself
  std::vector<T> expanded_;  // a structured matrix
  T root_scale_, eps_;
  T key_top_ = minus_infinity();
  Matrices query_, key_;
  mutable std::vector<T> x_, u_;  // the row at hand, scaled, and its projection
};

}  // namespace favor::reference

#endif  // FAVOR_REFERENCE_MAP_H_
