// SPDX-License-Identifier: Apache-2.0
#include "performer/data/tokenizer.h"

#include <string>
#include <vector>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

constexpr const char* kAlphabet = "ACDEFGHIKLMNPQRSTVWYBOUXZ<>_*";

TEST(Tokenizer, HasTheIdsOfThePaper) {
  const Tokenizer tokenizer = Tokenizer::protein();
  EXPECT_EQ(tokenizer.size(), 29);
  EXPECT_EQ(tokenizer.bos(), 25);
  EXPECT_EQ(tokenizer.eos(), 26);
  EXPECT_EQ(tokenizer.pad(), 27);
  EXPECT_EQ(tokenizer.mask(), 28);
  EXPECT_EQ(tokenizer.num_standard(), 20);
  EXPECT_EQ(tokenizer.num_letters(), 25);
  EXPECT_TRUE(tokenizer.is_special(25));
  EXPECT_FALSE(tokenizer.is_special(24));
  std::vector<int64_t> all(29);
  for (int64_t i = 0; i < 29; ++i) all[i] = i;
  EXPECT_EQ(tokenizer.decode(all), kAlphabet);
}

TEST(Tokenizer, DecodesWhatItEncodes) {
  const Tokenizer tokenizer = Tokenizer::protein();
  const std::vector<uint8_t> ids = tokenizer.encode("ACYBZMX");
  EXPECT_EQ(ids, (std::vector<uint8_t>{0, 1, 19, 20, 24, 10, 23}));
  EXPECT_EQ(tokenizer.decode(ids), "ACYBZMX");
  EXPECT_TRUE(tokenizer.encode("").empty());
}

TEST(Tokenizer, RefusesOtherCharactersAndIds) {
  const Tokenizer tokenizer = Tokenizer::protein();
  const auto encode_error = [&](std::string_view text) {
    return message_of<favor::Error>([&] { tokenizer.encode(text); });
  };
  EXPECT_EQ(encode_error("ACa"),
            "encode: character 3 is 'a', expected a letter of ACDEFGHIKLMNPQRSTVWYBOUXZ");
  EXPECT_EQ(encode_error("J").substr(0, 28), "encode: character 1 is 'J', ");
  EXPECT_EQ(encode_error("A<").substr(0, 28), "encode: character 2 is '<', ");
  EXPECT_EQ(encode_error("A\xff").substr(0, 28), "encode: character 2 is '?', ");
  const std::vector<int64_t> high = {0, 29};
  const std::vector<int64_t> low = {-1};
  EXPECT_EQ(message_of<favor::Error>([&] { tokenizer.decode(high); }),
            "decode: token id is 29, expected 0 to 28");
  EXPECT_EQ(message_of<favor::Error>([&] { tokenizer.decode(low); }),
            "decode: token id is -1, expected 0 to 28");
}

TEST(Vocabulary, SurvivesARoundTrip) {
  const TemporaryFolder folder;
  const std::string path = folder.file("vocab.txt");
  Tokenizer::protein().save(path);
  std::string expected;
  for (const char* c = kAlphabet; *c != '\0'; ++c) (expected += *c) += '\n';
  EXPECT_EQ(read_whole(path), expected);
  EXPECT_EQ(Tokenizer::load(path).encode("WYZ"), Tokenizer::protein().encode("WYZ"));
  std::string windows;
  for (const char* c = kAlphabet; *c != '\0'; ++c) (windows += *c) += "\r\n";
  EXPECT_EQ(Tokenizer::load(folder.write("crlf.txt", windows)).size(), 29);
}

TEST(Vocabulary, ErrorsNameLineGotAndExpected) {
  const TemporaryFolder folder;
  const std::string path = folder.file("vocab.txt");
  Tokenizer::protein().save(path);
  const std::string good = read_whole(path);
  const auto error_in = [&](const std::string& text) {
    folder.write("vocab.txt", text);
    return message_of<std::runtime_error>([&] { Tokenizer::load(path); }).substr(path.size());
  };
  std::string swapped = good;
  swapped[4] = 'Q';
  EXPECT_EQ(error_in(swapped), ":3: token is 'Q', expected 'D' (protein alphabet)");
  EXPECT_EQ(error_in("A\nC\n[UNK]\n"), ":3: token is '[UNK]', expected 'D' (protein alphabet)");
  EXPECT_EQ(error_in("A\n\nD\n"), ":2: token is '', expected 'C' (protein alphabet)");
  EXPECT_EQ(error_in(good + "J\n"),
            ":30: token is 'J', expected the end of the file after 29 tokens (protein alphabet)");
  EXPECT_EQ(error_in(good.substr(0, 10)),
            ":6: end of the file, expected 'G' (protein alphabet of 29 tokens)");
  EXPECT_EQ(error_in(""), ":1: end of the file, expected 'A' (protein alphabet of 29 tokens)");
  EXPECT_EQ(message_of<std::runtime_error>([&] { Tokenizer::load(folder.file("none")); }),
            folder.file("none") + ": cannot open: No such file or directory");
}

}  // namespace
}  // namespace performer
