// SPDX-License-Identifier: Apache-2.0
#include "performer/data/batches.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "favor/check.h"
#include "favor/random.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

const Tokenizer& alphabet() {
  static const Tokenizer tokenizer = Tokenizer::protein();
  return tokenizer;
}

SequenceSet random_set(int64_t count, int64_t max_length, uint64_t seed) {
  favor::RandomStream random(seed, 0);
  SequenceSet set;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<uint8_t> tokens(1 + random.below(max_length));
    for (uint8_t& token : tokens) token = static_cast<uint8_t>(random.below(20));
    set.add(tokens);
  }
  return set;
}

SequenceSet set_of(const std::vector<std::string>& texts) {
  SequenceSet set;
  for (const std::string& text : texts) set.add(alphabet().encode(text));
  return set;
}

BatchOptions options_for(Objective objective, Windowing windowing, int64_t length,
                         int64_t tokens_per_batch) {
  BatchOptions options;
  options.objective = objective;
  options.windowing = windowing;
  options.length = length;
  options.tokens_per_batch = tokens_per_batch;
  options.seed = 3;
  return options;
}

// Windows of a batch: its rows, or what is packed into the single one.
int64_t num_windows(const Batch& batch) {
  return batch.cu_seqlens.empty() ? batch.rows : std::ssize(batch.cu_seqlens) - 1;
}

std::pair<int64_t, int64_t> places_of(const Batch& batch, int64_t window) {
  if (batch.cu_seqlens.empty()) return {window * batch.length, (window + 1) * batch.length};
  return {batch.cu_seqlens[window], batch.cu_seqlens[window + 1]};
}

// Windows as text, cut at the padding: inputs, targets with '.' for none.
std::string input_text(const Batch& batch, int64_t window) {
  std::string text;
  const auto [begin, end] = places_of(batch, window);
  for (int64_t at = begin; at < end; ++at) {
    if (batch.padding[at] == 0) text += alphabet().decode(std::span(&batch.tokens[at], 1));
  }
  return text;
}

std::string target_text(const Batch& batch, int64_t window) {
  std::string text;
  const auto [begin, end] = places_of(batch, window);
  for (int64_t at = begin; at < end; ++at) {
    if (batch.padding[at] != 0) continue;
    text += batch.targets[at] < 0 ? "." : alphabet().decode(std::span(&batch.targets[at], 1));
  }
  return text;
}

void expect_same(const Batch& a, const Batch& b) {
  ASSERT_EQ(a.rows, b.rows);
  ASSERT_EQ(a.length, b.length);
  ASSERT_EQ(a.tokens, b.tokens);
  ASSERT_EQ(a.targets, b.targets);
  ASSERT_EQ(a.padding, b.padding);
  ASSERT_EQ(a.cu_seqlens, b.cu_seqlens);
  ASSERT_EQ(a.num_tokens, b.num_tokens);
  ASSERT_EQ(a.num_targets, b.num_targets);
}

// What must hold for every batch of every kind.
void expect_well_formed(const Batch& batch, const BatchOptions& options) {
  const int64_t places = batch.rows * batch.length;
  ASSERT_GT(batch.rows, 0);
  const bool packed = options.windowing == Windowing::kPacked;
  ASSERT_EQ(batch.cu_seqlens.empty(), !packed);
  if (packed) {
    ASSERT_EQ(batch.rows, 1);
    ASSERT_EQ(batch.cu_seqlens.front(), 0);
    ASSERT_EQ(batch.cu_seqlens.back(), batch.length);
    ASSERT_EQ(batch.num_tokens, batch.length) << "no padding";
  }
  ASSERT_LE(places, options.tokens_per_batch);
  ASSERT_EQ(static_cast<int64_t>(batch.tokens.size()), places);
  ASSERT_EQ(static_cast<int64_t>(batch.targets.size()), places);
  ASSERT_EQ(static_cast<int64_t>(batch.padding.size()), places);
  int64_t num_tokens = 0;
  int64_t num_targets = 0;
  bool full_row = false;
  for (int64_t window = 0; window < num_windows(batch); ++window) {
    bool row_has_target = false;
    bool padded = false;
    const auto [begin, end] = places_of(batch, window);
    ASSERT_LT(begin, end);
    ASSERT_LE(end - begin, options.length);
    for (int64_t at = begin; at < end; ++at) {
      ASSERT_FALSE(padded && batch.padding[at] == 0) << "padding stands only at the end";
      padded = batch.padding[at] != 0;
      ASSERT_EQ(padded, batch.tokens[at] == alphabet().pad());
      ASSERT_TRUE(batch.targets[at] == -1 ||
                  (batch.targets[at] >= 0 && batch.targets[at] < alphabet().size()));
      ASSERT_FALSE(padded && batch.targets[at] != -1);
      num_tokens += padded ? 0 : 1;
      num_targets += batch.targets[at] >= 0 ? 1 : 0;
      row_has_target = row_has_target || batch.targets[at] >= 0;
    }
    full_row = full_row || !padded;
    ASSERT_TRUE(row_has_target);
  }
  ASSERT_TRUE(full_row) << "the longest row sets the length";
  ASSERT_EQ(batch.num_tokens, num_tokens);
  ASSERT_EQ(batch.num_targets, num_targets);
}

struct Kind {
  Objective objective;
  Windowing windowing;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << to_string(kind.objective) << "_" << to_string(kind.windowing);
}

class EveryKind : public ::testing::TestWithParam<Kind> {
 protected:
  BatchOptions options(int64_t length, int64_t tokens_per_batch) const {
    return options_for(GetParam().objective, GetParam().windowing, length, tokens_per_batch);
  }
};

INSTANTIATE_TEST_SUITE_P(Batches, EveryKind,
                         ::testing::Values(Kind{Objective::kNextToken, Windowing::kCrop},
                                           Kind{Objective::kNextToken, Windowing::kConcat},
                                           Kind{Objective::kMaskedLm, Windowing::kCrop},
                                           Kind{Objective::kMaskedLm, Windowing::kConcat},
                                           Kind{Objective::kNextToken, Windowing::kPacked},
                                           Kind{Objective::kMaskedLm, Windowing::kPacked}),
                         ::testing::PrintToStringParamName());

TEST_P(EveryKind, BatchesAreWellFormedAndWithinTheBudget) {
  const SequenceSet set = random_set(300, 90, 1);
  for (const int64_t length : {2, 3, 17, 64, 200}) {
    const BatchOptions chosen = options(length, length * 5 + 1);
    TrainBatches train(set, alphabet(), chosen);
    for (int64_t i = train.batches_in_epoch(); i > 0; --i) {
      expect_well_formed(train.next(), chosen);
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(train.position(), (BatchPosition{1, 0}));
    const EvalBatches eval(set, alphabet(), chosen);
    for (int64_t i = 0; i < eval.size(); ++i) {
      expect_well_formed(eval.batch(i), chosen);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(EveryKind, ResumeOfTheCursorEqualsTheStraightRun) {
  const SequenceSet set = random_set(200, 60, 2);
  const BatchOptions chosen = options(32, 150);
  TrainBatches straight(set, alphabet(), chosen);
  TrainBatches seeking(set, alphabet(), chosen);
  const int64_t steps = straight.batches_in_epoch() * 5 / 2;
  for (int64_t step = 0; step < steps; ++step) {
    const BatchPosition position = straight.position();
    const Batch batch = straight.next();
    if (step % 7 == 0) {
      TrainBatches resumed(set, alphabet(), chosen);
      resumed.seek(position);
      EXPECT_EQ(resumed.position(), position);
      expect_same(resumed.next(), batch);
      EXPECT_EQ(resumed.position(), straight.position());
      expect_same(resumed.next(), [&] {
        seeking.seek(straight.position());
        return seeking.next();
      }());
    }
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(straight.position().epoch, 2);
  seeking.seek({0, 0});
  expect_same(seeking.next(), TrainBatches(set, alphabet(), chosen).next());
}

TEST_P(EveryKind, EpochsAndSeedsDiffer) {
  const SequenceSet set = random_set(200, 60, 2);
  BatchOptions chosen = options(32, 150);
  TrainBatches first(set, alphabet(), chosen);
  TrainBatches second(set, alphabet(), chosen);
  second.seek({1, 0});
  chosen.seed = 4;
  TrainBatches third(set, alphabet(), chosen);
  const Batch batch = first.next();
  EXPECT_NE(batch.tokens, second.next().tokens);
  EXPECT_NE(batch.tokens, third.next().tokens);
}

TEST_P(EveryKind, TwoEvaluationsAreEqualWhateverTheSeed) {
  const SequenceSet set = random_set(100, 60, 2);
  BatchOptions chosen = options(32, 150);
  const EvalBatches first(set, alphabet(), chosen);
  chosen.seed = 99;
  const EvalBatches second(set, alphabet(), chosen);
  ASSERT_EQ(first.size(), second.size());
  for (int64_t i = 0; i < first.size(); ++i) expect_same(first.batch(i), second.batch(i));
  EXPECT_EQ(message_of<favor::Error>([&] { first.batch(first.size()); }),
            favor::message("batch: index is ", first.size(), ", expected 0 to ", first.size() - 1));
}

// Rows as multiset: independent of how they are put into batches.
std::multiset<std::string> eval_rows(const SequenceSet& set, const BatchOptions& options) {
  const EvalBatches eval(set, alphabet(), options);
  std::multiset<std::string> rows;
  for (int64_t i = 0; i < eval.size(); ++i) {
    const Batch batch = eval.batch(i);
    for (int64_t row = 0; row < num_windows(batch); ++row) {
      rows.insert(input_text(batch, row) + " " + target_text(batch, row));
    }
  }
  return rows;
}

TEST_P(EveryKind, EvaluationDoesNotDependOnTheBatchSize) {
  const SequenceSet set = random_set(100, 60, 2);
  EXPECT_EQ(eval_rows(set, options(32, 32)), eval_rows(set, options(32, 1000)));
}

TEST(PackedBatches, HoldTheWindowsOfCrops) {
  const SequenceSet set = random_set(100, 60, 2);
  for (const Objective objective : {Objective::kNextToken, Objective::kMaskedLm}) {
    const auto rows = [&](Windowing windowing) {
      return eval_rows(set, options_for(objective, windowing, 32, 150));
    };
    EXPECT_EQ(rows(Windowing::kPacked), rows(Windowing::kCrop));
  }
}

TEST(PackedBatches, FillTheirRows) {
  const SequenceSet set = random_set(500, 60, 2);
  TrainBatches batches(set, alphabet(),
                       options_for(Objective::kNextToken, Windowing::kPacked, 64, 1000));
  int64_t tokens = 0;
  const int64_t count = batches.batches_in_epoch();
  for (int64_t i = 0; i < count; ++i) tokens += batches.next().num_tokens;
  EXPECT_EQ(tokens, set.num_tokens() + set.size()) << "begin and letters; the end is a target";
  // A row lacks less than one window; the last one of an epoch may be nearly empty.
  EXPECT_GT(tokens, (count - 1) * (1000 - 64));
}

TEST_P(EveryKind, PositionsThatDoNotExistAreRefused) {
  const SequenceSet set = random_set(50, 60, 2);
  TrainBatches batches(set, alphabet(), options(32, 150));
  batches.next();
  const BatchPosition before = batches.position();
  EXPECT_NE(message_of<favor::Error>([&] {
              batches.seek({0, 100'000});
            }).find("seek: batch is 100000, expected 0 to "),
            std::string::npos);
  EXPECT_NE(message_of<favor::Error>([&] {
              batches.seek({3, -1});
            }).find("in epoch 3"),
            std::string::npos);
  EXPECT_EQ(message_of<favor::Error>([&] {
              batches.seek({-1, 0});
            }),
            "seek: epoch is -1, expected 0 to 4294967295");
  EXPECT_EQ(batches.position(), before) << "a refused seek changes nothing";
  TrainBatches same(set, alphabet(), options(32, 150));
  same.next();
  expect_same(batches.next(), same.next());
}

TEST(CropEvaluation, CoversEveryResidueOnce) {
  const SequenceSet set = set_of({"ACDEFGHIKLMNPQRSTVWY"});
  for (const int64_t length : {2, 3, 7, 21, 22, 64}) {
    const EvalBatches eval(set, alphabet(),
                           options_for(Objective::kNextToken, Windowing::kCrop, length, length));
    std::map<int64_t, int> predicted;
    std::map<int64_t, int> given;
    for (int64_t i = 0; i < eval.size(); ++i) {
      const Batch batch = eval.batch(i);
      for (int64_t at = 0; at < batch.rows * batch.length; ++at) {
        if (batch.targets[at] >= 0) ++predicted[batch.targets[at]];
        if (batch.padding[at] == 0) ++given[batch.tokens[at]];
      }
    }
    for (int64_t id = 0; id < 20; ++id) {
      EXPECT_EQ(predicted[id], 1) << "length " << length;
      EXPECT_EQ(given[id], 1) << "length " << length;
    }
    EXPECT_EQ(predicted[alphabet().eos()], 1);
    EXPECT_EQ(given[alphabet().bos()], 1);
    EXPECT_EQ(predicted.size(), 21u);
    EXPECT_EQ(given.size(), 21u);
  }
}

TEST(CropEvaluation, AddsUpOverManySequencesAndObjectives) {
  const SequenceSet set = random_set(200, 100, 9);
  const auto next_token = options_for(Objective::kNextToken, Windowing::kCrop, 16, 100);
  const auto masked = options_for(Objective::kMaskedLm, Windowing::kCrop, 16, 100);
  int64_t targets = 0;
  const EvalBatches causal(set, alphabet(), next_token);
  for (int64_t i = 0; i < causal.size(); ++i) targets += causal.batch(i).num_targets;
  EXPECT_EQ(targets, set.num_tokens() + set.size());
  int64_t letters = 0;
  const EvalBatches bidirectional(set, alphabet(), masked);
  for (int64_t i = 0; i < bidirectional.size(); ++i) {
    const Batch batch = bidirectional.batch(i);
    for (size_t at = 0; at < batch.tokens.size(); ++at) {
      const int64_t token = batch.targets[at] >= 0 ? batch.targets[at] : batch.tokens[at];
      letters += batch.padding[at] == 0 && !alphabet().is_special(token) ? 1 : 0;
    }
  }
  EXPECT_EQ(letters, set.num_tokens());
}

TEST(CropWindows, CarryBeginAndEndOnlyWhereTheSequenceDoes) {
  const auto options = options_for(Objective::kNextToken, Windowing::kCrop, 4, 8);
  const SequenceSet set = set_of({"ACDEFG", "WY"});
  const auto rows = eval_rows(set, options);
  EXPECT_EQ(rows, (std::multiset<std::string>{"<ACD ACDE", "EFG FG>", "<WY WY>"}));
  TrainBatches train(set, alphabet(), options);
  std::set<std::string> seen;
  while (train.position().epoch < 200) {
    const Batch batch = train.next();
    for (int64_t row = 0; row < batch.rows; ++row) seen.insert(input_text(batch, row));
  }
  EXPECT_EQ(seen, (std::set<std::string>{"<WY", "<ACD", "ACDE", "CDEF", "DEFG"}));
}

TEST(CropTraining, VisitsEverySequenceOncePerEpochAndPadsLittle) {
  const SequenceSet set = random_set(3000, 400, 4);
  TrainBatches train(set, alphabet(),
                     options_for(Objective::kNextToken, Windowing::kCrop, 512, 4096));
  int64_t tokens = 0;
  int64_t places = 0;
  int64_t rows = 0;
  while (train.position().epoch == 0) {
    const Batch batch = train.next();
    tokens += batch.num_tokens;
    places += batch.rows * batch.length;
    rows += batch.rows;
  }
  EXPECT_EQ(rows, 3000);
  EXPECT_EQ(tokens, set.num_tokens() + set.size());
  EXPECT_GT(static_cast<double>(tokens), 0.97 * static_cast<double>(places));
}

TEST(CropTraining, MixesSequencesAnewInEveryEpoch) {
  const SequenceSet set = random_set(2000, 60, 4);
  TrainBatches train(set, alphabet(),
                     options_for(Objective::kNextToken, Windowing::kCrop, 64, 640));
  std::map<int64_t, std::set<std::string>> epochs;
  while (train.position().epoch < 2) {
    const int64_t epoch = train.position().epoch;
    const Batch batch = train.next();
    std::vector<std::string> rows;
    for (int64_t row = 0; row < batch.rows; ++row) rows.push_back(input_text(batch, row));
    std::sort(rows.begin(), rows.end());
    std::string joined;
    for (const std::string& row : rows) joined += row;
    epochs[epoch].insert(joined);
  }
  int64_t repeated = 0;
  for (const std::string& batch : epochs[0]) repeated += epochs[1].contains(batch) ? 1 : 0;
  EXPECT_LE(repeated * 50, static_cast<int64_t>(epochs[0].size()));
}

TEST(Concat, JoinsSequencesWithTheEndTokenWithoutOverlap) {
  const SequenceSet set = set_of({"ACD", "EF", "GHIKL"});
  EXPECT_EQ(eval_rows(set, options_for(Objective::kNextToken, Windowing::kConcat, 4, 4)),
            (std::multiset<std::string>{">ACD ACD>", ">EF> EF>G", "GHIK HIKL", "L >"}));
  const auto masked = eval_rows(set, options_for(Objective::kMaskedLm, Windowing::kConcat, 4, 4));
  EXPECT_EQ(masked.size(), 4u);
}

TEST(Concat, TrainingVisitsEveryLetterOncePerEpochInAnOrderOfItsOwn) {
  const SequenceSet set = random_set(100, 50, 8);
  std::map<int64_t, int64_t> expected;
  for (int64_t i = 0; i < set.size(); ++i) {
    for (const uint8_t token : set[i]) ++expected[token];
  }
  expected[alphabet().eos()] = set.size();
  TrainBatches train(set, alphabet(),
                     options_for(Objective::kNextToken, Windowing::kConcat, 32, 160));
  std::vector<std::set<std::string>> rows(3);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::map<int64_t, int64_t> seen;
    while (train.position().epoch == epoch) {
      const Batch batch = train.next();
      for (const int64_t target : batch.targets) {
        if (target >= 0) ++seen[target];
      }
      for (int64_t row = 0; row < batch.rows; ++row) rows[epoch].insert(input_text(batch, row));
    }
    EXPECT_EQ(seen, expected);
  }
  std::vector<std::string> common;
  std::set_intersection(rows[0].begin(), rows[0].end(), rows[1].begin(), rows[1].end(),
                        std::back_inserter(common));
  EXPECT_LT(common.size(), rows[0].size() / 10);
}

TEST(Concat, SkipsSequencesWithoutALetter) {
  SequenceSet set = set_of({"ACD"});
  set.add({});
  TrainBatches crop(set, alphabet(), options_for(Objective::kMaskedLm, Windowing::kCrop, 8, 8));
  EXPECT_EQ(crop.batches_in_epoch(), 1);
  TrainBatches concat(set, alphabet(),
                      options_for(Objective::kNextToken, Windowing::kConcat, 8, 8));
  EXPECT_EQ(target_text(concat.next(), 0), "ACD>");
}

TEST(StartToken, IsWhatOpensAStream) {
  EXPECT_EQ(start_token(Windowing::kCrop, alphabet()), alphabet().bos());
  EXPECT_EQ(start_token(Windowing::kConcat, alphabet()), alphabet().eos());
}

TEST(Masking, KeepsBertsProportions) {
  const SequenceSet set = random_set(2000, 100, 6);
  TrainBatches train(set, alphabet(),
                     options_for(Objective::kMaskedLm, Windowing::kCrop, 128, 4096));
  int64_t letters = 0;
  int64_t chosen = 0;
  int64_t masked = 0;
  int64_t unchanged = 0;
  int64_t replaced = 0;
  while (train.position().epoch == 0) {
    const Batch batch = train.next();
    for (size_t at = 0; at < batch.tokens.size(); ++at) {
      const int64_t token = batch.tokens[at];
      const int64_t target = batch.targets[at];
      if (target < 0) {
        EXPECT_NE(token, alphabet().mask());
        letters += alphabet().is_special(token) ? 0 : 1;
        continue;
      }
      ASSERT_LT(target, alphabet().num_letters()) << "special tokens are never chosen";
      ++letters;
      ++chosen;
      masked += token == alphabet().mask() ? 1 : 0;
      unchanged += token == target ? 1 : 0;
      replaced += token != target && token != alphabet().mask() ? 1 : 0;
      if (token != target && token != alphabet().mask()) {
        ASSERT_LT(token, alphabet().num_standard());
      }
    }
  }
  ASSERT_EQ(letters, set.num_tokens());
  const auto share = [&](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(chosen);
  };
  EXPECT_NEAR(static_cast<double>(chosen) / static_cast<double>(letters), 0.15, 0.003);
  // Four standard deviations at about 15,000 draws; one random letter in 20 is the old one.
  EXPECT_NEAR(share(masked), 0.8, 0.013);
  EXPECT_NEAR(share(unchanged), 0.105, 0.010);
  EXPECT_NEAR(share(replaced), 0.095, 0.010);
}

TEST(Masking, ChangesFromEpochToEpochAndFollowsTheFraction) {
  const SequenceSet set = set_of({"ACDEFGHIKLMNPQRSTVWY"});
  auto options = options_for(Objective::kMaskedLm, Windowing::kCrop, 32, 32);
  TrainBatches train(set, alphabet(), options);
  const Batch first = train.next();
  const Batch second = train.next();
  EXPECT_EQ(first.num_targets, 3);
  EXPECT_NE(first.targets, second.targets);
  options.mask_fraction = 1;
  EXPECT_EQ(TrainBatches(set, alphabet(), options).next().num_targets, 20);
  options.mask_fraction = 1e-9;
  EXPECT_EQ(TrainBatches(set, alphabet(), options).next().num_targets, 1);
}

TEST(Batches, ArePinnedForOneSeed) {
  const SequenceSet set = set_of({"ACDEFGHIKL", "MNPQ", "RSTVWY"});
  std::string text;
  for (const Objective objective : {Objective::kNextToken, Objective::kMaskedLm}) {
    for (const Windowing windowing : {Windowing::kCrop, Windowing::kConcat}) {
      TrainBatches train(set, alphabet(), options_for(objective, windowing, 8, 16));
      const Batch batch = train.next();
      for (int64_t row = 0; row < batch.rows; ++row) {
        text += input_text(batch, row) + " " + target_text(batch, row) + "\n";
      }
    }
  }
  EXPECT_EQ(text,
            "ACDEFGHI CDEFGHIK\n"
            "EFGHIKL FGHIKL>\n"
            ">RSTVWY> RSTVWY>M\n"
            "*EFGHIKL D.......\n"
            "EF*HIKL> ..G.....\n"
            ">*STVWY> .R......\n");
}

TEST(BatchOptions, RefusesWhatCannotWork) {
  const SequenceSet set = set_of({"ACD"});
  const SequenceSet empty;
  BatchOptions options;
  const auto error = [&] { return message_of<favor::Error>([&] { options.check(); }); };
  options.length = 1;
  EXPECT_EQ(error(), "length is 1, expected at least 2");
  options.length = 64;
  options.tokens_per_batch = 63;
  EXPECT_EQ(error(), "tokens_per_batch is 63, expected at least length = 64 (one full row)");
  EXPECT_THROW(TrainBatches(set, alphabet(), options), favor::Error);
  EXPECT_THROW(EvalBatches(set, alphabet(), options), favor::Error);
  options.tokens_per_batch = 64;
  options.mask_fraction = 0;
  EXPECT_EQ(error(), "mask_fraction is 0, expected more than 0 and at most 1");
  options.mask_fraction = std::nan("");
  EXPECT_NE(error().find("mask_fraction is nan"), std::string::npos);
  options.mask_fraction = 0.15;
  EXPECT_EQ(message_of<favor::Error>([&] { TrainBatches(empty, alphabet(), options); }),
            "TrainBatches: the training set is empty, expected at least one residue");
  EXPECT_EQ(EvalBatches(empty, alphabet(), options).size(), 0);
}

TEST(BatchOptions, WordsRoundTrip) {
  EXPECT_EQ(objective_from_string("masked_lm"), Objective::kMaskedLm);
  for (const auto windowing : {Windowing::kCrop, Windowing::kConcat, Windowing::kPacked}) {
    EXPECT_EQ(windowing_from_string(to_string(windowing)), windowing);
  }
  EXPECT_EQ(message_of<favor::Error>([] { objective_from_string("mlm"); }),
            "objective is 'mlm', expected next_token | masked_lm");
  EXPECT_EQ(message_of<favor::Error>([] { windowing_from_string("cut"); }),
            "windowing is 'cut', expected crop | concat | packed");
}

TEST(EmpiricalBaseline, SmoothsByOneAndGuessesTheMostFrequentToken) {
  const EmpiricalBaseline baseline(set_of({"AAAC", "AC"}), alphabet(), Objective::kNextToken);
  // Counts A 4, C 2, end 2; with one more each over 29 tokens: 5, 3, 3 of 37.
  EXPECT_DOUBLE_EQ(baseline.probabilities()[0], 5.0 / 37);
  EXPECT_DOUBLE_EQ(baseline.probabilities()[1], 3.0 / 37);
  EXPECT_DOUBLE_EQ(baseline.probabilities()[alphabet().eos()], 3.0 / 37);
  EXPECT_DOUBLE_EQ(baseline.probabilities()[2], 1.0 / 37);
  const SequenceSet test = set_of({"AD", "C"});
  const auto options = options_for(Objective::kNextToken, Windowing::kCrop, 8, 64);
  const BaselineScore score = baseline.score(EvalBatches(test, alphabet(), options));
  EXPECT_EQ(score.num_targets, 5);
  EXPECT_DOUBLE_EQ(score.accuracy, 0.2);
  const double loss = -(std::log(5.0) + std::log(1.0) + 3 * std::log(3.0)) / 5 + std::log(37.0);
  EXPECT_NEAR(score.loss, loss, 1e-12);
  EXPECT_NEAR(score.perplexity, std::exp(loss), 1e-10);
}

TEST(EmpiricalBaseline, CountsNoEndTokenForMaskedModelsAndNeedsATarget) {
  const auto options = options_for(Objective::kMaskedLm, Windowing::kCrop, 8, 64);
  const SequenceSet empty;
  const EmpiricalBaseline baseline(set_of({"AAAC"}), alphabet(), Objective::kMaskedLm);
  EXPECT_DOUBLE_EQ(baseline.probabilities()[alphabet().eos()], 1.0 / 33);
  EXPECT_EQ(
      message_of<favor::Error>([&] { baseline.score(EvalBatches(empty, alphabet(), options)); }),
      "score: the batches hold no target, expected at least one");
}

}  // namespace
}  // namespace performer
