// SPDX-License-Identifier: Apache-2.0
#include "performer/train/event_file.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "favor/check.h"

namespace performer {
namespace {

using favor::message;

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    // The Castagnoli polynomial, bits reversed.
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) {
    bytes += static_cast<char>(value >> (8 * i) & 0xff);
  }
  return bytes;
}

// Checksums are rotated and shifted so that a record of records does not check itself.
uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

// Fields of a protocol buffer: a key of number and wire type, then the value.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

std::string number_field(int field, int64_t value) {
  return varint(uint64_t(field) << 3) + varint(static_cast<uint64_t>(value));
}

std::string double_field(int field, double value) {
  return varint(uint64_t(field) << 3 | 1) + little_endian(std::bit_cast<uint64_t>(value));
}

std::string float_field(int field, float value) {
  return varint(uint64_t(field) << 3 | 5) + little_endian(std::bit_cast<uint32_t>(value));
}

std::string bytes_field(int field, const std::string& bytes) {
  return varint(uint64_t(field) << 3 | 2) + varint(bytes.size()) + bytes;
}

// message Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
std::string event(double wall_time, int64_t step, const std::string& what) {
  return double_field(1, wall_time) + number_field(2, step) + what;
}

std::string host_name() {
  char name[256] = "host";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  }
  return ~crc;
}

std::string event_record(std::string_view data) {
  const std::string length = little_endian(uint64_t{data.size()});
  return length + little_endian(masked_crc(length)) + std::string(data) +
         little_endian(masked_crc(data));
}

EventFile::EventFile(const std::string& folder, int64_t first_step, double wall_time) {
  static std::atomic<int> number{0};
  path_ = (std::filesystem::path(folder) / message("events.out.tfevents.",
                                                   static_cast<int64_t>(wall_time), ".",
                                                   host_name(), ".", ::getpid(), ".", number++))
              .string();
  file_ = std::fopen(path_.c_str(), "wxb");
  if (!file_) {
    throw std::runtime_error(message(path_, ": cannot be created: ", std::strerror(errno)));
  }
  append(event(wall_time, 0, bytes_field(3, "brain.Event:2")));
  // A start of session (SessionLog.status = START) makes readers purge the steps from here on.
  if (first_step > 0) append(event(wall_time, first_step, bytes_field(7, number_field(1, 1))));
}

EventFile::~EventFile() {
  std::fclose(file_);
}

void EventFile::write(int64_t step, const std::vector<Scalar>& scalars, double wall_time) {
  // message Summary: value = 1 of (tag = 1, simple_value = 2).
  std::string summary;
  for (const auto& [name, value] : scalars) {
    summary += bytes_field(1, bytes_field(1, name) + float_field(2, static_cast<float>(value)));
  }
  append(event(wall_time, step, bytes_field(5, summary)));
}

void EventFile::append(const std::string& bytes) {
  const std::string record = event_record(bytes);
  if (std::fwrite(record.data(), 1, record.size(), file_) != record.size() ||
      std::fflush(file_) != 0) {
    throw std::runtime_error(message(path_, ": cannot be written: ", std::strerror(errno)));
  }
}

}  // namespace performer
