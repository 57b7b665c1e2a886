// SPDX-License-Identifier: Apache-2.0
// The program as its users run it: a folder with data, commands started in it, their outcome.
#ifndef PERFORMER_CLI_TESTING_H_
#define PERFORMER_CLI_TESTING_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "favor/random.h"

namespace performer {

struct Outcome {
  int status = -1;  // -1: ended by a signal
  std::string out, err;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    namespace fs = std::filesystem;
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("performer-cli-" + std::string(info->name()) + "-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    const std::string letters = "ACDEFGHIKLMNPQRSTVWY";
    favor::RandomStream random(7, 1);
    std::ofstream fasta(folder_ / "data.fasta");
    for (int i = 0; i < 120; ++i) {
      fasta << ">r" << i << "\n";
      const uint64_t length = 20 + random.below(60);
      for (uint64_t j = 0; j < length; ++j) fasta << letters[random.below(20)];
      fasta << "\n";
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Starts the program with its streams in files.
  pid_t start(const std::vector<std::string>& arguments) const {
    const pid_t child = ::fork();
    if (child != 0) return child;
    const auto redirect = [](const std::string& file, int to) {
      const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
      ::dup2(descriptor, to);
    };
    // Threads that spin while they wait would starve whatever else runs on the machine.
    ::setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
    if (file_limit_ > 0) {
      const rlimit limit = {file_limit_, file_limit_};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (!input_.empty()) ::dup2(::open(input_.c_str(), O_RDONLY), STDIN_FILENO);
    redirect(path("stdout"), STDOUT_FILENO);
    redirect(path("stderr"), STDERR_FILENO);
    std::vector<char*> argv = {const_cast<char*>(PERFORMER_BINARY)};
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    ::execv(PERFORMER_BINARY, argv.data());
    ::_exit(127);
  }

  Outcome run(const std::vector<std::string>& arguments) const {
    int status = 0;
    ::waitpid(start(arguments), &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(path("stdout")),
            read_file(path("stderr"))};
  }

  std::vector<std::string> train_arguments(const std::string& run) const {
    return {"train",
            "--data",
            path("data.fasta"),
            "--out",
            path(run),
            "--dim",
            "32",
            "--num-layers",
            "2",
            "--num-heads",
            "2",
            "--ff-dim",
            "64",
            "--num-features",
            "16",
            "--length",
            "64",
            "--batch-tokens",
            "256",
            "--valid-fraction",
            "0.1",
            "--test-fraction",
            "0.1",
            "--max-steps",
            "30",
            "--log-interval",
            "5",
            "--eval-interval",
            "10",
            "--save-interval",
            "10",
            "--threads",
            "2",
            "--seed",
            "4",
            "--warmup-steps",
            "5",
            "--schedule",
            "cosine",
            "--redraw-interval",
            "7",
            "--quiet"};
  }

  Outcome train(const std::string& run_name, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = train_arguments(run_name);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  // A run of one step: what the commands do does not depend on what a model has learned.
  void train_model(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = train_arguments("run");
    for (size_t i = 0; i + 1 < arguments.size(); ++i) {
      if (arguments[i] == "--max-steps") arguments[i + 1] = std::string("1");
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome trained = run(arguments);
    ASSERT_EQ(trained.status, 0) << trained.err;
  }

  std::filesystem::path folder_;
  rlim_t file_limit_ = 0;  // bytes that no file of the programs started may exceed; 0: no limit
  std::string input_;      // file that is standard input of the programs started
};

inline void expect_error(const Outcome& outcome, int status,
                         const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.status, status) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(outcome.err.starts_with("performer: error: ")) << outcome.err;
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
}

}  // namespace performer

#endif  // PERFORMER_CLI_TESTING_H_
