// SPDX-License-Identifier: Apache-2.0
// Arrays of numpy and the zip files that hold them.
#include "performer/data/npy.h"

#include <gtest/gtest.h>

#include "performer/data/testing.h"
#include "performer/data/testing_numpy.h"
#include "performer/data/zip.h"

namespace performer {
namespace {

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

NpyArray parse(const std::string& bytes) {
  return parse_npy(bytes_of(bytes), nullptr, "a.npy");
}

std::string error_of_npy(const std::string& bytes) {
  return message_of<std::runtime_error>([&] { parse(bytes).whole_numbers(); });
}

TEST(Npy, ArraysComeWithTypeAndShape) {
  const std::string bytes = npy_bytes("|u1", "(2, 3)", "abcdef");
  const NpyArray array = parse(bytes);
  EXPECT_EQ(array.type, "|u1");
  EXPECT_EQ(array.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::string(array.bytes.begin(), array.bytes.end()), "abcdef");
  EXPECT_EQ(parse(npy_bytes("|u1", "()", "a")).shape.size(), 0u);
  EXPECT_EQ(parse(npy_bytes("|u1", "(0, 7)", "")).shape[1], 7);
}

TEST(Npy, WholeNumbersOfEveryType) {
  const auto numbers = [](const std::string& type, const std::string& shape,
                          const std::string& bytes) {
    const std::string file = npy_bytes(type, shape, bytes);
    return parse(file).whole_numbers();
  };
  using Numbers = std::vector<int64_t>;
  EXPECT_EQ(numbers("|u1", "(2,)", "\x01\xff"), (Numbers{1, 255}));
  EXPECT_EQ(numbers("|i1", "(2,)", "\x01\xff"), (Numbers{1, -1}));
  EXPECT_EQ(numbers("<u2", "(1,)", "\x01\xff"), (Numbers{0xff01}));
  EXPECT_EQ(numbers(">i2", "(1,)", "\xff\xfe"), (Numbers{-2}));
  EXPECT_EQ(numbers("<i8", "(1,)", std::string("\x03\0\0\0\0\0\0\0", 8)), (Numbers{3}));
  EXPECT_EQ(error_of_npy(npy_bytes("<f4", "(1,)", "abcd")),
            "a.npy: has numbers of type <f4, expected whole ones (|u1, <i8, ...)");
}

TEST(Npy, OtherFilesAreRefusedWithTheirPlace) {
  EXPECT_EQ(error_of_npy("no array of any kind"),
            "a.npy: byte 0: is no array of numpy, expected one that begins with \\x93NUMPY");
  std::string bytes = npy_bytes("|u1", "(2,)", "ab");
  bytes[6] = 9;
  EXPECT_EQ(error_of_npy(bytes), "a.npy: byte 6: version is 9, expected 1 to 3");
  bytes = npy_bytes("|u1", "(2,)", "ab");
  bytes[9] = 100;
  EXPECT_TRUE(error_of_npy(bytes).starts_with("a.npy: byte 8: the head has 25"))
      << error_of_npy(bytes);
  EXPECT_EQ(error_of_npy(npy_bytes("|O", "(2,)", "ab")),
            "a.npy: byte 10: type is '|O', expected a number such as |u1 or <i8");
  EXPECT_EQ(error_of_npy(npy_bytes("|u1", "(2, x)", "ab")),
            "a.npy: byte 10: shape is (2, x), expected sizes");
  EXPECT_EQ(error_of_npy(npy_bytes("|u1", "(3,)", "ab", "True")),
            "a.npy: byte 10: fortran_order is 'True', expected False (row by row)");
  EXPECT_NE(error_of_npy(npy_bytes("<i8", "(3,)", "ab"))
                .find("there are 2 bytes of numbers, expected 24 (shape (3,), type <i8)"),
            std::string::npos);
}

TEST(Zip, MembersComeBackStoredAndDeflated) {
  const TemporaryFolder folder;
  const std::string text(5000, 'x');
  for (const bool deflated : {false, true}) {
    const std::string path =
        folder.write("a.zip", zip_bytes_of({{"one", "1"}, {"two", text}}, deflated));
    const auto file = std::make_shared<const MappedFile>(path);
    const std::vector<ZipMember> members = zip_members(*file);
    ASSERT_EQ(members.size(), 2u);
    EXPECT_EQ(members[1].name, "two");
    const ZipBytes bytes = zip_bytes(file, members[1]);
    EXPECT_EQ(std::string(bytes.bytes.begin(), bytes.bytes.end()), text);
    EXPECT_EQ(bytes.owner == file, !deflated);
  }
}

TEST(Zip, DamageIsRefusedWithItsPlace) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.zip");
  const auto error = [&](const std::string& bytes) {
    folder.write("a.zip", bytes);
    const std::string text = message_of<std::runtime_error>([&] {
      const auto file = std::make_shared<const MappedFile>(path);
      for (const ZipMember& member : zip_members(*file)) zip_bytes(file, member);
    });
    EXPECT_TRUE(text.starts_with(path + ": byte ")) << text;
    return text.substr(std::min(text.size(), path.size() + 2));
  };
  const std::string good = zip_bytes_of({{"one", std::string(300, 'a') + "bcd"}}, true);
  EXPECT_EQ(error("no archive of any kind, but long"),
            "byte 32: the file ends without the directory of a zip file, expected one");
  EXPECT_NE(error(good.substr(0, good.size() - 5)).find("without the directory"),
            std::string::npos);
  std::string bad = good;
  bad[0] = 'Q';
  EXPECT_EQ(error(bad), "byte 0: is 67324753, expected 67324752 (the mark of a member)");
  bad = good;
  bad[35] ^= 0x55;
  const std::string torn = error(bad);
  EXPECT_TRUE(torn.find("damaged") != std::string::npos ||
              torn.find("checksum") != std::string::npos)
      << torn;
  std::string stored = zip_bytes_of({{"one", "abc"}}, false);
  stored[33] = 'x';
  EXPECT_EQ(error(stored), "byte 33: one has the checksum 651417917, expected 891568578");
  const size_t directory = good.find("PK\x01\x02");
  bad = good;
  bad[directory + 16] ^= 1;
  EXPECT_NE(error(bad).find("has the checksum"), std::string::npos);
  bad = good;
  bad[directory + 10] = 12;
  EXPECT_NE(error(bad).find("one is packed by method 12, expected 0 (stored) or 8 (deflate)"),
            std::string::npos);
  bad = good;
  bad[directory + 8] = 1;
  EXPECT_NE(error(bad).find("is encrypted"), std::string::npos);
  bad = good;
  bad[directory + 22] = 1;  // 65536 more bytes than the file has
  EXPECT_NE(error(bad).find("bytes ends, expected"), std::string::npos);
  bad = good;
  bad[directory + 27] = 0x7f;  // of 2 GB
  EXPECT_NE(error(bad).find("expected at most 1032 times as many"), std::string::npos);
  bad = good;
  bad[directory + 24] ^= 1;
  EXPECT_NE(error(bad).find("damaged or of another size"), std::string::npos);
}

TEST(Npz, ArraysOfNumpyItself) {
  const TemporaryFolder folder;
  const auto file = std::make_shared<const MappedFile>(folder.write("a.npz", kNumpyCompressed));
  const NpyArray data = read_npz(file, "data");
  EXPECT_EQ(data.shape, (std::vector<int64_t>{2, 12}));
  EXPECT_EQ(data.bytes[11], 11);
  EXPECT_EQ(data.bytes[12], 212);
  EXPECT_EQ(read_npz(file, "labels").whole_numbers(), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(message_of<std::runtime_error>([&] { read_npz(file, "mean"); }),
            folder.file("a.npz") + ": holds data.npy, labels.npy, expected mean.npy among them");
}

}  // namespace
}  // namespace performer
