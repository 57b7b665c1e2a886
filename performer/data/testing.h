// SPDX-License-Identifier: Apache-2.0
// Helpers of this folder's tests: a folder that vanishes, files, BLAST databases byte by byte, and
// messages of exceptions.
#ifndef PERFORMER_DATA_TESTING_H_
#define PERFORMER_DATA_TESTING_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace performer {

/// A new empty folder, removed with its content at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "data_test_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

  /// Writes a file and returns its path.
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(file(name), std::ios::binary) << content;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The message `call` throws as exactly this kind of exception; a failure when it throws nothing.
template <class Exception, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// Big-endian bytes.
inline std::string big32(size_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

/// An IDX file of bytes.
inline std::string idx_bytes(const std::vector<size_t>& sizes, std::string_view values) {
  std::string bytes = big32(0x0800 + sizes.size());
  for (const size_t size : sizes) bytes += big32(size);
  return bytes.append(values);
}

/// A folder of IDX pictures: `num_train` and `num_test` grey ones of edge x edge pixels, whose
/// values differ, and classes that go round.
inline void write_idx_pictures(const TemporaryFolder& folder, size_t num_train, size_t num_test,
                               size_t edge, size_t num_classes) {
  for (const auto& [name, count] : {std::pair{"train", num_train}, std::pair{"t10k", num_test}}) {
    std::string values, labels;
    for (size_t i = 0; i < count; ++i) {
      labels += static_cast<char>(i % num_classes);
      for (size_t v = 0; v < edge * edge; ++v) values += static_cast<char>(i * 31 + v * 7 + count);
    }
    folder.write(std::string(name) + "-images-idx3-ubyte", idx_bytes({count, edge, edge}, values));
    folder.write(std::string(name) + "-labels-idx1-ubyte", idx_bytes({count}, labels));
  }
}

/// The three files of a database; what a test wants damaged it changes before write().
struct BlastFiles {
  std::string pin, psq, phr;

  /// Headers and letters of `-ABCDEFGHIKLMNPQRSTVWXYZU*OJ`.
  using Records = std::vector<std::pair<std::string, std::string>>;
  explicit BlastFiles(const Records& records) {
    const std::string letters = "-ABCDEFGHIKLMNPQRSTVWXYZU*OJ";
    psq = std::string(1, '\0');
    std::string header_offsets, sequence_offsets;
    size_t longest = 0, total = 0;
    for (const auto& [header, sequence] : records) {
      header_offsets += big32(phr.size());
      sequence_offsets += big32(psq.size());
      // Indefinite lengths around, a short or long definite one before the string.
      phr += std::string("\x30\x80\x30\x80\xa0\x80\x1a", 7);
      if (header.size() < 128) {
        phr += static_cast<char>(header.size());
      } else {
        phr += std::string("\x82", 1) + big32(header.size()).substr(2);
      }
      phr += header + std::string("\0\0\xa1\x80\0\0\0\0\0\0", 10);
      for (const char c : sequence) psq += static_cast<char>(letters.find(c));
      psq += '\0';
      longest = std::max(longest, sequence.size());
      total += sequence.size();
    }
    header_offsets += big32(phr.size());
    sequence_offsets += big32(psq.size());
    pin = big32(4) + big32(1) + big32(5) + "title" + big32(4) + "date" + big32(records.size());
    for (int i = 0; i < 8; ++i) pin += static_cast<char>(total >> (8 * i) & 0xff);
    pin += big32(longest) + header_offsets + sequence_offsets;
  }

  /// Returns the path to read.
  std::string write(const TemporaryFolder& folder, const std::string& name) const {
    folder.write(name + ".pin", pin);
    folder.write(name + ".psq", psq);
    folder.write(name + ".phr", phr);
    return folder.file(name);
  }
};

}  // namespace performer

#endif  // PERFORMER_DATA_TESTING_H_
