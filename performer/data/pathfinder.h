// SPDX-License-Identifier: Apache-2.0
// Pathfinder (Linsley et al. 2018) in the sizes of the Long Range Arena: two dots on dashed paths
// among distractors; the class says whether one path joins them. Pictures are drawn anew from the
// published parameters, not by the published program: paths bend by normal angles, and everything
// keeps its distance from everything else.
#ifndef PERFORMER_DATA_PATHFINDER_H_
#define PERFORMER_DATA_PATHFINDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "favor/random.h"
#include "performer/data/examples.h"

namespace performer {

/// Lengths in pixels.
struct PathfinderOptions {
  int64_t size = 32;              ///< of an edge
  int64_t contour_length = 14;    ///< paddles of each of the two long paths
  int64_t distractor_length = 4;  ///< of each short one
  int64_t num_distractors = 5;
  double paddle_length = 2;
  double paddle_margin = 1;  ///< between the paddles of a path
  double paddle_thickness = 0.5;
  double marker_radius = 1.5;
  double seed_distance = 7;  ///< at least, between the ends where the two long paths begin
  double continuity = 1;     ///< divides the spread of the angles between paddles
  double padding = 1;        ///< free space around everything
  double contrast = 0.75;    ///< of paddles, where dots have 1
  int64_t antialias = 2;     ///< samples per pixel and direction

  /// The published values for 32 and 64 pixels, in between and beyond on the lines through both;
  /// paddles of 3 pixels at 64, which is not published; distractors of a third of the paths'
  /// length, 20 paddles in all.
  static PathfinderOptions of_size(int64_t size, int64_t contour_length);
  /// Throws favor::Error naming the first field that is out of range.
  void check() const;
};

struct PathfinderImage {
  std::vector<uint8_t> pixels;  ///< grey [size, size]
  bool connected = false;
};

/// Draws connected and separate pictures with equal odds. Throws std::runtime_error when paths do
/// not find room.
PathfinderImage draw_pathfinder(favor::RandomStream& random, const PathfinderOptions& options);

/// Rows of size^2 grey values, after `begin` unless that is -1; class 1 = connected. An example is
/// a function of (seed, number).
std::shared_ptr<const ExampleSet> pathfinder_set(const PathfinderOptions& options,
                                                 int64_t num_examples, uint64_t seed,
                                                 int64_t begin);

struct PathfinderSplits {
  std::shared_ptr<const ExampleSet> train, valid, test;
};
/// The Arena's files: <folder>/metadata/<n>.npy, whose lines `imgs/<n> name.png 0 class ...` name
/// grey pictures under <folder>; in the order of n and of lines the first 80 % are for training,
/// 10 % each for validation and test. Pictures are read when they are needed. Throws
/// std::runtime_error naming file, line, got and expected.
PathfinderSplits read_pathfinder(const std::string& folder, int64_t size, int64_t begin);

}  // namespace performer

#endif  // PERFORMER_DATA_PATHFINDER_H_
