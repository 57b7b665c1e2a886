// SPDX-License-Identifier: Apache-2.0
// Synthetic probes that only attention over long distances solves: copy, induction, multi-query
// associative recall. Targets stand at the places that matter and nowhere else.
#ifndef PERFORMER_DATA_PROBES_H_
#define PERFORMER_DATA_PROBES_H_

#include <cstdint>
#include <memory>

#include "performer/data/examples.h"
#include "performer/data/vocabulary.h"

namespace performer {

enum class ProbeKind {
  /// begin, n random symbols, end, the same symbols: each of the second copy is a target.
  kCopy,
  /// begin, random symbols with a marker (the end token) once among them, and the marker again as
  /// the last token: the target is what followed it before (Fu et al. 2023).
  kInduction,
  /// key value key value ..., then fillers among which every key comes once more: its value is
  /// the target there (Arora et al. 2023). Keys are the first half of the symbols, values the
  /// second. Distances follow their power law of exponent 0.01 - 1, so that near queries are
  /// many and far ones some.
  kRecall,
};

struct ProbeOptions {
  ProbeKind kind = ProbeKind::kCopy;
  int64_t num_examples = 1000;  ///< per epoch
  int64_t length = 64;          ///< tokens of a row; copy rounds down to an odd number
  int64_t num_symbols = 64;
  int64_t num_pairs = 8;  ///< of kRecall
  uint64_t seed = 0;
  bool fresh = false;  ///< other examples in every epoch

  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

/// `s0`, `s1`, ...
std::shared_ptr<const Vocabulary> symbol_vocabulary(int64_t num_symbols);

/// An example is a function of (seed, number, epoch).
std::shared_ptr<const ExampleSet> make_probe(const ProbeOptions& options);

}  // namespace performer

#endif  // PERFORMER_DATA_PROBES_H_
