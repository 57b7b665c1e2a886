// SPDX-License-Identifier: Apache-2.0
// Variants of a wild-type sequence, as people write them. No torch here.
#ifndef PERFORMER_INFER_MUTATIONS_H_
#define PERFORMER_INFER_MUTATIONS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/tokenizer.h"

namespace performer {

struct Substitution {
  int64_t position = 0;  ///< in the wild type, from 0
  char from = 0;
  char to = 0;
  bool operator==(const Substitution&) const = default;
};

struct Variant {
  std::string residues;  ///< the whole mutated sequence
  bool has_indel = false;
  std::vector<Substitution> substitutions;  ///< without an indel: where it differs, ascending
};

/// Reads `A24G` (substitution), `A24del`, `A24_K30del`, `A24_K25insGHI`, `A24delinsGH`,
/// `A24_K30delinsGH`, several of them separated by `:`, or `WT` (no change). A position is the
/// residue's number minus `offset`, the first one being 1. Throws favor::Error that names the part,
/// the letter and what was expected: letters that are not the wild type's, positions outside it,
/// overlapping changes, letters that are no residues.
Variant parse_mutant(std::string_view text, std::string_view wild_type, int64_t offset,
                     const Tokenizer& tokenizer);

/// The variant that a whole sequence stands for; one of equal length has substitutions alone.
/// Throws favor::Error for an empty sequence or letters that are no residues.
Variant variant_of_sequence(std::string_view residues, std::string_view wild_type,
                            const Tokenizer& tokenizer);

}  // namespace performer

#endif  // PERFORMER_INFER_MUTATIONS_H_
