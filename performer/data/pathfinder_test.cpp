// SPDX-License-Identifier: Apache-2.0
#include "performer/data/pathfinder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "favor/check.h"
#include "performer/data/png.h"
#include "performer/data/testing.h"

namespace performer {
namespace {

// Places that a dot alone makes this bright.
std::vector<std::pair<int64_t, int64_t>> bright(const PathfinderImage& image, int64_t size) {
  std::vector<std::pair<int64_t, int64_t>> places;
  for (int64_t i = 0; i < size * size; ++i) {
    if (image.pixels[static_cast<size_t>(i)] > 235) places.emplace_back(i / size, i % size);
  }
  return places;
}

TEST(Pathfinder, ParametersAreThePublishedOnes) {
  const PathfinderOptions small = PathfinderOptions::of_size(32, 14);
  EXPECT_EQ(small.distractor_length, 4);
  EXPECT_EQ(small.num_distractors, 5);
  EXPECT_EQ(small.paddle_length, 2);
  EXPECT_EQ(small.paddle_margin, 1);
  EXPECT_EQ(small.paddle_thickness, 0.5);
  EXPECT_EQ(small.marker_radius, 1.5);
  EXPECT_EQ(small.seed_distance, 7);
  EXPECT_EQ(small.continuity, 1);
  const PathfinderOptions large = PathfinderOptions::of_size(64, 14);
  EXPECT_EQ(large.paddle_thickness, 1);
  EXPECT_EQ(large.marker_radius, 2.5);
  EXPECT_EQ(large.seed_distance, 12);
  EXPECT_EQ(large.continuity, 1.8);
}

TEST(Pathfinder, PicturesHaveTwoDotsAndDimPathsAndBalancedClasses) {
  for (const int64_t length : {6, 9, 14}) {
    const PathfinderOptions options = PathfinderOptions::of_size(32, length);
    int64_t connected = 0;
    double light[2] = {0, 0};
    for (uint64_t i = 0; i < 120; ++i) {
      favor::RandomStream random(5, i);
      const PathfinderImage image = draw_pathfinder(random, options);
      ASSERT_EQ(image.pixels.size(), 32U * 32);
      connected += image.connected;
      light[image.connected] +=
          std::accumulate(image.pixels.begin(), image.pixels.end(), 0.0) / (255 * 1024);
      // Two clusters of bright places, as wide as a dot, apart from each other.
      const auto places = bright(image, 32);
      ASSERT_GE(places.size(), 4U);
      const auto near = [&](std::pair<int64_t, int64_t> a, std::pair<int64_t, int64_t> b) {
        return std::abs(a.first - b.first) <= 3 && std::abs(a.second - b.second) <= 3;
      };
      const auto other = std::find_if(places.begin(), places.end(),
                                      [&](const auto& p) { return !near(p, places[0]); });
      ASSERT_NE(other, places.end());
      for (const auto& place : places) {
        EXPECT_TRUE(near(place, places[0]) || near(place, *other)) << i;
      }
    }
    EXPECT_GT(connected, 40);
    EXPECT_LT(connected, 80);
    // The amount of light gives nothing away.
    const double a = light[0] / double(120 - connected), b = light[1] / double(connected);
    EXPECT_NEAR(a / b, 1, 0.06) << length;
  }
}

TEST(Pathfinder, ExamplesDependOnSeedAndNumberAlone) {
  const PathfinderOptions options = PathfinderOptions::of_size(32, 9);
  const auto set = pathfinder_set(options, 10, 3, 256);
  EXPECT_EQ(set->length(0), 1025);
  EXPECT_EQ(set->example(4, 0).tokens.size(), 1025U);
  EXPECT_EQ(set->example(4, 0).tokens[0], 256);
  EXPECT_EQ(set->example(4, 0).tokens, pathfinder_set(options, 10, 3, 256)->example(4, 7).tokens);
  EXPECT_NE(set->example(4, 0).tokens, set->example(5, 0).tokens);
  EXPECT_NE(set->example(4, 0).tokens, pathfinder_set(options, 10, 4, 256)->example(4, 0).tokens);
  EXPECT_EQ(pathfinder_set(options, 10, 3, -1)->length(0), 1024);
}

TEST(Pathfinder, RefusesWhatHasNoRoom) {
  PathfinderOptions options = PathfinderOptions::of_size(16, 40);
  options.paddle_length = 4;
  favor::RandomStream random(1, 1);
  EXPECT_EQ(
      message_of<std::runtime_error>([&] { draw_pathfinder(random, options); }),
      "pathfinder: paths of 40 paddles find no room in 16 x 16 pixels, expected shorter ones");
  options.size = 8;
  EXPECT_EQ(message_of<favor::Error>([&] { options.check(); }),
            "image_size is 8, expected 16 to 512");
}

TEST(ReadPathfinder, PicturesAreDividedInTheOrderOfTheMetadata) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "metadata");
  std::filesystem::create_directories(folder.path() / "imgs/0");
  std::string lines[2];
  for (int i = 0; i < 20; ++i) {
    const std::string name = "sample_" + std::to_string(i) + ".png";
    write_png(folder.file("imgs/0/" + name),
              {16, 16, 1, std::vector<uint8_t>(256, static_cast<uint8_t>(i))});
    lines[i < 12 ? 0 : 1] +=
        "imgs/0 " + name + " " + std::to_string(i) + " " + std::to_string(i % 2) + " 1.0 14\n";
  }
  // By number, not by name: 2 comes before 10.
  folder.write("metadata/2.npy", lines[0]);
  const std::string second = folder.write("metadata/10.npy", lines[1]);
  const auto read = [&](int64_t size) { return read_pathfinder(folder.path().string(), size, -1); };
  const PathfinderSplits splits = read(16);
  EXPECT_EQ(splits.train->size(), 16);
  EXPECT_EQ(splits.valid->size(), 2);
  EXPECT_EQ(splits.test->size(), 2);
  EXPECT_EQ(splits.train->example(3, 0).tokens, std::vector<int64_t>(256, 3));
  EXPECT_EQ(splits.train->example(3, 0).label, 1);
  EXPECT_EQ(splits.test->example(1, 0).tokens[0], 19);
  EXPECT_EQ(
      message_of<std::runtime_error>([&] { read(32).train->example(0, 0); }),
      folder.file("imgs/0/sample_0.png") + ": is 16 x 16 pixels, expected 32 x 32 (--image-size)");
  folder.write("metadata/10.npy", lines[1] + "imgs/0 x.png 3 maybe\n");
  EXPECT_EQ(
      message_of<std::runtime_error>([&] { read(16); }),
      second + ":9: is 'imgs/0 x.png 3 maybe', expected: folder, name.png, number, 0 or 1, ...");
  EXPECT_NE(message_of<std::runtime_error>([&] {
              read_pathfinder(folder.file("imgs"), 16, -1);
            }).find("holds no file named <number>.npy"),
            std::string::npos);
}

}  // namespace
}  // namespace performer
