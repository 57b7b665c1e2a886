// SPDX-License-Identifier: Apache-2.0
// The sequences a command works on, in the order of their file, and names for their results that
// are safe in file systems. No torch here.
#ifndef PERFORMER_INFER_RECORDS_H_
#define PERFORMER_INFER_RECORDS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/fasta.h"
#include "performer/data/sequences.h"
#include "performer/data/tokenizer.h"

namespace performer {

/// All records of a file. Memory: one byte per residue and the headers.
struct Records {
  std::vector<std::string> names;    ///< first words of the headers, may be empty or equal
  std::vector<std::string> headers;  ///< whole headers
  SequenceSet sequences;             ///< empty records included
  Tokenizer tokenizer = Tokenizer::protein();  ///< that made the tokens
  FastaCounts counts;                          ///< of the whole reading so far
  int64_t first = 0;                           ///< records of the file before these

  int64_t size() const { return sequences.size(); }
  /// How messages call record i: `sequence 3 (name)`.
  std::string label(int64_t i) const;
  /// SHA-256 of names, headers and residues: tells whether two runs see the same input.
  std::string fingerprint() const;
};

/// The whole file. Throws what FastaReader throws.
Records read_records(const std::string& path, const Tokenizer& tokenizer);

/// The next records of `reader`, until they have `max_residues` (or 65,536 records were read); none
/// at the end. `first` is the number of records before them and counts in label().
Records read_block(FastaReader& reader, const Tokenizer& tokenizer, int64_t max_residues,
                   int64_t first);

/// A file name for each name: letters, digits, `.`, `_` and `-` stay, other bytes become `_`, a
/// leading `.` or `-` too; at most 100 characters; an empty name is `record`. Equal results (case
/// apart, as some file systems see it) are numbered `-2`, `-3`, ... in their order.
std::vector<std::string> safe_names(const std::vector<std::string>& names);

/// A number of bytes: a whole number with K, M, G or T (powers of 1024) or without. Throws
/// favor::Error calling it `name`.
int64_t parse_bytes(const std::string& name, std::string_view text);

}  // namespace performer

#endif  // PERFORMER_INFER_RECORDS_H_
