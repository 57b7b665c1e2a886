// SPDX-License-Identifier: Apache-2.0
#include "performer/data/examples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

constexpr int64_t kPad = 99;

// Example i holds 1 + i % 7 tokens of value i; every token's target is its place.
struct Numbered : ExampleSet {
  explicit Numbered(int64_t count, bool pairs = false, bool classes = false)
      : count_(count), pairs_(pairs), classes_(classes || pairs) {}
  int64_t size() const override { return count_; }
  int64_t length(int64_t i) const override { return std::max(1 + i % 7, pairs_ ? 1 + i % 5 : 0); }
  int64_t rows_per_example() const override { return pairs_ ? 2 : 1; }
  Example example(int64_t i, int64_t epoch) const override {
    Example example;
    example.tokens.assign(static_cast<size_t>(1 + i % 7), i);
    if (classes_) {
      example.label = i % 3;
    } else {
      for (int64_t t = 0; t <= i % 7; ++t) example.targets.push_back(epoch < 0 ? t : -1);
    }
    if (pairs_) example.second.assign(static_cast<size_t>(1 + i % 5), i + 1000);
    return example;
  }
  int64_t fingerprint() const override { return 1; }

  int64_t count_;
  bool pairs_, classes_;
};

BatchOptions options_of(int64_t tokens, uint64_t seed = 3) {
  BatchOptions options;
  options.tokens_per_batch = tokens;
  options.seed = seed;
  return options;
}

std::multiset<int64_t> numbers_in(const Batch& batch) {
  std::multiset<int64_t> numbers;
  for (int64_t row = 0; row < batch.rows; ++row) numbers.insert(batch.tokens[row * batch.length]);
  return numbers;
}

TEST(ExampleTrainBatches, EachEpochVisitsEachExampleOnceInAnOrderOfItsOwn) {
  ExampleTrainBatches batches(std::make_shared<Numbered>(50), kPad, options_of(24));
  std::vector<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::multiset<int64_t> seen;
    orders.emplace_back();
    while (batches.position().epoch == epoch) {
      const Batch batch = batches.next();
      EXPECT_LE(batch.rows * batch.length, 24);
      for (const int64_t number : numbers_in(batch)) {
        seen.insert(number);
        orders.back().push_back(number);
      }
    }
    EXPECT_EQ(seen.size(), 50U);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 50U);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

TEST(ExampleTrainBatches, SeekGoesOnAsARunThatCameThere) {
  const auto set = std::make_shared<Numbered>(40);
  ExampleTrainBatches straight(set, kPad, options_of(20));
  for (int i = 0; i < 17; ++i) straight.next();
  const BatchPosition position = straight.position();
  EXPECT_GT(position.epoch, 0);
  ExampleTrainBatches resumed(set, kPad, options_of(20));
  resumed.seek(position);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(resumed.next().tokens, straight.next().tokens);
  const std::string error = message_of<favor::Error>([&] { resumed.seek({0, 1000}); });
  EXPECT_NE(error.find("seek: batch is 1000, expected 0 to "), std::string::npos) << error;
  EXPECT_EQ(resumed.position(), straight.position());
}

TEST(ExampleTrainBatches, AnExampleBeyondTheBudgetStandsAlone) {
  ExampleTrainBatches batches(std::make_shared<Numbered>(7), kPad, options_of(3));
  int64_t largest = 0;
  while (batches.position().epoch == 0) {
    const Batch batch = batches.next();
    if (batch.length > 3) {
      EXPECT_EQ(batch.rows, 1);
    }
    largest = std::max(largest, batch.length);
  }
  EXPECT_EQ(largest, 7);
}

TEST(ExampleTrainBatches, RefuseAnEmptySet) {
  EXPECT_THROW(ExampleTrainBatches(std::make_shared<Numbered>(0), kPad, options_of(8)),
               favor::Error);
}

TEST(ExampleEvalBatches, HoldTheChosenExamplesWithPaddingAndTargets) {
  const auto set = std::make_shared<Numbered>(9);
  const ExampleEvalBatches batches(set, {8, 2, 5}, kPad, options_of(100));
  ASSERT_EQ(batches.size(), 1);
  const Batch batch = batches.batch(0);
  // Shortest first: lengths 2, 3, 6.
  EXPECT_EQ(batch.rows, 3);
  EXPECT_EQ(batch.length, 6);
  EXPECT_EQ(batch.tokens,
            (std::vector<int64_t>{8, 8, 99, 99, 99, 99, 2, 2, 2, 99, 99, 99, 5, 5, 5, 5, 5, 5}));
  EXPECT_EQ(batch.targets,
            (std::vector<int64_t>{0, 1, -1, -1, -1, -1, 0, 1, 2, -1, -1, -1, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(batch.num_tokens, 11);
  EXPECT_EQ(batch.num_targets, 11);
  EXPECT_EQ(std::count(batch.padding.begin(), batch.padding.end(), 1), 7);
  EXPECT_THROW(batches.batch(1), favor::Error);
}

TEST(ExampleEvalBatches, PairsStandInNeighbouringRowsWithOneClass) {
  const ExampleEvalBatches batches(std::make_shared<Numbered>(9, true), {3, 8}, kPad,
                                   options_of(100));
  const Batch batch = batches.batch(0);
  EXPECT_TRUE(batch.classes);
  EXPECT_EQ(batch.rows, 4);
  EXPECT_EQ(batch.length, 4);
  EXPECT_EQ(batch.tokens, (std::vector<int64_t>{3, 3, 3, 3, 1003, 1003, 1003, 1003, 8, 8, 99, 99,
                                                1008, 1008, 1008, 1008}));
  EXPECT_EQ(batch.targets, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(batch.num_targets, 2);
}

TEST(ExampleEvalBatches, BothRowsOfAPairCountAgainstTheBudget) {
  const ExampleEvalBatches batches(std::make_shared<Numbered>(9, true), {3, 8}, kPad,
                                   options_of(15));
  EXPECT_EQ(batches.size(), 2);
}

TEST(Spread, TakesAShareEvenlyAndAllForZero) {
  const Numbered set(70);  // 4 tokens on average
  EXPECT_EQ(spread(set, 0).size(), 70U);
  EXPECT_EQ(spread(set, 100000).size(), 70U);
  const std::vector<int64_t> few = spread(set, 40);
  EXPECT_EQ(few, (std::vector<int64_t>{0, 7, 14, 21, 28, 35, 42, 49, 56, 63}));
  EXPECT_EQ(spread(set, 1).size(), 1U);
}

TEST(CountTargets, CountsClassesAndTokens) {
  EXPECT_EQ(count_targets(Numbered(9, false, true), 3, 100), (std::vector<int64_t>{3, 3, 3}));
  EXPECT_EQ(count_targets(Numbered(900, false, true), 3, 300)[0], 300);
}

}  // namespace
}  // namespace performer
