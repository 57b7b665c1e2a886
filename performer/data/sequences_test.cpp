// SPDX-License-Identifier: Apache-2.0
#include "performer/data/sequences.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "favor/check.h"
#include "favor/random.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

std::string random_residues(favor::RandomStream& random, int64_t length) {
  constexpr std::string_view kLetters = "ACDEFGHIKLMNPQRSTVWY";
  std::string text;
  for (int64_t i = 0; i < length; ++i) text += kLetters[random.below(20)];
  return text;
}

std::set<std::string> texts(const SequenceSet& set) {
  std::set<std::string> result;
  for (int64_t i = 0; i < set.size(); ++i) result.insert(Tokenizer::protein().decode(set[i]));
  return result;
}

TEST(SequenceHash, IsTheSameEverywhereAndForEver) {
  EXPECT_EQ(sequence_hash("", 0), 0xa706dd2f4d197e6fULL);
  EXPECT_EQ(sequence_hash("MKTAYIAKQR", 0), 0xc805ccc9fda2329dULL);
  EXPECT_EQ(sequence_hash("MKTAYIAKQR", 1), 0xc11931526affb04dULL);
}

TEST(SequenceSet, FingerprintKnowsOrderAndContent) {
  const Tokenizer tokenizer = Tokenizer::protein();
  std::set<int64_t> seen;
  for (const auto& list : std::vector<std::vector<std::string>>{
           {}, {"MK"}, {"M", "K"}, {"K", "M"}, {"MK", "MK"}, {"KM"}}) {
    SequenceSet set;
    for (const std::string& residues : list) set.add(tokenizer.encode(residues));
    EXPECT_GE(set.fingerprint(), 0);
    EXPECT_EQ(set.fingerprint(), set.fingerprint());
    seen.insert(set.fingerprint());
  }
  EXPECT_EQ(seen.size(), 6u);
}

TEST(SequenceHash, TellsNearSequencesApart) {
  std::set<uint64_t> seen;
  const std::string text(40, 'A');
  for (size_t i = 0; i <= text.size(); ++i) seen.insert(sequence_hash(text.substr(0, i), 7));
  for (size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = 'C';
    seen.insert(sequence_hash(other, 7));
  }
  EXPECT_EQ(seen.size(), 81u);
}

TEST(Split, DuplicatesStayOnOneSide) {
  const TemporaryFolder folder;
  favor::RandomStream random(5, 0);
  std::string first;
  std::string second;
  for (int i = 0; i < 500; ++i) {
    const std::string text = random_residues(random, 30);
    first += ">a" + std::to_string(i) + "\n" + text + "\n";
    std::string lower = text;
    std::transform(lower.begin(), lower.end(), lower.begin(), ::tolower);
    // The same residues in another writing, in another file, in another order.
    second = ">b" + std::to_string(i) + "\n" + lower.substr(0, 10) + "\n" + lower.substr(10) +
             "*\n" + second;
  }
  SplitOptions options;
  options.valid_fraction = 0.2;
  options.test_fraction = 0.2;
  const SplitSequences split = read_fasta_splits(
      {folder.write("1", first), folder.write("2", second)}, Tokenizer::protein(), options);
  EXPECT_EQ(split.num_duplicates, 500);
  EXPECT_EQ(split.counts.records, 1000);
  EXPECT_EQ(split.counts.trailing_stops, 500);
  EXPECT_EQ(split.train.size() + split.valid.size() + split.test.size(), 1000);
  const auto train = texts(split.train);
  const auto valid = texts(split.valid);
  const auto test = texts(split.test);
  EXPECT_EQ(train.size() + valid.size() + test.size(), 500u);
  std::set<std::string> all = train;
  all.insert(valid.begin(), valid.end());
  all.insert(test.begin(), test.end());
  EXPECT_EQ(all.size(), 500u) << "a sequence stands on two sides";
  EXPECT_GT(valid.size(), 50u);
  EXPECT_GT(test.size(), 50u);
}

TEST(Split, KeepsTheFractionsAndFollowsTheSeed) {
  SplitOptions options;
  options.valid_fraction = 0.1;
  options.test_fraction = 0.3;
  SplitOptions other = options;
  other.seed = 1;
  favor::RandomStream random(6, 0);
  std::map<Split, int> counts;
  int moved = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::string text = random_residues(random, 20);
    ++counts[split_of(text, options)];
    moved += split_of(text, options) != split_of(text, other) ? 1 : 0;
  }
  // Four standard deviations of a binomial count.
  EXPECT_NEAR(counts[Split::kValid], 1000, 120);
  EXPECT_NEAR(counts[Split::kTest], 3000, 184);
  EXPECT_NEAR(moved, 10'000 * (1 - 0.01 - 0.09 - 0.36), 200);
}

TEST(Split, FractionsOfZeroLeaveEverythingInTraining) {
  const TemporaryFolder folder;
  SplitOptions options;
  options.valid_fraction = 0;
  options.test_fraction = 0;
  const SplitSequences split = read_fasta_splits({folder.write("a", ">a\nACD\n>b\n\n>c\nW\n")},
                                                 Tokenizer::protein(), options);
  EXPECT_EQ(split.train.size(), 2);
  EXPECT_EQ(split.train.num_tokens(), 4);
  EXPECT_EQ(split.valid.size(), 0);
  EXPECT_EQ(split.summary(),
            "3 records, 4 residues, 1 empty records\n"
            "train 2 sequences, 4 residues; valid 0 sequences, 0 residues; "
            "test 0 sequences, 0 residues");
}

TEST(Split, RefusesBadOptionsAndEmptyInput) {
  const TemporaryFolder folder;
  SplitOptions options;
  options.valid_fraction = 0.6;
  options.test_fraction = 0.4;
  EXPECT_EQ(message_of<favor::Error>([&] { options.check(); }),
            "valid_fraction + test_fraction is 1, expected less than 1 (nothing left to train on)");
  options.test_fraction = -0.1;
  EXPECT_EQ(message_of<favor::Error>([&] { options.check(); }),
            "test_fraction is -0.1, expected 0 to 1, 1 excluded");
  const std::string path = folder.write("a", ">a\n>b\n--\n");
  EXPECT_EQ(message_of<std::runtime_error>(
                [&] { read_fasta_splits({path}, Tokenizer::protein(), SplitOptions()); }),
            path + ": no record holds a residue");
}

TEST(Sample, DrawsWholeSequencesInOrderAndByTheSeed) {
  SequenceSet set;
  for (uint8_t i = 0; i < 100; ++i) set.add(std::vector<uint8_t>(10, i % 20));
  const SequenceSet part = set.sample(255, 1);
  EXPECT_EQ(part.size(), 25);
  EXPECT_EQ(part.num_tokens(), 250);
  const SequenceSet again = set.sample(255, 1);
  const SequenceSet other = set.sample(255, 2);
  bool differs = false;
  for (int64_t i = 0; i < part.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(part[i], again[i]));
    differs = differs || !std::ranges::equal(part[i], other[i]);
  }
  EXPECT_TRUE(differs);
  EXPECT_EQ(set.sample(1000, 1).size(), 100);
  EXPECT_EQ(set.sample(1, 1).size(), 1);
}

}  // namespace
}  // namespace performer
