// SPDX-License-Identifier: Apache-2.0
// Enumerations and their words, kept in one table per enumeration.
#ifndef FAVOR_WORDS_H_
#define FAVOR_WORDS_H_

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

#include "favor/check.h"

namespace favor {

template <class Enum>
struct Word {
  Enum value;
  std::string_view word;
};

/// The word of `value`. A value outside the table is a bug of the caller's code: std::logic_error.
template <class Enum, size_t N>
std::string word_of(const Word<Enum> (&table)[N], Enum value) {
  for (const Word<Enum>& entry : table) {
    if (entry.value == value) return std::string(entry.word);
  }
  throw std::logic_error(message("no word for enumerator ", static_cast<int>(value)));
}

/// The value of `word`. Throws favor::Error "<subject> is 'x', expected a | b" otherwise.
template <class Enum, size_t N>
Enum value_of(const Word<Enum> (&table)[N], std::string_view word, std::string_view subject) {
  std::string known;
  for (const Word<Enum>& entry : table) {
    if (entry.word == word) return entry.value;
    if (!known.empty()) known += " | ";
    known += entry.word;
  }
  throw Error(message(subject, " is '", word, "', expected ", known));
}

}  // namespace favor

#endif  // FAVOR_WORDS_H_
