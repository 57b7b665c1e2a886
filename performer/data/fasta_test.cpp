// SPDX-License-Identifier: Apache-2.0
#include "performer/data/fasta.h"

#include <unistd.h>
#include <zlib.h>

#include <string>
#include <vector>

#include "favor/check.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

std::vector<FastaRecord> read_all(const std::string& path, FastaCounts* counts = nullptr) {
  FastaReader reader(path);
  std::vector<FastaRecord> records;
  FastaRecord record;
  while (reader.next(record)) records.push_back(record);
  EXPECT_FALSE(reader.next(record)) << "the end must stay the end";
  if (counts != nullptr) *counts = reader.counts();
  return records;
}

std::string error_of(const std::string& path) {
  return message_of<std::runtime_error>([&] { read_all(path); });
}

std::string gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + 15, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// 3,000 records of ordinary size, larger than every buffer of the reader.
std::string many_records() {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += ">r" + std::to_string(i) + " of many\n";
    for (int j = 0; j < 1 + i % 3; ++j) text += "ACDEFGHIKLMNPQRSTVWYACDEFGHIKLMNPQRSTVWY\n";
  }
  return text;
}

TEST(FastaReader, JoinsWrappedLinesRaisesCaseAndDropsTheStop) {
  const TemporaryFolder folder;
  FastaCounts counts;
  const auto records =
      read_all(folder.write("a.fasta", ">a desc\r\nmkt\r\nAYI*\r\n>b\nACD\n"), &counts);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].name, "a");
  EXPECT_EQ(records[0].header, "a desc");
  EXPECT_EQ(records[0].sequence, "MKTAYI");
  EXPECT_EQ(records[0].line, 1);
  EXPECT_EQ(records[1].name, "b");
  EXPECT_EQ(records[1].sequence, "ACD");
  EXPECT_EQ(records[1].line, 4);
  EXPECT_EQ(counts.summary(),
            "2 records, 9 residues, 3 lower-case letters raised, 1 trailing stops removed");
}

TEST(FastaReader, CountsEachKindOfChange) {
  const TemporaryFolder folder;
  FastaCounts counts;
  const auto records =
      read_all(folder.write("a", "\n \n> x y\n  1 AC-D 10\n\n11 jJ.\tbouxz*\n*AA**\n>\n>empty\n\n"),
               &counts);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].name, "x");
  EXPECT_EQ(records[0].header, " x y");
  EXPECT_EQ(records[0].sequence, "ACDXXBOUXZAA");
  EXPECT_EQ(records[1].name, "");
  EXPECT_EQ(records[2].name, "empty");
  EXPECT_EQ(counts.records, 3);
  EXPECT_EQ(counts.empty_records, 2);
  EXPECT_EQ(counts.residues, 12);
  EXPECT_EQ(counts.lowercased, 6);
  EXPECT_EQ(counts.gaps, 2);
  EXPECT_EQ(counts.trailing_stops, 2);
  EXPECT_EQ(counts.interior_stops, 2);
  EXPECT_EQ(counts.unknown, 2);
  EXPECT_EQ(counts.numbering, 11);
  EXPECT_EQ(counts.summary(),
            "3 records, 12 residues, 2 empty records, 6 lower-case letters raised, 2 gaps removed, "
            "2 trailing stops removed, 2 interior stops removed, 2 unknown letters (J) made X, "
            "11 digits and blanks removed");
}

TEST(FastaReader, KeepsEveryOtherLetterOfTheAlphabet) {
  const TemporaryFolder folder;
  const auto records = read_all(folder.write("a", ">a\nABCDEFGHIJKLMNOPQRSTUVWXYZ"));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].sequence, "ABCDEFGHIXKLMNOPQRSTUVWXYZ");
}

TEST(FastaReader, NeedsNoNewlineAtTheEndAndAllowsAByteOrderMark) {
  const TemporaryFolder folder;
  const auto records = read_all(folder.write("a", "\xef\xbb\xbf>a\nAC\r"));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].name, "a");
  EXPECT_EQ(records[0].sequence, "AC");
}

TEST(FastaReader, AllowsAnyEncodingInHeadersAlone) {
  const TemporaryFolder folder;
  const std::string greek = "sp|P37840 \xce\xb1-synuclein";
  const std::string latin = "\xe9\x80";                         // not UTF-8
  const std::string longer = std::string(65'530, 'h') + greek;  // across a buffer's end
  const auto records = read_all(folder.write(
      "a", "\xef\xbb\xbf>" + greek + "\nAC\n>" + latin + "\nDE\n>" + longer + "\nFG\n"));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].header, greek);
  EXPECT_EQ(records[0].name, "sp|P37840");
  EXPECT_EQ(records[0].sequence, "AC");
  EXPECT_EQ(records[1].name, latin);
  EXPECT_EQ(records[2].header, longer);
  EXPECT_EQ(records[2].sequence, "FG");
  EXPECT_EQ(error_of(folder.write("b", ">" + greek + "\nAC\n\xce\xb1\n")),
            folder.file("b") + ":3: byte 0xce is not ASCII text");
}

TEST(FastaReader, ReadsLongLinesAcrossItsBuffers) {
  const TemporaryFolder folder;
  const std::string sequence(300'001, 'W');
  const std::string header(70'000, 'h');
  const auto records =
      read_all(folder.write("a", ">" + header + "\n" + sequence + "\n>b\n" + sequence));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].header, header);
  EXPECT_EQ(records[0].sequence, sequence);
  EXPECT_EQ(records[1].sequence, sequence);
}

TEST(FastaReader, RecognisesGzipByContentAndReadsEveryMember) {
  const TemporaryFolder folder;
  const std::string text = many_records();
  const auto plain = read_all(folder.write("plain.gz", text));  // the name misleads
  ASSERT_EQ(plain.size(), 3000u);
  std::string members;
  for (size_t at = 0; at < text.size(); at += 50'000) members += gzip(text.substr(at, 50'000));
  members += gzip("");
  FastaCounts counts;
  const auto zipped =
      read_all(folder.write("zipped.fasta", members + std::string(512, '\0')), &counts);
  ASSERT_EQ(zipped.size(), plain.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    ASSERT_EQ(zipped[i].header, plain[i].header);
    ASSERT_EQ(zipped[i].sequence, plain[i].sequence);
    ASSERT_EQ(zipped[i].line, plain[i].line);
  }
  EXPECT_EQ(counts.residues, 3000 * 2 * 40);
}

TEST(FastaReader, ReadsStandardInput) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.gz", gzip(">a\nACD\n>b\nA!\n"));
  const int saved = ::dup(0);
  ASSERT_NE(std::freopen(path.c_str(), "rb", stdin), nullptr);
  FastaReader reader("-");
  FastaRecord record;
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(record.sequence, "ACD");
  EXPECT_EQ(message_of<std::runtime_error>([&] { reader.next(record); }),
            "standard input:4: character 2 is '!', expected a letter, '*', '-' or '.'");
  ::dup2(saved, 0);
  ::close(saved);
}

TEST(FastaReader, NamesFileAndLineOfBadInput) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  const auto error_in = [&](std::string_view text) {
    folder.write("a", text);
    const std::string error = error_of(path);
    EXPECT_EQ(error.substr(0, path.size()), path);
    return error.substr(path.size());
  };
  using namespace std::string_view_literals;
  EXPECT_EQ(error_in("\nACD\n>a\n"), ":2: data before the first '>'");
  EXPECT_EQ(error_in(">a\nAC\nA+C\n"),
            ":3: character 2 is '+', expected a letter, '*', '-' or '.'");
  EXPECT_EQ(error_in(">a\nACD>b\nACD\n"),
            ":2: character 4 is '>', expected a letter, '*', '-' or '.'");
  EXPECT_EQ(error_in(">a\nAC\0D\n"sv), ":2: byte 0x00 is not ASCII text");
  EXPECT_EQ(error_in(">a\nAC\nAC\x1b\n"), ":3: byte 0x1b is not ASCII text");
  EXPECT_EQ(error_in(">a\n\nA\xc3\xa9\n"), ":3: byte 0xc3 is not ASCII text");
  EXPECT_EQ(error_in("\xc3\xa9>a\nAC\n"), ":1: byte 0xc3 is not ASCII text");
  EXPECT_EQ(error_in(">a\x1b[31m\nAC\n"), ":1: byte 0x1b is not text");
  EXPECT_EQ(error_in(">a\nAC\n>b\x7f\nAC\n"), ":3: byte 0x7f is not text");
  EXPECT_EQ(error_in(">a\rACD\r>b\rACD"), ":1: carriage return inside a line");
  EXPECT_EQ(error_in(""), ": holds no record, expected '>' lines");
  EXPECT_EQ(error_in(" \n\r\n\n"), ": holds no record, expected '>' lines");
}

TEST(FastaReader, ReportsFilesThatCannotBeRead) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_of(folder.file("missing")),
            folder.file("missing") + ": cannot open: No such file or directory");
  EXPECT_EQ(error_of(folder.path().string()),
            folder.path().string() + ": cannot read: Is a directory");
}

TEST(FastaReader, ReportsGzipDataCutAnywhere) {
  const TemporaryFolder folder;
  const std::string whole = gzip(">a\nMKTAYIAKQR\n>b\nACDEFGHIKL\n");
  for (size_t size = 2; size < whole.size(); ++size) {
    const std::string path = folder.write("cut.gz", whole.substr(0, size));
    const std::string error = error_of(path);
    EXPECT_NE(error.find("gzip data is cut off"), std::string::npos) << size << ": " << error;
    EXPECT_EQ(error.substr(0, path.size() + 1), path + ":");
  }
  const std::string second = gzip(">c\nAAA\n");
  for (size_t size = 1; size < second.size(); ++size) {
    const std::string error = error_of(folder.write("cut.gz", whole + second.substr(0, size)));
    EXPECT_NE(error.find("gzip data is cut off"), std::string::npos) << size << ": " << error;
  }
}

TEST(FastaReader, ReportsDamagedGzipData) {
  const TemporaryFolder folder;
  std::string text = gzip(many_records());
  text[text.size() - 6] ^= 0x40;  // inside the checksum
  EXPECT_NE(error_of(folder.write("a", text)).find("gzip data is damaged"), std::string::npos);
  EXPECT_NE(error_of(folder.write("b", gzip(">a\nAC\n") + ">b\nAC\n"))
                .find(":3: gzip data is followed by other bytes"),
            std::string::npos);
}

TEST(FastaReader, SurvivesEveryByteFlipOfAGzipFile) {
  const TemporaryFolder folder;
  const std::string whole = gzip(">a\nMKTAYIAKQR\n>b\nACDEFGHIKL\n");
  int refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string text = whole;
      text[at] = static_cast<char>(text[at] ^ (1 << bit));
      try {
        read_all(folder.write("flip", text));
      } catch (const std::runtime_error&) {
        ++refused;
      }
    }
  }
  // Only the time, the flags of speed and the system's name in the gzip header are unprotected.
  EXPECT_GE(refused, static_cast<int>(whole.size() * 8) - 8 * 7);
}

TEST(CleanResidues, NormalisesLikeTheReader) {
  FastaCounts counts;
  EXPECT_EQ(clean_residues("MKT", counts), "MKT");
  EXPECT_EQ(counts.changes(), "");
  counts = {};
  EXPECT_EQ(clean_residues("mk-tJ *a*", counts), "MKTXA");
  EXPECT_EQ(counts.changes(),
            "4 lower-case letters raised, 1 gaps removed, 1 trailing stops removed, 1 interior "
            "stops removed, 1 unknown letters (J) made X, 1 digits and blanks removed");
  EXPECT_EQ(counts.residues, 5);
  EXPECT_EQ(counts.interior_stops, 1);
  EXPECT_EQ(counts.trailing_stops, 1);
  EXPECT_EQ(counts.records, 0);
  EXPECT_EQ(message_of<favor::Error>([&] { clean_residues("AC\xc3", counts); }),
            "sequence: character 3 is byte 0xc3, expected a letter, '*', '-' or '.'");
}

TEST(CleanResidues, CountsALowerCaseUnknownLetterTwice) {
  FastaCounts counts;
  EXPECT_EQ(clean_residues("j", counts), "X");
  EXPECT_EQ(counts.lowercased, 1);
  EXPECT_EQ(counts.unknown, 1);
}

}  // namespace
}  // namespace performer
