// SPDX-License-Identifier: Apache-2.0
// The state of causal attention: what decoding keeps of a stream, how streams are joined, and how
// long sums stay accurate.
#ifndef FAVOR_STATE_H_
#define FAVOR_STATE_H_

#include <cstdint>
#include <memory>
#include <vector>

namespace favor {

/// Steps between two additions to a decoding state's sums.
inline constexpr int64_t kHotTokens = 16;

struct StepRows;

/// The state of causal attention after some tokens, per batch item and key head: everything that
/// later tokens need to know of them. A value: copying it forks the stream.
///
/// Feature f of the keys so far is held as S_f = sum_j phi_f(k_j) exp(-c_f) v_j and z_f = sum_j
/// phi_f(k_j) exp(-c_f), with a stabiliser c_f in natural logarithm. Constants of the map stand on
/// the query's side. For log-linear maps z_f = 0 means that no key has been seen, whatever c_f
/// holds. The other maps have one c for all features, and no key seen where S and z are all 0.
///
/// Single steps leave their tokens in the hot part, in a form of their own: c covers them, S and z
/// do not, until kHotTokens of them are added at once or flush() is called. The rests carry what
/// rounding leaves out of S and z, so that sums over millions of tokens keep float accuracy.
struct DecodeState {
  int64_t B = 0, H = 0, M = 0, E = 0;  ///< H counts key heads
  int64_t position = 0;                ///< tokens seen so far, masked ones included
  std::vector<float> c;                ///< [B, H, M]
  std::vector<float> S;                ///< [B, H, M, E]
  std::vector<float> z;                ///< [B, H, M]

  std::vector<float> S_rest;  ///< as S, or empty: zeros
  std::vector<float> z_rest;  ///< as z, or empty: zeros
  int64_t num_hot = 0;        ///< tokens of the hot part
  /// [B, H, kHotTokens, hot_stride()]: phi_f(k_j) exp(-c_f), zeros beyond M; empty without steps
  std::vector<float> hot_features;
  std::vector<float> hot_values;  ///< [B, H, kHotTokens, E], or empty
  /// No part of the state: what steps with a fitted map have made of its matrix, or null. Shared by
  /// copies; a step with another matrix makes its own.
  std::shared_ptr<const StepRows> step_rows;

  DecodeState() = default;
  /// The empty state. Throws favor::Error for negative sizes.
  DecodeState(int64_t B, int64_t H, int64_t M, int64_t E);

  /// Floats between two rows of hot_features: M up to a multiple of every vector's length.
  int64_t hot_stride() const { return (M + 31) / 32 * 32; }
};

/// Throws favor::Error, `op: name has ...`, if the members of `state` contradict each other.
void check_sizes(const char* op, const char* name, const DecodeState& state);

/// Empties the hot part into c, S and z. The state stands for the same tokens as before. Throws
/// favor::Error if the members contradict each other.
void flush(DecodeState& state);

/// Adds the tokens of `other` to those of `into`: afterwards it is the state of a stream that has
/// seen both. Associative, and commutative up to rounding of S and z; an empty state changes
/// nothing but the position. `other` may be `into`. Throws favor::Error if sizes differ.
void merge(DecodeState& into, const DecodeState& other);

}  // namespace favor

#endif  // FAVOR_STATE_H_
