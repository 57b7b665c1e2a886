// SPDX-License-Identifier: Apache-2.0
// Decoding states as bytes and files, in the safetensors format: a stream that is saved and loaded
// goes on in the same bits.
#ifndef FAVOR_SNAPSHOT_H_
#define FAVOR_SNAPSHOT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "favor/attention.h"
#include "favor/hybrid_state.h"

namespace favor {

/// The version of the format: metadata `format_version`.
inline constexpr int64_t kSnapshotVersion = 1;

/// SHA-256 of the little-endian float32 rows of a matrix, in hexadecimal: what tells whether a
/// state belongs to it.
std::string matrix_hash(const float* rows, int64_t floats);

/// The snapshot of a state that calls with `params` and this head dim have made. It names the
/// feature map, its numbers and the hashes of the random matrix (of a structured one, the hash of
/// the rows it stands for) and of the map's parameters, so
/// that it cannot be continued with others, and holds a checksum of its tensors: c, S, z, their
/// rests and the hot tokens. Throws favor::Error if `state` or `params` are not valid.
std::string state_to_bytes(const DecodeState& state, const AttentionParams<float>& params,
                           int64_t head_dim);

/// The state of a snapshot. Throws std::runtime_error `name: ...` for bytes that are no whole
/// snapshot, and for one that was made with another map or matrix; it says what was expected.
DecodeState state_from_bytes(std::string_view bytes, const AttentionParams<float>& params,
                             int64_t head_dim, const std::string& name = "snapshot");

/// The same of a stream with a window: its near keys, their values and weights are stored too. A
/// snapshot of one kind of state is refused for the other, and so is one with another window or
/// number of sinks.
std::string state_to_bytes(const HybridState& state, const AttentionParams<float>& params);
HybridState hybrid_state_from_bytes(std::string_view bytes, const AttentionParams<float>& params,
                                    int64_t head_dim, const std::string& name = "snapshot");

/// The same in a file, which appears whole or not at all. Throws std::runtime_error naming it when
/// it cannot be written or read.
void save_state(const std::string& path, const DecodeState& state,
                const AttentionParams<float>& params, int64_t head_dim);
DecodeState load_state(const std::string& path, const AttentionParams<float>& params,
                       int64_t head_dim);
void save_state(const std::string& path, const HybridState& state,
                const AttentionParams<float>& params);
HybridState load_hybrid_state(const std::string& path, const AttentionParams<float>& params,
                              int64_t head_dim);

}  // namespace favor

#endif  // FAVOR_SNAPSHOT_H_
