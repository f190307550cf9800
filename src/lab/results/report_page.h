#pragma once
// The page that --report writes, in Markdown or HTML: where a result comes from, and its figures; in HTML also their
// plots. It needs no other file.

#include "lab/results/result_compare.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::app {

// HTML that holds foreign text safely. Pure.

// For text or a quoted attribute: markup becomes entities; control characters and invalid UTF-8 become U+FFFD.
[[nodiscard]] std::string html_escape(std::string_view text);

// Rows of plain text, each as long as the head. Columns listed in `numbers` are aligned to the right.
struct HtmlTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
  std::vector<size_t> numbers{};
};
[[nodiscard]] std::string html_table(const HtmlTable& table);
// HTML that may be wider than the window: it scrolls by itself, by keys too.
[[nodiscard]] std::string html_wide(std::string_view content);

// A whole page: it loads nothing, runs nothing, and follows the reader's choice of light or dark. `title` is plain
// text, `body` HTML.
[[nodiscard]] std::string html_page(std::string_view title, std::string_view body);

// Plots as inline SVG. Every axis begins at 0 and names its unit; colours come from html_page(). Texts are plain
// and are escaped here. Pure.
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

enum class ReportFormat : uint8_t { kMarkdown, kHtml };
// From the name's ending. Throws Error(kInvalidRequest) unless it is .md or .html.
[[nodiscard]] ReportFormat report_format(const std::filesystem::path& path);
// Before a run that may take hours: throws Error(kIo) unless `path`, the value of `flag`, can be written. An empty one
// is none. Changes no file.
void require_writable(std::string_view flag, const std::filesystem::path& path);
// Throws Error(kIo).
void write_report(const std::filesystem::path& path, const std::string& text);

// "## Where this comes from" and a table of all metadata: the end of a page in Markdown.
[[nodiscard]] std::string metadata_section(const nlohmann::ordered_json& metadata);
// Text as a table's cell.
[[nodiscard]] std::string markdown_cell(std::string text);

struct ReportSection {
  std::string title, text;  // as a terminal shows it
  bool markdown = false;    // shown as such
};

// `result`: what --json prints for nibble bench, load or verify. `before`: the comparison with a baseline; null: there
// is none.
[[nodiscard]] std::string report_html(const std::string& command, const nlohmann::ordered_json& result,
                                      const std::vector<ReportSection>& sections = {},
                                      const ResultComparison* before = nullptr);
[[nodiscard]] std::string comparison_html(const ResultComparison& comparison, const NamedResult& a,
                                          const NamedResult& b);

}  // namespace nibble::app
