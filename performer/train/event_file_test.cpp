// SPDX-License-Identifier: Apache-2.0
#include "performer/train/event_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "performer/train/run_log.h"

namespace performer {
namespace {

namespace fs = std::filesystem;

TEST(Crc32c, HasTheStandardsCheckValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

// The data of each record of a file, checksums compared.
std::vector<std::string> records_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  const std::string bytes = text.str();
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    const std::string data = bytes.substr(at + 12, length);
    EXPECT_EQ(bytes.substr(at, length + 16), event_record(data));
    records.push_back(data);
    at += length + 16;
  }
  return records;
}

// What TensorBoard's own reader makes of such a file is tested from Python.
TEST(EventFile, HoldsVersionRestartAndScalars) {
  const fs::path folder =
      fs::temp_directory_path() / ("performer-events-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::string first, second;
  {
    EventFile fresh(folder.string(), 0, 1.5);
    fresh.write(300, {{"train/loss", 2.5}}, 2.0);
    EventFile resumed(folder.string(), 300, 3.0);
    first = fresh.path();
    second = resumed.path();
  }
  EXPECT_NE(first, second);
  EXPECT_TRUE(fs::path(first).filename().string().starts_with("events.out.tfevents.1."));
  const std::vector<std::string> records = records_of(first);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_NE(records[0].find("brain.Event:2"), std::string::npos);
  const std::string scalar =
      std::string("\x09\0\0\0\0\0\0\0\x40\x10\xac\x02\x2a\x13\x0a\x11\x0a\x0a", 18) + "train/loss" +
      std::string("\x15\0\0\x20\x40", 5);
  EXPECT_EQ(records[1], scalar);
  const std::vector<std::string> again = records_of(second);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_TRUE(again[1].ends_with(std::string("\x10\xac\x02\x3a\x02\x08\x01", 7)));
  fs::remove_all(folder);
}

TEST(EventFile, NamesAFolderThatIsNotThere) {
  try {
    EventFile file("/nowhere/at/all", 0, 1);
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere/at/all/events.out.tfevents.1."),
              std::string::npos);
    EXPECT_NE(std::string(error.what()).find("cannot be created"), std::string::npos);
  }
}

std::vector<std::string> event_files(const fs::path& run) {
  std::vector<std::string> paths;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(run / "tensorboard", missing)) {
    paths.push_back(entry.path().string());
  }
  return paths;
}

TEST(RunLog, KeepsEventFilesOfTheRunThatGoesOn) {
  const fs::path run =
      fs::temp_directory_path() / ("performer-run-log-" + std::to_string(::getpid()));
  fs::create_directories(run);
  {
    RunLog log(run.string(), -1, /*tensorboard=*/true);
    log.write(TrainMetrics{1, 10, 2.5, 0.1, 1, 5, 2, 100});
    log.write(EvalMetrics{1, "valid", {4, 2.5, 12.2, 0.1}, {4, 3, 20, 0.05}});
  }
  ASSERT_EQ(event_files(run).size(), 1u);
  const std::vector<std::string> records = records_of(event_files(run)[0]);
  ASSERT_EQ(records.size(), 3u);
  for (const char* tag : {"train/loss", "train/lr", "train/grad_norm", "train/tokens_per_s"}) {
    EXPECT_NE(records[1].find(tag), std::string::npos) << tag;
  }
  EXPECT_NE(records[2].find("valid/perplexity"), std::string::npos);
  RunLog(run.string(), 1, /*tensorboard=*/true);
  EXPECT_EQ(event_files(run).size(), 2u);
  RunLog(run.string(), 1, /*tensorboard=*/false);
  EXPECT_EQ(event_files(run).size(), 2u);
  RunLog(run.string(), -1, /*tensorboard=*/false);
  EXPECT_EQ(event_files(run).size(), 0u);
  std::ofstream(run / "tensorboard") << "a file";
  EXPECT_THROW(RunLog(run.string(), 0, true), std::runtime_error);
  fs::remove_all(run);
}

}  // namespace
}  // namespace performer
