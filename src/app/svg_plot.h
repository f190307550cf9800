#pragma once
// Plots as inline SVG. Every axis begins at 0 and names its unit; colours come from the page (html.h). Texts are plain
// and are escaped here. Pure.

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nibble::app {

struct PlotPoint {
  double x = 0, y = 0;
  double spread = 0;   // of y, both ways; 0: unknown or none
  std::string note{};  // beside the point
};
struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;  // in the order in which they are joined
};
struct LinePlot {
  std::string title, x, y;  // "depth, tokens"
  std::vector<PlotSeries> series;
};
// REQUIRES a point, and finite numbers of at least 0.
[[nodiscard]] std::string svg_lines(const LinePlot& plot);

struct PlotBar {
  std::string label;
  double value = 0;  // may be below 0
  std::optional<std::pair<double, double>> interval{};
  size_t series = 0;  // its colour
};
struct BarPlot {
  std::string title, unit;            // "tokens per second"
  std::vector<PlotBar> bars;          // from the top
  std::vector<std::string> legend{};  // by series; empty: one
  double least_top = 0;               // the axis reaches at least this far
};
// REQUIRES a bar, and finite numbers.
[[nodiscard]] std::string svg_bars(const BarPlot& plot);

// Marks of an axis from `low` (at most 0) to `high` (at least 0). Their distance is 1, 2 or 5 times a power of ten; 0
// is among them, and the outermost reach both ends or lie beyond.
[[nodiscard]] std::vector<double> axis_marks(double low, double high);

}  // namespace nibble::app
