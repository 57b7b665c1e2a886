// SPDX-License-Identifier: Apache-2.0
// Statistics of sets of sequences, as tables of protein data have them.
#ifndef PERFORMER_DATA_STATISTICS_H_
#define PERFORMER_DATA_STATISTICS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "performer/data/tokenizer.h"

namespace performer {

/// Collected over one set. Memory: four bytes per sequence.
class SetStatistics {
 public:
  explicit SetStatistics(const Tokenizer& tokenizer);

  void add(std::span<const uint8_t> tokens);
  void add(const SetStatistics& other);

  /// sequences, residues, min, max, mean, std (of the set, not an estimate), median, letters
  /// {letter: count}, rare_letters (residues outside the 20 amino acids), sequences_with_rare.
  nlohmann::ordered_json to_json() const;

 private:
  Tokenizer tokenizer_;
  std::vector<uint32_t> lengths_;
  std::vector<int64_t> counts_;  // by token
  int64_t with_rare_ = 0;
};

/// Lengths, one line per set, and letter frequencies of {name: SetStatistics::to_json, ...}.
std::string statistics_table(const nlohmann::ordered_json& sets);

}  // namespace performer

#endif  // PERFORMER_DATA_STATISTICS_H_
