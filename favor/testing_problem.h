// SPDX-License-Identifier: Apache-2.0
// Random attention problems, and their parameters for calls.
#ifndef FAVOR_TESTING_PROBLEM_H_
#define FAVOR_TESTING_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "favor/attention.h"
#include "favor/check.h"
#include "favor/exact.h"
#include "favor/projection.h"
#include "favor/random.h"
#include "favor/testing_buffer.h"

namespace favor::test {

inline std::vector<float> random_normal(uint64_t seed, uint64_t stream, int64_t size,
                                        double factor = 1) {
  RandomStream rng(seed, stream);
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(factor * rng.normal());
  return values;
}

enum class ProjectionUse { kShared, kPerHead, kNone };
enum class MaskKind {
  kNone,
  kRandom,  ///< about a third of the keys
  kLeft,    ///< the first keys of each item, as in left padding
  kItem,    ///< every key of item 0
};

enum class WeightKind {
  kNone,
  kShared,   ///< of all key heads, standard deviation 1, a few of them -inf
  kPerHead,  ///< of each key head
};

/// One attention problem. Rows of q and k have entries of standard deviation `norm`.
struct Case {
  int64_t B = 1, H = 2, L = 64, S = 64, D = 8, E = 8, M = 16;
  int64_t group = 1;  ///< query heads of a key head; divides H
  bool causal = false;
  FeatureMapKind feature_map = FeatureMapKind::kPositive;
  ProjectionUse projection = ProjectionUse::kShared;
  bool structured = false;  ///< Hadamard matrices, which kernels get in compact form
  MaskKind mask = MaskKind::kNone;
  std::vector<int64_t> cu_seqlens_q, cu_seqlens_k;
  double norm = 1;
  Layout layout = Layout::kContiguous;
  std::optional<double> scale, feature_eps;
  Compatibility compatibility = Compatibility::kNone;
  bool renormalize = true;
  WeightKind weights = WeightKind::kNone;
  int64_t window = 0, sinks = 0;
  bool exact = false;                           ///< exact attention instead of features
  bool skip_self = false;                       ///< of exact attention
  bool keep_state = true;                       ///< pass Saved::state
  ElementType element = ElementType::kFloat32;  ///< of q, k, v, out and gradients
  uint64_t seed = 1;

  int64_t G() const { return H / group; }
  /// Rows of a random matrix.
  int64_t R() const { return num_projection_rows(feature_map, M); }

  std::string name() const {
    return message(causal ? "causal" : "bidirectional", " ",
                   exact ? "exact" : to_string(feature_map), " window ", window, " sinks ", sinks,
                   skip_self ? " skip_self" : "", " B", B, " H", H, " L", L, " S", S, " D", D, " E",
                   E, " M", M, " norm ", norm, " mask ", static_cast<int>(mask), " projection ",
                   static_cast<int>(projection), structured ? " structured" : "", " layout ",
                   static_cast<int>(layout), " segments ", cu_seqlens_q.size(), " group ", group,
                   " weights ", static_cast<int>(weights), " renormalize ", renormalize, " eps ",
                   feature_eps.value_or(-1), " element ", static_cast<int>(element));
  }
};

/// The tensors of a case in row-major order, values of its element type. Masked keys and values
/// hold NaN and 1e30.
struct Problem {
  Case spec;
  std::vector<float> q, k, v, dout, projection, key_log_weight;
  std::vector<float> map_parameters;             ///< given to causal calls of a fitted map
  std::vector<StructuredProjection> structured;  ///< the matrices of `projection`, or empty
  std::vector<uint8_t> mask;
};

inline Problem make_problem(const Case& spec) {
  const auto& c = spec;
  Problem p;
  p.spec = spec;
  p.q = random_normal(c.seed, 1, c.B * c.H * c.L * c.D, c.norm);
  p.k = random_normal(c.seed, 2, c.B * c.G() * c.S * c.D, c.norm);
  p.v = random_normal(c.seed, 3, c.B * c.G() * c.S * c.E);
  p.dout = random_normal(c.seed, 4, c.B * c.H * c.L * c.E);
  for (std::vector<float>* x : {&p.q, &p.k, &p.v, &p.dout}) round_to(c.element, *x);
  if (c.projection != ProjectionUse::kNone) {
    for (int64_t h = 0; h < (c.projection == ProjectionUse::kPerHead ? c.G() : 1); ++h) {
      ProjectionSpec matrix;
      matrix.num_features = c.R();
      matrix.head_dim = c.D;
      matrix.seed = c.seed;
      matrix.head = static_cast<uint32_t>(h);
      if (c.structured) {
        matrix.kind = ProjectionKind::kHadamard;
        p.structured.push_back(draw_structured_projection(matrix));
      }
      const std::vector<float> w = draw_projection(matrix);
      p.projection.insert(p.projection.end(), w.begin(), w.end());
    }
  }
  if (c.layout == Layout::kExpanded) {
    const auto repeat = [&](std::vector<float>& x, int64_t heads, int64_t head_size) {
      for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
        const int64_t b = i / (heads * head_size);
        x[i] = x[b * heads * head_size + i % head_size];
      }
    };
    repeat(p.q, c.H, c.L * c.D);
    repeat(p.k, c.G(), c.S * c.D);
    repeat(p.v, c.G(), c.S * c.E);
    repeat(p.dout, c.H, c.L * c.E);
  }
  if (c.causal && is_fitted(c.feature_map)) {
    AttentionParams<float> params;
    params.feature_map = c.feature_map;
    params.scale = c.scale;
    params.projection = p.projection.data();
    params.num_features = c.M;
    params.num_projections = c.projection == ProjectionUse::kPerHead ? c.G() : 1;
    params.num_map_parameter_sets = c.G();
    p.map_parameters =
        fit_feature_map<float>(params, contiguous_view<const float>(p.q.data(), c.B, c.H, c.L, c.D),
                               contiguous_view<const float>(p.k.data(), c.B, c.G(), c.S, c.D));
  }
  RandomStream weights(c.seed, 6);
  if (c.weights != WeightKind::kNone) {
    p.key_log_weight.resize(c.B * (c.weights == WeightKind::kPerHead ? c.G() : 1) * c.S);
    for (float& weight : p.key_log_weight) {
      weight = weights.uniform() < 0.2 ? -std::numeric_limits<float>::infinity()
                                       : static_cast<float>(weights.normal());
    }
  }
  if (c.mask == MaskKind::kNone) return p;
  RandomStream rng(c.seed, 5);
  p.mask.assign(c.B * c.S, 0);
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t j = 0; j < c.S; ++j) {
      const bool ignored = c.mask == MaskKind::kRandom ? rng.uniform() < 0.33
                           : c.mask == MaskKind::kLeft ? j < std::min<int64_t>(c.S / 3 + b, c.S)
                                                       : b == 0;
      p.mask[b * c.S + j] = ignored ? static_cast<uint8_t>(1 + rng.below(255)) : 0;
      if (!ignored) continue;
      const float garbage = j % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : 1e30f;
      for (int64_t g = 0; g < c.G(); ++g) {
        std::fill_n(p.k.begin() + ((b * c.G() + g) * c.S + j) * c.D, c.D, garbage);
        std::fill_n(p.v.begin() + ((b * c.G() + g) * c.S + j) * c.E, c.E, garbage);
      }
    }
  }
  return p;
}

/// Gives a fitted map the parameters that a causal call of the same tokens gets.
inline void give_map_parameters(Problem& p) {
  Case causal = p.spec;
  causal.causal = true;
  p.map_parameters = make_problem(causal).map_parameters;
}

/// Maps whose features are positive or zero, so that outputs are means of values.
inline constexpr FeatureMapKind kPositiveMaps[] = {FeatureMapKind::kPositive,
                                                   FeatureMapKind::kHyperbolic,
                                                   FeatureMapKind::kOptimalPositive,
                                                   FeatureMapKind::kFavorSharpDiagonal,
                                                   FeatureMapKind::kFavorSharp,
                                                   FeatureMapKind::kRelu,
                                                   FeatureMapKind::kRelu2,
                                                   FeatureMapKind::kElu1,
                                                   FeatureMapKind::kExp,
                                                   FeatureMapKind::kSigmoid,
                                                   FeatureMapKind::kSoftplus,
                                                   FeatureMapKind::kAbs};
/// Maps with features of either sign.
inline constexpr FeatureMapKind kSignedMaps[] = {FeatureMapKind::kTrig, FeatureMapKind::kGelu,
                                                 FeatureMapKind::kTanh, FeatureMapKind::kCos,
                                                 FeatureMapKind::kSin,  FeatureMapKind::kIdentity};

/// The parameters of a problem without fitted parameters and key weights.
template <class T>
AttentionParams<T> make_params(const Problem& p, const std::vector<T>& projection) {
  AttentionParams<T> params;
  params.feature_map = p.spec.feature_map;
  params.scale = p.spec.scale;
  params.feature_eps = p.spec.feature_eps;
  params.projection = projection.empty() ? nullptr : projection.data();
  params.compatibility = p.spec.compatibility;
  params.renormalize = p.spec.renormalize;
  params.num_projections = p.spec.projection == ProjectionUse::kPerHead ? p.spec.G() : 1;
  params.num_features = projection.empty() ? 0 : p.spec.M;
  params.key_padding_mask = p.mask.empty() ? nullptr : p.mask.data();
  params.window = p.spec.exact ? 0 : p.spec.window;
  params.sinks = p.spec.exact ? 0 : p.spec.sinks;
  params.cu_seqlens_q = p.spec.cu_seqlens_q;
  params.cu_seqlens_k = p.spec.cu_seqlens_k;
  return params;
}

/// The parameters of a problem in T, with the arrays they point to.
template <class T>
struct Params {
  std::vector<T> projection, map_parameters, key_log_weight;
  AttentionParams<T> value;

  explicit Params(const Problem& p)
      : projection(p.projection.begin(), p.projection.end()),
        map_parameters(p.map_parameters.begin(), p.map_parameters.end()),
        key_log_weight(p.key_log_weight.begin(), p.key_log_weight.end()),
        value(make_params(p, projection)) {
    if (!map_parameters.empty()) {
      value.map_parameters = map_parameters.data();
      value.num_map_parameter_sets = p.spec.G();
    }
    if (!key_log_weight.empty()) {
      value.key_log_weight = key_log_weight.data();
      value.num_key_log_weights = p.spec.weights == WeightKind::kPerHead ? p.spec.G() : 1;
    }
  }
  Params(const Params&) = delete;
  Params& operator=(const Params&) = delete;
};

/// The same problem without features.
template <class T>
ExactParams<T> exact_params(const Case& c, const AttentionParams<T>& params) {
  ExactParams<T> exact;
  exact.scale = c.scale;
  exact.is_causal = c.causal;
  exact.key_padding_mask = params.key_padding_mask;
  exact.key_log_weight = params.key_log_weight;
  exact.num_key_log_weights = params.num_key_log_weights;
  exact.window = c.window;
  exact.sinks = c.sinks;
  exact.skip_self = c.skip_self;
  exact.cu_seqlens_q = params.cu_seqlens_q;
  exact.cu_seqlens_k = params.cu_seqlens_k;
  return exact;
}

}  // namespace favor::test

#endif  // FAVOR_TESTING_PROBLEM_H_
