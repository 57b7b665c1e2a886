// SPDX-License-Identifier: Apache-2.0
// PNG pictures as bytes.
#ifndef PERFORMER_DATA_PNG_H_
#define PERFORMER_DATA_PNG_H_

#include <cstdint>
#include <string>
#include <vector>

namespace performer {

struct Picture {
  int64_t width = 0;
  int64_t height = 0;
  int64_t channels = 1;         ///< 1 grey, 3 red, green, blue
  std::vector<uint8_t> pixels;  ///< [height, width, channels]
};

/// Reads a file as grey (channels 1) or colour (3), whatever it is stored as; transparent places
/// are white. Throws std::runtime_error naming the file.
Picture read_png(const std::string& path, int64_t channels);

/// Throws std::runtime_error naming the file.
void write_png(const std::string& path, const Picture& picture);

}  // namespace performer

#endif  // PERFORMER_DATA_PNG_H_
