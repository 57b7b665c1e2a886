// SPDX-License-Identifier: Apache-2.0
// Attention in linear time by random features: forward and backward, bidirectional and causal, and
// the constant-size state of the causal form. Formulas: docs/math.md. Dims legend: favor/favor.h.
//
// Common contract. q [B, H, L, D], k [B, G, S, D], v [B, G, S, E] and every gradient are views with
// a contiguous last dimension; outputs must not overlap inputs or each other. H is a multiple of G:
// query head h uses key head h / (H / G) (grouped-query heads). L, S and B may be 0. A query row
// with no allowed key gives zeros, and takes no part in a backward pass; neither does a row whose
// dout is zero. Whatever lies under a mask, NaN included, reaches no output or gradient.
// Results do not depend on the number of threads. float, bfloat16 and float16 run on the fast
// kernels, which compute in float and round results to the nearest; double runs on the plain code
// of reference.h. Wrong arguments throw favor::Error before any work.
#ifndef FAVOR_ATTENTION_H_
#define FAVOR_ATTENTION_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "favor/feature_map.h"
#include "favor/half.h"
#include "favor/projection.h"
#include "favor/state.h"
#include "favor/tensor_view.h"

namespace favor {

/// Whose numbers a feature_eps reproduces.
enum class Compatibility {
  kNone,
  /// The positive map of the paper's published code: features exp(w.x - |x|^2 / 2 - m) + eps with m
  /// the largest w.x of the query's row, or of all keys of a head; eps is 1e-6 by default.
  /// Bidirectional only. The maximum carries no gradient.
  kOfficial,
};

/// What every pass of one attention call needs beside q, k and v.
template <class T>
struct AttentionParams {
  FeatureMapKind feature_map = FeatureMapKind::kPositive;
  /// Multiplies q.k. Empty: 1/sqrt(D) for the maps that estimate softmax, 1 for the others.
  std::optional<double> scale;
  /// Added to each feature: phi = exp(a) + eps or g(u) + eps. Empty: 1e-3 for relu, 1e-6 with
  /// official compatibility, else 0. The fitted maps and trig take 0 only.
  std::optional<double> feature_eps;
  Compatibility compatibility = Compatibility::kNone;
  /// Whether the output is divided by the sum of its weights; if not, it is the plain sum over
  /// keys.
  bool renormalize = true;
  /// Rows w_f: [P, R, D] contiguous, where P is 1 (shared by the heads) or G and R is
  /// num_projection_rows(feature_map, M). Null with a generalised map: the features are those of x
  /// itself, M = D.
  const T* projection = nullptr;
  /// Instead of `projection`: P matrices of R rows in compact form, whose products with tokens take
  /// O(M log D). The fitted maps, hyperbolic and trig expand them.
  const StructuredProjection* structured = nullptr;
  int64_t num_projections = 1;  ///< P
  int64_t num_features = 0;     ///< M; with a null projection it must be 0 or D
  /// Parameters of a fitted map, [Q, num_map_parameters(feature_map, D)] with Q 1 or G. Null:
  /// fitted to each batch item, key head and segment of a bidirectional call; causal calls need
  /// them.
  const T* map_parameters = nullptr;
  int64_t num_map_parameter_sets = 1;  ///< Q
  /// [B, S] row-major, nonzero = ignore this key. Null: every key takes part.
  const uint8_t* key_padding_mask = nullptr;
  /// [B, W, S] row-major, where W is 1 or G: multiplies the weight of a key by exp(.), -inf ignores
  /// it. Null: 0. Carries no gradient.
  const T* key_log_weight = nullptr;
  int64_t num_key_log_weights = 1;  ///< W
  /// Hybrid attention, w > 0: keys of the same and the neighbouring blocks of w tokens (causal: the
  /// same and the block before; counted within the segment) are scored exactly, all others through
  /// features, under one normaliser. Needs a log-linear map that estimates softmax, and a
  /// feature_eps of 0. Saved then keeps the normalizer only. Blocks of 64 tokens or more are
  /// fastest.
  int64_t window = 0;
  /// With a window: the first keys of each segment, and the last ones too when bidirectional, that
  /// are scored exactly for every query.
  int64_t sinks = 0;
  /// Packed segments: N + 1 ascending offsets from 0 to L (queries) and to S (keys). Segment n of
  /// the queries sees segment n of the keys only. Both empty: one segment. Empty segments are
  /// legal.
  std::span<const int64_t> cu_seqlens_q;
  std::span<const int64_t> cu_seqlens_k;
};

/// The factor of q.k that `params` stands for; each of q and k takes its square root.
template <class T>
double resolve_scale(const AttentionParams<T>& params, int64_t D) {
  const bool softmax = estimates_softmax(params.feature_map);
  return params.scale.value_or(softmax ? 1 / std::sqrt(static_cast<double>(D)) : 1.0);
}

/// Whether features are made of rows of a matrix, and not of x itself.
template <class T>
bool has_projection(const AttentionParams<T>& params) {
  return params.projection != nullptr || params.structured != nullptr;
}

/// The number added to each feature.
template <class T>
double resolve_feature_eps(const AttentionParams<T>& params) {
  const bool official = params.compatibility == Compatibility::kOfficial;
  const bool relu = params.feature_map == FeatureMapKind::kRelu;
  return params.feature_eps.value_or(official ? 1e-6 : relu ? 1e-3 : 0.0);
}

/// What is added to the logarithms of key j's features, for key head g.
template <class T>
T key_log_weight(const AttentionParams<T>& params, int64_t b, int64_t g, int64_t S, int64_t j) {
  if (params.key_log_weight == nullptr) return T{0};
  const int64_t W = params.num_key_log_weights;
  return params.key_log_weight[(b * W + (W == 1 ? 0 : g)) * S + j];
}

/// Parameters of a fitted map for all tokens of a call, to be given to later calls: [G,
/// num_map_parameters(feature_map, D)], averages over batch items and segments. Keys that are
/// masked are left out, and where L = S so are the queries at their positions. O((L + S) D) time
/// per head, for favor_sharp O((L + S) D^2 + D^3). Empty for maps that are not fitted.
template <class T>
std::vector<Compute<T>> fit_feature_map(const AttentionParams<Compute<T>>& params, View4<const T> q,
                                        View4<const T> k);

/// Tokens between two states kept for the causal backward pass.
inline constexpr int64_t kStateInterval = 1024;

/// What a forward pass leaves for its backward pass. Contiguous buffers of the caller; a null
/// pointer means "do not keep". Contents are opaque: kernels of one library version read what they
/// wrote, and log-scale values are in base 2 in the float path.
template <class T>
struct Saved {
  /// [B, H, L]: log of the denominators (log-linear maps), or the denominators relative to the
  /// row's stabiliser.
  T* normalizer = nullptr;
  T* state = nullptr;               ///< saved_state_size(...) elements; null: it is recomputed
  uint8_t* chunk_starts = nullptr;  ///< [B, G, L], causal only: where chunks start
};

/// Number of elements of Saved::state (recomputing it costs the causal backward pass a walk over
/// all earlier keys per kStateInterval tokens): independent of L in the bidirectional case (0 with
/// more than one segment), one state per kStateInterval tokens in the causal case.
int64_t saved_state_size(int64_t B, int64_t G, int64_t L, int64_t M, int64_t E, bool is_causal,
                         int64_t num_segments);

/// out_i = sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j) over all allowed keys j.
///
/// out [B, H, L, E]. `saved` may be null. O((L + S) M (D + E)) time. Scratch independent of L: the
/// packed matrices, 2 P M D elements; O(M (D + E) + C (D + E + M)) per thread, with chunks of C =
/// 64 tokens; and a state of M (E + 2) elements per parallel block of keys, at most 64 of them or
/// one per head of an item.
template <class T>
void bidirectional_forward(const AttentionParams<Compute<T>>& params, View4<const T> q,
                           View4<const T> k, View4<const T> v, View4<T> out,
                           Saved<Compute<T>>* saved = nullptr);

/// Gradients of bidirectional_forward. `out` and `saved` are the forward pass's; dout [B, H, L, E].
/// Stabilisers carry no gradient, because the output does not depend on them.
template <class T>
void bidirectional_backward(const AttentionParams<Compute<T>>& params, View4<const T> q,
                            View4<const T> k, View4<const T> v, View4<const T> out,
                            View4<const T> dout, const Saved<Compute<T>>& saved, View4<T> dq,
                            View4<T> dk, View4<T> dv);

/// As bidirectional_forward with keys j <= i only (positions counted within the segment, aligned at
/// the top left when L != S). `initial` continues an earlier call, `final_state` receives the state
/// after the last key; both need L = S and a single segment, and a null pointer leaves them out.
/// No later key and value, if finite, move an earlier output by more than rounding. Runs in
/// parallel over batch items, key heads and segments; the tokens of one of these are taken in
/// order. Where these are fewer than four, and M is 128 or more, also over the two halves of the
/// features, whose partial sums for 512 tokens are then scratch too.
template <class T>
void causal_forward(const AttentionParams<Compute<T>>& params, View4<const T> q, View4<const T> k,
                    View4<const T> v, View4<T> out, Saved<Compute<T>>* saved = nullptr,
                    const DecodeState* initial = nullptr, DecodeState* final_state = nullptr);

/// Gradients of causal_forward without an initial state, in parallel like it. Each thread holds
/// features of keys and queries, 2 kStateInterval M elements (3 with maps whose slopes are kept),
/// whatever L is; halves of the features also hold partial gradients of 2 kStateInterval tokens.
template <class T>
void causal_backward(const AttentionParams<Compute<T>>& params, View4<const T> q, View4<const T> k,
                     View4<const T> v, View4<const T> out, View4<const T> dout,
                     const Saved<Compute<T>>& saved, View4<T> dq, View4<T> dk, View4<T> dv);

/// One token of causal attention: absorbs k, v [B, H, 1, D|E] into `state`, then answers
/// q [B, H, 1, D] with out [B, H, 1, E]. O(M (D + E)) per head, whatever the position. Items whose
/// key_padding_mask [B, 1] is set leave their state as it is.
void decode_step(const AttentionParams<float>& params, View4<const float> q, View4<const float> k,
                 View4<const float> v, DecodeState& state, View4<float> out);
void decode_step(const AttentionParams<float>& params, View4<const bfloat16> q,
                 View4<const bfloat16> k, View4<const bfloat16> v, DecodeState& state,
                 View4<bfloat16> out);
void decode_step(const AttentionParams<float>& params, View4<const float16> q,
                 View4<const float16> k, View4<const float16> v, DecodeState& state,
                 View4<float16> out);

}  // namespace favor

#endif  // FAVOR_ATTENTION_H_
