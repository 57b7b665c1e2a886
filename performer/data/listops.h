// SPDX-License-Identifier: Apache-2.0
// ListOps (Nangia & Bowman 2018) as the Long Range Arena generates it (Tay et al. 2021): nested
// prefix expressions over digits, whose value is the class.
#ifndef PERFORMER_DATA_LISTOPS_H_
#define PERFORMER_DATA_LISTOPS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "favor/random.h"
#include "performer/data/labelled.h"
#include "performer/data/vocabulary.h"

namespace performer {

/// Ids: the digits, then the operators and the end of their arguments.
enum ListOpsToken : uint8_t { kListMin = 10, kListMax, kListMed, kListSm, kListEnd };

/// `0` to `9`, `[MIN`, `[MAX`, `[MED` (the median, truncated), `[SM` (the sum modulo 10), `]`.
std::shared_ptr<const Vocabulary> listops_vocabulary();

struct ListOpsOptions {
  int64_t max_depth = 10;
  int64_t max_arguments = 10;
  double operator_share = 0.25;  ///< of the nodes above max_depth
  int64_t above_length = 500;    ///< kept expressions are longer
  int64_t below_length = 2000;   ///< and shorter

  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

/// An expression of any length; from 2 * `below_length` tokens on, cut off and without value (-1).
struct ListOpsTree {
  std::vector<uint8_t> tokens;
  int64_t value = 0;
};
ListOpsTree draw_tree(favor::RandomStream& random, const ListOpsOptions& options);

/// The value of an expression; -1 for one that is not well formed.
int64_t evaluate_listops(std::span<const uint8_t> tokens);

/// `counts` distinct expressions for train, valid and test: which of them an expression may stand
/// in follows from its hash, so that none stands in two. About 30 microseconds per expression of
/// the default options, ten times that for valid and test.
LabelledSplits generate_listops(const ListOpsOptions& options, std::span<const int64_t> counts,
                                uint64_t seed, int64_t begin);

}  // namespace performer

#endif  // PERFORMER_DATA_LISTOPS_H_
