// SPDX-License-Identifier: Apache-2.0
#include "performer/data/zip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "favor/check.h"

namespace performer {
namespace {

using favor::message;

constexpr uint32_t kEnd = 0x06054b50;         // of the directory
constexpr uint32_t kEnd64Place = 0x07064b50;  // where its larger form stands
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kEntry = 0x02014b50;   // in the directory
constexpr uint32_t kHeader = 0x04034b50;  // before a member
constexpr int64_t kEndBytes = 22;
constexpr int64_t kEnd64PlaceBytes = 20;
constexpr int64_t kEntryBytes = 46;
constexpr int64_t kHeaderBytes = 30;
constexpr int64_t kLongestComment = 0xffff;
constexpr uint32_t kElsewhere = 0xffffffff;  // a number that the larger form holds

// Little-endian numbers of a file, with places in messages.
class Bytes {
 public:
  explicit Bytes(const MappedFile& file) : file_(file) {}

  int64_t size() const { return std::ssize(file_.bytes()); }
  [[noreturn]] void fail(int64_t at, const std::string& what) const {
    throw std::runtime_error(message(file_.path(), ": byte ", at, ": ", what));
  }
  void need(int64_t at, int64_t count, const char* what) const {
    if (at < 0 || count < 0 || at > size() || count > size() - at) {
      fail(std::clamp<int64_t>(at, 0, size()),
           message("the file of ", size(), " bytes ends, expected ", count, " more (", what, ")"));
    }
  }
  uint64_t number(int64_t at, int64_t count) const {
    need(at, count, "a number of the zip format");
    uint64_t value = 0;
    for (int64_t i = count - 1; i >= 0; --i) {
      value = value << 8 | file_.bytes()[static_cast<size_t>(at + i)];
    }
    return value;
  }
  int64_t offset(int64_t at, int64_t count) const {
    const uint64_t value = number(at, count);
    if (value > static_cast<uint64_t>(size())) {
      fail(at, message("is ", value, ", expected at most ", size(), " (the size of the file)"));
    }
    return static_cast<int64_t>(value);
  }
  void expect(int64_t at, uint32_t signature, const char* what) const {
    const uint64_t got = number(at, 4);
    if (got != signature) {
      fail(at, message("is ", got, ", expected ", signature, " (the mark of ", what, ")"));
    }
  }
  std::string text(int64_t at, int64_t count) const {
    need(at, count, "a name");
    const auto part = file_.bytes().subspan(static_cast<size_t>(at), static_cast<size_t>(count));
    return {part.begin(), part.end()};
  }

 private:
  const MappedFile& file_;
};

int64_t find_end(const Bytes& bytes) {
  const int64_t last = bytes.size() - kEndBytes;
  for (int64_t at = last; at >= std::max<int64_t>(0, last - kLongestComment); --at) {
    if (bytes.number(at, 4) == kEnd) return at;
  }
  bytes.fail(bytes.size(), "the file ends without the directory of a zip file, expected one");
}

struct Directory {
  int64_t members = 0, begin = 0;
};

Directory find_directory(const Bytes& bytes) {
  const int64_t end = find_end(bytes), place = end - kEnd64PlaceBytes;
  if (place >= 0 && bytes.number(place, 4) == kEnd64Place) {
    const int64_t large = bytes.offset(place + 8, 8);
    bytes.expect(large, kEnd64, "the end of a large directory");
    return {bytes.offset(large + 32, 8), bytes.offset(large + 48, 8)};
  }
  return {static_cast<int64_t>(bytes.number(end + 10, 2)), bytes.offset(end + 16, 4)};
}

// Sizes and places that do not fit 32 bits stand in an extra field, in the order of those missing.
void read_large(const Bytes& bytes, int64_t extra, int64_t extra_bytes, ZipMember& member) {
  int64_t* const numbers[] = {&member.bytes, &member.packed_bytes, &member.header};
  for (int64_t at = extra; at + 4 <= extra + extra_bytes;) {
    const int64_t length = static_cast<int64_t>(bytes.number(at + 2, 2));
    if (bytes.number(at, 2) == 1) {
      int64_t next = at + 4;
      for (int64_t* number : numbers) {
        if (*number != int64_t{kElsewhere}) continue;
        const uint64_t value = bytes.number(next, 8);
        if (value > uint64_t{std::numeric_limits<int64_t>::max()}) {
          bytes.fail(next, message("is ", value, ", expected the size of a file"));
        }
        *number = static_cast<int64_t>(value);
        next += 8;
      }
      return;
    }
    at += 4 + length;
  }
}

std::shared_ptr<const std::string> inflated(const Bytes& bytes, int64_t at,
                                            std::span<const uint8_t> packed,
                                            const ZipMember& member) {
  auto out = std::make_shared<std::string>(static_cast<size_t>(member.bytes), '\0');
  z_stream stream{};
  if (inflateInit2(&stream, -15) != Z_OK) throw std::runtime_error("zlib: out of memory");
  size_t read = 0, written = 0;
  int result = Z_OK;
  // zlib counts in 32 bits.
  constexpr size_t kPart = size_t{1} << 30;
  while (result == Z_OK) {
    stream.next_in = const_cast<Bytef*>(packed.data() + read);
    stream.avail_in = static_cast<uInt>(std::min(kPart, packed.size() - read));
    stream.next_out = reinterpret_cast<Bytef*>(out->data() + written);
    stream.avail_out = static_cast<uInt>(std::min(kPart, out->size() - written));
    const uInt in = stream.avail_in, space = stream.avail_out;
    result = inflate(&stream, Z_NO_FLUSH);
    read += in - stream.avail_in;
    written += space - stream.avail_out;
  }
  inflateEnd(&stream);
  if (result != Z_STREAM_END || written != out->size()) {
    bytes.fail(at + static_cast<int64_t>(read),
               message(member.name, " gives ", written,
                       " bytes and is damaged or of another size, ", "expected ", member.bytes));
  }
  return out;
}

ZipBytes checked(const Bytes& bytes, int64_t at, const ZipMember& member, ZipBytes contents) {
  const uLong start = crc32_z(0, nullptr, 0);
  const uLong sum = crc32_z(start, contents.bytes.data(), contents.bytes.size());
  if (sum != member.checksum) {
    bytes.fail(at, message(member.name, " has the checksum ", sum, ", expected ", member.checksum));
  }
  return contents;
}

}  // namespace

std::vector<ZipMember> zip_members(const MappedFile& file) {
  const Bytes bytes(file);
  const Directory directory = find_directory(bytes);
  std::vector<ZipMember> members;
  int64_t at = directory.begin;
  for (int64_t i = 0; i < directory.members; ++i) {
    bytes.expect(at, kEntry, "a member in the directory");
    bytes.need(at, kEntryBytes, "a member in the directory");
    const auto field = [&](int64_t offset, int64_t count) {
      return static_cast<int64_t>(bytes.number(at + offset, count));
    };
    ZipMember member;
    if (field(8, 2) & 1) bytes.fail(at + 8, "the member is encrypted, expected one that is not");
    member.method = field(10, 2);
    member.checksum = static_cast<uint32_t>(field(16, 4));
    member.packed_bytes = field(20, 4);
    member.bytes = field(24, 4);
    member.header = field(42, 4);
    const int64_t name = field(28, 2), extra = field(30, 2), comment = field(32, 2);
    member.name = bytes.text(at + kEntryBytes, name);
    bytes.need(at + kEntryBytes + name, extra, "the fields of a member");
    read_large(bytes, at + kEntryBytes + name, extra, member);
    at += kEntryBytes + name + extra + comment;
    members.push_back(std::move(member));
  }
  return members;
}

ZipBytes zip_bytes(const std::shared_ptr<const MappedFile>& file, const ZipMember& member) {
  const Bytes bytes(*file);
  bytes.need(member.header, kHeaderBytes, "the header of a member");
  bytes.expect(member.header, kHeader, "a member");
  const int64_t begin = member.header + kHeaderBytes +
                        static_cast<int64_t>(bytes.number(member.header + 26, 2)) +
                        static_cast<int64_t>(bytes.number(member.header + 28, 2));
  bytes.need(begin, member.packed_bytes, "a member");
  const std::span<const uint8_t> packed =
      file->bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(member.packed_bytes));
  if (member.method == 0) {
    if (member.bytes != member.packed_bytes) {
      bytes.fail(begin, message(member.name, " is stored in ", member.packed_bytes,
                                " bytes, expected ", member.bytes));
    }
    return checked(bytes, begin, member, {packed, file});
  }
  if (member.method != 8) {
    bytes.fail(member.header + 8, message(member.name, " is packed by method ", member.method,
                                          ", expected 0 (stored) or 8 (deflate)"));
  }
  // What deflate can give of so many bytes at most.
  if (member.bytes / 1032 > member.packed_bytes + 1) {
    bytes.fail(member.header,
               message(member.name, " is said to give ", member.bytes, " bytes of ",
                       member.packed_bytes, ", expected at most 1032 times as many"));
  }
  const auto memory = inflated(bytes, begin, packed, member);
  return checked(bytes, begin, member,
                 {{reinterpret_cast<const uint8_t*>(memory->data()), memory->size()}, memory});
}

}  // namespace performer
