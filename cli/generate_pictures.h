// SPDX-License-Identifier: Apache-2.0
// Generation with a model of pixels: samples, or completions of pictures, in one PNG file.
#ifndef PERFORMER_CLI_GENERATE_PICTURES_H_
#define PERFORMER_CLI_GENERATE_PICTURES_H_

#include <cstdint>
#include <string>

#include "performer/infer/sampling.h"
#include "performer/train/checkpoint.h"

namespace performer::cli {

struct PictureOptions {
  SamplingOptions sampling;  ///< max_length and ignore_end are the picture's
  std::string model, data;   ///< data "": that of the model's run
  std::string pictures;      ///< the PNG file
  int64_t count = 1;
  int64_t keep_rows = 0;  ///< 0: samples
  int64_t batch = 1;
  uint64_t seed = 0;
};

struct DrawnPictures {
  int64_t values = 0;       ///< drawn
  double bits_per_dim = 0;  ///< their mean under the model
  int64_t height = 0, width = 0, channels = 0;
};

/// Draws `count` pictures in rows of about as many columns. With keep_rows the first rows of
/// `count` pictures of the test set (of valid, where there is none) are given: three pictures side
/// by side are what was given, its completion and the original. Memory: states of `batch` streams
/// and the pictures. Throws std::runtime_error for a model of another task, data that has too few
/// pictures, and a shape that is not known, favor::Error for keep_rows beyond the picture.
DrawnPictures generate_pictures(LoadedModel& loaded, const PictureOptions& options);

}  // namespace performer::cli

#endif  // PERFORMER_CLI_GENERATE_PICTURES_H_
