// SPDX-License-Identifier: Apache-2.0
#include "performer/data/fasta.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "favor/check.h"
#include "performer/data/byte_source.h"

namespace performer {
namespace {

constexpr size_t kBufferBytes = 1 << 16;

enum class Kind : uint8_t { kInvalid, kResidue, kLower, kUnknown, kGap, kStop, kNumbering };

constexpr std::array<Kind, 256> make_kinds() {
  std::array<Kind, 256> kinds{};
  for (int c = 'A'; c <= 'Z'; ++c) kinds[c] = Kind::kResidue;
  for (int c = 'a'; c <= 'z'; ++c) kinds[c] = Kind::kLower;
  for (int c = '0'; c <= '9'; ++c) kinds[c] = Kind::kNumbering;
  kinds[' '] = kinds['\t'] = Kind::kNumbering;
  kinds['J'] = Kind::kUnknown;
  kinds['-'] = kinds['.'] = Kind::kGap;
  kinds['*'] = Kind::kStop;
  return kinds;
}
constexpr std::array<Kind, 256> kKinds = make_kinds();

// Builds one sequence from its lines. Whether a stop is the trailing one shows only later.
class Cleaner {
 public:
  Cleaner(std::string& sequence, FastaCounts& counts) : sequence_(sequence), counts_(counts) {
    sequence_.clear();
  }

  // Index of the first character without meaning, or npos.
  size_t add(std::string_view line) {
    for (size_t i = 0; i < line.size(); ++i) {
      const char c = line[i];
      switch (kKinds[static_cast<unsigned char>(c)]) {
        case Kind::kInvalid:
          return i;
        case Kind::kResidue:
          residue(c);
          break;
        case Kind::kLower:
          ++counts_.lowercased;
          residue(static_cast<char>(c - 'a' + 'A'));
          break;
        case Kind::kUnknown:
          residue(c);
          break;
        case Kind::kGap:
          ++counts_.gaps;
          break;
        case Kind::kStop:
          ++pending_stops_;
          break;
        case Kind::kNumbering:
          ++counts_.numbering;
          break;
      }
    }
    return std::string_view::npos;
  }

  void finish() {
    counts_.trailing_stops += pending_stops_;
    counts_.residues += static_cast<int64_t>(sequence_.size());
  }

 private:
  void residue(char c) {
    counts_.interior_stops += pending_stops_;
    pending_stops_ = 0;
    const bool unknown = kKinds[static_cast<unsigned char>(c)] == Kind::kUnknown;
    counts_.unknown += unknown ? 1 : 0;
    sequence_ += unknown ? 'X' : c;
  }

  std::string& sequence_;
  FastaCounts& counts_;
  int64_t pending_stops_ = 0;
};

std::string shown(char c) {
  if (c >= ' ' && c <= '~') return std::string("'") + c + "'";
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "0x%02x", static_cast<unsigned>(c) & 0xffU);
  return std::string("byte ") + text.data();
}

}  // namespace

FastaCounts& FastaCounts::operator+=(const FastaCounts& other) {
  records += other.records;
  empty_records += other.empty_records;
  residues += other.residues;
  lowercased += other.lowercased;
  gaps += other.gaps;
  trailing_stops += other.trailing_stops;
  interior_stops += other.interior_stops;
  unknown += other.unknown;
  numbering += other.numbering;
  return *this;
}

std::string FastaCounts::changes() const {
  std::string text;
  const std::pair<int64_t, const char*> changes[] = {{empty_records, "empty records"},
                                                     {lowercased, "lower-case letters raised"},
                                                     {gaps, "gaps removed"},
                                                     {trailing_stops, "trailing stops removed"},
                                                     {interior_stops, "interior stops removed"},
                                                     {unknown, "unknown letters (J) made X"},
                                                     {numbering, "digits and blanks removed"}};
  for (const auto& [count, what] : changes) {
    if (count > 0) text += favor::message(text.empty() ? "" : ", ", count, " ", what);
  }
  return text;
}

std::string FastaCounts::summary() const {
  const std::string changed = changes();
  return favor::message(records, " records, ", residues, " residues", changed.empty() ? "" : ", ",
                        changed);
}

std::string clean_residues(std::string_view text, FastaCounts& counts) {
  std::string sequence;
  Cleaner cleaner(sequence, counts);
  const size_t bad = cleaner.add(text);
  FAVOR_CHECK(bad == std::string_view::npos, "sequence: character ", bad + 1, " is ",
              shown(text[bad]), ", expected a letter, '*', '-' or '.'");
  cleaner.finish();
  return sequence;
}

struct FastaReader::Parts {
  explicit Parts(const std::string& path) : name(path == "-" ? "standard input" : path) {
    try {
      source = std::make_unique<ByteSource>(path);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(favor::message(name, ": ", error.what()));
    }
  }

  template <class... Args>
  [[noreturn]] void fail(int64_t at, const Args&... args) const {
    throw std::runtime_error(favor::message(name, ":", at, ": ", args...));
  }

  bool fill() {
    used = 0;
    try {
      bytes = source->read(buffer.data(), buffer.size());
    } catch (const std::runtime_error& error) {
      fail(line_number, error.what());
    }
    return bytes > 0;
  }

  // Checks while it appends, so that a binary file fails at once instead of filling the memory.
  // Headers are free text in whatever encoding; only control characters are refused there.
  void append(std::string& line, std::string_view piece) const {
    if (piece.empty()) return;
    const bool in_header = (line.empty() ? piece : std::string_view(line)).front() == '>';
    // The first line is judged once it is complete: a byte order mark may stand before its '>'.
    const bool any_encoding = in_header || line_number == 1;
    for (const char c : piece) {
      const auto byte = static_cast<unsigned char>(c);
      const bool ascii = (byte >= 0x20 && byte < 0x7f) || c == '\t' || c == '\r';
      if (ascii || (any_encoding && byte >= 0x80)) continue;
      fail(line_number, shown(c), in_header ? " is not text" : " is not ASCII text");
    }
    line += piece;
  }

  // The next line without its end; false after the last.
  bool read_line(std::string& line) {
    line.clear();
    ++line_number;
    bool any = false;
    for (;;) {
      if (used == bytes && !fill()) {
        if (!any) return false;
        break;
      }
      any = true;
      const char* begin = buffer.data() + used;
      const auto* end = static_cast<const char*>(std::memchr(begin, '\n', bytes - used));
      const size_t count = end != nullptr ? static_cast<size_t>(end - begin) : bytes - used;
      append(line, {begin, count});
      used += count + (end != nullptr ? 1 : 0);
      if (end != nullptr) break;
    }
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line_number == 1) {
      if (line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
      for (const char c : line) {
        if (line[0] == '>') break;
        if (static_cast<unsigned char>(c) >= 0x80) fail(1, shown(c), " is not ASCII text");
      }
    }
    if (line.find('\r') != std::string::npos) fail(line_number, "carriage return inside a line");
    return true;
  }

  std::string name;
  std::unique_ptr<ByteSource> source;
  std::array<char, kBufferBytes> buffer{};
  size_t bytes = 0;
  size_t used = 0;
  int64_t line_number = 0;  // of the last line read
  std::string header;       // of the next record
  int64_t header_line = 0;  // 0 before the first record
  bool done = false;
  FastaCounts counts;
};

FastaReader::FastaReader(const std::string& path) : parts_(std::make_unique<Parts>(path)) {}
FastaReader::~FastaReader() = default;
FastaReader::FastaReader(FastaReader&&) noexcept = default;
FastaReader& FastaReader::operator=(FastaReader&&) noexcept = default;

const FastaCounts& FastaReader::counts() const {
  return parts_->counts;
}

bool FastaReader::next(FastaRecord& record) {
  Parts& in = *parts_;
  if (in.done) return false;
  std::string line;
  while (in.header_line == 0) {
    if (!in.read_line(line)) {
      throw std::runtime_error(favor::message(in.name, ": holds no record, expected '>' lines"));
    }
    const size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    if (line[0] != '>') in.fail(in.line_number, "data before the first '>'");
    in.header = line.substr(1);
    in.header_line = in.line_number;
  }
  record.header = in.header;
  record.line = in.header_line;
  const size_t begin = std::min(in.header.find_first_not_of(" \t"), in.header.size());
  record.name = in.header.substr(begin, in.header.find_first_of(" \t", begin) - begin);
  Cleaner cleaner(record.sequence, in.counts);
  for (;;) {
    if (!in.read_line(line)) {
      in.done = true;
      break;
    }
    if (!line.empty() && line[0] == '>') {
      in.header = line.substr(1);
      in.header_line = in.line_number;
      break;
    }
    const size_t bad = cleaner.add(line);
    if (bad != std::string::npos) {
      in.fail(in.line_number, "character ", bad + 1, " is ", shown(line[bad]),
              ", expected a letter, '*', '-' or '.'");
    }
  }
  cleaner.finish();
  ++in.counts.records;
  in.counts.empty_records += record.sequence.empty() ? 1 : 0;
  return true;
}

}  // namespace performer
