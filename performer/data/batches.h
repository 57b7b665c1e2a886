// SPDX-License-Identifier: Apache-2.0
// Batches for training and evaluation: windows, length buckets, targets and masked-LM corruption.
// All of it is a function of (seed, epoch, sequence), never of timing or threads.
#ifndef PERFORMER_DATA_BATCHES_H_
#define PERFORMER_DATA_BATCHES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "performer/data/sequences.h"
#include "performer/data/tokenizer.h"

namespace performer {

enum class Objective {
  kNextToken,  ///< predict token t + 1 from tokens up to t (causal models)
  kMaskedLm,   ///< predict corrupted tokens (bidirectional models)
};

enum class Windowing {
  kCrop,    ///< begin, sequence, end; longer ones are cut to a window
  kConcat,  ///< sequences joined with the end token and cut into windows of equal length
  kPacked,  ///< windows as kCrop makes them, many in one row without padding
};

/// `next_token`, `masked_lm`, `crop`, `concat`, `packed`.
std::string to_string(Objective objective);
std::string to_string(Windowing windowing);
/// Throw favor::Error, listing the known words.
Objective objective_from_string(std::string_view word);
Windowing windowing_from_string(std::string_view word);

struct BatchOptions {
  Objective objective = Objective::kNextToken;
  Windowing windowing = Windowing::kCrop;
  int64_t length = 512;             ///< longest row a model sees (packed: longest window), >= 2
  int64_t tokens_per_batch = 8192;  ///< bound on rows x padded length, >= length
  double mask_fraction = 0.15;      ///< share of letters chosen by kMaskedLm, in (0, 1]
  uint64_t seed = 0;                ///< order, crops and masks of training

  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

/// Rows of equal padded length, row-major [rows, length]. Packed: a single row without padding.
struct Batch {
  int64_t rows = 0;
  int64_t length = 0;
  std::vector<int64_t> tokens;      ///< model input, the pad token where padded
  std::vector<int64_t> targets;     ///< token to predict at this place, -1 = none; or classes
  bool classes = false;             ///< one target a row, of pairs one every two rows
  std::vector<uint8_t> padding;     ///< 1 = padded
  std::vector<int64_t> cu_seqlens;  ///< packed: where windows begin, and the end; else empty
  int64_t num_tokens = 0;           ///< places that are not padded
  int64_t num_targets = 0;          ///< targets that are not -1
};

/// Token that opens a stream under this windowing: generation starts from it.
int64_t start_token(Windowing windowing, const Tokenizer& tokenizer);

/// Where a training run stands in its data: the next batch to deliver.
struct BatchPosition {
  int64_t epoch = 0;
  int64_t batch = 0;
  bool operator==(const BatchPosition&) const = default;
};

/// Endless training batches, a function of their position.
class TrainSource {
 public:
  virtual ~TrainSource() = default;
  /// The batch at position(), which then moves on, into the next epoch after the last batch.
  virtual Batch next() = 0;
  virtual BatchPosition position() const = 0;
  /// Continues at `position` exactly as a run that came there by next(). Throws favor::Error for a
  /// position this data does not have.
  virtual void seek(const BatchPosition& position) = 0;
  /// Batches of the epoch at position().
  virtual int64_t batches_in_epoch() const = 0;
};

/// A fixed list of batches: two evaluations of one model are equal.
class EvalSource {
 public:
  virtual ~EvalSource() = default;
  virtual int64_t size() const = 0;
  /// Throws favor::Error unless 0 <= i < size().
  virtual Batch batch(int64_t i) const = 0;
};

/// Training batches of a set of sequences. Crop: each epoch visits every sequence once, in rows of
/// similar length, a long one through one random window. Packed: the same windows, in rows of mixed
/// lengths. Concat: each epoch joins the sequences in a new order and visits every window once.
/// Memory: up to 32 bytes per sequence and 8 per concat window.
class TrainBatches : public TrainSource {
 public:
  /// `sequences` must outlive this object. Throws favor::Error for options out of range or a set
  /// without a token.
  TrainBatches(const SequenceSet& sequences, const Tokenizer& tokenizer,
               const BatchOptions& options);
  /// A temporary set would be gone before the first batch.
  TrainBatches(const SequenceSet&&, const Tokenizer&, const BatchOptions&) = delete;
  ~TrainBatches() override;
  TrainBatches(TrainBatches&&) noexcept;
  TrainBatches& operator=(TrainBatches&&) noexcept;

  Batch next() override;
  BatchPosition position() const override;
  void seek(const BatchPosition& position) override;
  /// In crops it varies slightly between epochs.
  int64_t batches_in_epoch() const override;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Every token of a set exactly once, in a fixed order and with fixed masks: two evaluations of one
/// model are equal. Crop and packed cut long sequences into adjoining windows, so nothing is left
/// out. For kMaskedLm the masks depend on the window alone, not on tokens_per_batch or
/// options.seed, and are the same in both.
class EvalBatches : public EvalSource {
 public:
  /// `sequences` must outlive this object and may be empty.
  EvalBatches(const SequenceSet& sequences, const Tokenizer& tokenizer,
              const BatchOptions& options);
  /// A temporary set would be gone before the first batch.
  EvalBatches(const SequenceSet&&, const Tokenizer&, const BatchOptions&) = delete;
  ~EvalBatches() override;
  EvalBatches(EvalBatches&&) noexcept;
  EvalBatches& operator=(EvalBatches&&) noexcept;

  int64_t size() const override;
  Batch batch(int64_t i) const override;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Loss of a predictor on a set of targets.
struct BaselineScore {
  int64_t num_targets = 0;
  double loss = 0;        ///< mean negative log-likelihood in nats
  double perplexity = 0;  ///< exp(loss)
  double accuracy = 0;    ///< 0 to 1
};

/// The empirical baseline: predicts each token or class with its frequency among the training
/// targets (Laplace 1 smoothing), and guesses the most frequent one.
class EmpiricalBaseline {
 public:
  /// From how often each target was seen.
  explicit EmpiricalBaseline(std::vector<int64_t> counts);
  /// Targets are the letters of `train`, and for kNextToken one end token per sequence.
  EmpiricalBaseline(const SequenceSet& train, const Tokenizer& tokenizer, Objective objective);

  const std::vector<double>& probabilities() const { return probabilities_; }
  /// Throws favor::Error when the batches hold no target.
  BaselineScore score(const EvalSource& batches) const;

 private:
  std::vector<double> probabilities_;  // [vocabulary]
  int64_t best_ = 0;
};

}  // namespace performer

#endif  // PERFORMER_DATA_BATCHES_H_
