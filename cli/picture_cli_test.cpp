// SPDX-License-Identifier: Apache-2.0
// Models of pictures, from the command line: training, scores, samples and completions.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/testing.h"
#include "performer/data/png.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

using nlohmann::json;

class PictureCli : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    write_idx_pictures(data_, 30, 5, 6, 3);
  }

  Outcome train(const std::string& task, const std::string& run_name,
                const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"train",
                                          "--task",
                                          task,
                                          "--data",
                                          data_.path().string(),
                                          "--out",
                                          path(run_name),
                                          "--dim",
                                          "16",
                                          "--num-layers",
                                          "1",
                                          "--num-heads",
                                          "2",
                                          "--ff-dim",
                                          "32",
                                          "--num-features",
                                          "8",
                                          "--image-size",
                                          "6",
                                          "--batch-tokens",
                                          "200",
                                          "--max-steps",
                                          "3",
                                          "--threads",
                                          "1",
                                          "--quiet",
                                          "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  Outcome draw(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"generate", "--model", path("run"), "--threads",
                                          "1",        "--quiet", "--force"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  TemporaryFolder data_;
};

TEST_F(PictureCli, PixelsAreTrainedScoredAndDrawn) {
  const Outcome trained = train("pixels", "run");
  ASSERT_EQ(trained.status, 0) << trained.err;
  const json test = json::parse(trained.out)["test"];
  EXPECT_EQ(test["targets"], 5 * 36);
  EXPECT_NEAR(test["bits_per_dim"].get<double>(), test["loss"].get<double>() / std::log(2.0), 1e-6);
  EXPECT_LT(test["bits_per_dim"].get<double>(), 10);
  const Outcome scored = run({"eval", "--model", path("run"), "--quiet", "--threads", "1"});
  ASSERT_EQ(scored.status, 0) << scored.err;
  EXPECT_NE(scored.out.find("bits per dim"), std::string::npos) << scored.out;

  const std::string file = path("samples.png");
  const std::vector<std::string> samples = {"--pictures", file, "--count", "5",
                                            "--batch",    "2",  "--seed",  "4"};
  const Outcome drawn = draw(samples);
  ASSERT_EQ(drawn.status, 0) << drawn.err;
  const Picture grid = read_png(file, 1);
  EXPECT_EQ(grid.width, 3 * 7 + 1);
  EXPECT_EQ(grid.height, 2 * 7 + 1);
  const std::string bytes = read_file(file);
  ASSERT_EQ(draw(samples).status, 0);
  EXPECT_EQ(read_file(file), bytes) << "same seed, same pictures";
  std::vector<std::string> other = samples;
  other.back() = "5";
  ASSERT_EQ(draw(other).status, 0);
  EXPECT_NE(read_file(file), bytes);
}

TEST_F(PictureCli, CompletionsStandBetweenWhatIsGivenAndTheOriginal) {
  ASSERT_EQ(train("pixels", "run").status, 0);
  const std::string file = path("completed.png");
  const Outcome drawn = draw({"--pictures", file, "--count", "3", "--keep-rows", "2"});
  ASSERT_EQ(drawn.status, 0) << drawn.err;
  const Picture grid = read_png(file, 1);
  ASSERT_EQ(grid.width, 3 * 7 + 1);
  ASSERT_EQ(grid.height, 3 * 7 + 1);
  const auto at = [&](int64_t picture, int64_t part, int64_t row, int64_t column) {
    return int{grid.pixels[static_cast<size_t>((picture * 7 + 1 + row) * grid.width + part * 7 + 1 +
                                               column)]};
  };
  int changed = 0;
  for (int64_t picture = 0; picture < 3; ++picture) {
    // Five pictures, of which three are evenly spread.
    const int64_t number = picture * 5 / 3;
    for (int64_t v = 0; v < 36; ++v) {
      const int original = static_cast<int>((number * 31 + v * 7 + 5) % 256);
      EXPECT_EQ(at(picture, 2, v / 6, v % 6), original);
      EXPECT_EQ(at(picture, 0, v / 6, v % 6), v < 12 ? original : 128);
      if (v < 12) {
        EXPECT_EQ(at(picture, 1, v / 6, v % 6), original);
      }
      changed += at(picture, 1, v / 6, v % 6) != original;
    }
  }
  EXPECT_GT(changed, 50) << "what was not given is drawn";
}

TEST_F(PictureCli, OptionsWithoutMeaningAreRefused) {
  ASSERT_EQ(train("pixels", "run").status, 0);
  const std::string file = path("a.png");
  expect_error(draw({}), 2,
               {"--pictures is missing, expected a PNG file (a model of task pixels)"});
  expect_error(draw({"--pictures", file, "--prompt", "x"}), 2,
               {"--prompt is given, expected none with a model of task pixels"});
  expect_error(draw({"--pictures", file, "--max-length", "5"}), 2, {"--max-length is given"});
  expect_error(draw({"--keep-rows", "2"}), 2, {"--keep-rows is given without --pictures"});
  expect_error(draw({"--pictures", file, "--data", "x"}), 2,
               {"--data is x, expected none without"});
  expect_error(draw({"--pictures", file, "--keep-rows", "6"}), 1,
               {"--keep-rows is 6, expected less than 6 (rows of a picture)"});
  expect_error(draw({"--pictures", file, "--keep-rows", "2", "--count", "6"}), 1,
               {"--count is 6, expected at most 5 (pictures of"});
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(PictureCli, ClassesAreTrainedOnTheSamePictures) {
  const Outcome trained = train("picture-classes", "run", {"--pooling", "cls"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(json::parse(trained.out)["test"]["targets"], 5);
  expect_error(draw({"--pictures", path("a.png")}), 2,
               {"--pictures is given, expected none with a model of task picture-classes (only "
                "task pixels draws them)"});
}

}  // namespace
}  // namespace performer
