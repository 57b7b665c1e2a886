// SPDX-License-Identifier: Apache-2.0
// JPEG pictures as bytes.
#ifndef PERFORMER_DATA_JPEG_H_
#define PERFORMER_DATA_JPEG_H_

#include <cstdint>
#include <string>

#include "performer/data/png.h"

namespace performer {

/// Reads a file as grey (channels 1) or colour (3), whatever it is stored as. Throws
/// std::runtime_error naming file and byte, also for what a decoder would only warn of, such as a
/// file that is cut off, and for pictures of four components (CMYK).
Picture read_jpeg(const std::string& path, int64_t channels);

}  // namespace performer

#endif  // PERFORMER_DATA_JPEG_H_
