// SPDX-License-Identifier: Apache-2.0
#include "performer/data/tokenizer.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "favor/check.h"
#include "performer/data/atomic_file.h"

namespace performer {
namespace {

template <class Id>
std::string decode_ids(std::string_view tokens, std::span<const Id> ids) {
  std::string text;
  text.reserve(ids.size());
  for (const Id id : ids) {
    const auto number = static_cast<int64_t>(id);
    FAVOR_CHECK(number >= 0 && number < static_cast<int64_t>(tokens.size()), "decode: token id is ",
                number, ", expected 0 to ", tokens.size() - 1);
    text += tokens[static_cast<size_t>(number)];
  }
  return text;
}

// A token of a vocabulary file as shown in a message: quoted, cut, control characters replaced.
std::string quoted(std::string_view token) {
  std::string text = "'";
  for (const char c : token.substr(0, 20)) text += (c >= ' ' && c <= '~') ? c : '?';
  return text + (token.size() > 20 ? "...'" : "'");
}

}  // namespace

Tokenizer::Tokenizer(std::string_view standard, std::string_view rare)
    : tokens_(std::string(standard) + std::string(rare) + "<>_*"),
      num_standard_(static_cast<int64_t>(standard.size())),
      num_letters_(static_cast<int64_t>(standard.size() + rare.size())) {
  ids_.fill(-1);
  for (int64_t id = 0; id < num_letters_; ++id) {
    ids_[static_cast<unsigned char>(tokens_[id])] = static_cast<int16_t>(id);
  }
}

Tokenizer Tokenizer::protein() {
  return Tokenizer("ACDEFGHIKLMNPQRSTVWY", "BOUXZ");
}

Tokenizer Tokenizer::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(favor::message(path, ": cannot open: ", std::strerror(errno)));
  }
  Tokenizer known = protein();
  std::string line;
  int64_t number = 0;
  while (std::getline(file, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    ++number;
    if (number > known.size()) {
      throw std::runtime_error(favor::message(path, ":", number, ": token is ", quoted(line),
                                              ", expected the end of the file after ", known.size(),
                                              " tokens (protein alphabet)"));
    }
    const std::string_view expected(known.tokens_.data() + number - 1, 1);
    if (line != expected) {
      throw std::runtime_error(favor::message(path, ":", number, ": token is ", quoted(line),
                                              ", expected ", quoted(expected),
                                              " (protein alphabet)"));
    }
  }
  if (file.bad() || number < known.size()) {
    throw std::runtime_error(favor::message(path, ":", number + 1, ": end of the file, expected ",
                                            quoted({known.tokens_.data() + number, 1}),
                                            " (protein alphabet of ", known.size(), " tokens)"));
  }
  return known;
}

void Tokenizer::save(const std::string& path) const {
  std::string text;
  for (const char token : tokens_) (text += token) += '\n';
  write_file_atomically(path, text);
}

std::vector<uint8_t> Tokenizer::encode(std::string_view text) const {
  std::vector<uint8_t> ids;
  ids.reserve(text.size());
  for (const char c : text) {
    const int16_t id = ids_[static_cast<unsigned char>(c)];
    FAVOR_CHECK(id >= 0, "encode: character ", ids.size() + 1, " is ", quoted({&c, 1}),
                ", expected a letter of ", std::string_view(tokens_).substr(0, num_letters_));
    ids.push_back(static_cast<uint8_t>(id));
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int64_t> ids) const {
  return decode_ids(tokens_, ids);
}

std::string Tokenizer::decode(std::span<const uint8_t> ids) const {
  return decode_ids(tokens_, ids);
}

}  // namespace performer
