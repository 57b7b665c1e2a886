// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/generate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "favor/check.h"
#include "performer/infer/testing.h"

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

TEST(Generate, DamagedWeightsAreAnErrorNotASequence) {
  LanguageModel model(tiny());
  {
    torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model->parameters()) parameter.fill_(NAN);
  }
  const Tokenizer tokenizer = Tokenizer::protein();
  SamplingOptions options;
  options.max_length = 10;
  EXPECT_THROW(generate(model, tokenizer, tokenizer.bos(), "MK", 2, 0, 0, options),
               std::runtime_error);
}

TEST(Generate, SequenceDependsOnItsOwnStreamAlone) {
  torch::manual_seed(1);
  LanguageModel model(tiny());
  const Tokenizer tokenizer = Tokenizer::protein();
  SamplingOptions options;
  options.max_length = 40;
  const auto all = generate(model, tokenizer, tokenizer.bos(), "MKT", 20, 0, 9, options);
  ASSERT_EQ(all.size(), 20u);
  for (const GeneratedSequence& sequence : all) {
    EXPECT_EQ(sequence.letters.substr(0, 3), "MKT");
    EXPECT_LE(sequence.letters.size(), 40u);
    EXPECT_EQ(sequence.ended, sequence.letters.size() < 40) << sequence.letters;
    EXPECT_EQ(sequence.letters.find_first_of("<>_*"), std::string::npos);
  }
  EXPECT_NE(all[0].letters, all[1].letters);
  for (const int64_t i : {0, 7, 19}) {
    const auto one = generate(model, tokenizer, tokenizer.bos(), "MKT", 1, i, 9, options);
    EXPECT_EQ(one[0].letters, all[i].letters);
    EXPECT_EQ(one[0].ended, all[i].ended);
  }
  const auto other = generate(model, tokenizer, tokenizer.bos(), "MKT", 1, 0, 10, options);
  EXPECT_NE(other[0].letters, all[0].letters);
}

// What a job has drawn.
struct Drawn {
  std::string letters;
  std::vector<double> log_probs;
  bool ended = false;
};

std::vector<Drawn> run_jobs(LanguageModel& model, const std::vector<StreamJob>& jobs,
                            const SamplingOptions& options, int64_t batch,
                            SavedStream* last = nullptr) {
  const Tokenizer tokenizer = Tokenizer::protein();
  std::vector<Drawn> drawn(jobs.size());
  generate(
      model, tokenizer, jobs, options, batch,
      [&](int64_t job, int64_t id, double log_prob) {
        EXPECT_FALSE(drawn[job].ended);
        drawn[job].log_probs.push_back(log_prob);
        if (id == tokenizer.eos()) {
          drawn[job].ended = true;
        } else {
          drawn[job].letters += tokenizer.decode(std::span<const int64_t>(&id, 1));
        }
      },
      last);
  return drawn;
}

// Prompts of unlike lengths, whose sequences end at unlike places, all in one batch.
TEST(Generate, BatchesOfUnlikeLengthsEqualSingleRuns) {
  const Tokenizer tokenizer = Tokenizer::protein();
  const std::vector<std::string> prompts = {"MKTAYIAKQR", "", "A", "MKTAYIAKQRQISFVKSHFSR", "GG"};
  for (const PositionKind positions : {PositionKind::kLearned, PositionKind::kSinusoidal,
                                       PositionKind::kRotary, PositionKind::kAxial}) {
    for (const AttentionMethod method : attention_methods()) {
      if (!has_causal_form(method)) continue;
      SCOPED_TRACE(to_string(positions) + " " + to_string(method));
      ModelConfig config = tiny();
      config.positions = positions;
      config.attention.method = method;
      config.attention.local_window = 8;
      config.attention.hash_buckets = 2;
      config.attention.bucket_block = 8;
      torch::manual_seed(4);
      LanguageModel model(config);
      SamplingOptions options;
      options.max_length = 40;
      std::vector<StreamStart> starts;
      for (const std::string& prompt : prompts) {
        starts.push_back(start_stream(tokenizer, tokenizer.bos(), prompt));
      }
      std::vector<StreamJob> jobs;
      for (size_t p = 0; p < prompts.size(); ++p) {
        for (int64_t i = 0; i < 3; ++i) {
          jobs.push_back({&starts[p], random_place(5, prompts[p], i)});
        }
      }
      int ended = 0;
      const std::vector<Drawn> single = run_jobs(model, jobs, options, 1);
      for (const int64_t batch : {4, 64}) {
        const std::vector<Drawn> together = run_jobs(model, jobs, options, batch);
        for (size_t j = 0; j < jobs.size(); ++j) {
          EXPECT_EQ(together[j].letters, single[j].letters) << j;
          EXPECT_EQ(together[j].ended, single[j].ended) << j;
          ended += single[j].ended;
          ASSERT_EQ(together[j].log_probs.size(), single[j].log_probs.size());
          for (size_t i = 0; i < single[j].log_probs.size(); ++i) {
            EXPECT_NEAR(together[j].log_probs[i], single[j].log_probs[i], 1e-4) << j << " " << i;
          }
        }
      }
      EXPECT_GT(ended, 0);
      EXPECT_NE(single[0].letters, single[1].letters);
    }
  }
}

// Log-probabilities are those of a whole pass, whatever the sampling does to the logits.
TEST(Generate, LogProbabilitiesAreTheModels) {
  LanguageModel model = tiny_model(/*causal=*/true);
  const Tokenizer tokenizer = Tokenizer::protein();
  const StreamStart start = start_stream(tokenizer, tokenizer.bos(), "MK");
  SamplingOptions options;
  options.max_length = 30;
  options.temperature = 0.7;
  options.top_p = 0.9;
  options.repetition_penalty = 1.3;
  options.ignore_end = true;
  const Drawn drawn = run_jobs(model, {{&start, random_place(1, "MK", 0)}}, options, 1)[0];
  ASSERT_EQ(drawn.letters.size(), 28u);
  std::vector<int64_t> ids = {tokenizer.bos()};
  for (const uint8_t id : tokenizer.encode("MK" + drawn.letters)) ids.push_back(id);
  const torch::NoGradGuard no_grad;
  const torch::Tensor expected =
      model->forward(torch::tensor(ids).unsqueeze(0))[0].to(torch::kDouble).log_softmax(-1);
  for (size_t i = 0; i < drawn.log_probs.size(); ++i) {
    EXPECT_NEAR(drawn.log_probs[i], expected[i + 2][ids[i + 3]].item<double>(), 1e-4) << i;
  }
}

TEST(Generate, ConstantLogitsGiveKnownSequences) {
  LanguageModel model = constant_model(/*causal=*/true);
  const Tokenizer tokenizer = Tokenizer::protein();
  const std::vector<double> values = constant_log_probabilities();
  const StreamStart start = start_stream(tokenizer, tokenizer.bos(), "");
  SamplingOptions options;
  options.temperature = 0;
  options.max_length = 60;
  options.ignore_end = true;
  // Greedy: the most probable letter again and again.
  const int64_t best = std::max_element(values.begin(), values.begin() + kLetters) - values.begin();
  const auto letter = [&](int64_t id) {
    return tokenizer.decode(std::span<const int64_t>(&id, 1))[0];
  };
  const Drawn greedy = run_jobs(model, {{&start, {}}}, options, 1)[0];
  EXPECT_EQ(greedy.letters, std::string(60, letter(best)));
  for (const double log_prob : greedy.log_probs) EXPECT_NEAR(log_prob, values[best], 1e-5);
  // With a penalty beyond all differences, letters take turns: each of a window's 25 once.
  options.repetition_penalty = 1e6;
  options.penalty_window = kLetters - 1;
  const std::string turns = run_jobs(model, {{&start, {}}}, options, 1)[0].letters;
  for (size_t i = 0; i < turns.size(); ++i) {
    std::set<char> seen;
    for (size_t j = i; j < std::min(turns.size(), i + kLetters); ++j) seen.insert(turns[j]);
    EXPECT_EQ(seen.size(), std::min(turns.size() - i, size_t{kLetters})) << i;
  }
  options.penalty_window = 1;
  const std::string pairs = run_jobs(model, {{&start, {}}}, options, 1)[0].letters;
  EXPECT_EQ(pairs.substr(0, 4), pairs.substr(2, 4));
  EXPECT_NE(pairs[0], pairs[1]);
  // The end token as likely as the model says, and the sequence stops at it.
  SamplingOptions plain;
  plain.max_length = 200;
  std::vector<StreamJob> jobs;
  for (int64_t i = 0; i < 300; ++i) jobs.push_back({&start, random_place(8, "", i)});
  double total = 0;
  for (int64_t id = 0; id < 29; ++id) {
    if (id < kLetters || id == kEnd) total += std::exp(values[id]);
  }
  const double share = std::exp(values[kEnd]) / total;
  double letters = 0, ends = 0;
  for (const Drawn& drawn : run_jobs(model, jobs, plain, 64)) {
    letters += static_cast<double>(drawn.letters.size());
    ends += drawn.ended;
    if (drawn.ended) {
      EXPECT_NEAR(drawn.log_probs.back(), values[kEnd], 1e-5);
    }
  }
  EXPECT_NEAR(ends / (letters + ends), share, 4 * share / std::sqrt(300.0));
}

// Greedy decoding through the state equals taking the best of whole forward passes.
TEST(Generate, GreedyEqualsWholePasses) {
  torch::manual_seed(2);
  LanguageModel model(tiny());
  const Tokenizer tokenizer = Tokenizer::protein();
  SamplingOptions options;
  options.temperature = 0;
  options.max_length = 12;
  const auto sequence = generate(model, tokenizer, tokenizer.bos(), "AC", 1, 0, 0, options).front();
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
      generate(m, tokenizer, tokenizer.bos(), "", 1, 0, 0, options);
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
  const auto jobs_text = [&](size_t count, int64_t batch, SavedStream* last) -> std::string {
    const StreamStart start = start_stream(tokenizer, tokenizer.bos(), "MKTAYIAKQRQ");
    try {
      run_jobs(model, std::vector<StreamJob>(count, {&start, {}}), options, batch, last);
    } catch (const favor::Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(jobs_text(1, 1, nullptr),
            "generate: a sequence starts with 11 letters, expected at most max_length = 10");
  options.max_length = 20;
  EXPECT_EQ(jobs_text(1, 0, nullptr), "generate: batch is 0, expected at least 1");
  SavedStream last;
  EXPECT_EQ(jobs_text(2, 1, &last),
            "generate: jobs holds 2 sequences, expected 1 to keep the state of");
  EXPECT_EQ(jobs_text(1, 1, &last), "no error");
}

}  // namespace
}  // namespace performer
