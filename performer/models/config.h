// SPDX-License-Identifier: Apache-2.0
// What a model is made of, as plain data. No torch here: the command line, the trainer's
// configuration and the files on disk share these fields and their names.
#ifndef PERFORMER_MODELS_CONFIG_H_
#define PERFORMER_MODELS_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "favor/feature_map.h"
#include "favor/projection.h"

namespace performer {

enum class AttentionMethod {
  kFavor,          ///< linear attention by random features, near keys exactly on request
  kExact,          ///< softmax attention (torch's scaled_dot_product_attention)
  kLinear,         ///< linear attention by the features elu(x) + 1 of q and k themselves
  kWindow,         ///< softmax attention over near keys alone
  kLinformer,      ///< softmax attention over learned mixtures of the keys
  kLsh,            ///< softmax attention over keys of the same hash
  kClustered,      ///< softmax attention of clusters of queries
  kFavorClusters,  ///< random features within clusters of keys
  kCentroids,      ///< near keys exactly, far keys by the means of their clusters
};

enum class PositionKind {
  kLearned,     ///< a trained table of max_length rows, initialised with the sinusoids
  kSinusoidal,  ///< fixed sinusoids, any length
  kRotary,      ///< rotary embedding of q and k, any length
  kAxial,       ///< the sum of three trained tables: row, column and channel of a picture's value
};

/// What the last layer says.
enum class HeadKind {
  kTokens,   ///< logits of every token
  kClasses,  ///< logits of the classes of a whole row
  kPairs,    ///< likewise, of two rows together
};

/// How a classifier makes one vector of a row.
enum class PoolingKind {
  kCls,   ///< that of the first token, which the task sets before the others
  kMean,  ///< the mean over the tokens
};

std::string to_string(AttentionMethod method);
std::string to_string(PositionKind kind);
std::string to_string(HeadKind kind);
std::string to_string(PoolingKind kind);
/// Throw favor::Error, listing the known words.
AttentionMethod attention_method_from_string(std::string_view word);
PositionKind position_kind_from_string(std::string_view word);
HeadKind head_kind_from_string(std::string_view word);
PoolingKind pooling_kind_from_string(std::string_view word);

/// Every method there is.
const std::vector<AttentionMethod>& attention_methods();
/// Whether the method has a causal form.
bool has_causal_form(AttentionMethod method);
/// Whether the method draws random matrices, which redraw_interval draws anew.
bool has_random_matrices(AttentionMethod method);

/// How one attention layer computes; the same for every layer of a model. docs/methods.md has the
/// formulas.
struct AttentionOptions {
  AttentionMethod method = AttentionMethod::kFavor;
  favor::FeatureMapKind feature_map = favor::FeatureMapKind::kPositive;
  favor::ProjectionKind projection = favor::ProjectionKind::kOrthogonal;
  favor::RowNorm row_norm = favor::RowNorm::kChi;
  bool use_projection = true;        ///< false: the generalised map acts on q and k themselves
  int64_t num_features = 256;        ///< M, what a state keeps of the keys
  bool per_head_projection = false;  ///< one matrix per head instead of one per layer
  double feature_eps = -1;  ///< added to each generalised feature; negative: the map's default
  uint64_t projection_seed = 0;
  int64_t redraw_interval = 0;  ///< optimiser steps between two draws; 0 keeps the first

  /// favor, centroids: keys of the same and the neighbouring blocks of so many tokens are scored
  /// exactly; 0: none are
  int64_t window = 0;
  /// beside each window, first (not causal: and last) keys that every query sees exactly
  int64_t sinks = 0;
  int64_t local_heads = 0;         ///< so many heads of each layer have method window instead
  int64_t local_window = 64;       ///< tokens of a block of method window and of local_heads
  int64_t mixed_keys = 256;        ///< linformer: mixtures of keys
  int64_t hash_rounds = 4;         ///< lsh: hashes of each token
  int64_t hash_buckets = 32;       ///< lsh: values of a hash, an even number
  int64_t bucket_block = 64;       ///< lsh: tokens of a block of a bucket
  int64_t num_clusters = 64;       ///< clustered, favor_clusters, centroids: clusters of a head
  int64_t cluster_iterations = 5;  ///< rounds of k-means
  int64_t cluster_top = 32;        ///< clustered: keys scored for each query; 0: none (plain)

  /// Whether the state of a causal stream is sums alone, in which no token is kept: favor and
  /// linear in all heads, without a window.
  bool keeps_sums() const;
  /// Throws favor::Error if `causal` asks for a form that the method does not have.
  void check_direction(bool causal) const;
  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

/// Shape and options of an encoder (causal = false) or a decoder (causal = true).
struct ModelConfig {
  bool causal = true;
  int64_t vocab_size = 29;
  int64_t dim = 512;  ///< width of the residual stream, a multiple of num_heads
  int64_t num_layers = 6;
  int64_t num_heads = 8;
  int64_t ff_dim = 2048;      ///< hidden width of the feed-forward block
  bool ff_glu = false;        ///< gated (GEGLU) feed-forward
  int64_t max_length = 1024;  ///< rows of the learned position table; longest row of linformer
  PositionKind positions = PositionKind::kLearned;
  int64_t axial_rows = 32;      ///< positions axial: position p is channel p mod axial_channels of
  int64_t axial_columns = 32;   ///< column (p / axial_channels) mod axial_columns of
  int64_t axial_channels = 1;   ///< row p / (axial_channels axial_columns)
  bool tie_embeddings = false;  ///< output layer shares the embedding's weight
  bool attention_bias = false;
  double dropout = 0.1;
  bool reversible = false;  ///< two streams: y1 = x1 + attention(x2), y2 = x2 + feed_forward(y1)
  HeadKind head = HeadKind::kTokens;
  int64_t num_classes = 0;  ///< of a classifier; 0: the head gives tokens
  PoolingKind pooling = PoolingKind::kCls;
  AttentionOptions attention;

  int64_t head_dim() const { return dim / num_heads; }
  /// Tokens of a row that have a position: the rows of a learned table, the product of the axial
  /// sizes; of the other kinds any number.
  int64_t max_positions() const;
  /// That number and where it comes from: "64 (rows of the model's learned position table)".
  std::string max_positions_text() const;
  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

}  // namespace performer

#endif  // PERFORMER_MODELS_CONFIG_H_
