// SPDX-License-Identifier: Apache-2.0
// JPEG files for tests of their reader.
#ifndef PERFORMER_DATA_TESTING_JPEG_H_
#define PERFORMER_DATA_TESTING_JPEG_H_

#include <cstddef>
#include <cstdio>

#include <jpeglib.h>

#include <cstdlib>
#include <string>

#include "performer/data/png.h"

namespace performer {

/// The bytes of a file of quality 95; 4 channels are CMYK.
inline std::string jpeg_bytes(const Picture& picture) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(picture.width);
  info.image_height = static_cast<JDIMENSION>(picture.height);
  info.input_components = static_cast<int>(picture.channels);
  info.in_color_space = picture.channels == 1   ? JCS_GRAYSCALE
                        : picture.channels == 3 ? JCS_RGB
                                                : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<unsigned char*>(picture.pixels.data()) +
                info.next_scanline * picture.width * picture.channels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string bytes(reinterpret_cast<const char*>(memory), size);
  std::free(memory);
  jpeg_destroy_compress(&info);
  return bytes;
}

}  // namespace performer

#endif  // PERFORMER_DATA_TESTING_JPEG_H_
