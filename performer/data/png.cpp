// SPDX-License-Identifier: Apache-2.0
#include "performer/data/png.h"

#include <png.h>

#include <stdexcept>

#include "favor/check.h"
#include "performer/data/atomic_file.h"

namespace performer {
namespace {

png_uint_32 format_of(int64_t channels) {
  FAVOR_CHECK(channels == 1 || channels == 3, "png: channels is ", channels, ", expected 1 or 3");
  return channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
}

}  // namespace

Picture read_png(const std::string& path, int64_t channels) {
  const png_uint_32 format = format_of(channels);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_file(&image, path.c_str())) {
    throw std::runtime_error(favor::message(path, ": is no PNG picture (", image.message, ")"));
  }
  image.format = format;
  Picture picture{image.width, image.height, channels, {}};
  picture.pixels.resize(PNG_IMAGE_SIZE(image));
  const png_color white{255, 255, 255};
  if (!png_image_finish_read(&image, &white, picture.pixels.data(), 0, nullptr)) {
    const std::string reason = image.message;
    png_image_free(&image);
    throw std::runtime_error(favor::message(path, ": cannot be read (", reason, ")"));
  }
  return picture;
}

void write_png(const std::string& path, const Picture& picture) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(picture.width);
  image.height = static_cast<png_uint_32>(picture.height);
  image.format = format_of(picture.channels);
  FAVOR_CHECK(std::ssize(picture.pixels) == picture.width * picture.height * picture.channels,
              "png: there are ", picture.pixels.size(), " bytes, expected ",
              picture.width * picture.height * picture.channels);
  png_alloc_size_t bytes = 0;
  std::string file;
  bool done =
      png_image_write_to_memory(&image, nullptr, &bytes, 0, picture.pixels.data(), 0, nullptr) != 0;
  if (done) {
    file.resize(bytes);
    done = png_image_write_to_memory(&image, file.data(), &bytes, 0, picture.pixels.data(), 0,
                                     nullptr) != 0;
  }
  if (!done) throw std::runtime_error(favor::message(path, ": no PNG (", image.message, ")"));
  write_file_atomically(path, file);
}

}  // namespace performer
