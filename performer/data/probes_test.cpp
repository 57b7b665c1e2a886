// SPDX-License-Identifier: Apache-2.0
#include "performer/data/probes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

ProbeOptions options_of(ProbeKind kind) {
  ProbeOptions options;
  options.kind = kind;
  options.num_examples = 200;
  options.length = 41;
  options.num_symbols = 20;
  options.num_pairs = 5;
  options.seed = 4;
  return options;
}

TEST(Probes, CopyTargetsAreTheSymbolsBeforeTheMarker) {
  ProbeOptions options = options_of(ProbeKind::kCopy);
  const auto vocabulary = symbol_vocabulary(20);
  for (const int64_t length : {41, 42}) {
    options.length = length;
    const auto set = make_probe(options);
    EXPECT_EQ(set->length(0), 41);
    for (int64_t i = 0; i < 50; ++i) {
      const Example example = set->example(i, 0);
      ASSERT_EQ(example.tokens.size(), 41U);
      EXPECT_EQ(example.tokens[0], vocabulary->bos());
      EXPECT_EQ(example.tokens[21], vocabulary->eos());
      for (size_t t = 0; t < 41; ++t) {
        EXPECT_EQ(example.targets[t], t < 21 ? -1 : example.tokens[t - 20]) << t;
        if (t >= 21 && t < 40) {
          EXPECT_EQ(example.tokens[t + 1], example.targets[t]);
        }
      }
    }
  }
}

TEST(Probes, InductionAsksForWhatFollowedTheMarker) {
  const auto set = make_probe(options_of(ProbeKind::kInduction));
  const int64_t marker = symbol_vocabulary(20)->eos();
  std::set<int64_t> places;
  for (int64_t i = 0; i < set->size(); ++i) {
    const Example example = set->example(i, 0);
    EXPECT_EQ(std::count(example.tokens.begin(), example.tokens.end(), marker), 2);
    EXPECT_EQ(example.tokens.back(), marker);
    const auto first = std::find(example.tokens.begin(), example.tokens.end(), marker);
    places.insert(first - example.tokens.begin());
    EXPECT_EQ(example.targets.back(), *(first + 1));
    EXPECT_LT(example.targets.back(), 20);
    EXPECT_EQ(std::count(example.targets.begin(), example.targets.end(), -1), 40);
  }
  EXPECT_GE(*places.begin(), 1);
  EXPECT_LE(*places.rbegin(), 38);
  EXPECT_GT(places.size(), 30U);
}

TEST(Probes, RecallAsksOnceForEachKeysValue) {
  const auto set = make_probe(options_of(ProbeKind::kRecall));
  int64_t near = 0, far = 0;
  for (int64_t i = 0; i < set->size(); ++i) {
    const Example example = set->example(i, 0);
    std::map<int64_t, int64_t> values;
    for (size_t p = 0; p < 5; ++p) {
      EXPECT_LT(example.tokens[2 * p], 10);
      EXPECT_GE(example.tokens[2 * p + 1], 10);
      values[example.tokens[2 * p]] = example.tokens[2 * p + 1];
    }
    ASSERT_EQ(values.size(), 5U) << "a key twice";
    std::set<int64_t> asked;
    for (size_t t = 0; t < example.tokens.size(); ++t) {
      if (example.targets[t] < 0) continue;
      EXPECT_GE(t, 10U);
      ASSERT_TRUE(values.count(example.tokens[t]));
      EXPECT_EQ(example.targets[t], values[example.tokens[t]]);
      asked.insert(example.tokens[t]);
      (t < 20 ? near : far) += 1;
    }
    EXPECT_EQ(asked.size(), 5U);
  }
  // 5 of 15 slots are near; without the power law a third of the queries would be.
  EXPECT_GT(near, far);
}

TEST(Probes, ExamplesDependOnSeedNumberAndEpochAlone) {
  for (const ProbeKind kind : {ProbeKind::kCopy, ProbeKind::kInduction, ProbeKind::kRecall}) {
    ProbeOptions options = options_of(kind);
    const auto fixed = make_probe(options);
    EXPECT_EQ(fixed->example(3, 0).tokens, make_probe(options)->example(3, 0).tokens);
    EXPECT_EQ(fixed->example(3, 0).tokens, fixed->example(3, 1).tokens);
    EXPECT_NE(fixed->example(3, 0).tokens, fixed->example(4, 0).tokens);
    options.fresh = true;
    EXPECT_NE(make_probe(options)->example(3, 0).tokens, make_probe(options)->example(3, 1).tokens);
    options.seed = 5;
    EXPECT_NE(make_probe(options)->example(3, 0).tokens, fixed->example(3, 0).tokens);
    EXPECT_NE(make_probe(options)->fingerprint(), fixed->fingerprint());
  }
}

TEST(Probes, ErrorsNameFieldValueAndExpectation) {
  const auto error = [](ProbeKind kind, const auto& change) {
    ProbeOptions options = options_of(kind);
    change(options);
    return message_of<favor::Error>([&] { make_probe(options); });
  };
  EXPECT_EQ(error(ProbeKind::kCopy, [](ProbeOptions& o) { o.length = 4; }),
            "length is 4, expected at least 5");
  EXPECT_EQ(error(ProbeKind::kRecall, [](ProbeOptions& o) { o.length = 19; }),
            "length is 19, expected at least 20 (pairs, and as many places to ask for them)");
  EXPECT_EQ(error(ProbeKind::kRecall, [](ProbeOptions& o) { o.num_pairs = 11; }),
            "num_pairs is 11, expected at most 10 (half of num_symbols are keys)");
  EXPECT_EQ(error(ProbeKind::kCopy, [](ProbeOptions& o) { o.num_symbols = 1; }),
            "num_symbols is 1, expected 2 to 1000000");
}

}  // namespace
}  // namespace performer
