// SPDX-License-Identifier: Apache-2.0
// What a model is made of, as plain data. No torch here: the command line, the trainer's
// configuration and the files on disk share these fields and their names.
#ifndef PERFORMER_MODELS_CONFIG_H_
#define PERFORMER_MODELS_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "favor/feature_map.h"
#include "favor/projection.h"

namespace performer {

enum class AttentionMethod {
  kFavor,  ///< linear attention by random features
  kExact,  ///< softmax attention (torch's scaled_dot_product_attention)
};

enum class PositionKind {
  kLearned,     ///< a trained table of max_length rows, initialised with the sinusoids
  kSinusoidal,  ///< fixed sinusoids, any length
  kRotary,      ///< rotary embedding of q and k, any length
};

std::string to_string(AttentionMethod method);
std::string to_string(PositionKind kind);
/// Throw favor::Error, listing the known words.
AttentionMethod attention_method_from_string(std::string_view word);
PositionKind position_kind_from_string(std::string_view word);

/// How one attention layer computes; the same for every layer of a model.
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
  int64_t max_length = 1024;  ///< rows of the learned position table; others ignore it
  PositionKind positions = PositionKind::kLearned;
  bool tie_embeddings = false;  ///< output layer shares the embedding's weight
  bool attention_bias = false;
  double dropout = 0.1;
  bool reversible = false;  ///< two streams: y1 = x1 + attention(x2), y2 = x2 + feed_forward(y1)
  AttentionOptions attention;

  int64_t head_dim() const { return dim / num_heads; }
  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

}  // namespace performer

#endif  // PERFORMER_MODELS_CONFIG_H_
