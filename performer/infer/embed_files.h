// SPDX-License-Identifier: Apache-2.0
// The folder that embeddings go to. While a run goes on, results lie in `.partial` in the order of
// the input, so that memory holds one batch and a killed run can go on; the files in their formats
// and, last, index.tsv appear at the end. No torch here.
#ifndef PERFORMER_INFER_EMBED_FILES_H_
#define PERFORMER_INFER_EMBED_FILES_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "performer/infer/records.h"
#include "performer/infer/work.h"

namespace performer {

enum class EmbedFormat {
  kSafetensors,  ///< embeddings.safetensors: one tensor per pooling, one per record for residues
  kNpy,          ///< mean.npy [records, dim], residues/NAME.npy [length, dim]
  kTsv,          ///< mean.tsv, residues.tsv
};
/// Throws favor::Error, listing the known words.
EmbedFormat embed_format_from_string(std::string_view word);

/// What one record gives.
struct Embedding {
  std::vector<float> pooled;    ///< [poolings, dim]
  std::vector<float> residues;  ///< [length, dim], or empty
};

struct EmbedLayout {
  EmbedFormat format = EmbedFormat::kSafetensors;
  std::vector<std::string> poolings;  ///< names of the vectors per record
  bool per_residue = false;
  bool joined = false;  ///< residues of all records in one array
  int64_t dim = 0;
};

enum class FolderUse {
  kFresh,   ///< the folder is absent or empty
  kForce,   ///< results of an earlier run are replaced; other files stay
  kResume,  ///< goes on where an earlier run of the same settings was stopped
};

/// All failures of the file system are std::runtime_error naming the path.
class EmbeddingFolder {
 public:
  /// `settings` tells runs of different results apart; a run that resumes must bring the same.
  /// `records` must outlive this object. Throws std::runtime_error when `use` does not fit what the
  /// folder holds.
  EmbeddingFolder(const std::string& path, const EmbedLayout& layout, const Records& records,
                  const nlohmann::json& settings, FolderUse use);
  ~EmbeddingFolder();
  EmbeddingFolder(const EmbeddingFolder&) = delete;
  EmbeddingFolder& operator=(const EmbeddingFolder&) = delete;

  /// An earlier run has finished the folder: there is nothing to do.
  bool complete() const;
  bool done(int64_t record) const;
  /// Stores a result. It counts as done for a later run after the next sync().
  void put(int64_t record, const Embedding& embedding);
  /// Makes the results survive; called by put() twice a second.
  void sync();
  /// Writes the files. Records that failed are left out of them and named in the index. Without a
  /// failure `.partial` is removed, else it stays for a run that resumes.
  void finish(const std::vector<WorkFailure>& failures);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace performer

#endif  // PERFORMER_INFER_EMBED_FILES_H_
