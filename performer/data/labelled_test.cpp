// SPDX-License-Identifier: Apache-2.0
#include "performer/data/labelled.h"

#include <gtest/gtest.h>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

std::string bytes_in(const std::vector<int64_t>& tokens) {
  std::string text;
  for (const int64_t token : tokens) text += token < 256 ? static_cast<char>(token) : '^';
  return text;
}

std::vector<uint8_t> bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

TEST(LabelledSet, CutsRowsAndCountsThem) {
  LabelledSet set(5, 256);
  set.add(bytes("abcd"), 1);
  set.add(bytes("abcdef"), 0);
  set.add(bytes(""), 2);
  EXPECT_EQ(set.num_cut(), 1);
  EXPECT_EQ(bytes_in(set.example(0, 0).tokens), "^abcd");
  EXPECT_EQ(bytes_in(set.example(1, 0).tokens), "^abcd");
  EXPECT_EQ(bytes_in(set.example(2, 0).tokens), "^");
  EXPECT_EQ(set.example(2, 0).label, 2);
  EXPECT_EQ(set.length(1), 5);
  EXPECT_THROW(set.add(bytes("a"), bytes("b"), 0), favor::Error);
  LabelledSet bare(5, -1);
  bare.add(bytes("abcdef"), 0);
  EXPECT_EQ(bytes_in(bare.example(0, 0).tokens), "abcde");
}

TEST(LabelledSet, PairsHaveTwoRows) {
  LabelledSet set(10, 256);
  set.add(bytes("ab"), bytes("wxyz"), 1);
  set.add(bytes("abcdef"), bytes("w"), 0);
  EXPECT_EQ(set.size(), 2);
  EXPECT_EQ(set.length(0), 5);
  EXPECT_EQ(set.length(1), 7);
  EXPECT_EQ(bytes_in(set.example(1, 0).tokens), "^abcdef");
  EXPECT_EQ(bytes_in(set.example(1, 0).second), "^w");
  EXPECT_EQ(set.example(1, 0).label, 0);
}

struct ListOpsFiles {
  TemporaryFolder folder;
  std::string train = folder.write("basic_train.tsv",
                                   "Source\tTarget\n( ( ( [MED 3 ) 4 ) ] )\t3\r\n( ( ( [MAX 3 ) ( "
                                   "( ( [SM 9 ) 5 ) ] ) ) ] )\t4\n");
  std::string valid = folder.write("basic_val.tsv", "Source\tTarget\n5\t5\n");
  std::string test = folder.write("basic_test.tsv", "Source\tTarget\n6\t6\n");

  LabelledSplits read() const { return read_listops(folder.path().string(), 30, 15); }
  std::string error() const {
    return message_of<std::runtime_error>([&] { read(); });
  }
};

TEST(ReadListOps, ParenthesesAreDropped) {
  const LabelledSplits splits = ListOpsFiles().read();
  EXPECT_EQ(splits.train->size(), 2);
  EXPECT_EQ(splits.valid->size(), 1);
  EXPECT_EQ(splits.train->example(0, 0).tokens, (std::vector<int64_t>{15, 12, 3, 4, 14}));
  EXPECT_EQ(splits.train->example(1, 0).tokens,
            (std::vector<int64_t>{15, 11, 3, 13, 9, 5, 14, 14}));
  EXPECT_EQ(splits.train->example(1, 0).label, 4);
  EXPECT_EQ(splits.classes.size(), 10U);
  EXPECT_EQ(splits.cut_summary(30), "");
}

TEST(ReadListOps, ErrorsNameFileLineAndExpectation) {
  ListOpsFiles files;
  files.folder.write("basic_val.tsv", "Source\tTarget\n5\t5\n( [MAD 1 )\t2\n");
  EXPECT_EQ(files.error(),
            files.valid + ":3: encode: word 1 is '[MAD', expected one of the 15 of listops");
  files.folder.write("basic_val.tsv", "Source\tTarget\n5\t15\n");
  EXPECT_EQ(files.error(), files.valid + ":2: Target is '15', expected a digit");
  files.folder.write("basic_val.tsv", "Source\tTarget\n5\n");
  EXPECT_EQ(files.error(), files.valid + ":2: has 1 fields, expected 2 (Source, Target)");
  files.folder.write("basic_val.tsv", "5\t5\n");
  EXPECT_EQ(files.error(), files.valid + ":1: is '5?5', expected the columns Source and Target");
  files.folder.write("basic_val.tsv", "Source\tTarget\n");
  EXPECT_EQ(files.error(), files.valid + ": holds no row, expected at least one");
  std::filesystem::remove(files.valid);
  EXPECT_EQ(files.error(), files.valid + ": byte 0: cannot open: No such file or directory");
}

TEST(ReadPairs, LinesAreLabelNamesAndTexts) {
  const TemporaryFolder folder;
  const std::string train =
      folder.write("new_aan_pairs.train.tsv", "1.0\tA\tB\tfirst text\tsecond\n0\tC\tD\tx\ty\n");
  folder.write("new_aan_pairs.eval.tsv", "0\tA\tB\tx\ty\n");
  folder.write("new_aan_pairs.test.tsv", "1\tA\tB\tx\t\n");
  const auto read = [&] { return read_pairs(folder.path().string(), 8, 256); };
  const LabelledSplits splits = read();
  EXPECT_EQ(splits.train->size(), 2);
  EXPECT_EQ(splits.train->example(0, 0).label, 1);
  EXPECT_EQ(bytes_in(splits.train->example(0, 0).tokens), "^first t");
  EXPECT_EQ(bytes_in(splits.train->example(0, 0).second), "^second");
  EXPECT_EQ(splits.cut_summary(8), "1 rows cut to length 8");
  folder.write("new_aan_pairs.train.tsv", "1\tA\tB\tx\ty\n2\tA\tB\tx\ty\n");
  EXPECT_EQ(message_of<std::runtime_error>(read), train + ":2: label is '2', expected 0 or 1");
  folder.write("new_aan_pairs.train.tsv", "1\tA\tB\tx\n");
  EXPECT_EQ(message_of<std::runtime_error>(read),
            train + ":1: has 4 fields, expected 5 (label id1 id2 text1 text2)");
}

TEST(ReadDocuments, FoldersAreClasses) {
  const TemporaryFolder folder;
  for (const char* part : {"train/neg", "train/pos", "train/unsup", "test/neg", "test/pos"}) {
    std::filesystem::create_directories(folder.path() / part);
  }
  for (int i = 0; i < 40; ++i) {
    folder.write("train/neg/" + std::to_string(i) + ".txt", "bad " + std::to_string(i));
    folder.write("train/pos/" + std::to_string(i) + ".txt", "good " + std::to_string(i));
  }
  folder.write("train/unsup/1.txt", "neither");
  folder.write("train/pos/notes.md", "passed over");
  folder.write("test/neg/1.txt", "awful");
  folder.write("test/pos/1.txt", "fine");
  SplitOptions options;
  options.valid_fraction = 0.25;
  const auto read = [&] { return read_documents(folder.path().string(), 20, 256, options); };
  const LabelledSplits splits = read();
  EXPECT_EQ(splits.classes, (std::vector<std::string>{"neg", "pos"}));
  EXPECT_EQ(splits.train->size() + splits.valid->size(), 80);
  EXPECT_GT(splits.valid->size(), 8);
  EXPECT_LT(splits.valid->size(), 35);
  EXPECT_EQ(splits.test->size(), 2);
  for (int64_t i = 0; i < splits.train->size(); ++i) {
    const Example example = splits.train->example(i, 0);
    EXPECT_EQ(bytes_in(example.tokens).substr(1, 3), example.label == 0 ? "bad" : "goo");
  }
  std::filesystem::create_directories(folder.path() / "valid/neg");
  std::filesystem::create_directories(folder.path() / "valid/pos");
  folder.write("valid/neg/1.txt", "poor");
  EXPECT_EQ(read().train->size(), 80);
  EXPECT_EQ(read().valid->size(), 1);
  std::filesystem::remove_all(folder.path() / "test/pos");
  EXPECT_EQ(message_of<std::runtime_error>(read),
            folder.path().string() +
                ": has 1 classes, expected 2 to 256 (folders that lie both in train and in test)");
}

}  // namespace
}  // namespace performer
