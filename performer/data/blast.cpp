// SPDX-License-Identifier: Apache-2.0
#include "performer/data/blast.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "favor/check.h"
#include "performer/data/mapped_file.h"

namespace performer {
namespace {

namespace fs = std::filesystem;

// The letter of each residue code; codes beyond have none.
constexpr std::string_view kLetters = "-ABCDEFGHIKLMNPQRSTVWXYZU*OJ";

std::string base_of(const std::string& path) {
  return path.ends_with(".pin") ? path.substr(0, path.size() - 4) : path;
}

template <class... Args>
[[noreturn]] void fail(const MappedFile& file, size_t at, const Args&... args) {
  throw std::runtime_error(favor::message(file.path(), ": byte ", at, ": ", args...));
}

// Reads the index from front to back.
class IndexCursor {
 public:
  explicit IndexCursor(const MappedFile& file) : file_(file) {}

  size_t at() const { return at_; }

  // `size` bytes, which end inside the file.
  std::span<const uint8_t> take(size_t size, const char* what) {
    const size_t left = file_.bytes().size() - at_;
    if (left < size) {
      fail(file_, at_, what, " is cut off after ", left, " bytes, expected ", size);
    }
    const auto bytes = file_.bytes().subspan(at_, size);
    at_ += size;
    return bytes;
  }

  uint32_t big(const char* what) {
    const auto b = take(4, what);
    return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
  }

  uint64_t little64(const char* what) {
    const auto b = take(8, what);
    uint64_t value = 0;
    for (size_t i = 8; i-- > 0;) value = value << 8 | b[i];
    return value;
  }

 private:
  const MappedFile& file_;
  size_t at_ = 0;
};

}  // namespace

bool is_blast_database(const std::string& path) {
  return path.ends_with(".pin") || fs::exists(path + ".pin") || fs::exists(path + ".pal");
}

struct BlastDatabase::Parts {
  explicit Parts(const std::string& base)
      : index(base + ".pin"), residues(base + ".psq"), headers(base + ".phr") {
    IndexCursor in(index);
    const uint32_t version = in.big("the version");
    if (version != 4) fail(index, 0, "version is ", version, ", expected 4");
    const uint32_t type = in.big("the type");
    if (type != 1) fail(index, 4, "type is ", type, ", expected 1 (protein)");
    in.take(in.big("the length of the title"), "the title");
    in.take(in.big("the length of the date"), "the date");
    count = in.big("the number of sequences");
    const size_t at_total = in.at();
    num_residues = in.little64("the number of residues");
    const size_t at_longest = in.at();
    const uint32_t longest = in.big("the longest length");
    header_ends = read_offsets(in, "header", headers);
    sequence_ends = read_offsets(in, "sequence", residues);
    check_residues(at_total, at_longest, longest);
    for (size_t code = 0; code < kLetters.size(); ++code) letters[code] = kLetters[code];
  }

  // count + 1 ascending offsets into `file`.
  std::vector<uint32_t> read_offsets(IndexCursor& in, const char* what,
                                     const MappedFile& file) const {
    std::vector<uint32_t> offsets;
    const size_t size = file.bytes().size();
    // A count from a damaged file must not become an allocation.
    if ((size_t{count} + 1) * 4 > index.bytes().size() - in.at()) {
      fail(index, in.at(), "the ", what, " offsets are cut off after ",
           index.bytes().size() - in.at(), " bytes, expected ", (size_t{count} + 1) * 4, " (",
           count, " sequences)");
    }
    offsets.reserve(size_t{count} + 1);
    for (size_t i = 0; i <= count; ++i) {
      const size_t at = in.at();
      offsets.push_back(in.big(what));
      if (offsets.back() > size) {
        fail(index, at, what, " offset ", i, " is ", offsets.back(), ", expected at most ", size,
             " (bytes of ", file.path(), ")");
      }
      if (i > 0 && offsets[i] < offsets[i - 1]) {
        fail(index, at, what, " offset ", i, " is ", offsets[i], ", expected at least ",
             offsets[i - 1], " (the one before)");
      }
    }
    return offsets;
  }

  // Sequence i lies between NUL bytes: one before it and one after.
  void check_residues(size_t at_total, size_t at_longest, uint32_t longest) const {
    const auto bytes = residues.bytes();
    uint64_t total = 0;
    uint32_t most = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t begin = sequence_ends[i], end = sequence_ends[i + 1];
      if (begin == end || begin == 0 || bytes[begin - 1] != 0 || bytes[end - 1] != 0) {
        fail(residues, begin, "sequence ", i, " ends at byte ", end,
             ", expected a NUL byte before and after it");
      }
      total += end - begin - 1;
      most = std::max(most, end - begin - 1);
    }
    if (total != num_residues) {
      fail(index, at_total, "the number of residues is ", num_residues, ", expected ", total,
           " (sum over the sequences)");
    }
    if (most != longest) {
      fail(index, at_longest, "the longest length is ", longest, ", expected ", most);
    }
  }

  // The first VisibleString of a BER value: constructed values are entered, others skipped.
  std::string first_string(int64_t i) const {
    const auto bytes = headers.bytes();
    size_t at = header_ends[i];
    const size_t end = header_ends[i + 1];
    while (at + 2 <= end) {
      const uint8_t tag = bytes[at];
      size_t length = bytes[at + 1];
      at += 2;
      if ((length & 0x80) != 0) {
        const size_t octets = length & 0x7f;
        length = 0;
        if (octets > 4 || at + octets > end) break;
        for (size_t n = 0; n < octets; ++n) length = length << 8 | bytes[at++];
      }
      if ((tag & 0x20) != 0) continue;
      if (length > end - at) break;
      if (tag == 0x1a) return {reinterpret_cast<const char*>(bytes.data()) + at, length};
      at += length;
    }
    fail(headers, at, "header ", i, " ends at byte ", end, " without a string, expected one");
  }

  MappedFile index, residues, headers;
  uint32_t count = 0;
  uint64_t num_residues = 0;
  std::vector<uint32_t> header_ends, sequence_ends;
  std::array<char, 256> letters{};  // NUL: no letter
  std::string text;
  FastaCounts counts;
};

BlastDatabase::BlastDatabase(const std::string& path) {
  const std::string base = base_of(path);
  if (!fs::exists(base + ".pin") && fs::exists(base + ".pal")) {
    throw std::runtime_error(favor::message(
        base, ".pal: is an alias of several volumes, expected one volume (give each of them)"));
  }
  parts_ = std::make_unique<Parts>(base);
}
BlastDatabase::~BlastDatabase() = default;
BlastDatabase::BlastDatabase(BlastDatabase&&) noexcept = default;
BlastDatabase& BlastDatabase::operator=(BlastDatabase&&) noexcept = default;

int64_t BlastDatabase::size() const {
  return parts_->count;
}

int64_t BlastDatabase::num_residues() const {
  return static_cast<int64_t>(parts_->num_residues);
}

const FastaCounts& BlastDatabase::counts() const {
  return parts_->counts;
}

void BlastDatabase::read(int64_t i, FastaRecord& record) {
  Parts& in = *parts_;
  FAVOR_CHECK(i >= 0 && i < size(), "BlastDatabase: index is ", i, ", expected 0 to ", size() - 1);
  record.header = in.first_string(i);
  for (char& c : record.header) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  record.name = record.header.substr(0, record.header.find_first_of("| \t"));
  record.line = i + 1;
  const auto bytes = in.residues.bytes();
  const size_t begin = in.sequence_ends[i], end = in.sequence_ends[i + 1] - size_t{1};
  in.text.resize(end - begin);
  for (size_t at = begin; at < end; ++at) {
    const char letter = in.letters[bytes[at]];
    if (letter == '\0') {
      fail(in.residues, at, "residue code is ", int{bytes[at]}, " in sequence ", i,
           ", expected 0 to ", kLetters.size() - 1);
    }
    in.text[at - begin] = letter;
  }
  record.sequence = clean_residues(in.text, in.counts);
  ++in.counts.records;
  in.counts.empty_records += record.sequence.empty() ? 1 : 0;
}

}  // namespace performer
