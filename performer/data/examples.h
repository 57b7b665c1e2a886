// SPDX-License-Identifier: Apache-2.0
// Data sets as numbered examples, and the batches made of them. A data set says what its examples
// are; order, batches and padding are the same for all.
#ifndef PERFORMER_DATA_EXAMPLES_H_
#define PERFORMER_DATA_EXAMPLES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "performer/data/batches.h"

namespace performer {

/// One example. Either each token has a target, or the whole has a class.
struct Example {
  std::vector<int64_t> tokens;   ///< at least 1
  std::vector<int64_t> targets;  ///< of each token, -1 = none; empty where the class counts
  std::vector<int64_t> second;   ///< tokens of the other half of a pair; else empty
  int64_t label = -1;            ///< class; -1 where targets count
};

/// The epoch that evaluations ask for.
inline constexpr int64_t kEvalEpoch = -1;

/// Numbered examples. All functions depend on their arguments alone and may be called from any
/// thread.
class ExampleSet {
 public:
  virtual ~ExampleSet() = default;
  virtual int64_t size() const = 0;
  /// Tokens of example i in any epoch, of a pair the longer half; at most. Costs no example.
  virtual int64_t length(int64_t i) const = 0;
  /// Rows of a batch that an example takes: 2 for pairs.
  virtual int64_t rows_per_example() const { return 1; }
  /// A set may show other examples in other epochs (kEvalEpoch counts as one).
  virtual Example example(int64_t i, int64_t epoch) const = 0;
  /// Hash of the content, not negative: tells whether two runs see the same data.
  virtual int64_t fingerprint() const = 0;
};

/// The numbers of a set that hold about `max_tokens` tokens, evenly spread over it; all for 0.
std::vector<int64_t> spread(const ExampleSet& set, int64_t max_tokens);

/// How often each target occurs in up to `most` examples, evenly spread over the set.
std::vector<int64_t> count_targets(const ExampleSet& set, int64_t num_targets, int64_t most);

/// Endless training batches: every epoch visits all examples once in an order of its own, those of
/// similar length together. Of the options, tokens_per_batch and seed count; a longer example
/// stands alone.
class ExampleTrainBatches : public TrainSource {
 public:
  /// Throws favor::Error for an empty set.
  ExampleTrainBatches(std::shared_ptr<const ExampleSet> set, int64_t pad,
                      const BatchOptions& options);

  Batch next() override;
  BatchPosition position() const override { return position_; }
  void seek(const BatchPosition& position) override;
  int64_t batches_in_epoch() const override { return static_cast<int64_t>(batches_.size()); }

 private:
  void plan();

  std::shared_ptr<const ExampleSet> set_;
  int64_t pad_;
  BatchOptions options_;
  BatchPosition position_;
  std::vector<std::vector<int64_t>> batches_;  // numbers of examples, of this epoch
};

/// The chosen examples, shortest first, each once.
class ExampleEvalBatches : public EvalSource {
 public:
  ExampleEvalBatches(std::shared_ptr<const ExampleSet> set, std::vector<int64_t> chosen,
                     int64_t pad, const BatchOptions& options);

  int64_t size() const override { return static_cast<int64_t>(batches_.size()); }
  Batch batch(int64_t i) const override;

 private:
  std::shared_ptr<const ExampleSet> set_;
  int64_t pad_;
  std::vector<std::vector<int64_t>> batches_;
};

}  // namespace performer

#endif  // PERFORMER_DATA_EXAMPLES_H_
