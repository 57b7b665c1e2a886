// SPDX-License-Identifier: Apache-2.0
#include "performer/data/safetensors.h"

#include <sys/stat.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "favor/check.h"
#include "favor/random.h"
#include "performer/data/atomic_file.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

template <class T>
StoredTensor tensor(const std::string& name, StoredType type, std::vector<int64_t> shape,
                    const std::vector<T>& values) {
  return {name, type, std::move(shape), values.data(), values.size() * sizeof(T)};
}

// A file's bytes from a header text and data.
std::string assemble(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + data;
}

std::string error_of(const TemporaryFolder& folder, const std::string& content) {
  const std::string path = folder.write("bad.safetensors", content);
  const std::string error = message_of<std::runtime_error>([&] { SafetensorsFile file(path); });
  EXPECT_EQ(error.substr(0, path.size() + 2), path + ": ");
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  return error.substr(std::min(error.size(), path.size() + 2));
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, ReadsWhatItWrites) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  const std::vector<float> f32 = {1.5F, -2.0F, 3.25F, 0.0F, 5.0F, 6.0F};
  const std::vector<double> f64 = {1e300};
  const std::vector<int64_t> i64 = {-1, INT64_MAX};
  const std::vector<int32_t> i32 = {7};
  const std::vector<uint16_t> half = {0x3f80, 0x1234, 0xffff};
  const std::vector<uint8_t> bytes = {0, 1, 255};
  const std::vector<float> none;
  const std::vector<StoredTensor> tensors = {
      tensor("weight", StoredType::kF32, {2, 3}, f32), tensor("u8", StoredType::kU8, {3}, bytes),
      tensor("scalar", StoredType::kF64, {}, f64),     tensor("i64", StoredType::kI64, {2}, i64),
      tensor("bf16", StoredType::kBF16, {3, 1}, half), tensor("f16", StoredType::kF16, {3}, half),
      tensor("flag", StoredType::kBool, {3}, bytes),   tensor("i32", StoredType::kI32, {1}, i32),
      tensor("empty", StoredType::kF32, {0, 4}, none)};
  const std::map<std::string, std::string> metadata = {{"format_version", "1"},
                                                       {"quote", "\"\n\u00e9"}};
  write_safetensors(path, tensors, metadata);
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const StoredTensor& expected : tensors) {
    ASSERT_TRUE(file.contains(expected.name));
    const StoredTensor& got = file.at(expected.name);
    EXPECT_EQ(got.type, expected.type);
    EXPECT_EQ(got.shape, expected.shape);
    ASSERT_EQ(got.bytes, expected.bytes);
    if (got.bytes > 0) {
      EXPECT_EQ(std::memcmp(got.data, expected.data, got.bytes), 0) << expected.name;
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(got.data) % bytes_per_element(got.type), 0u)
        << "our own files are aligned";
  }
  EXPECT_FALSE(file.contains("bias"));
  EXPECT_EQ(message_of<std::runtime_error>([&] { file.at("bias"); }),
            path + ": tensor 'bias' is missing");
}

TEST(Safetensors, WritesTheFormatByteForByte) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  const std::vector<uint8_t> bytes = {1, 2};
  const std::vector<int32_t> ints = {0x04030201};
  write_safetensors(
      path, {tensor("b", StoredType::kU8, {2}, bytes), tensor("a", StoredType::kI32, {1}, ints)},
      {{"k", "v"}});
  std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"data_offsets":[0,4],"dtype":"I32","shape":[1]},)"
      R"("b":{"data_offsets":[4,6],"dtype":"U8","shape":[2]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(read_whole(path), assemble(header, "\1\2\3\4\1\2"));
  const std::string again = folder.file("b");
  write_safetensors(
      again, {tensor("a", StoredType::kI32, {1}, ints), tensor("b", StoredType::kU8, {2}, bytes)},
      {{"k", "v"}});
  EXPECT_EQ(read_whole(again), read_whole(path)) << "the order of the tensors does not matter";
}

TEST(Safetensors, HoldsNoTensorAtAll) {
  const TemporaryFolder folder;
  write_safetensors(folder.file("a"), {});
  const SafetensorsFile file(folder.file("a"));
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST(Safetensors, MovesWithItsViews) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> bytes = {1, 2};
  write_safetensors(folder.file("a"), {tensor("b", StoredType::kU8, {2}, bytes)});
  SafetensorsFile first(folder.file("a"));
  const StoredTensor view = first.at("b");
  const SafetensorsFile second = std::move(first);
  EXPECT_EQ(second.at("b").data, view.data);
  EXPECT_EQ(std::memcmp(view.data, bytes.data(), 2), 0);
}

TEST(Safetensors, WriterRefusesWrongTensorsAndLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a", "old");
  const std::vector<float> values = {1, 2};
  const auto error = [&](const std::vector<StoredTensor>& tensors) {
    return message_of<favor::Error>([&] { write_safetensors(path, tensors); });
  };
  const StoredTensor good = tensor("w", StoredType::kF32, {2}, values);
  EXPECT_EQ(error({good, good}), "write_safetensors: duplicate tensor name 'w'");
  EXPECT_EQ(error({tensor("__metadata__", StoredType::kF32, {2}, values)}),
            "write_safetensors: tensor name __metadata__ is reserved");
  EXPECT_EQ(error({tensor("w", StoredType::kF32, {3}, values)}),
            "write_safetensors: tensor 'w' has 8 bytes, expected 12 (F32, shape [3])");
  EXPECT_EQ(error({tensor("w", StoredType::kF32, {-2}, values)}),
            "write_safetensors: tensor 'w' has shape [-2], expected sizes >= 0");
  EXPECT_EQ(error({tensor("w", StoredType::kF32, {INT64_MAX, 8}, values)}).substr(0, 40),
            "write_safetensors: tensor 'w' has shape ");
  EXPECT_NE(error({tensor("\xff", StoredType::kF32, {2}, values)}).find("not UTF-8"),
            std::string::npos);
  EXPECT_EQ(read_whole(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Safetensors, ReaderNamesWhatIsWrong) {
  const TemporaryFolder folder;
  const auto header_error = [&](const std::string& header, const std::string& data = "") {
    return error_of(folder, assemble(header, data));
  };
  EXPECT_EQ(error_of(folder, ""), "safetensors file has 0 bytes, expected at least 8");
  EXPECT_EQ(error_of(folder, "abc"), "safetensors file has 3 bytes, expected at least 8");
  EXPECT_EQ(error_of(folder, std::string(8, '\xff')),
            "header length is 18446744073709551615, expected at most 100000000 (not a safetensors "
            "file?)");
  EXPECT_EQ(error_of(folder, std::string("\x10\0\0\0\0\0\0\0{}", 10)),
            "header length is 16, but only 2 bytes follow (cut file?)");
  EXPECT_EQ(header_error("{").substr(0, 26), "header is not valid JSON: ");
  EXPECT_EQ(header_error("").substr(0, 26), "header is not valid JSON: ");
  EXPECT_EQ(header_error("{\"\xff\":1}").substr(0, 26), "header is not valid JSON: ");
  EXPECT_EQ(header_error("[]"), "header is array, expected object");
  EXPECT_EQ(header_error(std::string(100'000, '[')).substr(0, 26), "header is not valid JSON: ");
  EXPECT_EQ(header_error(R"({"__metadata__":3})"), "__metadata__ is number, expected object");
  EXPECT_EQ(header_error(R"({"__metadata__":{"a":1}})"),
            "__metadata__ 'a' is number, expected string");
  EXPECT_EQ(header_error(R"({"a\nb\u001b[2J":1})"), "tensor 'a?b?[2J' is number, expected object");
  EXPECT_EQ(header_error(R"({"w":1})"), "tensor 'w' is number, expected object");
  EXPECT_EQ(header_error(R"({"w":{"shape":[],"data_offsets":[0,0]}})"), "tensor 'w' has no dtype");
  EXPECT_EQ(header_error(R"({"w":{"dtype":"F32","data_offsets":[0,0]}})"),
            "tensor 'w' has no shape");
  EXPECT_EQ(header_error(R"({"w":{"dtype":"F32","shape":[]}})"), "tensor 'w' has no data_offsets");
  EXPECT_EQ(header_error(R"({"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":1}})"),
            "tensor 'w' has 4 fields, expected dtype, shape, data_offsets");
  EXPECT_EQ(header_error(R"({"w":{"dtype":1,"shape":[0],"data_offsets":[0,0]}})"),
            "tensor 'w': dtype is number, expected string");
  const auto one = [&](const std::string& dtype, const std::string& shape,
                       const std::string& offsets, const std::string& data = "12345678") {
    return header_error("{\"w\":" + entry(dtype, shape, offsets) + "}", data);
  };
  EXPECT_EQ(one("F8", "[8]", "[0,8]"),
            "tensor 'w': dtype is 'F8', expected F32 | F64 | BF16 | F16 | I64 | I32 | U8 | BOOL");
  EXPECT_EQ(one("F32", "2", "[0,8]"), "tensor 'w': shape is number, expected array");
  EXPECT_EQ(one("F32", "[-2]", "[0,8]"),
            "tensor 'w': shape holds number below 0 or with a fraction, expected whole numbers");
  EXPECT_EQ(one("F32", "[2.0]", "[0,8]"),
            "tensor 'w': shape holds number below 0 or with a fraction, expected whole numbers");
  EXPECT_EQ(one("F32", "[\"2\"]", "[0,8]"),
            "tensor 'w': shape holds string, expected whole numbers");
  EXPECT_EQ(one("F32", "[18446744073709551615]", "[0,8]"),
            "tensor 'w': shape holds 18446744073709551615, too large");
  EXPECT_EQ(one("F32", "[4294967296,4294967296]", "[0,8]"),
            "tensor 'w': shape [4294967296, 4294967296] overflows");
  EXPECT_EQ(one("F32", "[2]", "[0]"), "tensor 'w': data_offsets is no pair of numbers");
  EXPECT_EQ(one("F32", "[2]", "[8,0]"),
            "tensor 'w': data_offsets are [8, 0], expected ascending and at most 8 (cut file?)");
  EXPECT_EQ(one("F32", "[2]", "[0,9]"),
            "tensor 'w': data_offsets are [0, 9], expected ascending and at most 8 (cut file?)");
  EXPECT_EQ(one("F32", "[3]", "[0,8]"), "tensor 'w' has 8 bytes, expected 12 (F32, shape [3])");
  EXPECT_EQ(one("F32", "[1]", "[4,8]"),
            "tensor 'w' starts at byte 4, expected 0 (no gap, no overlap)");
  EXPECT_EQ(one("F32", "[1]", "[0,4]"), "8 bytes of data, but the tensors cover 4");
}

TEST(Safetensors, ReaderRefusesDuplicatesAndOverlap) {
  const TemporaryFolder folder;
  const std::string first = entry("F32", "[1]", "[0,4]");
  const std::string second = entry("F32", "[1]", "[4,8]");
  EXPECT_EQ(error_of(folder, assemble("{\"w\":" + first + ",\"w\":" + second + "}", "12345678")),
            "duplicate name 'w' in the header");
  EXPECT_EQ(error_of(folder, assemble(R"({"__metadata__":{"a":"1","a":"2"}})", "")),
            "duplicate name 'a' in the header");
  EXPECT_EQ(error_of(folder, assemble("{\"v\":" + first + ",\"w\":" + first + "}", "1234")),
            "tensor 'w' starts at byte 0, expected 4 (no gap, no overlap)");
  const SafetensorsFile fine(
      folder.write("fine", assemble("{\"w\":" + second + ",\"v\":" + first + "}", "12345678")));
  EXPECT_EQ(fine.tensors()[0].name, "v");
}

TEST(Safetensors, ReportsFilesThatCannotBeRead) {
  const TemporaryFolder folder;
  EXPECT_EQ(message_of<std::runtime_error>([&] { SafetensorsFile file(folder.file("none")); }),
            folder.file("none") + ": cannot open: No such file or directory");
  EXPECT_EQ(message_of<std::runtime_error>([&] { SafetensorsFile file(folder.path().string()); }),
            folder.path().string() + ": not a regular file");
}

std::string small_file(const TemporaryFolder& folder) {
  const std::vector<float> f32 = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> i64 = {7};
  const std::vector<uint8_t> bytes = {1, 0};
  const std::string path = folder.file("small");
  write_safetensors(
      path,
      {tensor("weight", StoredType::kF32, {2, 3}, f32), tensor("step", StoredType::kI64, {}, i64),
       tensor("flags", StoredType::kBool, {2}, bytes)},
      {{"format_version", "1"}});
  return read_whole(path);
}

// Touches every byte a reader could hand out; true if the file was accepted.
bool reads(const std::string& path) {
  try {
    const SafetensorsFile file(path);
    unsigned sum = 0;
    for (const StoredTensor& stored : file.tensors()) {
      const auto* data = static_cast<const uint8_t*>(stored.data);
      for (size_t i = 0; i < stored.bytes; ++i) sum += data[i];
    }
    return sum < ~0U;
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_EQ(text.substr(0, path.size() + 2), path + ": ");
    return false;
  }
}

TEST(Safetensors, RefusesAFileCutAtAnyByte) {
  const TemporaryFolder folder;
  const std::string whole = small_file(folder);
  ASSERT_TRUE(reads(folder.write("cut", whole)));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(reads(folder.write("cut", whole.substr(0, size)))) << size;
  }
  EXPECT_FALSE(reads(folder.write("cut", whole + "x")));
}

TEST(Safetensors, SurvivesRandomDamage) {
  const TemporaryFolder folder;
  const std::string whole = small_file(folder);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, whole.data(), 8);
  favor::RandomStream random(11, 0);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string text = whole;
    for (uint64_t flips = 1 + random.below(3); flips > 0; --flips) {
      text[random.below(8 + header_bytes)] = static_cast<char>(random.below(256));
    }
    refused += reads(folder.write("flip", text)) ? 0 : 1;
  }
  // Damage to a name or to the metadata's text can go unseen, damage to the structure cannot.
  EXPECT_GT(refused, 600);
  EXPECT_LT(refused, 1000);
}

TEST(AtomicFile, ReplacesContentAndLeavesNothingElse) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.json", "old");
  write_file_atomically(path, "new content");
  EXPECT_EQ(read_whole(path), "new content");
  write_file_atomically(path, "");
  EXPECT_EQ(read_whole(path), "");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(AtomicFile, WithoutCommitTheOldFileStays) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a", "old");
  {
    AtomicFile file(path);
    file.write("half", 4);
    EXPECT_EQ(read_whole(path), "old");
  }
  EXPECT_EQ(read_whole(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(AtomicFile, NamesTheFileThatCannotBeWritten) {
  const TemporaryFolder folder;
  const std::string missing = folder.file("none/a");
  EXPECT_EQ(message_of<std::runtime_error>([&] { write_file_atomically(missing, "x"); }),
            missing + ": cannot create the file: No such file or directory");
  std::filesystem::create_directory(folder.path() / "taken");
  std::filesystem::create_directory(folder.path() / "taken" / "inside");
  EXPECT_EQ(
      message_of<std::runtime_error>([&] { write_file_atomically(folder.file("taken"), "x"); }),
      folder.file("taken") + ": cannot rename into place: Is a directory");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_EQ(message_of<std::runtime_error>([&] { sync_folder(folder.file("none")); }),
            folder.file("none") + ": cannot sync the folder: No such file or directory");
}

TEST(AtomicFile, WritesFromAPlaceInTheCurrentFolder) {
  const TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_file_atomically("plain", "x");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_whole(folder.file("plain")), "x");
}

}  // namespace
}  // namespace performer
