// SPDX-License-Identifier: Apache-2.0
#include "performer/data/vocabulary.h"

#include <gtest/gtest.h>

#include "favor/check.h"
#include "performer/data/testing.h"
#include "performer/data/tokenizer.h"

namespace performer {
namespace {

TEST(Vocabulary, SpecialIdsFollowTheLetters) {
  const auto protein = protein_vocabulary();
  const Tokenizer tokenizer = Tokenizer::protein();
  EXPECT_EQ(protein->size(), tokenizer.size());
  EXPECT_EQ(protein->bos(), tokenizer.bos());
  EXPECT_EQ(protein->eos(), tokenizer.eos());
  EXPECT_EQ(protein->pad(), tokenizer.pad());
  EXPECT_EQ(protein->mask(), tokenizer.mask());
  EXPECT_EQ(protein->decode(protein->encode("MKT")), "MKT");
}

TEST(Vocabulary, BytesGoBothWaysWhateverTheyAre) {
  const auto bytes = byte_vocabulary();
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  const std::vector<int64_t> ids = bytes->encode(all);
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ(ids[255], 255);
  EXPECT_EQ(bytes->decode(ids), all);
  EXPECT_EQ(bytes->num_bytes(65), 1);
  EXPECT_EQ(bytes->num_bytes(bytes->eos()), 0);
  EXPECT_EQ(message_of<favor::Error>([&] { bytes->decode(std::vector<int64_t>{260}); }),
            "decode: token id is 260, expected 0 to 259");
}

TEST(Vocabulary, WordsAreSplitAtBlanks) {
  const auto words = word_vocabulary("toy", {"[MAX", "]", "3"});
  EXPECT_EQ(words->encode("[MAX  3 3 ]"), (std::vector<int64_t>{0, 2, 2, 1}));
  EXPECT_EQ(words->decode(words->encode("[MAX 3 ]")), "[MAX 3 ]");
  EXPECT_EQ(message_of<favor::Error>([&] { words->encode("3 [MED"); }),
            "encode: word 2 is '[MED', expected one of the 3 of toy");
  EXPECT_THROW(word_vocabulary("toy", {"a", "a"}), favor::Error);
}

TEST(Vocabulary, IsReadBackFromItsFolder) {
  const TemporaryFolder folder;
  const std::string odd = "a\\b\nc\x01";
  for (const auto& vocabulary :
       {protein_vocabulary(), byte_vocabulary(), word_vocabulary("toy", {odd, "x", " "})}) {
    vocabulary->save(folder.path().string());
    const auto read = load_vocabulary(vocabulary->kind(), folder.path().string());
    EXPECT_EQ(read->kind(), vocabulary->kind());
    ASSERT_EQ(read->size(), vocabulary->size());
    for (int64_t id = 0; id < read->num_letters(); ++id) {
      EXPECT_EQ(read->decode(std::vector<int64_t>{id}),
                vocabulary->decode(std::vector<int64_t>{id}));
    }
  }
}

TEST(Vocabulary, ADamagedFileIsNamedWithLineAndExpectation) {
  const TemporaryFolder folder;
  const std::string path = folder.write("vocab.txt", "a\nb\\q\n<begin>\n<end>\n<pad>\n<mask>\n");
  const auto error = [&](const char* kind) {
    return message_of<std::runtime_error>([&] { load_vocabulary(kind, folder.path().string()); });
  };
  EXPECT_EQ(error("toy"),
            path + ":2: token is 'b\\q', expected \\\\, \\n or \\xNN after a backslash");
  folder.write("vocab.txt", "a\nb\n<begin>\n");
  EXPECT_NE(error("toy").find("expected <begin>, <end>, <pad> and <mask> as the last lines"),
            std::string::npos);
  word_vocabulary("toy", {"a"})->save(folder.path().string());
  EXPECT_NE(error("bytes").find("expected the bytes 0x00 to 0xff"), std::string::npos);
}

}  // namespace
}  // namespace performer
