// SPDX-License-Identifier: Apache-2.0
// Reader of BLAST protein databases, version 4: the files NAME.pin (index), NAME.psq (residues) and
// NAME.phr (headers). Single volumes only.
#ifndef PERFORMER_DATA_BLAST_H_
#define PERFORMER_DATA_BLAST_H_

#include <cstdint>
#include <memory>
#include <string>

#include "performer/data/fasta.h"

namespace performer {

/// Whether `path` means such a database: it ends with .pin, or path.pin exists.
bool is_blast_database(const std::string& path);

/// Maps a database and checks its index. All errors are std::runtime_error reading
/// `file: byte N: what is got, expected ...`.
class BlastDatabase {
 public:
  /// `path` with or without .pin.
  explicit BlastDatabase(const std::string& path);
  ~BlastDatabase();
  BlastDatabase(BlastDatabase&&) noexcept;
  BlastDatabase& operator=(BlastDatabase&&) noexcept;

  int64_t size() const;
  /// Residues of all sequences, as the index says.
  int64_t num_residues() const;

  /// Sequence i, its letters normalised as by FastaReader and counted in counts(). The header is
  /// the first string of its description, the name what stands before the first `|` or blank.
  void read(int64_t i, FastaRecord& record);
  const FastaCounts& counts() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace performer

#endif  // PERFORMER_DATA_BLAST_H_
