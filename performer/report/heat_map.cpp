// SPDX-License-Identifier: Apache-2.0
#include "performer/report/heat_map.h"

#include <png.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "favor/check.h"

namespace performer {
namespace {

constexpr int64_t kMostCells = 800;
constexpr int64_t kWantedPixels = 240;
constexpr int64_t kGap = 6;

using Color = std::array<uint8_t, 3>;

// Dark blue over violet and orange to pale yellow: brightness grows evenly, so that a grey copy
// reads the same.
Color color_of(double share) {
  static constexpr std::array<std::array<double, 3>, 5> kStops = {
      {{6, 8, 40}, {80, 18, 123}, {182, 54, 121}, {251, 136, 97}, {252, 253, 191}}};
  const double at = std::clamp(share, 0.0, 1.0) * (kStops.size() - 1);
  const auto stop = std::min(static_cast<size_t>(at), kStops.size() - 2);
  Color color{};
  for (size_t i = 0; i < 3; ++i) {
    color[i] = static_cast<uint8_t>(std::lround(
        kStops[stop][i] + (at - double(stop)) * (kStops[stop + 1][i] - kStops[stop][i])));
  }
  return color;
}

/// A matrix as it is drawn: cells of `scale` pixels.
struct Panel {
  int64_t rows, columns, scale;
  std::vector<double> shares;  // 0 to 1

  int64_t height() const { return rows * scale; }
  int64_t width() const { return columns * scale; }
};

Panel panel_of(const MatrixView& matrix, bool root) {
  Panel panel;
  panel.rows = std::min(matrix.rows, kMostCells);
  panel.columns = std::min(matrix.columns, kMostCells);
  const int64_t longest = std::max({panel.rows, panel.columns, int64_t{1}});
  panel.scale = std::max<int64_t>(1, kWantedPixels / longest);
  panel.shares.assign(static_cast<size_t>(panel.rows * panel.columns), -HUGE_VAL);
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t j = 0; j < matrix.columns; ++j) {
      const double entry = matrix.values[static_cast<size_t>(i * matrix.columns + j)];
      const double value = root ? std::sqrt(std::max(0.0, entry)) : entry;
      double& cell = panel.shares[static_cast<size_t>(i * panel.rows / matrix.rows * panel.columns +
                                                      j * panel.columns / matrix.columns)];
      if (std::isfinite(value)) cell = std::max(cell, value);
    }
  }
  // Cells without a finite entry are as dark as the smallest.
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const double share : panel.shares) {
    if (std::isfinite(share)) low = std::min(low, share);
    high = std::max(high, share);
  }
  const double smallest = root ? 0 : low;
  const double range = high > smallest ? high - smallest : 1;
  for (double& share : panel.shares) share = (share - smallest) / range;
  return panel;
}

}  // namespace

std::string heat_map_png(const std::vector<MatrixView>& matrices, int64_t per_row, bool root) {
  FAVOR_CHECK(!matrices.empty() && per_row >= 1, "heat_map_png: ", matrices.size(), " matrices, ",
              per_row, " per row, expected at least one");
  std::vector<Panel> panels;
  int64_t cell_height = 1, cell_width = 1;
  for (const MatrixView& matrix : matrices) {
    FAVOR_CHECK(matrix.rows >= 1 && matrix.columns >= 1 &&
                    std::ssize(matrix.values) == matrix.rows * matrix.columns,
                "heat_map_png: a matrix has ", matrix.values.size(), " entries, expected ",
                matrix.rows, " x ", matrix.columns);
    panels.push_back(panel_of(matrix, root));
    cell_height = std::max(cell_height, panels.back().height());
    cell_width = std::max(cell_width, panels.back().width());
  }
  const int64_t across = std::min<int64_t>(per_row, std::ssize(panels));
  const int64_t down = (std::ssize(panels) + per_row - 1) / per_row;
  const int64_t width = across * (cell_width + kGap) - kGap;
  const int64_t height = down * (cell_height + kGap) - kGap;
  std::vector<uint8_t> pixels(static_cast<size_t>(3 * width * height), 255);
  for (size_t n = 0; n < panels.size(); ++n) {
    const Panel& panel = panels[n];
    const int64_t top = int64_t(n) / per_row * (cell_height + kGap);
    const int64_t left = int64_t(n) % per_row * (cell_width + kGap);
    for (int64_t y = 0; y < panel.height(); ++y) {
      for (int64_t x = 0; x < panel.width(); ++x) {
        const Color color = color_of(
            panel.shares[static_cast<size_t>(y / panel.scale * panel.columns + x / panel.scale)]);
        std::copy(color.begin(), color.end(), pixels.begin() + 3 * ((top + y) * width + left + x));
      }
    }
  }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = 0;
  std::string file;
  const auto write = [&](void* to) {
    if (png_image_write_to_memory(&image, to, &bytes, 0, pixels.data(), 0, nullptr) == 0) {
      throw std::runtime_error(favor::message("a picture of ", width, " x ", height,
                                              " pixels cannot be made: ", image.message));
    }
  };
  write(nullptr);
  file.resize(bytes);
  write(file.data());
  file.resize(bytes);
  return file;
}

}  // namespace performer
