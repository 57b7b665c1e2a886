// SPDX-License-Identifier: Apache-2.0
#include "performer/data/pieces.h"

#include <gtest/gtest.h>

#include "favor/check.h"
#include "favor/random.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

// Sentences of made-up words, so that there is something to learn.
std::string some_text() {
  const char* const syllables[] = {"ka", "ro", "min", "te", "lu", "sha", "b\xc3\xa9", "no"};
  favor::RandomStream random(3, 1);
  std::string text;
  for (int line = 0; line < 400; ++line) {
    for (int word = 0; word < 8; ++word) {
      const uint64_t count = 1 + random.below(3);
      for (uint64_t s = 0; s < count; ++s) text += syllables[random.below(8)];
      text += word < 7 ? " " : ".\n";
    }
  }
  return text;
}

TEST(Pieces, EveryTextComesBackAndPiecesAreFewerThanBytes) {
  const std::string text = some_text();
  const auto vocabulary = piece_vocabulary(train_pieces({text}, 320), "test");
  EXPECT_EQ(vocabulary->num_letters(), 320);
  const std::vector<int64_t> ids = vocabulary->encode(text);
  EXPECT_EQ(vocabulary->decode(ids), text);
  EXPECT_LT(ids.size(), text.size() / 2);
  int64_t bytes = 0;
  for (const int64_t id : ids) {
    bytes += vocabulary->num_bytes(id);
    EXPECT_EQ(vocabulary->num_bytes(id), std::ssize(vocabulary->decode(std::vector<int64_t>{id})));
  }
  EXPECT_EQ(bytes, std::ssize(text));
  // Blanks at the ends, line ends, characters never seen.
  for (const std::string odd : {"  ka  ro ", "\n\n", "\xe6\xbc\xa2 \xf0\x9f\x98\x80\t!", ""}) {
    EXPECT_EQ(vocabulary->decode(vocabulary->encode(odd)), odd);
  }
}

TEST(Pieces, ARunOfBlanksIsOnePiece) {
  std::string text;
  for (int line = 0; line < 300; ++line) text += "        deep " + std::to_string(line) + "\n";
  const auto vocabulary = piece_vocabulary(train_pieces({text}, 300), "test");
  EXPECT_LT(vocabulary->encode("        deep").size(), 8U);
  EXPECT_EQ(vocabulary->decode(vocabulary->encode(text)), text);
}

TEST(Pieces, TrainingAgainGivesTheSameModel) {
  const std::string text = some_text();
  EXPECT_EQ(train_pieces({text}, 310), train_pieces({text}, 310));
}

TEST(Pieces, AreReadBackFromAFolder) {
  const TemporaryFolder folder;
  const std::string text = some_text();
  const auto vocabulary = piece_vocabulary(train_pieces({text}, 320), "test");
  vocabulary->save(folder.path().string());
  const auto read = load_vocabulary("pieces", folder.path().string());
  EXPECT_EQ(read->encode(text), vocabulary->encode(text));
  folder.write("vocab.model", "something else");
  const std::string error =
      message_of<std::runtime_error>([&] { load_vocabulary("pieces", folder.path().string()); });
  EXPECT_NE(error.find("vocab.model: is no SentencePiece model"), std::string::npos) << error;
}

TEST(Pieces, TheLibrarysRefusalIsSaidInOneLine) {
  const std::string error =
      message_of<std::runtime_error>([] { train_pieces({"one line\nof text\n"}, 5000); });
  EXPECT_TRUE(error.starts_with("num_pieces is 5000: SentencePiece refuses: ")) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace performer
