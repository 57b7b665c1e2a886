// SPDX-License-Identifier: Apache-2.0
// What the tests of the trainer share: a folder, made-up data, a tiny model, and runs compared.
#ifndef PERFORMER_TRAIN_TESTING_H_
#define PERFORMER_TRAIN_TESTING_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "favor/random.h"
#include "performer/train/config.h"

namespace performer {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class Train : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("performer-" + std::string(info->name()) + "-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Records in which each letter tells the next, apart from where they start.
  std::string periodic_fasta(int records) const {
    const std::string letters = "ACDEFGHIKLMNPQRSTVWY";
    std::string text;
    for (int i = 0; i < records; ++i) {
      text += ">r" + std::to_string(i) + "\n";
      for (int j = 0; j < 40 + i % 7; ++j) text += letters[(i + 3 * j) % 20];
      text += "\n";
    }
    const std::filesystem::path path = folder_ / "periodic.fasta";
    write_file(path, text);
    return path.string();
  }

  // Records of one letter each: the context tells every letter.
  std::string uniform_fasta(int records) const {
    const std::string letters = "ACDEFGHIKLMNPQRSTVWY";
    std::string text;
    for (int i = 0; i < records; ++i) {
      text += ">r" + std::to_string(i) + "\n" + std::string(20 + i % 40, letters[i % 20]) + "\n";
    }
    const std::filesystem::path path = folder_ / "uniform.fasta";
    write_file(path, text);
    return path.string();
  }

  std::string random_fasta(int records) const {
    const std::string letters = "ACDEFGHIKLMNPQRSTVWY";
    favor::RandomStream random(5, 1);
    std::string text;
    for (int i = 0; i < records; ++i) {
      text += ">r" + std::to_string(i) + "\n";
      const uint64_t length = 10 + random.below(80);
      for (uint64_t j = 0; j < length; ++j) text += letters[random.below(20)];
      text += "\n";
    }
    const std::filesystem::path path = folder_ / "random.fasta";
    write_file(path, text);
    return path.string();
  }

  TrainConfig tiny(const std::string& data, const std::string& run) const {
    TrainConfig config;
    config.model.dim = 32;
    config.model.num_layers = 2;
    config.model.num_heads = 2;
    config.model.ff_dim = 64;
    config.model.max_length = 64;
    config.model.attention.num_features = 16;
    config.data.data = data;
    config.data.length = 64;
    config.data.batch_tokens = 256;
    config.data.valid_fraction = 0.1;
    config.data.test_fraction = 0.1;
    config.optimizer.warmup_steps = 5;
    config.run.max_steps = 20;
    config.run.log_interval = 5;
    config.run.eval_interval = 5;
    config.run.save_interval = 10;
    config.run.out = (folder_ / run).string();
    config.run.quiet = true;
    return config;
  }

  std::filesystem::path folder_;
};

inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// The lines without what the clock says.
inline std::vector<nlohmann::json> timeless_metrics(const std::filesystem::path& run) {
  std::vector<nlohmann::json> lines;
  std::istringstream in(read_file(run / "metrics.jsonl"));
  for (std::string line; std::getline(in, line);) {
    nlohmann::json object = nlohmann::json::parse(line);
    object.erase("tokens_per_s");
    object.erase("elapsed_s");
    object.erase("peak_memory_bytes");
    lines.push_back(object);
  }
  return lines;
}

inline nlohmann::json timeless_state(const std::filesystem::path& checkpoint) {
  nlohmann::json state = nlohmann::json::parse(read_file(checkpoint / "trainer_state.json"));
  state.erase("elapsed_s");
  return state;
}

inline void expect_same_run(const std::filesystem::path& a, const std::filesystem::path& b,
                            int64_t step) {
  const std::string name = "checkpoint-" + std::to_string(step);
  EXPECT_TRUE(read_file(a / name / "model.safetensors") ==
              read_file(b / name / "model.safetensors"));
  EXPECT_TRUE(read_file(a / name / "optimizer.safetensors") ==
              read_file(b / name / "optimizer.safetensors"));
  EXPECT_EQ(timeless_state(a / name), timeless_state(b / name));
  EXPECT_EQ(timeless_metrics(a), timeless_metrics(b));
}

}  // namespace performer

#endif  // PERFORMER_TRAIN_TESTING_H_
