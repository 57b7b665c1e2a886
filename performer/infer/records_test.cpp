// SPDX-License-Identifier: Apache-2.0
#include "performer/infer/records.h"

#include <gtest/gtest.h>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

TEST(Records, KeepHeadersOrderAndEmptyRecords) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("a.fasta", ">sp|P1|X Some protein\nmkt\n>\nAC\n>sp|P1|X again\n");
  const Records records = read_records(path, Tokenizer::protein());
  ASSERT_EQ(records.size(), 3);
  EXPECT_EQ(records.headers[0], "sp|P1|X Some protein");
  EXPECT_EQ(records.names[1], "");
  EXPECT_EQ(records.sequences.length(2), 0);
  EXPECT_EQ(records.counts.lowercased, 3);
  EXPECT_EQ(records.label(0), "sequence 1 (sp|P1|X)");
  EXPECT_EQ(records.label(1), "sequence 2");
}

TEST(Records, FingerprintTellsInputsApart) {
  const TemporaryFolder folder;
  const auto print = [&](const std::string& text) {
    return read_records(folder.write("f.fasta", text), Tokenizer::protein()).fingerprint();
  };
  const std::string same = print(">a x\nMKT\n>b\nAC\n");
  EXPECT_EQ(same, print(">a x\nMK\nT\n>b\nAC\n"));
  for (const char* other : {">a y\nMKT\n>b\nAC\n", ">a x\nMKTA\n>b\nC\n", ">b\nAC\n>a x\nMKT\n"}) {
    EXPECT_NE(same, print(other)) << other;
  }
}

TEST(Records, BlocksAreTheFileInPieces) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.fasta", ">a\nMKTAY\n>b\nAC\n>c\nDE\n>d\nF\n");
  FastaReader reader(path);
  const Tokenizer tokenizer = Tokenizer::protein();
  const Records first = read_block(reader, tokenizer, 6, 0);
  EXPECT_EQ(first.names, (std::vector<std::string>{"a", "b"}));
  const Records second = read_block(reader, tokenizer, 6, 2);
  EXPECT_EQ(second.names, (std::vector<std::string>{"c", "d"}));
  EXPECT_EQ(second.label(1), "sequence 4 (d)");
  EXPECT_EQ(read_block(reader, tokenizer, 6, 4).size(), 0);
}

TEST(SafeNames, AreFileNamesAndDiffer) {
  const std::vector<std::string> names = {
      "sp|P1|X_Y", "../../etc/passwd", "",    "a b",      "a/b",  "A_B",
      "a_b-2",     ".hidden",          "-rf", "\xce\xb1", "a\tb", std::string(300, 'q')};
  const std::vector<std::string> expected = {
      "sp_P1_X_Y", "_.__.._etc_passwd", "record", "a_b", "a_b-3", "A_B-4",
      "a_b-2",     "_hidden",           "_rf",    "__",  "a_b-5", std::string(100, 'q')};
  std::vector<std::string> safe = safe_names(names);
  ASSERT_EQ(safe.size(), names.size());
  EXPECT_EQ(safe[1].find('/'), std::string::npos);
  EXPECT_NE(safe[1][0], '.');
  safe[1] = expected[1];
  EXPECT_EQ(safe, expected);
}

TEST(Bytes, ReadUnits) {
  EXPECT_EQ(parse_bytes("--max-memory", "0"), 0);
  EXPECT_EQ(parse_bytes("--max-memory", "1000"), 1000);
  EXPECT_EQ(parse_bytes("--max-memory", "3k"), 3072);
  EXPECT_EQ(parse_bytes("--max-memory", "2G"), int64_t{2} << 30);
  for (const char* bad : {"", "G", "-1", "1.5G", "4GB", "99999999T"}) {
    EXPECT_EQ(message_of<favor::Error>([&] { parse_bytes("--max-memory", bad); }),
              std::string("--max-memory is '") + bad +
                  "', expected a number of bytes such as 4G or 500M");
  }
}

}  // namespace
}  // namespace performer
