// SPDX-License-Identifier: Apache-2.0
// From FASTA files and BLAST databases to one token file: distinct sequences, divided into sets.
#ifndef PERFORMER_DATA_PREPARE_H_
#define PERFORMER_DATA_PREPARE_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "performer/data/sequences.h"

namespace performer {

/// How distinct sequences are divided. A sequence is held out (set ood) if any of its copies is;
/// the others go to train, valid or test by their hash, as split_of says.
struct PrepareOptions {
  SplitOptions split;
  std::string clusters;         ///< TSV of clusters to hold out; empty: none
  int64_t ood_min_cluster = 1;  ///< smallest cluster to hold out
  double ood_fraction = 1;      ///< share of these clusters, chosen by a hash
  std::string go_terms;         ///< GO terms to hold out, separated by commas; empty: none
  std::string go_graph;         ///< graph file that adds their descendants; empty: none

  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

/// Reads `inputs` (FASTA, gzipped or not, `-` for standard input; BLAST databases), removes exact
/// duplicates, and writes a token file. Proteins that several databases have under one accession
/// are one, with the GO terms of all. Returns the description stored in the file.
///
/// Memory: a few hundred bytes per sequence, most of them for the names in a cluster file and for
/// the terms in databases; residues and headers pass through unnamed files in the folder of
/// `output`. Throws what the readers throw, and std::runtime_error for an accession with
/// two sequences, a cluster file that knows none of them, and input without a residue.
nlohmann::ordered_json prepare_tokens(const std::vector<std::string>& inputs,
                                      const std::string& output, const PrepareOptions& options);

}  // namespace performer

#endif  // PERFORMER_DATA_PREPARE_H_
