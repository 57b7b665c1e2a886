// SPDX-License-Identifier: Apache-2.0
// Names and properties of the feature maps. Their mathematics is in docs/math.md, their plain form
// in reference_map.h.
#ifndef FAVOR_FEATURE_MAP_H_
#define FAVOR_FEATURE_MAP_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace favor {

enum class FeatureMapKind {
  kPositive,            ///< exp(w.x - |x|^2 / 2): positive features of the softmax kernel
  kHyperbolic,          ///< positive features of w and of -w
  kOptimalPositive,     ///< FAVOR++: exp(A |w|^2 + sqrt(1 - 4A) w.x - |x|^2 / 2), A fitted
  kFavorSharpDiagonal,  ///< FAVOR# (SADERF): FAVOR++ after x -> Psi x, Psi diagonal and fitted
  kFavorSharp,          ///< FAVOR# (SDERF): an A for each eigendirection of E[(q + k)(q + k)^T]
  kTrig,                ///< exp(|x|^2 / 2) (sin(w.x), cos(w.x)): may be negative
  kRelu,                ///< max(u, 0), u = w.x or x: from here on generalised attention
  kRelu2,               ///< max(u, 0)^2
  kElu1,                ///< u + 1 for u > 0, else exp(u)
  kExp,                 ///< exp(u)
  kSigmoid,             ///< 1 / (1 + exp(-u))
  kSoftplus,            ///< log(1 + exp(u))
  kGelu,                ///< u Phi(u), Phi the normal distribution function; may be negative
  kAbs,                 ///< |u|
  kTanh,                ///< tanh(u); may be negative
  kCos,                 ///< cos(u); may be negative
  kSin,                 ///< sin(u); may be negative
  kIdentity,            ///< u; may be negative
};

std::string to_string(FeatureMapKind kind);
/// Throws favor::Error, listing the known words, if `word` is none of them.
FeatureMapKind feature_map_from_string(std::string_view word);

/// Whether a feature is known by its logarithm a_f(x), linear in f's row w_f, so that each feature
/// has a stabiliser of its own. The features of the other maps are values g(u) of any sign, with
/// one stabiliser for all of them.
bool is_log_linear(FeatureMapKind kind);

/// Whether the map estimates the softmax kernel and so needs a random matrix and 1/sqrt(D) as the
/// default scale.
bool estimates_softmax(FeatureMapKind kind);

/// Whether the map has parameters fitted to the queries and keys (fit_feature_map).
bool is_fitted(FeatureMapKind kind);

/// Rows of the random matrix behind M state features: M / 2 for the maps that make two features of
/// each row (hyperbolic, trig), else M.
int64_t num_projection_rows(FeatureMapKind kind, int64_t M);

/// State features made of `rows` rows of the random matrix: the inverse of num_projection_rows.
int64_t num_state_features(FeatureMapKind kind, int64_t rows);

/// Numbers that describe one head's fitted map: [A] for optimal_positive, [A, Psi_1 .. Psi_D] for
/// favor_sharp_diagonal, [A_1 .. A_D, Q row-major with eigenvectors in rows] for favor_sharp; 0
/// numbers for the others.
int64_t num_map_parameters(FeatureMapKind kind, int64_t D);

}  // namespace favor

#endif  // FAVOR_FEATURE_MAP_H_
