// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/variants.h"

#include <gtest/gtest.h>

#include "favor/check.h"
#include "performer/data/testing.h"
#include "performer/infer/testing.h"

namespace performer {
namespace {

const Tokenizer kTokenizer = Tokenizer::protein();
constexpr std::string_view kWild = "MKTAYIAKQRQISFVKSHFSRQ";

std::vector<Variant> parse_all(const std::vector<std::string>& texts) {
  std::vector<Variant> variants;
  for (const std::string& text : texts) {
    variants.push_back(parse_mutant(text, kWild, 0, kTokenizer));
  }
  return variants;
}

std::vector<double> score(SequenceModel& model, const std::vector<std::string>& texts,
                          VariantScoring scoring, Direction direction = Direction::kForward) {
  std::vector<WorkFailure> failures;
  std::vector<double> values;
  for (const auto& result :
       score_variants(model, kWild, parse_all(texts), scoring, direction, failures)) {
    values.push_back(result.value().value);
  }
  EXPECT_TRUE(failures.empty());
  return values;
}

double log_p(char letter) {
  return constant_log_probabilities()[kTokenizer.encode(std::string_view(&letter, 1))[0]];
}

TEST(Variants, ConstantLogitsGiveTheKnownAnswer) {
  const std::vector<std::string> texts = {"K2R", "M1V:Q22W", "WT", "A4A", "K2del", "K2_T3insGG"};
  const std::vector<double> expected = {
      log_p('R') - log_p('K'), log_p('V') - log_p('M') + log_p('W') - log_p('Q'), 0, 0, -log_p('K'),
      2 * log_p('G')};
  SequenceModel causal(constant_model(true), kTokenizer, 25, 0, 64);
  SequenceModel masked(constant_model(false), kTokenizer, 25, 0, 64);
  const auto compare = [&](const std::vector<double>& got) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5) << texts[i];
  };
  for (const VariantScoring scoring :
       {VariantScoring::kMaskedMarginals, VariantScoring::kWildTypeMarginals,
        VariantScoring::kRescore}) {
    compare(score(masked, texts, scoring));
  }
  for (const Direction direction : {Direction::kForward, Direction::kReverse, Direction::kMean}) {
    compare(score(causal, texts, VariantScoring::kRescore, direction));
  }
}

TEST(Variants, MarginalsAreThoseOfSinglePasses) {
  LanguageModel model = tiny_model(false);
  SequenceModel reader(model, kTokenizer, 25, 0, 64);
  const std::vector<uint8_t> wild = kTokenizer.encode(kWild);
  const torch::NoGradGuard no_grad;
  const auto difference = [&](int64_t position, char from, char to, bool masked) {
    TokenList row = reader.frame(wild);
    if (masked) row[position] = kTokenizer.mask();
    const auto table = model->forward(torch::tensor(row).unsqueeze(0))[0][position].log_softmax(-1);
    const auto at = [&](char c) {
      return table[kTokenizer.encode(std::string_view(&c, 1))[0]].item<double>();
    };
    return at(to) - at(from);
  };
  for (const bool masked : {true, false}) {
    const auto got =
        score(reader, {"K2R", "Q22W:M1V", "K2W"},
              masked ? VariantScoring::kMaskedMarginals : VariantScoring::kWildTypeMarginals);
    EXPECT_NEAR(got[0], difference(2, 'K', 'R', masked), 1e-5);
    EXPECT_NEAR(got[1], difference(1, 'M', 'V', masked) + difference(22, 'Q', 'W', masked), 1e-5);
    EXPECT_NEAR(got[2], difference(2, 'K', 'W', masked), 1e-5);
  }
}

TEST(Variants, RescoringIsTheDifferenceOfWholeScores) {
  const std::vector<std::string> texts = {"K2R", "A4_I6del", "Q22delinsGHIK", "K2R"};
  for (const bool causal : {true, false}) {
    SequenceModel reader(tiny_model(causal), kTokenizer, 25, 0, 200);
    const auto whole = [&](const std::string& residues) {
      const std::vector<uint8_t> ids = kTokenizer.encode(residues);
      const SequenceScore got =
          causal ? score_causal(reader, {ids}, Direction::kForward)[0] : score_masked(reader, ids);
      return got.log_likelihood() + got.end;
    };
    const auto got = score(reader, texts, VariantScoring::kRescore);
    const std::vector<Variant> variants = parse_all(texts);
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_NEAR(got[i], whole(variants[i].residues) - whole(std::string(kWild)), 1e-4)
          << texts[i];
    }
  }
}

TEST(Variants, SayHowEachWasScoredAndWhichFailed) {
  SequenceModel reader(tiny_model(false), kTokenizer, 25, 0, 64);
  const std::string insertion = "K2_T3ins" + std::string(60, 'G');
  std::vector<WorkFailure> failures;
  const auto scores =
      score_variants(reader, kWild, parse_all({"K2R", insertion, "K2del"}),
                     VariantScoring::kMaskedMarginals, Direction::kForward, failures);
  EXPECT_EQ(scores[0]->scoring, VariantScoring::kMaskedMarginals);
  EXPECT_FALSE(scores[1].has_value());
  EXPECT_EQ(scores[2]->scoring, VariantScoring::kRescore);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].item, 1);
  EXPECT_NE(failures[0].reason.find("84 tokens, expected at most 64"), std::string::npos);
}

TEST(Variants, SayWhatIsWrong) {
  SequenceModel causal(tiny_model(true), kTokenizer, 25, 0, 64);
  SequenceModel masked(tiny_model(false), kTokenizer, 25, 0, 64);
  std::vector<WorkFailure> failures;
  const auto text = [&](SequenceModel& model, std::string_view wild, VariantScoring scoring) {
    return message_of<favor::Error>(
        [&] { score_variants(model, wild, {}, scoring, Direction::kForward, failures); });
  };
  EXPECT_EQ(text(causal, kWild, VariantScoring::kWildTypeMarginals),
            "variants: scoring is wt-marginals, expected rescore (the model is causal: marginals "
            "need a masked one)");
  EXPECT_EQ(text(masked, "", VariantScoring::kRescore),
            "variants: the wild type has no residue, expected at least one");
  EXPECT_NE(text(masked, std::string(70, 'A'), VariantScoring::kMaskedMarginals)
                .find("variants: the wild type has 72 tokens, expected at most 64"),
            std::string::npos);
  EXPECT_EQ(message_of<favor::Error>([] { variant_scoring_from_string("marginal"); }),
            "scoring is 'marginal', expected masked-marginals | wt-marginals | rescore");
}

}  // namespace
}  // namespace performer
