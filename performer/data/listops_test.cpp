// SPDX-License-Identifier: Apache-2.0
#include "performer/data/listops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

std::vector<uint8_t> tokens_of(std::string_view text) {
  const std::vector<int64_t> ids = listops_vocabulary()->encode(text);
  return {ids.begin(), ids.end()};
}

TEST(ListOps, ValuesAreThoseOfTheDefinition) {
  const auto value = [](std::string_view text) { return evaluate_listops(tokens_of(text)); };
  EXPECT_EQ(value("7"), 7);
  EXPECT_EQ(value("[MAX 2 9 [MIN 4 7 ] 0 ]"), 9);
  EXPECT_EQ(value("[MIN 2 9 [MIN 4 7 ] 3 ]"), 2);
  EXPECT_EQ(value("[SM 8 9 6 ]"), 3);
  EXPECT_EQ(value("[MED 8 1 6 ]"), 6);
  EXPECT_EQ(value("[MED 8 1 6 3 ]"), 4);  // (3 + 6) / 2, truncated
  EXPECT_EQ(value("[SM [MAX 2 9 ] [MED 1 2 ] ]"), 0);
  for (const char* text : {"", "1 2", "[MAX ]", "[MAX 1", "] 1", "[MAX 1 ] ]"}) {
    EXPECT_EQ(value(text), -1) << text;
  }
}

TEST(ListOps, DrawnTreesHaveTheirStatedValueAndStayWithinTheLimits) {
  favor::RandomStream random(1, 2);
  ListOpsOptions options;
  options.max_depth = 4;
  options.max_arguments = 3;
  for (int i = 0; i < 3000; ++i) {
    const ListOpsTree tree = draw_tree(random, options);
    ASSERT_EQ(tree.value, evaluate_listops(tree.tokens));
    int64_t depth = 0, deepest = 0;
    for (const uint8_t token : tree.tokens) {
      depth += token < 10 ? 0 : token == kListEnd ? -1 : 1;
      deepest = std::max(deepest, depth);
    }
    EXPECT_LE(deepest, 3);  // the fourth level holds leaves
    EXPECT_LE(tree.tokens.size(), 3U * 3 * 3 + 2 * 13);
  }
}

// What a generator written from the published parameters gave on a first measurement: 8.3 % of the
// trees kept, length mean 1061, median 997, 5th and 95th percentile 537 and 1812, the answers 9 and
// 0 in 17.3 % and 16.6 %.
TEST(ListOps, StatisticsAreThoseOfThePublishedParameters) {
  favor::RandomStream random(3, 4);
  const ListOpsOptions options;
  std::vector<int64_t> lengths;
  std::array<int64_t, 10> answers{};
  int64_t drawn = 0;
  while (lengths.size() < 6000) {
    const ListOpsTree tree = draw_tree(random, options);
    ++drawn;
    const int64_t length = std::ssize(tree.tokens);
    if (length <= options.above_length || length >= options.below_length) continue;
    lengths.push_back(length);
    ++answers[static_cast<size_t>(tree.value)];
  }
  std::sort(lengths.begin(), lengths.end());
  double mean = 0;
  for (const int64_t length : lengths) mean += double(length) / 6000;
  const auto share = [&](size_t answer) { return double(answers[answer]) / 6000; };
  // Five standard errors of a sample of this size, and of the 2,000 of the first measurement.
  EXPECT_NEAR(6000.0 / double(drawn), 0.083, 0.009);
  EXPECT_NEAR(mean, 1061, 55);
  EXPECT_NEAR(double(lengths[3000]), 997, 75);
  EXPECT_NEAR(double(lengths[300]), 537, 20);
  EXPECT_NEAR(double(lengths[5700]), 1812, 60);
  EXPECT_NEAR(share(9), 0.173, 0.045);
  EXPECT_NEAR(share(0), 0.166, 0.045);
  // Every other answer is rarer: the floor of a guesser is what 9 and 0 have.
  for (size_t answer = 1; answer < 9; ++answer) EXPECT_LT(share(answer), 0.13) << answer;
}

TEST(ListOps, SetsAreDisjointDistinctAndReproducible) {
  ListOpsOptions options;
  options.above_length = 5;
  options.below_length = 40;
  const std::array<int64_t, 3> counts = {300, 60, 50};
  const LabelledSplits splits = generate_listops(options, counts, 7, 15);
  std::set<std::vector<int64_t>> seen;
  size_t total = 0;
  for (const auto& set : {splits.train, splits.valid, splits.test}) {
    for (int64_t i = 0; i < set->size(); ++i) {
      const Example example = set->example(i, 0);
      EXPECT_EQ(example.tokens[0], 15);
      std::vector<uint8_t> tokens(example.tokens.begin() + 1, example.tokens.end());
      EXPECT_EQ(example.label, evaluate_listops(tokens));
      EXPECT_GT(tokens.size(), 5U);
      EXPECT_LT(tokens.size(), 40U);
      EXPECT_EQ(set->length(i), std::ssize(example.tokens));
      seen.insert(example.tokens);
      ++total;
    }
    EXPECT_EQ(set->num_cut(), 0);
  }
  EXPECT_EQ(total, 410U);
  EXPECT_EQ(seen.size(), 410U);
  EXPECT_EQ(generate_listops(options, counts, 7, 15).train->fingerprint(),
            splits.train->fingerprint());
  EXPECT_NE(generate_listops(options, counts, 8, 15).train->fingerprint(),
            splits.train->fingerprint());
}

TEST(ListOps, OptionsOutOfRangeAreNamed) {
  ListOpsOptions options;
  options.below_length = 505;
  EXPECT_EQ(message_of<favor::Error>([&] { options.check(); }),
            "below_length is 505, expected at least 508 (above_length + 8)");
  options = {};
  options.max_arguments = 1;
  EXPECT_EQ(message_of<favor::Error>([&] { options.check(); }),
            "max_arguments is 1, expected 2 to 100");
}

}  // namespace
}  // namespace performer
