// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "favor/check.h"

namespace performer {
namespace {

constexpr int64_t kLetters = 25;
constexpr int64_t kEnd = 26;

std::map<int64_t, int> draw(const std::vector<float>& logits, const SamplingOptions& options,
                            int count) {
  favor::RandomStream random(3, 0);
  std::map<int64_t, int> seen;
  for (int i = 0; i < count; ++i) ++seen[sample_token(logits, options, kLetters, kEnd, random)];
  return seen;
}

TEST(SampleToken, FollowsTheProbabilities) {
  std::vector<float> logits(29, -100.0f);
  logits[4] = std::log(3.0f);
  logits[kEnd] = 0;
  const int n = 20000;
  const auto seen = draw(logits, {}, n);
  ASSERT_EQ(seen.size(), 2u);
  // Four standard errors of a share of 3/4.
  EXPECT_NEAR(seen.at(4) / double(n), 0.75, 4 * std::sqrt(0.75 * 0.25 / n));
  SamplingOptions hot;
  hot.temperature = 2;
  const double share = std::sqrt(3.0) / (1 + std::sqrt(3.0));
  EXPECT_NEAR(draw(logits, hot, n).at(4) / double(n), share,
              4 * std::sqrt(share * (1 - share) / n));
}

TEST(SampleToken, NeverEmitsBeginPaddingOrMask) {
  std::vector<float> logits(29, 0.0f);
  for (const int64_t special : {25, 27, 28}) logits[special] = 50.0f;
  for (const auto& [id, count] : draw(logits, {}, 5000)) {
    EXPECT_TRUE(id < kLetters || id == kEnd) << id;
  }
}

TEST(SampleToken, TopKAndTopPKeepTheMostProbable) {
  std::vector<float> logits(29, -20.0f);
  logits[1] = std::log(0.5f);
  logits[2] = std::log(0.3f);
  logits[3] = std::log(0.2f);
  SamplingOptions options;
  options.top_k = 2;
  EXPECT_EQ(draw(logits, options, 2000).size(), 2u);
  options = {};
  options.top_p = 0.75;
  EXPECT_EQ(draw(logits, options, 2000).size(), 2u);
  options.top_p = 0.1;
  EXPECT_EQ(draw(logits, options, 100).size(), 1u);
  options = {};
  options.temperature = 0;
  EXPECT_EQ(draw(logits, options, 100).begin()->first, 1);
}

TEST(SampleToken, RefusesLogitsThatAreNotFinite) {
  const auto text = [](const std::vector<float>& logits) -> std::string {
    try {
      draw(logits, {}, 1);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  };
  for (const int64_t id : {int64_t{0}, int64_t{7}, kEnd}) {
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
      std::vector<float> logits(29, 0.0f);
      logits[id] = bad;
      EXPECT_NE(text(logits).find("logit of token " + std::to_string(id) + " is "),
                std::string::npos)
          << text(logits);
    }
  }
  // Tokens that are never emitted may hold anything.
  std::vector<float> logits(29, 0.0f);
  logits[kEnd + 1] = std::nanf("");
  EXPECT_EQ(text(logits), "no error");
}

TEST(SampleToken, TheEndTokenCanBeIgnored) {
  std::vector<float> logits(29, 0.0f);
  logits[kEnd] = 30;
  EXPECT_EQ(draw(logits, {}, 100).begin()->first, kEnd);
  SamplingOptions options;
  options.ignore_end = true;
  for (const auto& [id, count] : draw(logits, options, 2000)) EXPECT_LT(id, kLetters);
  // Nobody asks what it holds.
  logits[kEnd] = NAN;
  EXPECT_EQ(draw(logits, options, 2000).count(kEnd), 0u);
}

TEST(Penalise, DividesPositiveLogitsAndMultipliesNegativeOnes) {
  std::vector<float> logits = {3, -2, 0, 4, -1};
  std::array<bool, 256> marked{};
  marked[0] = marked[1] = marked[2] = marked[200] = true;
  penalise(logits, marked, 2);
  EXPECT_EQ(logits, (std::vector<float>{1.5f, -4, 0, 4, -1}));
}

TEST(RecentTokens, KeepTheLastOnesAlone) {
  RecentTokens recent;
  EXPECT_TRUE(recent.last(10).empty());
  for (int64_t i = 0; i < 5; ++i) recent.add(i);
  EXPECT_EQ(recent.last(3), (std::vector<uint8_t>{2, 3, 4}));
  EXPECT_EQ(recent.last(10), (std::vector<uint8_t>{0, 1, 2, 3, 4}));
  EXPECT_FALSE(recent.seen(3)[1]);
  EXPECT_TRUE(recent.seen(3)[2]);
  // Far beyond the memory: as a list would have it.
  std::vector<uint8_t> all = recent.last(5);
  for (int64_t i = 0; i < RecentTokens::kMost + 77; ++i) {
    all.push_back(static_cast<uint8_t>(i * i % 23));
    recent.add(all.back());
  }
  for (const int64_t count : {int64_t{1}, int64_t{100}, RecentTokens::kMost}) {
    EXPECT_EQ(recent.last(count), std::vector<uint8_t>(all.end() - count, all.end()));
  }
  EXPECT_EQ(std::ssize(recent.last(1 << 20)), RecentTokens::kMost);
}

TEST(LogProbability, IsTheLogarithmOfTheSoftmax) {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  EXPECT_NEAR(log_probability(logits, 2), std::log(5.0 / 8), 1e-6);
  const std::vector<float> large = {1000, 1000};
  EXPECT_NEAR(log_probability(large, 0), -std::log(2.0), 1e-12);
}

TEST(SamplingOptions, ErrorsNameTheField) {
  const auto text = [](const SamplingOptions& options) -> std::string {
    try {
      options.check();
    } catch (const favor::Error& error) {
      return error.what();
    }
    return "no error";
  };
  SamplingOptions options;
  EXPECT_EQ(text(options), "no error");
  options.repetition_penalty = 0;
  EXPECT_EQ(text(options), "repetition_penalty is 0, expected a number above 0");
  options = {};
  options.penalty_window = 0;
  EXPECT_EQ(text(options), "penalty_window is 0, expected 1 to 4096");
  options.penalty_window = 4097;
  EXPECT_EQ(text(options), "penalty_window is 4097, expected 1 to 4096");
  options = {};
  options.temperature = -1;
  EXPECT_EQ(text(options), "temperature is -1, expected a number of at least 0");
  options = {};
  options.top_k = -1;
  EXPECT_EQ(text(options), "top_k is -1, expected at least 0");
  options = {};
  options.max_length = 0;
  EXPECT_EQ(text(options), "max_length is 0, expected at least 1");
}

}  // namespace
}  // namespace performer
