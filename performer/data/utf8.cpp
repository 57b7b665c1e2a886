// SPDX-License-Identifier: Apache-2.0
#include "performer/data/utf8.h"

#include <algorithm>
#include <utility>

namespace performer {

CodePoint next_code_point(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return {};
  uint32_t value = lead & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    // What follows a broken sequence is looked at anew.
    if (i >= text.size() || (byte(i) & 0xc0) != 0x80) return {kReplacement, i, false};
    value = value << 6 | (byte(i) & 0x3f);
  }
  const uint32_t least = bytes == 4 ? 0x10000 : bytes == 3 ? 0x800 : 0x80;
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  if (value < least || value > 0x10ffff || surrogate) return {kReplacement, bytes, false};
  return {value, bytes, true};
}

std::string utf8_of(uint32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | c >> 18), tail(12), tail(6), tail(0)};
}

Utf8Damage repair_utf8(std::string& text) {
  Utf8Damage damage;
  std::string repaired;
  size_t copied = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = next_code_point(std::string_view(text).substr(at));
    if (!point.valid) {
      if (damage.count++ == 0) damage.first = at;
      repaired.append(text, copied, at - copied);
      repaired += utf8_of(kReplacement);
      copied = at + point.bytes;
    }
    at += point.bytes;
  }
  if (damage.count == 0) return damage;
  repaired.append(text, copied, std::string::npos);
  text = std::move(repaired);
  return damage;
}

}  // namespace performer
