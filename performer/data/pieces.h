// SPDX-License-Identifier: Apache-2.0
// SentencePiece vocabularies (Kudo & Richardson 2018): trained on text, or read from a model file.
#ifndef PERFORMER_DATA_PIECES_H_
#define PERFORMER_DATA_PIECES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/vocabulary.h"

namespace performer {

/// Trains a unigram model of `num_pieces` pieces without normalisation and with bytes to fall back
/// on, so that every valid UTF-8 text comes back as it was. Same text, same model. Takes a minute
/// or two of CPU time; reads up to about 10 MB, evenly spread. Returns the bytes of the model
/// file. Throws std::runtime_error with the library's reason.
std::string train_pieces(const std::vector<std::string_view>& sections, int64_t num_pieces);

/// The vocabulary of a model file's bytes; `name` stands in messages. Throws std::runtime_error for
/// anything else.
std::shared_ptr<const Vocabulary> piece_vocabulary(std::string model, const std::string& name);

}  // namespace performer

#endif  // PERFORMER_DATA_PIECES_H_
