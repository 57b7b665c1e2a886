// SPDX-License-Identifier: Apache-2.0
#include "performer/data/blast.h"

#include <gtest/gtest.h>

#include <string>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

// The index: version 0, type 4, title 8..17, date 17..25, count 25, residues 29, longest 37,
// header offsets 41, sequence offsets 41 + 4 (N + 1).
constexpr size_t kCountAt = 25, kResiduesAt = 29, kLongestAt = 37, kOffsetsAt = 41;

BlastFiles two() {
  return BlastFiles(BlastFiles::Records{{"P1|GO:0000001", "MKT"}, {"P2 second protein", "ACDEF"}});
}

std::string error_of(const BlastFiles& files) {
  const TemporaryFolder folder;
  const std::string path = files.write(folder, "db");
  std::string text = message_of<std::runtime_error>([&] {
    BlastDatabase database(path);
    FastaRecord record;
    for (int64_t i = 0; i < database.size(); ++i) database.read(i, record);
  });
  const std::string prefix = folder.path().string() + "/";
  for (size_t at = 0; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
  return text;
}

TEST(BlastDatabase, ReadsNamesHeadersAndSequences) {
  const TemporaryFolder folder;
  const std::string path = two().write(folder, "db");
  EXPECT_TRUE(is_blast_database(path));
  EXPECT_TRUE(is_blast_database(path + ".pin"));
  EXPECT_FALSE(is_blast_database(folder.file("other")));
  for (const std::string& name : {path, path + ".pin"}) {
    BlastDatabase database(name);
    ASSERT_EQ(database.size(), 2);
    EXPECT_EQ(database.num_residues(), 8);
    FastaRecord record;
    database.read(1, record);
    EXPECT_EQ(record.name, "P2");
    EXPECT_EQ(record.header, "P2 second protein");
    EXPECT_EQ(record.sequence, "ACDEF");
    database.read(0, record);
    EXPECT_EQ(record.name, "P1");
    EXPECT_EQ(record.header, "P1|GO:0000001");
    EXPECT_EQ(record.sequence, "MKT");
    EXPECT_EQ(database.counts().records, 2);
    EXPECT_EQ(database.counts().residues, 8);
    EXPECT_EQ(database.counts().changes(), "");
  }
}

TEST(BlastDatabase, ReadsLongHeaders) {
  for (const size_t length : {127u, 128u, 300u, 5000u}) {
    const TemporaryFolder folder;
    const std::string header = "P1|" + std::string(length - 3, 'x');
    BlastDatabase database(BlastFiles(BlastFiles::Records{{header, "MKT"}}).write(folder, "db"));
    FastaRecord record;
    database.read(0, record);
    EXPECT_EQ(record.header, header);
  }
}

TEST(BlastDatabase, CountsOddLetters) {
  const TemporaryFolder folder;
  BlastDatabase database(
      BlastFiles(BlastFiles::Records{{"P1", "-ABCDEFGHIKLMNPQRSTVWXYZU*OJ"}, {"P2", "MK*"}})
          .write(folder, "db"));
  FastaRecord record;
  database.read(0, record);
  EXPECT_EQ(record.sequence, "ABCDEFGHIKLMNPQRSTVWXYZUOX");
  database.read(1, record);
  EXPECT_EQ(record.sequence, "MK");
  EXPECT_EQ(database.counts().changes(),
            "1 gaps removed, 1 trailing stops removed, 1 interior stops removed, 1 unknown letters "
            "(J) made X");
}

TEST(BlastDatabase, HoldsNothingAndEmptySequences) {
  const TemporaryFolder folder;
  EXPECT_EQ(BlastDatabase(BlastFiles(BlastFiles::Records{}).write(folder, "none")).size(), 0);
  BlastDatabase database(
      BlastFiles(BlastFiles::Records{{"P1", ""}, {"P2", "M"}}).write(folder, "db"));
  FastaRecord record;
  database.read(0, record);
  EXPECT_EQ(record.sequence, "");
  EXPECT_EQ(database.counts().empty_records, 1);
}

TEST(BlastDatabase, NamesWhatIsWrongWithTheIndex) {
  BlastFiles files = two();
  files.pin.replace(0, 4, big32(5));
  EXPECT_EQ(error_of(files), "db.pin: byte 0: version is 5, expected 4");
  files = two();
  files.pin.replace(4, 4, big32(0));
  EXPECT_EQ(error_of(files), "db.pin: byte 4: type is 0, expected 1 (protein)");
  files = two();
  files.pin.replace(8, 4, big32(0xffffffff));
  EXPECT_EQ(error_of(files),
            "db.pin: byte 12: the title is cut off after 53 bytes, expected 4294967295");
  files = two();
  files.pin.replace(kCountAt, 4, big32(3));
  EXPECT_EQ(error_of(files),
            "db.pin: byte 53: header offset 3 is 1, expected at least 66 (the one before)");
  files = two();
  files.pin.replace(kCountAt, 4, big32(0xfffffff0));
  EXPECT_EQ(error_of(files),
            "db.pin: byte 41: the header offsets are cut off after 24 bytes, expected 17179869124 "
            "(4294967280 sequences)");
  files = two();
  files.pin.replace(kResiduesAt, 1, "\x09");
  EXPECT_EQ(error_of(files),
            "db.pin: byte 29: the number of residues is 9, expected 8 (sum over the sequences)");
  files = two();
  files.pin.replace(kLongestAt, 4, big32(4));
  EXPECT_EQ(error_of(files), "db.pin: byte 37: the longest length is 4, expected 5");
  files = two();
  files.pin.resize(3);
  EXPECT_EQ(error_of(files), "db.pin: byte 0: the version is cut off after 3 bytes, expected 4");
}

TEST(BlastDatabase, EveryCutOfTheIndexIsRefused) {
  const BlastFiles whole = two();
  for (size_t size = 0; size < whole.pin.size(); ++size) {
    BlastFiles files = whole;
    files.pin.resize(size);
    const std::string error = error_of(files);
    EXPECT_TRUE(error.starts_with("db.pin: byte ")) << error;
    EXPECT_NE(error.find("cut off after"), std::string::npos) << error;
  }
}

TEST(BlastDatabase, NamesOffsetsThatAreOutOfRange) {
  BlastFiles files = two();
  files.pin.replace(kOffsetsAt + 8, 4, big32(1000));
  EXPECT_EQ(error_of(files),
            favor::message("db.pin: byte 49: header offset 2 is 1000, expected at most ",
                           files.phr.size(), " (bytes of db.phr)"));
  files = two();
  files.pin.replace(kOffsetsAt + 12 + 4, 4, big32(0));
  EXPECT_EQ(error_of(files),
            "db.pin: byte 57: sequence offset 1 is 0, expected at least 1 (the one before)");
  files = two();
  files.pin.replace(kOffsetsAt + 12 + 4, 4, big32(4));
  EXPECT_EQ(error_of(files),
            "db.psq: byte 1: sequence 0 ends at byte 4, expected a NUL byte before and after it");
  files = two();
  files.psq.resize(7);
  EXPECT_EQ(error_of(files),
            "db.pin: byte 61: sequence offset 2 is 11, expected at most 7 (bytes of db.psq)");
}

TEST(BlastDatabase, NamesBadResiduesAndHeaders) {
  BlastFiles files = two();
  files.psq[2] = 28;
  EXPECT_EQ(error_of(files), "db.psq: byte 2: residue code is 28 in sequence 0, expected 0 to 27");
  files = two();
  files.phr[6] = 0x04;
  EXPECT_EQ(error_of(files).substr(0, 24), "db.phr: byte 31: header ");
  files = two();
  files.phr[7] = 0x7f;
  EXPECT_EQ(error_of(files),
            "db.phr: byte 8: header 0 ends at byte 31 without a string, expected one");
}

TEST(BlastDatabase, NamesMissingFilesAndAliases) {
  const TemporaryFolder folder;
  EXPECT_EQ(message_of<std::runtime_error>([&] { BlastDatabase(folder.file("db")); }),
            folder.file("db") + ".pin: cannot open: No such file or directory");
  folder.write("all.pal", "DBLIST all.00 all.01");
  EXPECT_TRUE(is_blast_database(folder.file("all")));
  EXPECT_EQ(message_of<std::runtime_error>([&] { BlastDatabase(folder.file("all")); }),
            folder.file("all") +
                ".pal: is an alias of several volumes, expected one volume (give "
                "each of them)");
}

}  // namespace
}  // namespace performer
