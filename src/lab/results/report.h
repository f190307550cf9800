#pragma once
// The page that --report writes. Its text is Markdown; as HTML it has plots, too, and needs no other file.

#include "lab/results/compare.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::app {

struct ReportPage {
  std::string title;    // plain text, of the HTML alone
  std::string text;     // Markdown
  std::string plots{};  // figures of plots.cpp, of the HTML alone
};
// Markdown, or HTML where the path ends in .html. Throws Error(kIo).
void write_report(const std::filesystem::path& path, const ReportPage& page);
// Before a run that may take hours: throws Error(kIo) unless `path`, the value of `flag`, can be written. An empty one
// is none. Changes no file.
void require_writable(std::string_view flag, const std::filesystem::path& path);

// "## Where this comes from" and a table of all metadata: the end of a page.
[[nodiscard]] std::string metadata_section(const nlohmann::ordered_json& metadata);
// Text as a table's cell.
[[nodiscard]] std::string markdown_cell(std::string text);

// A whole page of HTML: it loads nothing, runs nothing, and follows the reader's choice of light or dark. Of Markdown
// it knows headings, tables, lists and lines. Pure.
[[nodiscard]] std::string html_page(const ReportPage& page);
// Text or a quoted attribute of HTML: markup becomes entities; control characters and invalid UTF-8 become U+FFFD.
[[nodiscard]] std::string html_escape(std::string_view text);

// Plots as inline SVG. Every axis begins at 0 and names its unit; colours come from html_page(). Texts are plain
// and are escaped here. Pure.

// The rows of what --json prints for nibble bench or load; empty: there is nothing to draw.
[[nodiscard]] std::string result_plots(const nlohmann::ordered_json& rows);
[[nodiscard]] std::string comparison_plots(const ResultComparison& comparison);

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
};
struct BarPlot {
  std::string title, unit;    // "tokens per second"
  std::vector<PlotBar> bars;  // from the top
  double least_top = 0;       // the axis reaches at least this far
};
// REQUIRES a bar, and finite numbers.
[[nodiscard]] std::string svg_bars(const BarPlot& plot);

// Marks of an axis from `low` (at most 0) to `high` (at least 0). Their distance is 1, 2 or 5 times a power of ten; 0
// is among them, and the outermost reach both ends or lie beyond.
[[nodiscard]] std::vector<double> axis_marks(double low, double high);

}  // namespace nibble::app
