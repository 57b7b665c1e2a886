// SPDX-License-Identifier: Apache-2.0
#include "performer/data/examples.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "favor/check.h"
#include "favor/random.h"

namespace performer {
namespace {

// Examples are sorted by length inside pools of this many batches.
constexpr int64_t kPoolBatches = 64;

template <class T>
void shuffle(std::vector<T>& items, favor::RandomStream& random) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(i)]);
}

// Cuts examples sorted by length into batches of `budget` padded tokens.
void cut(const ExampleSet& set, const int64_t* first, const int64_t* end, int64_t budget,
         std::vector<std::vector<int64_t>>& batches) {
  while (first < end) {
    std::vector<int64_t> batch;
    do {
      batch.push_back(*first++);
    } while (first < end &&
             (std::ssize(batch) + 1) * set.rows_per_example() * set.length(*first) <= budget);
    batches.push_back(std::move(batch));
  }
}

void sort_by_length(const ExampleSet& set, int64_t* first, int64_t* end) {
  std::stable_sort(first, end, [&](int64_t a, int64_t b) { return set.length(a) < set.length(b); });
}

Batch make_batch(const ExampleSet& set, const std::vector<int64_t>& numbers, int64_t epoch,
                 int64_t pad) {
  std::vector<Example> examples;
  Batch batch;
  for (const int64_t i : numbers) {
    examples.push_back(set.example(i, epoch));
    const Example& example = examples.back();
    batch.length = std::max(
        {batch.length, std::ssize(example.tokens), std::ssize(example.second), int64_t{1}});
    batch.rows += example.second.empty() ? 1 : 2;
    batch.classes = example.targets.empty();
  }
  batch.tokens.assign(batch.rows * batch.length, pad);
  batch.padding.assign(batch.rows * batch.length, 1);
  if (!batch.classes) batch.targets.assign(batch.rows * batch.length, -1);
  int64_t begin = 0;
  const auto add_row = [&](const std::vector<int64_t>& tokens) {
    std::copy(tokens.begin(), tokens.end(), batch.tokens.begin() + begin);
    std::fill_n(batch.padding.begin() + begin, std::ssize(tokens), uint8_t{0});
    batch.num_tokens += std::ssize(tokens);
  };
  for (const Example& example : examples) {
    add_row(example.tokens);
    if (batch.classes) {
      batch.targets.push_back(example.label);
    } else {
      std::copy(example.targets.begin(), example.targets.end(), batch.targets.begin() + begin);
    }
    begin += batch.length;
    if (example.second.empty()) continue;
    add_row(example.second);
    begin += batch.length;
  }
  batch.num_targets = std::count_if(batch.targets.begin(), batch.targets.end(),
                                    [](int64_t target) { return target >= 0; });
  return batch;
}

}  // namespace

std::vector<int64_t> spread(const ExampleSet& set, int64_t max_tokens) {
  const int64_t size = set.size();
  int64_t total = 0;
  if (max_tokens > 0) {
    for (int64_t i = 0; i < size; ++i) total += set.length(i);
  }
  int64_t count = size;
  if (total > max_tokens) {
    count = std::clamp<int64_t>(
        static_cast<int64_t>(double(size) * double(max_tokens) / double(total)), 1, size);
  }
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  for (int64_t j = 0; j < count; ++j) {
    numbers[static_cast<size_t>(j)] =
        static_cast<int64_t>(double(j) * double(size) / double(count));
  }
  return numbers;
}

std::vector<int64_t> count_targets(const ExampleSet& set, int64_t num_targets, int64_t most) {
  std::vector<int64_t> counts(static_cast<size_t>(num_targets), 0);
  const int64_t count = std::min(set.size(), most);
  for (int64_t j = 0; j < count; ++j) {
    const auto i = static_cast<int64_t>(double(j) * double(set.size()) / double(count));
    const Example example = set.example(i, 0);
    if (example.label >= 0) ++counts[static_cast<size_t>(example.label)];
    for (const int64_t target : example.targets) {
      if (target >= 0) ++counts[static_cast<size_t>(target)];
    }
  }
  return counts;
}

ExampleTrainBatches::ExampleTrainBatches(std::shared_ptr<const ExampleSet> set, int64_t pad,
                                         const BatchOptions& options)
    : set_(std::move(set)), pad_(pad), options_(options) {
  FAVOR_CHECK(set_->size() > 0, "the training set is empty, expected at least one example");
  plan();
}

void ExampleTrainBatches::plan() {
  const uint64_t key = sequence_hash("performer/examples", options_.seed);
  favor::RandomStream random(key, 0, static_cast<uint32_t>(position_.epoch));
  std::vector<int64_t> order(static_cast<size_t>(set_->size()));
  std::iota(order.begin(), order.end(), int64_t{0});
  shuffle(order, random);
  batches_.clear();
  int64_t* const end = order.data() + order.size();
  for (int64_t* first = order.data(); first < end;) {
    int64_t* last = first;
    for (int64_t tokens = 0; last < end && tokens < kPoolBatches * options_.tokens_per_batch;) {
      tokens += set_->length(*last++);
    }
    sort_by_length(*set_, first, last);
    cut(*set_, first, last, options_.tokens_per_batch, batches_);
    first = last;
  }
  shuffle(batches_, random);
}

Batch ExampleTrainBatches::next() {
  Batch batch =
      make_batch(*set_, batches_[static_cast<size_t>(position_.batch)], position_.epoch, pad_);
  if (++position_.batch == batches_in_epoch()) {
    position_ = {position_.epoch + 1, 0};
    plan();
  }
  return batch;
}

void ExampleTrainBatches::seek(const BatchPosition& position) {
  constexpr int64_t kMaxEpoch = std::numeric_limits<uint32_t>::max();
  FAVOR_CHECK(position.epoch >= 0 && position.epoch <= kMaxEpoch, "seek: epoch is ", position.epoch,
              ", expected 0 to ", kMaxEpoch);
  const BatchPosition before = position_;
  const auto move_to = [&](const BatchPosition& to) {
    const bool replan = to.epoch != position_.epoch;
    position_ = to;
    if (replan) plan();
  };
  move_to({position.epoch, 0});
  const int64_t count = batches_in_epoch();
  if (position.batch < 0 || position.batch >= count) {
    move_to(before);
    throw favor::Error(favor::message("seek: batch is ", position.batch, ", expected 0 to ",
                                      count - 1, " in epoch ", position.epoch,
                                      " (other data or options than when it was saved?)"));
  }
  position_ = position;
}

ExampleEvalBatches::ExampleEvalBatches(std::shared_ptr<const ExampleSet> set,
                                       std::vector<int64_t> chosen, int64_t pad,
                                       const BatchOptions& options)
    : set_(std::move(set)), pad_(pad) {
  int64_t* const first = chosen.data();
  sort_by_length(*set_, first, first + chosen.size());
  cut(*set_, first, first + chosen.size(), options.tokens_per_batch, batches_);
}

Batch ExampleEvalBatches::batch(int64_t i) const {
  FAVOR_CHECK(i >= 0 && i < size(), "batch: index is ", i, ", expected 0 to ", size() - 1);
  return make_batch(*set_, batches_[static_cast<size_t>(i)], kEvalEpoch, pad_);
}

}  // namespace performer
