// SPDX-License-Identifier: Apache-2.0
// Preparation of token files: duplicates, sets, databases united, statistics.
#include "performer/data/prepare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "favor/check.h"
#include "favor/random.h"
#include "performer/data/statistics.h"
#include "performer/data/testing.h"
#include "performer/data/token_file.h"

namespace performer {
namespace {

using nlohmann::ordered_json;

// Set and sequence of each name.
std::map<std::string, std::pair<std::string, std::string>> content_of(const std::string& path) {
  const TokenFile file(path);
  std::map<std::string, std::pair<std::string, std::string>> content;
  for (const TokenSet set : {TokenSet::kTrain, TokenSet::kValid, TokenSet::kTest, TokenSet::kOod}) {
    const SequenceSet sequences = file.set(set);
    for (int64_t i = 0; i < sequences.size(); ++i) {
      const std::string header(file.header(file.first(set) + i));
      content[header.substr(0, header.find(' '))] = {to_string(set),
                                                     Tokenizer::protein().decode(sequences[i])};
    }
  }
  return content;
}

std::string random_fasta(int count) {
  favor::RandomStream random(5, 0);
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += favor::message(">r", i, " record\n");
    for (uint64_t left = 10 + random.below(40); left > 0; --left) {
      text += "ACDEFGHIKLMNPQRSTVWY"[random.below(20)];
    }
    text += "\n";
  }
  return text;
}

TEST(PrepareTokens, KeepsEveryDistinctSequenceOnce) {
  const TemporaryFolder folder;
  const std::string a = folder.write("a.fasta", ">a one\nMKT\n>b\nmkt\n>c\nMKTA\n>d\n\n");
  const std::string b = folder.write("b.fasta", ">e\nMKTA*\n>f\nMKJ\n");
  const ordered_json description = prepare_tokens({a, b}, folder.file("x.tokens"), {});
  const auto content = content_of(folder.file("x.tokens"));
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content.at("a").second, "MKT");
  EXPECT_EQ(content.at("c").second, "MKTA");
  EXPECT_EQ(content.at("f").second, "MKX");
  EXPECT_EQ(description["duplicates"], 2);
  EXPECT_EQ(description["sequences_read"], 5);
  EXPECT_EQ(description["residues_read"], 17);
  EXPECT_EQ(description["inputs"][0]["changes"], "1 empty records, 3 lower-case letters raised");
  EXPECT_EQ(description["inputs"][1]["changes"],
            "1 trailing stops removed, 1 unknown letters (J) made X");
  const TokenFile file(folder.file("x.tokens"));
  EXPECT_EQ(ordered_json::parse(file.description()), description);
  // The spools have no names, and nothing else is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 3);
}

TEST(PrepareTokens, DividesAsTrainingFromFastaDoes) {
  const TemporaryFolder folder;
  const std::string fasta = folder.write("a.fasta", random_fasta(400));
  PrepareOptions options;
  options.split = {0.2, 0.1, 3};
  prepare_tokens({fasta}, folder.file("x.tokens"), options);
  const SplitSequences expected = read_fasta_splits({fasta}, Tokenizer::protein(), options.split);
  const TokenFile file(folder.file("x.tokens"));
  // In the same order too: a run on either file is the same run.
  EXPECT_EQ(file.set(TokenSet::kTrain).fingerprint(), expected.train.fingerprint());
  EXPECT_EQ(file.set(TokenSet::kValid).fingerprint(), expected.valid.fingerprint());
  EXPECT_EQ(file.set(TokenSet::kTest).fingerprint(), expected.test.fingerprint());
  EXPECT_GT(expected.valid.size(), 40);
}

TEST(PrepareTokens, SameInputSameBytes) {
  const TemporaryFolder folder;
  const std::string fasta = folder.write("a.fasta", random_fasta(50));
  prepare_tokens({fasta}, folder.file("x.tokens"), {});
  prepare_tokens({fasta}, folder.file("y.tokens"), {});
  EXPECT_EQ(read_whole(folder.file("x.tokens")), read_whole(folder.file("y.tokens")));
}

TEST(PrepareTokens, HoldsOutWholeClustersWithTheirCopies) {
  const TemporaryFolder folder;
  const std::string fasta = folder.write(
      "a.fasta", ">a\nMKT\n>sp|b|B_HUMAN x\nMKTA\n>c\nWW\n>copy\nYY\n>d\nYY\n>new\nVV\n");
  PrepareOptions options;
  options.split = {0, 0, 0};
  options.clusters = folder.write("c.tsv", "a\ta\na\tb\nc\tc\nd\td\nd\tz\ncopy\tcopy\n");
  options.ood_min_cluster = 2;
  const ordered_json description = prepare_tokens({fasta}, folder.file("x.tokens"), options);
  const auto content = content_of(folder.file("x.tokens"));
  EXPECT_EQ(content.at("a").first, "ood");
  EXPECT_EQ(content.at("sp|b|B_HUMAN").first, "ood");
  EXPECT_EQ(content.at("c").first, "train");
  EXPECT_EQ(content.at("copy").first, "ood") << "its copy d is in a cluster held out";
  EXPECT_EQ(content.at("new").first, "train");
  EXPECT_EQ(description["clusters"]["held_out"], 2);
  EXPECT_EQ(description["clusters"]["sequences_not_in_it"], 1);
  options.clusters = folder.write("other.tsv", "x\ty\n");
  EXPECT_EQ(message_of<std::runtime_error>(
                [&] { prepare_tokens({fasta}, folder.file("y.tokens"), options); }),
            options.clusters +
                ": has none of the 6 sequences, expected their names (first words "
                "of the headers)");
}

TEST(PrepareTokens, UnitesDatabasesByAccession) {
  const TemporaryFolder folder;
  const std::string mfo =
      BlastFiles(BlastFiles::Records{{"P1|GO:0000002,GO:0000002", "MKT"}, {"P2|GO:0000003", "ACD"}})
          .write(folder, "mfo");
  const std::string bpo =
      BlastFiles(BlastFiles::Records{{"P3|GO:0000009", "WWW"}, {"P1|GO:0000001", "MKT"}})
          .write(folder, "bpo");
  PrepareOptions options;
  options.split = {0, 0, 0};
  options.go_terms = "GO:0000001";
  const ordered_json description = prepare_tokens({mfo, bpo}, folder.file("x.tokens"), options);
  const auto content = content_of(folder.file("x.tokens"));
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content.at("P1").first, "ood") << "by the term that the second database has";
  EXPECT_EQ(content.at("P2").first, "train");
  EXPECT_EQ(content.at("P3").first, "train");
  const TokenFile file(folder.file("x.tokens"));
  EXPECT_EQ(file.header(2), "P1 GO:0000001,GO:0000002");
  EXPECT_EQ(file.header(0), "P2 GO:0000003");
  EXPECT_EQ(description["united"], 1);
  EXPECT_EQ(description["go"]["held_out"], 1);

  const std::string other =
      BlastFiles(BlastFiles::Records{{"P2|GO:0000001", "ACE"}}).write(folder, "other");
  EXPECT_EQ(message_of<std::runtime_error>([&] {
              prepare_tokens({mfo, other}, folder.file("y.tokens"), options);
            }),
            other +
                ": sequence 0: P2 has 3 residues that differ from its 3 read before, expected "
                "one sequence per accession");
  EXPECT_FALSE(std::filesystem::exists(folder.file("y.tokens")));
}

TEST(PrepareTokens, HoldsOutTermsOfFastaHeaders) {
  const TemporaryFolder folder;
  const std::string fasta =
      folder.write("a.fasta", ">a GO:0000003 kinase\nMKT\n>b GO:0000004\nMKTA\n>c\nWW\n");
  PrepareOptions options;
  options.split = {0, 0, 0};
  options.go_terms = "GO:0000002";
  options.go_graph = folder.write("go.txt", "GO:0000002\tGO:0000003\t1\tis_a\n");
  prepare_tokens({fasta}, folder.file("x.tokens"), options);
  const auto content = content_of(folder.file("x.tokens"));
  EXPECT_EQ(content.at("a").first, "ood");
  EXPECT_EQ(content.at("b").first, "train");
  EXPECT_EQ(TokenFile(folder.file("x.tokens")).header(2), "a GO:0000003 kinase");
}

TEST(PrepareTokens, RefusesBadOptionsAndEmptyInput) {
  const TemporaryFolder folder;
  const auto error = [&](const PrepareOptions& options) {
    return message_of<favor::Error>(
        [&] { prepare_tokens({"x.fasta"}, folder.file("x.tokens"), options); });
  };
  PrepareOptions options;
  options.split.valid_fraction = 1;
  EXPECT_EQ(error(options), "valid_fraction is 1, expected 0 to 1, 1 excluded");
  options = {};
  options.ood_min_cluster = 0;
  EXPECT_EQ(error(options), "ood_min_cluster is 0, expected at least 1");
  options = {};
  options.ood_fraction = 1.5;
  EXPECT_EQ(error(options), "ood_fraction is 1.5, expected more than 0 and at most 1");
  options = {};
  options.go_graph = "go.txt";
  EXPECT_EQ(error(options), "go_graph is given without go_terms, expected terms to hold out");
  EXPECT_EQ(message_of<favor::Error>([&] { prepare_tokens({}, folder.file("x.tokens"), {}); }),
            "prepare_tokens: inputs is empty, expected at least one file");
  const std::string empty = folder.write("a.fasta", ">a\n\n");
  EXPECT_EQ(
      message_of<std::runtime_error>([&] { prepare_tokens({empty}, folder.file("x.tokens"), {}); }),
      empty + ": no record holds a residue");
  EXPECT_EQ(
      message_of<std::runtime_error>(
          [&] { prepare_tokens({empty}, folder.file("no/x.tokens"), {}); }),
      folder.file("no/x.tokens") + ": cannot create a file beside it: No such file or directory");
}

TEST(SetStatistics, CountLengthsAndLetters) {
  const Tokenizer tokenizer = Tokenizer::protein();
  SetStatistics set(tokenizer), other(tokenizer);
  for (const char* text : {"AAAAAC", "X", "MKZX"}) set.add(tokenizer.encode(text));
  other.add(tokenizer.encode("AC"));
  ordered_json json = set.to_json();
  EXPECT_EQ(json["sequences"], 3);
  EXPECT_EQ(json["residues"], 11);
  EXPECT_EQ(json["min"], 1);
  EXPECT_EQ(json["max"], 6);
  EXPECT_EQ(json["median"], 4);
  EXPECT_DOUBLE_EQ(json["mean"].get<double>(), 11.0 / 3);
  EXPECT_DOUBLE_EQ(json["std"].get<double>(), std::sqrt(38.0) / 3);
  EXPECT_EQ(json["letters"]["A"], 5);
  EXPECT_EQ(json["letters"]["X"], 2);
  EXPECT_EQ(json["letters"]["W"], 0);
  EXPECT_EQ(json["rare_letters"], 3);
  EXPECT_EQ(json["sequences_with_rare"], 2);
  set.add(other);
  json = set.to_json();
  EXPECT_EQ(json["sequences"], 4);
  EXPECT_EQ(json["median"], 3);
  EXPECT_EQ(json["letters"]["A"], 6);
  const std::string table = statistics_table({{"train", json}, {"test", other.to_json()}});
  EXPECT_NE(table.find("train              4            13      1      3.0     3.25"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("A           46.1538  50.0000"), std::string::npos) << table;
}

}  // namespace
}  // namespace performer
