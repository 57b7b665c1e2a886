// SPDX-License-Identifier: Apache-2.0
#include "performer/data/batches.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "favor/check.h"
#include "favor/random.h"
#include "favor/words.h"
#include "performer/data/rows.h"

namespace performer {
namespace {

constexpr favor::Word<Objective> kObjectives[] = {{Objective::kNextToken, "next_token"},
                                                  {Objective::kMaskedLm, "masked_lm"}};
constexpr favor::Word<Windowing> kWindowings[] = {
    {Windowing::kCrop, "crop"}, {Windowing::kConcat, "concat"}, {Windowing::kPacked, "packed"}};

// Sorting by length happens inside pools of this many batches: large enough for little padding,
// small enough for every epoch to mix sequences anew.
constexpr int64_t kPoolBatches = 64;
constexpr uint64_t kEvalSeed = 0;

// Keeps the uses of one seed apart: each has a generator key of its own.
enum class Purpose : uint64_t { kOrder = 1, kCrop, kMask, kEvalMask };

favor::RandomStream stream_for(uint64_t seed, Purpose purpose, int64_t item, int64_t epoch) {
  const uint64_t key = sequence_hash("performer/batches", seed) + static_cast<uint64_t>(purpose);
  return {key, static_cast<uint64_t>(item), static_cast<uint32_t>(epoch)};
}

template <class T>
void shuffle(std::vector<T>& items, favor::RandomStream& random) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(i)]);
}

std::vector<int64_t> identity(int64_t count) {
  std::vector<int64_t> items(count);
  std::iota(items.begin(), items.end(), 0);
  return items;
}

// A batch: consecutive rows of a plan.
struct Piece {
  int64_t first = 0;
  int64_t count = 0;
};

// Cuts rows [first, end) into batches whose lengths sum up to the token budget at most.
template <class Length>
void cut_packed(int64_t first, int64_t end, int64_t budget, const Length& length,
                std::vector<Piece>& pieces) {
  for (int64_t row = first; row < end;) {
    Piece piece{row, 0};
    for (int64_t tokens = length(row); row < end && tokens <= budget;) {
      ++piece.count;
      if (++row < end) tokens += length(row);
    }
    pieces.push_back(piece);
  }
}

// Cuts rows [first, end), sorted by ascending length, into padded batches within the token budget.
template <class Length>
void cut(int64_t first, int64_t end, int64_t budget, const Length& length,
         std::vector<Piece>& pieces) {
  for (int64_t row = first; row < end;) {
    Piece piece{row, 0};
    while (row < end && (piece.count + 1) * length(row) <= budget) {
      ++piece.count;
      ++row;
    }
    pieces.push_back(piece);
  }
}

std::vector<int64_t> count_targets(const SequenceSet& train, const Tokenizer& tokenizer,
                                   Objective objective) {
  std::vector<int64_t> counts(tokenizer.size(), 0);
  for (int64_t i = 0; i < train.size(); ++i) {
    for (const uint8_t token : train[i]) ++counts[token];
  }
  if (objective == Objective::kNextToken) counts[tokenizer.eos()] += train.size();
  return counts;
}

}  // namespace

std::string to_string(Objective objective) {
  return favor::word_of(kObjectives, objective);
}
std::string to_string(Windowing windowing) {
  return favor::word_of(kWindowings, windowing);
}

Objective objective_from_string(std::string_view word) {
  return favor::value_of(kObjectives, word, "objective");
}

Windowing windowing_from_string(std::string_view word) {
  return favor::value_of(kWindowings, word, "windowing");
}

void BatchOptions::check() const {
  FAVOR_CHECK(length >= 2, "length is ", length, ", expected at least 2");
  FAVOR_CHECK(tokens_per_batch >= length, "tokens_per_batch is ", tokens_per_batch,
              ", expected at least length = ", length, " (one full row)");
  FAVOR_CHECK(mask_fraction > 0 && mask_fraction <= 1, "mask_fraction is ", mask_fraction,
              ", expected more than 0 and at most 1");
}

int64_t start_token(Windowing windowing, const Tokenizer& tokenizer) {
  return windowing == Windowing::kConcat ? tokenizer.eos() : tokenizer.bos();
}

struct TrainBatches::Parts {
  Parts(const SequenceSet& set, const Tokenizer& alphabet, const BatchOptions& batch_options)
      : sequences(set), tokenizer(alphabet), options(batch_options) {
    options.check();
    FAVOR_CHECK(sequences.num_tokens() > 0,
                "TrainBatches: the training set is empty, expected at least one residue");
    plan();
  }

  // Sequences without a letter teach nothing.
  std::vector<int64_t> all_sequences() const {
    std::vector<int64_t> items = identity(sequences.size());
    std::erase_if(items, [&](int64_t i) { return sequences.length(i) == 0; });
    return items;
  }

  int64_t crop_tokens(int64_t sequence) const {
    return std::min(sequences.length(sequence) + 2, window_tokens(options));
  }

  // What a model sees of each row.
  auto row_tokens() const {
    const int64_t target_only = window_tokens(options) - options.length;
    return [this, target_only](int64_t row) { return crop_tokens(rows[row]) - target_only; };
  }

  void plan() {
    favor::RandomStream random = stream_for(options.seed, Purpose::kOrder, 0, position.epoch);
    rows = all_sequences();
    shuffle(rows, random);
    pieces.clear();
    if (options.windowing == Windowing::kCrop) {
      plan_crop();
    } else if (options.windowing == Windowing::kPacked) {
      cut_packed(0, std::ssize(rows), options.tokens_per_batch, row_tokens(), pieces);
    } else {
      stream = JoinedStream(sequences, std::move(rows));
      // The last token alone would be a row without a target.
      rows = identity((stream.size() - 2) / options.length + 1);
      shuffle(rows, random);
      cut(
          0, static_cast<int64_t>(rows.size()), options.tokens_per_batch,
          [&](int64_t) { return options.length; }, pieces);
    }
    shuffle(pieces, random);
  }

  void plan_crop() {
    const auto length = row_tokens();
    const auto count = static_cast<int64_t>(rows.size());
    for (int64_t first = 0; first < count;) {
      int64_t end = first;
      for (int64_t tokens = 0; end < count && tokens < kPoolBatches * options.tokens_per_batch;) {
        tokens += length(end++);
      }
      std::stable_sort(rows.begin() + first, rows.begin() + end,
                       [&](int64_t a, int64_t b) { return crop_tokens(a) < crop_tokens(b); });
      cut(first, end, options.tokens_per_batch, length, pieces);
      first = end;
    }
  }

  Window window(int64_t row) const {
    const int64_t item = rows[row];
    if (options.windowing == Windowing::kConcat) {
      const int64_t start = item * options.length;
      const int64_t count = std::min(window_tokens(options), stream.size() - start);
      return stream.window(sequences, start, count, tokenizer);
    }
    const int64_t count = crop_tokens(item);
    const int64_t places = sequences.length(item) + 2 - count + 1;
    favor::RandomStream random = stream_for(options.seed, Purpose::kCrop, item, position.epoch);
    const auto start = static_cast<int64_t>(random.below(places));
    return framed_window(sequences[item], start, count, tokenizer);
  }

  Batch batch() const {
    const Piece& piece = pieces[position.batch];
    std::vector<Window> windows;
    for (int64_t i = 0; i < piece.count; ++i) windows.push_back(window(piece.first + i));
    return make_batch(windows, tokenizer, options, [&](int64_t row) {
      return stream_for(options.seed, Purpose::kMask, rows[piece.first + row], position.epoch);
    });
  }

  const SequenceSet& sequences;
  Tokenizer tokenizer;
  BatchOptions options;
  BatchPosition position;
  std::vector<int64_t> rows;  // sequences (crop, packed) or numbers of windows (concat), as visited
  JoinedStream stream;        // concat only
  std::vector<Piece> pieces;  // batches of this epoch, in order
};

TrainBatches::TrainBatches(const SequenceSet& sequences, const Tokenizer& tokenizer,
                           const BatchOptions& options)
    : parts_(std::make_unique<Parts>(sequences, tokenizer, options)) {}
TrainBatches::~TrainBatches() = default;
TrainBatches::TrainBatches(TrainBatches&&) noexcept = default;
TrainBatches& TrainBatches::operator=(TrainBatches&&) noexcept = default;

Batch TrainBatches::next() {
  Batch batch = parts_->batch();
  if (++parts_->position.batch == batches_in_epoch()) {
    parts_->position = {parts_->position.epoch + 1, 0};
    parts_->plan();
  }
  return batch;
}

BatchPosition TrainBatches::position() const {
  return parts_->position;
}

int64_t TrainBatches::batches_in_epoch() const {
  return static_cast<int64_t>(parts_->pieces.size());
}

void TrainBatches::seek(const BatchPosition& position) {
  constexpr int64_t kMaxEpoch = std::numeric_limits<uint32_t>::max();
  FAVOR_CHECK(position.epoch >= 0 && position.epoch <= kMaxEpoch, "seek: epoch is ", position.epoch,
              ", expected 0 to ", kMaxEpoch);
  const BatchPosition before = parts_->position;
  if (position.epoch != before.epoch) {
    parts_->position = {position.epoch, 0};
    parts_->plan();
  }
  const int64_t count = batches_in_epoch();
  if (position.batch < 0 || position.batch >= count) {
    if (position.epoch != before.epoch) {
      parts_->position = before;
      parts_->plan();
    }
    throw favor::Error(favor::message("seek: batch is ", position.batch, ", expected 0 to ",
                                      count - 1, " in epoch ", position.epoch,
                                      " (other data or options than when it was saved?)"));
  }
  parts_->position = position;
}

struct EvalBatches::Parts {
  struct Place {
    int64_t sequence = 0;  // 0 for concat
    int64_t start = 0;  // in begin, sequence, end (crop, packed) or in the joined stream (concat)
    int64_t count = 0;  // tokens
  };

  Parts(const SequenceSet& set, const Tokenizer& alphabet, const BatchOptions& batch_options)
      : sequences(set), tokenizer(alphabet), options(batch_options) {
    options.check();
    if (options.windowing != Windowing::kConcat) {
      for (int64_t i = 0; i < sequences.size(); ++i) {
        if (sequences.length(i) > 0) add_places(i, sequences.length(i) + 2);
      }
    } else if (sequences.num_tokens() > 0) {
      stream = JoinedStream(sequences, identity(sequences.size()));
      add_places(0, stream.size());
    }
    std::stable_sort(places.begin(), places.end(),
                     [](const Place& a, const Place& b) { return a.count < b.count; });
    const int64_t target_only = window_tokens(options) - options.length;
    const auto length = [&](int64_t row) { return places[row].count - target_only; };
    if (options.windowing == Windowing::kPacked) {
      cut_packed(0, std::ssize(places), options.tokens_per_batch, length, pieces);
    } else {
      cut(0, std::ssize(places), options.tokens_per_batch, length, pieces);
    }
  }

  // Adjoining windows over `total` tokens, the last of which is an end token and needs no row.
  void add_places(int64_t sequence, int64_t total) {
    for (int64_t start = 0; start < total - 1; start += options.length) {
      places.push_back({sequence, start, std::min(window_tokens(options), total - start)});
    }
  }

  Batch batch(int64_t number) const {
    const Piece& piece = pieces[number];
    std::vector<Window> windows;
    for (int64_t row = piece.first; row < piece.first + piece.count; ++row) {
      const Place& place = places[row];
      windows.push_back(
          options.windowing == Windowing::kConcat
              ? stream.window(sequences, place.start, place.count, tokenizer)
              : framed_window(sequences[place.sequence], place.start, place.count, tokenizer));
    }
    return make_batch(windows, tokenizer, options, [&](int64_t row) {
      const Place& place = places[piece.first + row];
      return stream_for(kEvalSeed, Purpose::kEvalMask, place.sequence,
                        place.start / options.length);
    });
  }

  const SequenceSet& sequences;
  Tokenizer tokenizer;
  BatchOptions options;
  JoinedStream stream;  // concat only
  std::vector<Place> places;
  std::vector<Piece> pieces;
};

EvalBatches::EvalBatches(const SequenceSet& sequences, const Tokenizer& tokenizer,
                         const BatchOptions& options)
    : parts_(std::make_unique<Parts>(sequences, tokenizer, options)) {}
EvalBatches::~EvalBatches() = default;
EvalBatches::EvalBatches(EvalBatches&&) noexcept = default;
EvalBatches& EvalBatches::operator=(EvalBatches&&) noexcept = default;

int64_t EvalBatches::size() const {
  return static_cast<int64_t>(parts_->pieces.size());
}

Batch EvalBatches::batch(int64_t i) const {
  FAVOR_CHECK(i >= 0 && i < size(), "batch: index is ", i, ", expected 0 to ", size() - 1);
  return parts_->batch(i);
}

EmpiricalBaseline::EmpiricalBaseline(std::vector<int64_t> counts) {
  for (int64_t& count : counts) ++count;  // Laplace: each target seen once more
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (const int64_t count : counts) {
    probabilities_.push_back(static_cast<double>(count) / static_cast<double>(total));
  }
  best_ = std::max_element(counts.begin(), counts.end()) - counts.begin();
}

EmpiricalBaseline::EmpiricalBaseline(const SequenceSet& train, const Tokenizer& tokenizer,
                                     Objective objective)
    : EmpiricalBaseline(count_targets(train, tokenizer, objective)) {}

BaselineScore EmpiricalBaseline::score(const EvalSource& batches) const {
  std::vector<int64_t> seen(probabilities_.size(), 0);
  BaselineScore score;
  for (int64_t i = 0; i < batches.size(); ++i) {
    for (const int64_t target : batches.batch(i).targets) {
      if (target < 0) continue;
      ++seen[target];
      ++score.num_targets;
    }
  }
  FAVOR_CHECK(score.num_targets > 0, "score: the batches hold no target, expected at least one");
  const auto total = static_cast<double>(score.num_targets);
  for (size_t token = 0; token < seen.size(); ++token) {
    score.loss -= static_cast<double>(seen[token]) / total * std::log(probabilities_[token]);
  }
  score.perplexity = std::exp(score.loss);
  score.accuracy = static_cast<double>(seen[best_]) / total;
  return score;
}

}  // namespace performer
