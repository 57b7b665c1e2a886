// SPDX-License-Identifier: Apache-2.0
// Streaming FASTA reader: plain or gzip files and standard input, one record in memory at a time.
// Every change made to the input is counted, none is silent.
#ifndef PERFORMER_DATA_FASTA_H_
#define PERFORMER_DATA_FASTA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace performer {

/// What was read, and each kind of change made to it. Characters unless said otherwise.
struct FastaCounts {
  int64_t records = 0;         ///< records, empty ones included
  int64_t empty_records = 0;   ///< records without a residue
  int64_t residues = 0;        ///< residues kept
  int64_t lowercased = 0;      ///< lower-case letters made upper case
  int64_t gaps = 0;            ///< `-` and `.` removed
  int64_t trailing_stops = 0;  ///< `*` removed after the last residue of a record
  int64_t interior_stops = 0;  ///< `*` removed before another residue
  int64_t unknown = 0;         ///< letters outside the alphabet (that is J) made X
  int64_t numbering = 0;       ///< digits, blanks and tabs removed from sequence lines

  FastaCounts& operator+=(const FastaCounts& other);
  /// Every change that occurred, separated by commas; empty when there was none.
  std::string changes() const;
  /// One line without a newline: records, residues, and every change that occurred.
  std::string summary() const;
};

struct FastaRecord {
  std::string name;      ///< first word of the header, may be empty
  std::string header;    ///< whole header line without `>`
  std::string sequence;  ///< upper-case letters of ACDEFGHIKLMNPQRSTVWYBOUXZ
  int64_t line = 0;      ///< line of the header, from 1
};

/// Normalises residues typed by hand (a prompt, a variant) as the reader does, adding to `counts`
/// (records stay). Throws favor::Error for a character that has no meaning in a sequence.
std::string clean_residues(std::string_view text, FastaCounts& counts);

/// Reads records one after another. Memory: one record and fixed buffers. All errors of the input
/// are std::runtime_error reading `file:line: ...` (`file: ...` where there is no line): unreadable
/// or empty file, data before the first `>`, control characters, bytes outside ASCII in sequence
/// lines (headers may hold any encoding), characters without meaning in a sequence, damaged or cut
/// gzip data.
class FastaReader {
 public:
  /// `path` names a file, `-` standard input. gzip (any number of members) is recognised by its
  /// first bytes, whatever the name.
  explicit FastaReader(const std::string& path);
  ~FastaReader();
  FastaReader(FastaReader&&) noexcept;
  FastaReader& operator=(FastaReader&&) noexcept;

  /// Fills `record` and returns true, or returns false after the last record.
  bool next(FastaRecord& record);

  /// Totals over the records returned so far.
  const FastaCounts& counts() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace performer

#endif  // PERFORMER_DATA_FASTA_H_
