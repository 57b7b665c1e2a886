// SPDX-License-Identifier: Apache-2.0
// UTF-8 (RFC 3629): code points out of bytes and back. Invalid bytes are found, never passed over.
#ifndef PERFORMER_DATA_UTF8_H_
#define PERFORMER_DATA_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace performer {

/// What stands for an invalid sequence.
inline constexpr uint32_t kReplacement = 0xfffd;

struct CodePoint {
  uint32_t value = kReplacement;
  size_t bytes = 1;    ///< of the sequence; invalid: what to pass over
  bool valid = false;  ///< overlong forms, surrogates and values above 0x10ffff are not
};

/// The code point at the beginning of `text`, which holds at least one byte.
CodePoint next_code_point(std::string_view text);

std::string utf8_of(uint32_t code_point);

struct Utf8Damage {
  int64_t count = 0;  ///< invalid sequences
  size_t first = 0;   ///< byte of the first one
};

/// Replaces each invalid sequence by U+FFFD.
Utf8Damage repair_utf8(std::string& text);

}  // namespace performer

#endif  // PERFORMER_DATA_UTF8_H_
