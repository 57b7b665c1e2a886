// SPDX-License-Identifier: Apache-2.0
// Line charts as SVG, alone or several in a file, and the escaping that text in HTML and SVG needs.
#ifndef PERFORMER_REPORT_CHART_H_
#define PERFORMER_REPORT_CHART_H_

#include <string>
#include <string_view>
#include <vector>

namespace performer {

struct Point {
  double x = 0;
  double y = 0;
  double x_error = 0;  ///< half the length of its error bar; 0: none
  double y_error = 0;
};

/// One line of a chart.
struct Series {
  std::string name;           ///< shown where the pointer rests on the line
  size_t color = 0;           ///< number of a run: series_color(color)
  bool faint = false;         ///< thin and pale: raw values behind a smoother line
  bool dashed = false;        ///< a level to compare with
  std::vector<Point> points;  ///< ascending x; points that are not finite are left out
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool y_from_zero = false;  ///< the axis starts at zero whatever the values
  std::vector<Series> series;

  /// Whether any series has a finite point.
  bool has_points() const;
};

/// "#rrggbb", told apart by readers with any colour vision; repeats after eight.
std::string series_color(size_t index);

/// The marks of an axis over [low, high]: multiples of 1, 2 or 5 times a power of ten, at most
/// `most` of them, at least one. Requires low < high, both finite.
std::vector<double> axis_marks(double low, double high, int most);

/// One `<svg>` element. Lines of more than 600 points are drawn through the means of 600 equal
/// groups.
std::string to_svg(const Chart& chart);

/// The rules that charts expect of the style sheet around them.
std::string chart_style();

/// An SVG file that stands alone: a title, the names in the colours of their series, and the charts
/// in rows of `columns`.
std::string svg_document(const std::string& title, const std::vector<std::string>& names,
                         const std::vector<Chart>& charts, int columns);

/// With &, <, >, " and ' replaced, so that it stands for itself in HTML and in attributes.
std::string escape_html(std::string_view text);

}  // namespace performer

#endif  // PERFORMER_REPORT_CHART_H_
