// SPDX-License-Identifier: Apache-2.0
#include "performer/data/npy.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string_view>

#include "favor/check.h"
#include "performer/data/zip.h"

namespace performer {
namespace {

using favor::message;

constexpr std::string_view kMagic = "\x93NUMPY";

// What stands behind 'key': in the head, which is a dictionary of Python; empty if it is not there.
std::string_view value_of(std::string_view head, std::string_view key) {
  const size_t at = head.find(message("'", key, "':"));
  if (at == std::string_view::npos) return {};
  head.remove_prefix(at + key.size() + 3);
  head.remove_prefix(std::min(head.find_first_not_of(' '), head.size()));
  const char first = head.empty() ? ' ' : head[0];
  if (first == '\'') return head.substr(1, std::min(head.find('\'', 1), head.size()) - 1);
  if (first == '(') return head.substr(1, std::min(head.find(')'), head.size()) - 1);
  return head.substr(0, std::min(head.find_first_of(",}"), head.size()));
}

}  // namespace

int64_t NpyArray::item_bytes() const {
  constexpr std::string_view kKinds = "biufc";
  if (type.size() < 3 || kKinds.find(type[1]) == std::string_view::npos) return 0;
  int64_t count = 0;
  std::from_chars(type.data() + 2, type.data() + type.size(), count);
  return count;
}

std::vector<int64_t> NpyArray::whole_numbers() const {
  const int64_t each = item_bytes();
  const bool is_signed = type.size() == 3 && type[1] == 'i';
  const bool is_whole = type.size() == 3 && (is_signed || type[1] == 'u');
  if (!is_whole || (each != 1 && each != 2 && each != 4 && each != 8) ||
      (!is_signed && each == 8)) {
    throw std::runtime_error(
        message(place, ": has numbers of type ", type, ", expected whole ones (|u1, <i8, ...)"));
  }
  std::vector<int64_t> numbers;
  numbers.reserve(bytes.size() / static_cast<size_t>(each));
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(each)) {
    uint64_t value = 0;
    for (int64_t i = 0; i < each; ++i) {
      const int64_t from = type[0] == '>' ? i : each - 1 - i;
      value = value << 8 | bytes[at + static_cast<size_t>(from)];
    }
    const int64_t unused = 64 - 8 * each;
    numbers.push_back(is_signed ? static_cast<int64_t>(value << unused) >> unused
                                : static_cast<int64_t>(value));
  }
  return numbers;
}

NpyArray parse_npy(std::span<const uint8_t> bytes, std::shared_ptr<const void> owner,
                   const std::string& place) {
  const auto fail = [&](size_t at, const std::string& what) {
    throw std::runtime_error(message(place, ": byte ", at, ": ", what));
  };
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kMagic) || text.size() < 12) {
    fail(0, "is no array of numpy, expected one that begins with \\x93NUMPY");
  }
  const int version = bytes[6];
  if (version < 1 || version > 3) fail(6, message("version is ", version, ", expected 1 to 3"));
  const size_t length_bytes = version == 1 ? 2 : 4, begin = 8 + length_bytes;
  size_t length = 0;
  for (size_t i = length_bytes; i > 0; --i) length = length << 8 | bytes[8 + i - 1];
  if (length > text.size() - begin) {
    fail(8, message("the head has ", length, " bytes, expected at most the ", text.size() - begin,
                    " that follow"));
  }
  const std::string_view head = text.substr(begin, length);
  NpyArray array;
  array.place = place;
  array.owner = std::move(owner);
  array.type = value_of(head, "descr");
  const int64_t each = array.item_bytes();
  if (each < 1 || each > 16) {
    fail(begin, message("type is '", array.type, "', expected a number such as |u1 or <i8"));
  }
  if (value_of(head, "fortran_order") != "False") {
    fail(begin, message("fortran_order is '", value_of(head, "fortran_order"),
                        "', expected False (row by row)"));
  }
  int64_t count = 1;
  const std::string_view shape = value_of(head, "shape");
  for (size_t at = 0; (at = shape.find_first_not_of(", ", at)) != std::string_view::npos;) {
    int64_t size = -1;
    const char* const first = shape.data() + at;
    const auto [end, error] = std::from_chars(first, shape.data() + shape.size(), size);
    if (error != std::errc() || size < 0 || (size > 0 && count > (int64_t{1} << 48) / size)) {
      fail(begin, message("shape is (", shape, "), expected sizes"));
    }
    array.shape.push_back(size);
    count *= size;
    at += static_cast<size_t>(end - first);
  }
  const size_t data = begin + length;
  if (static_cast<int64_t>(text.size() - data) != count * each) {
    fail(data, message("there are ", text.size() - data, " bytes of numbers, expected ",
                       count * each, " (shape (", shape, "), type ", array.type, ")"));
  }
  array.bytes = bytes.subspan(data);
  return array;
}

NpyArray read_npz(const std::shared_ptr<const MappedFile>& file, const std::string& name) {
  std::string known;
  for (const ZipMember& member : zip_members(*file)) {
    if (member.name == name + ".npy") {
      const ZipBytes found = zip_bytes(file, member);
      return parse_npy(found.bytes, found.owner, message(file->path(), ": ", member.name));
    }
    known += (known.empty() ? "" : ", ") + member.name;
  }
  throw std::runtime_error(message(file->path(), ": holds ", known.empty() ? "nothing" : known,
                                   ", expected ", name, ".npy among them"));
}

}  // namespace performer
