// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/generate.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <map>

#include "favor/check.h"

namespace performer {
namespace {

constexpr int64_t kLetters = 25;
constexpr int64_t kEnd = 26;

ModelConfig tiny() {
  ModelConfig config;
  config.dim = 32;
  config.num_layers = 2;
  config.num_heads = 2;
  config.ff_dim = 64;
  config.max_length = 64;
  config.attention.num_features = 16;
  return config;
}

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

TEST(Generate, DamagedWeightsAreAnErrorNotASequence) {
  LanguageModel model(tiny());
  {
    torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model->parameters()) parameter.fill_(NAN);
  }
  const Tokenizer tokenizer = Tokenizer::protein();
  SamplingOptions options;
  options.max_length = 10;
  EXPECT_THROW(generate(model, tokenizer, tokenizer.bos(), "MK", 2, 0, options),
               std::runtime_error);
}

TEST(Generate, SequenceDependsOnItsOwnStreamAlone) {
  torch::manual_seed(1);
  LanguageModel model(tiny());
  const Tokenizer tokenizer = Tokenizer::protein();
  SamplingOptions options;
  options.max_length = 40;
  options.seed = 9;
  const auto all = generate(model, tokenizer, tokenizer.bos(), "MKT", 20, 0, options);
  ASSERT_EQ(all.size(), 20u);
  for (const GeneratedSequence& sequence : all) {
    EXPECT_EQ(sequence.letters.substr(0, 3), "MKT");
    EXPECT_LE(sequence.letters.size(), 40u);
    EXPECT_EQ(sequence.ended, sequence.letters.size() < 40) << sequence.letters;
    EXPECT_EQ(sequence.letters.find_first_of("<>_*"), std::string::npos);
  }
  EXPECT_NE(all[0].letters, all[1].letters);
  const auto one = generate(model, tokenizer, tokenizer.bos(), "MKT", 1, 0, options);
  EXPECT_EQ(one[0].letters.substr(0, 10), all[0].letters.substr(0, 10));
}

// Greedy decoding through the state equals taking the best of whole forward passes.
TEST(Generate, GreedyEqualsWholePasses) {
  torch::manual_seed(2);
  LanguageModel model(tiny());
  const Tokenizer tokenizer = Tokenizer::protein();
  SamplingOptions options;
  options.temperature = 0;
  options.max_length = 12;
  const auto sequence = generate(model, tokenizer, tokenizer.bos(), "AC", 1, 0, options).front();
  torch::NoGradGuard no_grad;
  model->eval();
  std::vector<int64_t> ids = {tokenizer.bos(), 0, 1};
  std::string expected = "AC";
  while (expected.size() < 12) {
    const torch::Tensor logits =
        model->forward(torch::tensor(ids).unsqueeze(0))[0][std::ssize(ids) - 1];
    torch::Tensor allowed = torch::full({29}, -1e9f);
    allowed.slice(0, 0, kLetters).copy_(logits.slice(0, 0, kLetters));
    allowed[kEnd] = logits[kEnd];
    const auto best = allowed.argmax().item<int64_t>();
    if (best == kEnd) break;
    ids.push_back(best);
    expected += tokenizer.decode(std::span<const int64_t>(&best, 1));
  }
  EXPECT_EQ(sequence.letters, expected);
}

TEST(Generate, SaysWhatIsWrong) {
  const Tokenizer tokenizer = Tokenizer::protein();
  LanguageModel model(tiny());
  SamplingOptions options;
  options.max_length = 65;
  const auto text = [&](LanguageModel& m) -> std::string {
    try {
      generate(m, tokenizer, tokenizer.bos(), "", 1, 0, options);
    } catch (const favor::Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(text(model).find("max_length is 65, expected at most 64"), std::string::npos);
  options.max_length = 10;
  options.top_p = 0;
  EXPECT_NE(text(model).find("top_p is 0"), std::string::npos);
  options.top_p = 1;
  ModelConfig config = tiny();
  config.causal = false;
  LanguageModel encoder(config);
  EXPECT_NE(text(encoder).find("expected a causal model"), std::string::npos);
}

}  // namespace
}  // namespace performer
