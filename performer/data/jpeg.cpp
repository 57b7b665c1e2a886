// SPDX-License-Identifier: Apache-2.0
#include "performer/data/jpeg.h"

// The library's header needs FILE and size_t.
#include <cstddef>
#include <cstdio>

#include <jpeglib.h>

#include <algorithm>
#include <csetjmp>
#include <stdexcept>

#include "favor/check.h"
#include "performer/data/byte_source.h"

namespace performer {
namespace {

// The library reports errors by a jump: between setjmp and what may jump stand no objects with
// destructors.
struct Decoder {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  std::jmp_buf on_error;
  char message[JMSG_LENGTH_MAX] = "";

  Decoder() {
    info.err = jpeg_std_error(&errors);
    info.client_data = this;
    errors.error_exit = [](j_common_ptr common) {
      Decoder* self = of(common);
      common->err->format_message(common, self->message);
      std::longjmp(self->on_error, 1);
    };
    // Level -1 warns of damaged data, which the library would fill in.
    errors.emit_message = [](j_common_ptr common, int level) {
      if (level >= 0) return;
      Decoder* self = of(common);
      common->err->format_message(common, self->message);
      std::longjmp(self->on_error, 1);
    };
    errors.output_message = [](j_common_ptr) {};
  }
  ~Decoder() { jpeg_destroy_decompress(&info); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  static Decoder* of(j_common_ptr common) { return static_cast<Decoder*>(common->client_data); }

  bool begin(const std::string& bytes) {
    if (setjmp(on_error)) return false;
    jpeg_create_decompress(&info);
    info.client_data = this;
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()),
                 static_cast<unsigned long>(bytes.size()));
    jpeg_read_header(&info, TRUE);
    return true;
  }

  bool start(int64_t channels) {
    if (setjmp(on_error)) return false;
    info.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(&info);
    return true;
  }

  bool read(uint8_t* out) {
    if (setjmp(on_error)) return false;
    const size_t line = size_t{info.output_width} * static_cast<size_t>(info.output_components);
    while (info.output_scanline < info.output_height) {
      JSAMPROW row = out + info.output_scanline * line;
      jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_finish_decompress(&info);
    return true;
  }

  size_t bytes_left() const { return info.src == nullptr ? 0 : info.src->bytes_in_buffer; }
};

}  // namespace

Picture read_jpeg(const std::string& path, int64_t channels) {
  FAVOR_CHECK(channels == 1 || channels == 3, "jpeg: channels is ", channels, ", expected 1 or 3");
  const std::string bytes = read_bytes(path);
  Decoder decoder;
  const auto fail = [&](const std::string& what) {
    const size_t at = bytes.size() - std::min(bytes.size(), decoder.bytes_left());
    throw std::runtime_error(favor::message(path, ": byte ", at, ": ", what));
  };
  const auto damaged = [&] {
    fail(favor::message("cannot be read (", decoder.message, "), expected a JPEG picture"));
  };
  if (!decoder.begin(bytes)) damaged();
  if (decoder.info.num_components != 1 && decoder.info.num_components != 3) {
    fail(favor::message("has ", decoder.info.num_components,
                        " colour components, expected 1 (grey) or 3"));
  }
  if (!decoder.start(channels)) damaged();
  Picture picture{decoder.info.output_width, decoder.info.output_height, channels, {}};
  picture.pixels.resize(static_cast<size_t>(picture.width * picture.height * channels));
  if (!decoder.read(picture.pixels.data())) damaged();
  return picture;
}

}  // namespace performer
