// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/score.h"

#include <gtest/gtest.h>

#include "favor/check.h"
#include "performer/data/batches.h"
#include "performer/data/testing.h"
#include "performer/infer/testing.h"
#include "performer/train/evaluate.h"

namespace performer {
namespace {

const Tokenizer kTokenizer = Tokenizer::protein();

std::vector<std::span<const uint8_t>> spans(const std::vector<std::vector<uint8_t>>& sequences) {
  return {sequences.begin(), sequences.end()};
}

TEST(Score, ConstantLogitsGiveTheKnownAnswer) {
  const std::vector<double> log_p = constant_log_probabilities();
  const std::vector<uint8_t> sequence = kTokenizer.encode("MKTWX");
  double expected = 0;
  for (const uint8_t id : sequence) expected += log_p[id];
  for (const Direction direction : {Direction::kForward, Direction::kReverse, Direction::kMean}) {
    SequenceModel causal(constant_model(true), kTokenizer, 25, 0, 64);
    const SequenceScore score = score_causal(causal, {sequence}, direction)[0];
    ASSERT_EQ(score.residues.size(), 5u);
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(score.residues[i], log_p[sequence[i]], 1e-6);
    EXPECT_NEAR(score.log_likelihood(), expected, 1e-5);
    EXPECT_NEAR(score.end, log_p[26], 1e-6);
    EXPECT_NEAR(score.perplexity(), std::exp(-expected / 5), 1e-4);
  }
  for (const int64_t chunk : {0, 4}) {
    SequenceModel masked(constant_model(false), kTokenizer, 25, chunk, 16);
    int64_t passes = 0;
    const SequenceScore score = score_masked(masked, sequence, [&](int64_t n) { passes += n; });
    ASSERT_EQ(score.residues.size(), 5u);
    EXPECT_EQ(passes, 5);
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(score.residues[i], log_p[sequence[i]], 1e-6);
    EXPECT_NEAR(score.perplexity(), std::exp(-expected / 5), 1e-4);
    EXPECT_EQ(score.end, 0);
  }
}

// Every place is masked once, alone, the first and the last too, and read where it stands.
TEST(Score, MaskedScoresAreThoseOfSinglePasses) {
  LanguageModel model = tiny_model(false);
  SequenceModel reader(model, kTokenizer, 25, 0, 100);
  const std::vector<uint8_t> sequence = random_residues(21);
  const SequenceScore score = score_masked(reader, sequence);
  ASSERT_EQ(score.residues.size(), 21u);
  const torch::NoGradGuard no_grad;
  for (int64_t i = 0; i < 21; ++i) {
    TokenList row = reader.frame(sequence);
    row[i + 1] = kTokenizer.mask();
    const auto log_p = model->forward(torch::tensor(row).unsqueeze(0))[0][i + 1].log_softmax(-1);
    EXPECT_NEAR(score.residues[i], log_p[sequence[i]].item<double>(), 1e-5) << i;
  }
}

TEST(Score, ForwardIsTheLossOfEvaluate) {
  LanguageModel model = tiny_model(true);
  SequenceSet set;
  std::vector<std::vector<uint8_t>> sequences;
  for (const int64_t length : {30, 7, 1, 62, 100}) {
    sequences.push_back(random_residues(length));
    set.add(sequences.back());
  }
  // The longest passes through in windows, as evaluation cuts it.
  SequenceModel reader(model, kTokenizer, kTokenizer.bos(), 64, 256);
  double sum = 0;
  int64_t targets = 0;
  for (const SequenceScore& score : score_causal(reader, spans(sequences), Direction::kForward)) {
    sum -= score.log_likelihood() + score.end;
    targets += std::ssize(score.residues) + 1;
  }
  BatchOptions options;
  options.length = 64;
  options.tokens_per_batch = 256;
  const EvalScore expected = evaluate(model, EvalBatches(set, kTokenizer, options));
  EXPECT_EQ(targets, expected.num_targets);
  EXPECT_NEAR(sum / static_cast<double>(targets), expected.loss, 1e-5);
}

TEST(Score, ReverseReadsBackwards) {
  SequenceModel reader(tiny_model(true), kTokenizer, 25, 0, 256);
  const std::vector<uint8_t> sequence = random_residues(17);
  std::vector<uint8_t> turned(sequence.rbegin(), sequence.rend());
  const SequenceScore back = score_causal(reader, {sequence}, Direction::kReverse)[0];
  const SequenceScore turned_score = score_causal(reader, {turned}, Direction::kForward)[0];
  const SequenceScore ahead = score_causal(reader, {sequence}, Direction::kForward)[0];
  const SequenceScore mean = score_causal(reader, {sequence}, Direction::kMean)[0];
  EXPECT_GT(std::abs(back.log_likelihood() - ahead.log_likelihood()), 1e-3);
  EXPECT_NEAR(back.end, turned_score.end, 1e-6);
  for (size_t i = 0; i < 17; ++i) {
    EXPECT_NEAR(back.residues[i], turned_score.residues[16 - i], 1e-6);
    EXPECT_NEAR(mean.residues[i], (back.residues[i] + ahead.residues[i]) / 2, 1e-12);
  }
}

TEST(Score, RecordsKeepTheirOrderAndEqualSingleScores) {
  Records records;
  for (const int64_t length : {5, 0, 40, 70, 12}) {
    records.names.push_back("r");
    records.headers.push_back("r");
    records.sequences.add(random_residues(length));
  }
  for (const bool causal : {true, false}) {
    SequenceModel reader(tiny_model(causal), kTokenizer, 25, 0, 120);
    SequenceModel alone(tiny_model(causal), kTokenizer, 25, 0, 1);
    std::vector<WorkFailure> failures;
    const auto scores = score_records(reader, records, Direction::kForward, failures);
    ASSERT_EQ(failures.size(), 2u);
    EXPECT_EQ(failures[0].item, 1);
    EXPECT_EQ(failures[1].item, 3);
    EXPECT_NE(failures[1].reason.find("expected at most 64"), std::string::npos);
    for (const int64_t i : {0, 2, 4}) {
      const SequenceScore one =
          causal ? score_causal(alone, {records.sequences[i]}, Direction::kForward)[0]
                 : score_masked(alone, records.sequences[i]);
      ASSERT_EQ(scores[i].residues.size(), one.residues.size());
      for (size_t j = 0; j < one.residues.size(); ++j) {
        EXPECT_NEAR(scores[i].residues[j], one.residues[j], 1e-5);
      }
    }
  }
}

TEST(Score, SaysWhatIsWrong) {
  SequenceModel causal(tiny_model(true), kTokenizer, 25, 0, 64);
  SequenceModel masked(tiny_model(false), kTokenizer, 25, 0, 64);
  const std::vector<uint8_t> sequence = random_residues(3);
  EXPECT_EQ(
      message_of<favor::Error>([&] { score_causal(masked, {sequence}, Direction::kForward); }),
      "score_causal: the model is a masked one, expected a causal model");
  EXPECT_EQ(message_of<favor::Error>([&] { score_masked(causal, sequence); }),
            "masked_log_probabilities: the model is causal, expected a masked model");
  EXPECT_EQ(message_of<favor::Error>([] { direction_from_string("back"); }),
            "direction is 'back', expected forward | reverse | mean");
  LanguageModel damaged = tiny_model(true);
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : damaged->parameters()) parameter.fill_(NAN);
  SequenceModel reader(damaged, kTokenizer, 25, 0, 64);
  EXPECT_NE(message_of<std::runtime_error>([&] {
              score_causal(reader, {sequence}, Direction::kForward);
            }).find("not a finite number"),
            std::string::npos);
}

}  // namespace
}  // namespace performer
