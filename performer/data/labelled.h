// SPDX-License-Identifier: Apache-2.0
// Rows of bytes or symbols with a class, in memory: what classified data sets are read into, and
// the files of the Long Range Arena that hold such rows.
#ifndef PERFORMER_DATA_LABELLED_H_
#define PERFORMER_DATA_LABELLED_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/examples.h"

namespace performer {

/// Memory: one byte per token and 8 per row, of pairs 16.
class LabelledSet : public ExampleSet {
 public:
  /// Rows are cut to `length` tokens, the first of which is `begin` unless that is -1.
  LabelledSet(int64_t length, int64_t begin) : length_(length), begin_(begin) {}

  void add(std::span<const uint8_t> tokens, int64_t label);
  /// A pair; a set holds either rows or pairs.
  void add(std::span<const uint8_t> tokens, std::span<const uint8_t> second, int64_t label);
  /// Rows, of pairs halves, that were longer than fits.
  int64_t num_cut() const { return num_cut_; }

  int64_t size() const override { return std::ssize(labels_); }
  int64_t length(int64_t i) const override;
  int64_t rows_per_example() const override { return pairs_ ? 2 : 1; }
  Example example(int64_t i, int64_t epoch) const override;
  int64_t fingerprint() const override;

 private:
  void append(std::span<const uint8_t> tokens);
  std::vector<int64_t> row(int64_t number) const;
  int64_t row_length(int64_t number) const;

  int64_t length_;
  int64_t begin_;
  std::vector<uint8_t> tokens_;
  std::vector<int64_t> offsets_ = {0};
  std::vector<uint8_t> labels_;
  bool pairs_ = false;
  int64_t num_cut_ = 0;
};

struct LabelledSplits {
  std::shared_ptr<LabelledSet> train, valid, test;
  std::vector<std::string> classes;  ///< their names

  /// "N rows cut to length L" or "".
  std::string cut_summary(int64_t length) const;
};

/// ListOps of the Long Range Arena: <folder>/basic_train.tsv, basic_val.tsv and basic_test.tsv with
/// the columns Source and Target; parentheses in Source are passed over. Throws std::runtime_error
/// `file:line: ...`.
LabelledSplits read_listops(const std::string& folder, int64_t length, int64_t begin);

/// Byte-level pairs as the Arena's retrieval task has them: <folder>/new_aan_pairs.train.tsv,
/// .eval.tsv and .test.tsv, lines `label id1 id2 text1 text2` between tabs, labels 0 or 1. Throws
/// std::runtime_error `file:line: ...`.
LabelledSplits read_pairs(const std::string& folder, int64_t length, int64_t begin);

/// Byte-level documents by class: <folder>/train/<class>/ and <folder>/test/<class>/ hold files
/// named .txt (.gz or not), such as IMDB's pos and neg; other folders in train are no classes if
/// test does not have them. <folder>/valid is read too; where it is missing, the share
/// options.valid_fraction of train is held out by hash. Throws std::runtime_error naming the
/// folder.
LabelledSplits read_documents(const std::string& folder, int64_t length, int64_t begin,
                              const SplitOptions& options);

}  // namespace performer

#endif  // PERFORMER_DATA_LABELLED_H_
