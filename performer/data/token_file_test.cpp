// SPDX-License-Identifier: Apache-2.0
#include "performer/data/token_file.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "favor/check.h"
#include "favor/sha256.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

// Places in the file: docs/data.md.
constexpr size_t kVersionAt = 8, kHeadBytesAt = 12, kFileBytesAt = 16, kSequencesAt = 24,
                 kSetsAt = 56, kAlphabetAt = 88, kOffsetsAt = 128;

const std::vector<std::string> kSequences = {"MKT", "ACDEFG", "W", "XYZ", "MM"};

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Three sequences in train, none in valid, one in test and ood each; the last ones first.
std::string write_sample(const TemporaryFolder& folder, const std::string& name = "x.tokens") {
  const Tokenizer tokenizer = Tokenizer::protein();
  std::vector<uint8_t> tokens;
  std::vector<int64_t> offsets = {0}, header_offsets = {0};
  std::string headers;
  for (size_t i = 0; i < kSequences.size(); ++i) {
    for (const uint8_t id : tokenizer.encode(kSequences[i])) tokens.push_back(id);
    offsets.push_back(std::ssize(tokens));
    headers += favor::message("s", i, " number ", i);
    header_offsets.push_back(std::ssize(headers));
  }
  TokenFileContent content;
  content.set_sizes = {3, 0, 1, 1};
  content.order = {4, 3, 2, 1, 0};
  content.offsets = offsets;
  content.tokens = tokens;
  content.header_offsets = header_offsets;
  content.headers = bytes_of(headers);
  content.description = "{\"sets\":{}}";
  write_token_file(folder.file(name), content);
  return folder.file(name);
}

std::string text_of(const SequenceSet& set) {
  std::string text;
  for (int64_t i = 0; i < set.size(); ++i) text += Tokenizer::protein().decode(set[i]) + " ";
  return text;
}

std::string error_of(const std::string& content) {
  const TemporaryFolder folder;
  const std::string path = folder.write("x", content);
  const std::string text = message_of<std::runtime_error>([&] { TokenFile file(path); });
  EXPECT_TRUE(text.starts_with(path + ": ")) << text;
  return text.substr(path.size() + 2);
}

std::string sample_bytes() {
  const TemporaryFolder folder;
  return read_whole(write_sample(folder));
}

template <class T>
std::string changed(std::string bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

// With a checksum that fits, so that what follows it is reached.
std::string resealed(std::string bytes) {
  favor::Sha256 sha;
  sha.update(bytes.data(), bytes.size() - 64);
  return bytes.replace(bytes.size() - 64, 64, sha.digest());
}

TEST(TokenFile, GivesBackWhatWasWritten) {
  const TemporaryFolder folder;
  const std::string path = write_sample(folder);
  EXPECT_TRUE(TokenFile::recognises(path));
  const TokenFile file(path);
  EXPECT_EQ(file.size(), 5);
  EXPECT_EQ(file.num_tokens(), 15);
  EXPECT_EQ(text_of(file.all()), "MM XYZ W ACDEFG MKT ");
  EXPECT_EQ(text_of(file.set(TokenSet::kTrain)), "MM XYZ W ");
  EXPECT_EQ(text_of(file.set(TokenSet::kValid)), "");
  EXPECT_EQ(text_of(file.set(TokenSet::kTest)), "ACDEFG ");
  EXPECT_EQ(text_of(file.set(TokenSet::kOod)), "MKT ");
  EXPECT_EQ(file.first(TokenSet::kOod), 4);
  EXPECT_EQ(file.set(TokenSet::kTest).num_tokens(), 6);
  EXPECT_EQ(file.header(0), "s4 number 4");
  EXPECT_EQ(file.header(4), "s0 number 0");
  EXPECT_EQ(file.description(), "{\"sets\":{}}");
  EXPECT_EQ(message_of<favor::Error>([&] { file.header(5); }),
            "TokenFile: sequence is 5, expected 0 to 4");
}

TEST(TokenFile, ViewsOutliveItAndEqualOwnedSets) {
  const TemporaryFolder folder;
  SequenceSet view;
  {
    const TokenFile file(write_sample(folder));
    view = file.set(TokenSet::kTrain);
  }
  EXPECT_TRUE(view.is_view());
  SequenceSet owned;
  for (int64_t i = 0; i < view.size(); ++i) owned.add(view[i]);
  EXPECT_EQ(text_of(view), text_of(owned));
  EXPECT_EQ(view.num_tokens(), owned.num_tokens());
  EXPECT_EQ(view.fingerprint(), owned.fingerprint());
  EXPECT_EQ(text_of(view.sample(4, 1)), text_of(owned.sample(4, 1)));
  const SequenceSet copy = view;
  EXPECT_EQ(text_of(copy), text_of(owned));
  EXPECT_EQ(message_of<favor::Error>([&] { view.add(owned[0]); }),
            "add: the set is a view of a file, expected one that owns its tokens");
}

TEST(TokenFile, IsRecognisedByItsFirstBytes) {
  const TemporaryFolder folder;
  EXPECT_FALSE(TokenFile::recognises("-"));
  EXPECT_FALSE(TokenFile::recognises(folder.path().string()));
  EXPECT_FALSE(TokenFile::recognises(folder.file("none")));
  EXPECT_FALSE(TokenFile::recognises(folder.write("a.tokens", ">a\nMK\n")));
  EXPECT_FALSE(TokenFile::recognises(folder.write("b.tokens", "PRF")));
  EXPECT_TRUE(TokenFile::recognises(write_sample(folder, "any.fasta")));
}

TEST(TokenFile, EveryCutIsRefused) {
  const std::string whole = sample_bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string error = error_of(whole.substr(0, size));
    if (size < 8) {
      EXPECT_EQ(error, "byte 0: begins otherwise than with PRFTOKEN, expected a token file");
    } else if (size < kOffsetsAt) {
      EXPECT_EQ(error, favor::message("byte ", size, ": the file ends, expected a head of 128 ",
                                      "bytes (cut off?)"));
    } else {
      EXPECT_EQ(error, favor::message("byte 16: the file has ", size, " bytes, expected ",
                                      whole.size(), " (cut off?)"));
    }
  }
  EXPECT_EQ(error_of(whole + "x"), favor::message("byte 16: the file has ", whole.size() + 1,
                                                  " bytes, expected ", whole.size()));
}

TEST(TokenFile, EveryChangedByteIsRefused) {
  const std::string whole = sample_bytes();
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    EXPECT_NE(error_of(bytes), "") << at;
  }
  std::string bytes = whole;
  bytes[kOffsetsAt + 8] ^= 1;
  const std::string error = error_of(bytes);
  EXPECT_TRUE(error.starts_with(favor::message("byte ", whole.size() - 64, ": checksum is ",
                                               whole.substr(whole.size() - 64), ", expected ")));
  EXPECT_TRUE(error.ends_with(" (the file was altered or damaged)")) << error;
}

TEST(TokenFile, NamesWhatDoesNotFit) {
  const std::string whole = sample_bytes();
  const size_t tokens_at = kOffsetsAt + 2 * 6 * 8;
  EXPECT_EQ(error_of(changed(whole, kVersionAt, uint32_t{2})),
            "byte 8: version is 2, expected 1 (made by another version of performer; `performer "
            "data prepare` makes it anew)");
  EXPECT_EQ(error_of(changed(whole, kHeadBytesAt, uint32_t{64})),
            "byte 12: head size is 64, expected 128");
  EXPECT_EQ(
      error_of(changed(whole, kFileBytesAt, uint64_t{999999})),
      favor::message("byte 16: the file has ", whole.size(), " bytes, expected 999999 (cut off?)"));
  EXPECT_EQ(error_of(changed(whole, kSequencesAt, ~uint64_t{0})),
            favor::message("byte 24: a count is 18446744073709551615, expected at most ",
                           whole.size(), " (bytes of the file)"));
  EXPECT_EQ(error_of(changed(whole, kSequencesAt, uint64_t{6})),
            favor::message("byte 24: the counts make a file of ", whole.size() + 16,
                           " bytes, expected ", whole.size()));
  EXPECT_EQ(error_of(changed(whole, kSetsAt, uint64_t{4})),
            "byte 56: the sets have 6 sequences, expected 5");
  EXPECT_EQ(error_of(changed(whole, kAlphabetAt, 'B')),
            "byte 88: alphabet is BCDEFGHIKLMNPQRSTVWYBOUXZ<>_*, expected "
            "ACDEFGHIKLMNPQRSTVWYBOUXZ<>_*");
  EXPECT_EQ(error_of(resealed(changed(whole, kOffsetsAt, int64_t{1}))),
            "byte 128: sequence offset 0 is 1, expected 0");
  EXPECT_EQ(error_of(resealed(changed(whole, kOffsetsAt + 16, int64_t{1}))),
            "byte 144: sequence offset 2 is 1, expected at least 2");
  EXPECT_EQ(error_of(resealed(changed(whole, kOffsetsAt + 5 * 8, int64_t{16}))),
            "byte 168: the last sequence offset is 16, expected 15");
  EXPECT_EQ(error_of(resealed(changed(whole, kOffsetsAt + 6 * 8 + 8, int64_t{-1}))),
            "byte 184: header offset 1 is -1, expected at least 0");
  EXPECT_EQ(error_of(resealed(changed(whole, tokens_at + 2, uint8_t{25}))),
            favor::message("byte ", tokens_at + 2, ": token is 25, expected at most 24"));
}

TEST(TokenFile, AFailedWriteLeavesNothing) {
  const TemporaryFolder folder;
  TokenFileContent content;
  const std::array<int64_t, 1> none = {0};
  content.offsets = content.header_offsets = none;
  EXPECT_EQ(message_of<std::runtime_error>(
                [&] { write_token_file(folder.file("no/x.tokens"), content); }),
            folder.file("no/x.tokens") + ": cannot create the file: No such file or directory");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  // Without a sequence it is whole all the same.
  write_token_file(folder.file("x.tokens"), content);
  EXPECT_EQ(TokenFile(folder.file("x.tokens")).all().size(), 0);
}

TEST(ReadSplits, TakesTheDivisionOfATokenFile) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = Tokenizer::protein();
  SplitOptions options;
  options.valid_fraction = 0.9;
  const SplitSequences stored = read_splits(write_sample(folder), tokenizer, options);
  EXPECT_TRUE(stored.stored);
  EXPECT_EQ(text_of(stored.train), "MM XYZ W ");
  EXPECT_EQ(text_of(stored.ood), "MKT ");
  EXPECT_EQ(stored.all.size(), 5);
  EXPECT_EQ(stored.summary(),
            "token file of 5 sequences, 15 residues, divided as it says (valid_fraction, "
            "test_fraction and split_seed do not apply)\ntrain 3 sequences, 6 residues; valid 0 "
            "sequences, 0 residues; test 1 sequences, 6 residues; ood 1 sequences, 3 residues");
  const SplitSequences fasta = read_splits(folder.write("a.fasta", ">a\nMKT\n"), tokenizer, {});
  EXPECT_FALSE(fasta.stored);
  EXPECT_EQ(fasta.train.size() + fasta.valid.size() + fasta.test.size(), 1);
}

}  // namespace
}  // namespace performer
