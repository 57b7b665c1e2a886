// SPDX-License-Identifier: Apache-2.0
#include "performer/data/text.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <map>
#include <set>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

void write_gzip(const std::string& path, const std::string& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
  gzclose(file);
}

std::string lines_of(int count, const std::string& word) {
  std::string text;
  for (int i = 0; i < count; ++i) text += word + " " + std::to_string(i) + "\n";
  return text;
}

BatchOptions options_of(int64_t length, Objective objective = Objective::kNextToken) {
  BatchOptions options;
  options.length = length;
  options.objective = objective;
  options.seed = 5;
  return options;
}

TEST(ReadText, AFolderGivesItsTextFilesByPathGzippedOrNot) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "b");
  folder.write("b/two.md", "second");
  folder.write("a.txt", "first");
  folder.write("c.cpp", "no text");
  folder.write("empty.rst", "");
  write_gzip(folder.file("z.rst.gz"), "third");
  const std::vector<TextFile> files = read_text_files(folder.path().string());
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].text, "first");
  EXPECT_EQ(files[1].text, "second");
  EXPECT_EQ(files[2].text, "third");
  // A file that is named is read whatever its name.
  EXPECT_EQ(read_text_files(folder.file("c.cpp"))[0].text, "no text");
}

TEST(ReadText, ErrorsNameFilePlaceAndExpectation) {
  const TemporaryFolder folder;
  const auto error = [](const std::string& path) {
    return message_of<std::runtime_error>([&] { read_text_files(path); });
  };
  EXPECT_EQ(error(folder.path().string()),
            folder.path().string() +
                ": holds no .txt, .md or .rst file (.gz or not), expected at least one");
  const std::string missing = folder.file("missing.txt");
  EXPECT_EQ(error(missing), missing + ": byte 0: cannot open: No such file or directory");
  const std::string empty = folder.write("empty.txt", "");
  EXPECT_EQ(error(empty), empty + ": is empty, expected at least one byte of text");
  const std::string cut = folder.file("cut.txt.gz");
  write_gzip(cut, lines_of(5000, "words"));
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) / 2);
  const std::string said = error(cut);
  EXPECT_TRUE(said.starts_with(cut + ": byte ")) << said;
  EXPECT_TRUE(said.ends_with(": gzip data is cut off")) << said;
}

TEST(ReadText, InvalidUtf8IsRepairedAndCounted) {
  std::vector<TextFile> files = {{"a", "fine"}, {"b", "x\xffy\xfe"}, {"c", "\x80"}};
  const TextRepair repaired = repair(files);
  EXPECT_EQ(repaired.sequences, 3);
  EXPECT_EQ(repaired.summary(),
            "3 invalid UTF-8 sequences in 2 files made U+FFFD (first: b: byte 1)");
  EXPECT_EQ(files[1].text, "x\xef\xbf\xbdy\xef\xbf\xbd");
  EXPECT_EQ(repair(files).summary(), "");
}

TEST(SplitText, BlocksEndAtLinesAndEqualOnesShareASide) {
  const std::vector<TextFile> files = {
      {"a", lines_of(3000, "alpha")}, {"b", lines_of(800, "beta")}, {"c", lines_of(3000, "alpha")}};
  SplitOptions options;
  options.valid_fraction = options.test_fraction = 0.2;
  const TextSplits splits = split_text(files, options, 500);
  size_t total = 0;
  std::map<std::string, std::set<int>> sides;
  for (int side = 0; side < 3; ++side) {
    size_t bytes = 0;
    for (const std::string_view section : splits.sections[side]) {
      EXPECT_EQ(section.back(), '\n');
      EXPECT_GE(section.size(), 1U);
      bytes += section.size();
      sides[std::string(section)].insert(side);
    }
    EXPECT_GT(bytes, 2000U);
    total += bytes;
  }
  EXPECT_EQ(total, files[0].text.size() + files[1].text.size() + files[2].text.size());
  for (const auto& [text, where] : sides) EXPECT_EQ(where.size(), 1U);
  // A file without a line end is one block.
  EXPECT_EQ(
      split_text({{"a", std::string(5000, 'x')}}, SplitOptions(), 500).sections[0].size() +
          split_text({{"a", std::string(5000, 'x')}}, SplitOptions(), 500).sections[1].size() +
          split_text({{"a", std::string(5000, 'x')}}, SplitOptions(), 500).sections[2].size(),
      1U);
}

TEST(EncodeText, CountsBytesWordsAndCharacters) {
  const auto vocabulary = byte_vocabulary();
  const TokenStream stream = encode_text({"two words\n", "na\xc3\xafve"}, *vocabulary);
  EXPECT_EQ(stream.bytes, 16);
  EXPECT_EQ(stream.words, 3);
  EXPECT_EQ(stream.characters, 15);
  ASSERT_EQ(stream.tokens.size(), 16U + 3);
  for (const size_t end : {0, 11, 18}) EXPECT_EQ(stream.tokens[end], vocabulary->eos());
  EXPECT_TRUE(encode_text({}, *vocabulary).tokens.empty());
}

TEST(TextSet, AnEvaluationHasEveryTokenAsATargetOnce) {
  const auto vocabulary = byte_vocabulary();
  for (const int64_t length : {4, 5, 27, 100}) {
    const TextSet set(encode_text({"abcdefghijklmnopqrstuvwxyz"}, *vocabulary), vocabulary,
                      options_of(length));
    std::vector<int64_t> targets;
    for (int64_t i = 0; i < set.size(); ++i) {
      const Example example = set.example(i, kEvalEpoch);
      EXPECT_EQ(std::ssize(example.tokens), set.length(i));
      for (size_t t = 0; t + 1 < example.tokens.size(); ++t) {
        EXPECT_EQ(example.targets[t], example.tokens[t + 1]);
      }
      targets.insert(targets.end(), example.targets.begin(), example.targets.end());
    }
    EXPECT_EQ(std::ssize(targets), set.num_targets());
    EXPECT_EQ(vocabulary->decode(targets), "abcdefghijklmnopqrstuvwxyz");
    EXPECT_EQ(targets.back(), vocabulary->eos());
  }
}

TEST(TextSet, TrainingRowsMoveFromEpochToEpochAndStayWithinLength) {
  const auto vocabulary = byte_vocabulary();
  const TextSet set(encode_text({lines_of(40, "word")}, *vocabulary), vocabulary, options_of(32));
  std::set<int64_t> firsts;
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    for (int64_t i = 0; i < set.size(); ++i) {
      const Example example = set.example(i, epoch);
      EXPECT_LE(std::ssize(example.tokens), set.length(i));
      EXPECT_GE(std::ssize(example.tokens), 1);
      EXPECT_EQ(example.targets.size(), example.tokens.size());
    }
    firsts.insert(std::ssize(set.example(0, epoch).tokens));
    EXPECT_EQ(set.example(1, epoch).tokens, set.example(1, epoch).tokens);
  }
  EXPECT_GT(firsts.size(), 4U);
}

TEST(TextSet, MaskedRowsHideTheirTargets) {
  const auto vocabulary = byte_vocabulary();
  const TextSet set(encode_text({lines_of(40, "word")}, *vocabulary), vocabulary,
                    options_of(64, Objective::kMaskedLm));
  const Example masked = set.example(0, kEvalEpoch);
  const auto chosen = std::count_if(masked.targets.begin(), masked.targets.end(),
                                    [](int64_t target) { return target >= 0; });
  EXPECT_EQ(chosen, 9);  // 15 % of 63 letters
  int64_t hidden = 0;
  for (size_t t = 0; t < masked.tokens.size(); ++t) {
    const int64_t original = set.stream().tokens[t];
    EXPECT_EQ(masked.targets[t] < 0 ? masked.tokens[t] : masked.targets[t], original);
    hidden += masked.tokens[t] == vocabulary->mask();
  }
  EXPECT_GT(hidden, 4);
  EXPECT_EQ(set.example(0, kEvalEpoch).tokens, masked.tokens);
  EXPECT_NE(set.example(0, 3).targets, set.example(0, 4).targets);
}

TEST(CharacterVocabulary, ListsTheTextsCharactersAndOneForOthers) {
  const auto vocabulary = character_vocabulary({"ba\xc3\xafz", "\nb"});
  EXPECT_EQ(vocabulary->num_letters(), 6);  // newline, a, b, z, i with diaeresis, unknown
  EXPECT_EQ(vocabulary->decode(vocabulary->encode("ab\xc3\xaf\n")), "ab\xc3\xaf\n");
  EXPECT_EQ(vocabulary->encode("q"), (std::vector<int64_t>{5}));
  EXPECT_EQ(vocabulary->decode(std::vector<int64_t>{5}), "\xef\xbf\xbd");
  EXPECT_EQ(vocabulary->num_bytes(4), 2);
  EXPECT_EQ(message_of<favor::Error>([&] { vocabulary->encode("a\xff"); }),
            "encode: byte 1 begins no valid UTF-8, expected a character");
  const TemporaryFolder folder;
  vocabulary->save(folder.path().string());
  EXPECT_EQ(load_vocabulary("characters", folder.path().string())->encode("z\n"),
            vocabulary->encode("z\n"));
  folder.write("vocab.txt", "a\nbc\n<unknown>\n<begin>\n<end>\n<pad>\n<mask>\n");
  EXPECT_NE(message_of<std::runtime_error>([&] {
              load_vocabulary("characters", folder.path().string());
            }).find("vocab.txt:2: token is 'bc', expected one character"),
            std::string::npos);
}

}  // namespace
}  // namespace performer
