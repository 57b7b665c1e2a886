// SPDX-License-Identifier: Apache-2.0
// A generating stream as one safetensors file: what the model remembers of it in every layer, what
// it has yet to absorb, and where its random numbers are. It goes on in the same bits.
#ifndef PERFORMER_INFER_STREAM_FILE_H_
#define PERFORMER_INFER_STREAM_FILE_H_

#include <cstdint>
#include <string>

#include "performer/infer/generate.h"
#include "performer/models/models.h"

namespace performer {

/// Metadata `format_version` of the file, whose `format` is `performer-stream`.
inline constexpr int64_t kStreamFileVersion = 1;

/// SHA-256 over the names, shapes and values of the weights and random matrices, in hexadecimal.
std::string weights_hash(LanguageModel& model);

/// Writes the file whole or not at all. Throws std::runtime_error naming it when it cannot be
/// written, favor::Error for a state of several streams.
void save_stream(const std::string& path, const SavedStream& stream, LanguageModel& model);

/// The stream of a file that this model has made. Throws std::runtime_error `file: ...` for one
/// that is cut or damaged, of another version, or of a model with other weights; it says what was
/// expected.
SavedStream load_stream(const std::string& path, LanguageModel& model);

}  // namespace performer

#endif  // PERFORMER_INFER_STREAM_FILE_H_
