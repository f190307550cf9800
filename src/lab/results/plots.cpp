#include "lab/results/report.h"

#include "base/error.h"
#include "lab/bench/rows.h"
#include "lab/results/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace nibble::app {
namespace {

constexpr size_t kColors = 6;  // of report.cpp's style
constexpr double kPlotWidth = 560, kPlotHeight = 300, kLeft = 70, kRight = 20, kTop = 12, kBottom = 46;
constexpr double kBarHeight = 14, kBarGap = 6, kLetter = 6.4;  // a letter of the axis' font is about so wide

std::string mark_text(double value) {
  if (std::abs(value) >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  return fmt::format("{:.6g}", value);
}

std::string color(size_t series) { return fmt::format("var(--s{})", series % kColors); }

std::string text_at(double x, double y, const char* attributes, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, html_escape(text));
}

std::string line(double x1, double y1, double x2, double y2, const std::string& attributes) {  // NOLINT(*-swappable-*)
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2,
                     attributes);
}

std::string figure(const std::string& title, double width, double height, const std::string& inside) {
  return fmt::format(
      "<figure><figcaption>{}</figcaption>\n<svg viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" role=\"img\" "
      "aria-label=\"{}\">\n{}</svg></figure>\n",
      html_escape(title), width, height, width, html_escape(title), inside);
}

// A square and a name each, from the left; the height it takes is added to y.
std::string legend(const std::vector<std::string>& names, double& y) {
  std::string out;
  double x = kLeft;
  y += 16;
  for (size_t i = 0; i < names.size(); ++i) {
    const double width = 24 + kLetter * static_cast<double>(names[i].size());
    if (x > kLeft && x + width > kPlotWidth) {
      x = kLeft;
      y += 16;
    }
    out +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", x, y - 9, color(i));
    out += text_at(x + 14, y, "", names[i]);
    x += width;
  }
  y += 6;
  return out;
}

// From values to places on the page.
struct Axis {
  std::vector<double> marks;
  double begin, end;  // places of the first and the last mark
  [[nodiscard]] double place(double value) const {
    const double share = (value - marks.front()) / (marks.back() - marks.front());
    return begin + share * (end - begin);
  }
};

std::string frame(const LinePlot& plot, const Axis& x, const Axis& y) {
  std::string out;
  for (const double mark : y.marks) {
    out +=
        line(kLeft, y.place(mark), kPlotWidth - kRight, y.place(mark), mark == 0 ? "class=\"axis\"" : "class=\"grid\"");
    out += text_at(kLeft - 6, y.place(mark) + 4, "text-anchor=\"end\" class=\"faint\"", mark_text(mark));
  }
  for (const double mark : x.marks) {
    out += line(x.place(mark), kPlotHeight - kBottom, x.place(mark), kPlotHeight - kBottom + 4, "class=\"axis\"");
    out +=
        text_at(x.place(mark), kPlotHeight - kBottom + 17, "text-anchor=\"middle\" class=\"faint\"", mark_text(mark));
  }
  out += line(kLeft, kTop, kLeft, kPlotHeight - kBottom, "class=\"axis\"");
  out += text_at((kLeft + kPlotWidth - kRight) / 2, kPlotHeight - 10, "text-anchor=\"middle\"", plot.x);
  out += fmt::format("<text transform=\"translate(14 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (kTop + kPlotHeight - kBottom) / 2, html_escape(plot.y));
  return out;
}

}  // namespace

std::vector<double> axis_marks(double low, double high) {
  constexpr double kMost = 6;
  const double span = std::max(high, 0.0) - std::min(low, 0.0);
  if (!(span > 0)) return {0, 1};
  const double power = std::pow(10, std::floor(std::log10(span / kMost)));
  double step = 10 * power;
  for (const double times : {1.0, 2.0, 5.0}) {
    if (span / (times * power) > kMost) continue;
    step = times * power;
    break;
  }
  constexpr double kRounding = 1e-9;
  std::vector<double> marks;
  const auto first = static_cast<int64_t>(std::floor(std::min(low, 0.0) / step + kRounding));
  const auto last = static_cast<int64_t>(std::ceil(std::max(high, 0.0) / step - kRounding));
  for (int64_t i = first; i <= last; ++i) marks.push_back(static_cast<double>(i) * step);
  return marks;
}

std::string svg_lines(const LinePlot& plot) {
  double most_x = 0, most_y = 0;
  for (const PlotSeries& series : plot.series) {
    for (const PlotPoint& p : series.points) {
      check(std::isfinite(p.x) && std::isfinite(p.y) && p.x >= 0 && p.y >= 0, "points of an axis from 0");
      most_x = std::max(most_x, p.x);
      most_y = std::max(most_y, p.y + p.spread);
    }
  }
  const Axis x{axis_marks(0, most_x), kLeft, kPlotWidth - kRight},
      y{axis_marks(0, most_y), kPlotHeight - kBottom, kTop};
  std::string out = frame(plot, x, y);
  std::vector<std::string> names;
  for (size_t s = 0; s < plot.series.size(); ++s) {
    names.push_back(plot.series[s].name);
    std::string path;
    for (const PlotPoint& p : plot.series[s].points) path += fmt::format("{:.1f},{:.1f} ", x.place(p.x), y.place(p.y));
    out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path, color(s));
    for (const PlotPoint& p : plot.series[s].points) {
      if (p.spread > 0)
        out += line(x.place(p.x), y.place(std::max(0.0, p.y - p.spread)), x.place(p.x), y.place(p.y + p.spread),
                    fmt::format("stroke=\"{}\"", color(s)));
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}</title></circle>\n",
                         x.place(p.x), y.place(p.y), color(s),
                         html_escape(fmt::format("{}: {:g}, {:.5g}", plot.series[s].name, p.x, p.y)));
      if (!p.note.empty()) out += text_at(x.place(p.x) + 6, y.place(p.y) - 6, "class=\"faint\"", p.note);
    }
  }
  double height = kPlotHeight - 4;
  out += legend(names, height);
  return figure(plot.title, kPlotWidth, height, out);
}

std::string svg_bars(const BarPlot& plot) {
  double low = 0, high = plot.least_top;
  size_t longest = 0;
  for (const PlotBar& bar : plot.bars) {
    check(std::isfinite(bar.value), "a bar of finite length");
    low = std::min({low, bar.value, bar.interval ? bar.interval->first : 0});
    high = std::max({high, bar.value, bar.interval ? bar.interval->second : 0});
    longest = std::max(longest, bar.label.size());
  }
  const double left = std::clamp(kLetter * static_cast<double>(longest) + 12, kLeft, kPlotWidth / 2);
  constexpr double kValueText = 64;
  const Axis x{axis_marks(low, high), left, kPlotWidth - kValueText};
  const double bottom = kTop + (kBarHeight + kBarGap) * static_cast<double>(plot.bars.size());
  std::string out;
  for (const double mark : x.marks) {
    out += line(x.place(mark), kTop, x.place(mark), bottom, mark == 0 ? "class=\"axis\"" : "class=\"grid\"");
    out += text_at(x.place(mark), bottom + 14, "text-anchor=\"middle\" class=\"faint\"", mark_text(mark));
  }
  double y = kTop;
  for (const PlotBar& bar : plot.bars) {
    const double from = x.place(std::min(0.0, bar.value)), to = x.place(std::max(0.0, bar.value));
    out += text_at(left - 6, y + 11, "text-anchor=\"end\"", bar.label);
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"var(--s0)\"/>\n",
                       from, y, to - from, kBarHeight);
    double end = to;
    if (bar.interval) {
      const double a = x.place(bar.interval->first), b = x.place(bar.interval->second);
      out += line(a, y + kBarHeight / 2, b, y + kBarHeight / 2, "stroke=\"var(--ink)\" stroke-width=\"1.5\"");
      end = std::max(end, b);
    }
    out += text_at(end + 5, y + 11, "class=\"faint\"", fmt::format("{:.5g}", bar.value));
    y += kBarHeight + kBarGap;
  }
  out += text_at((left + kPlotWidth - kValueText) / 2, bottom + 32, "text-anchor=\"middle\"", plot.unit);
  return figure(plot.title, kPlotWidth, bottom + 40, out);
}

namespace {

using Json = nlohmann::ordered_json;

double number_at(const Json& json, std::string_view path) {
  const Json value = value_at(json, path);
  return value.is_number() ? value.get<double>() : 0;
}

bool is_prompt(const Json& row) { return number_at(row, "prompt") > 0; }

// A line per combination of the other two, over `along` ("depth"), if that takes more than one value.
struct Along {
  const char* title;
  const char* along;
  const char* unit;
  bool prompts;
};
std::string bench_lines(const Json& rows, const Along& what) {
  LinePlot plot{.title = what.title, .x = what.unit, .y = "tokens per second", .series = {}};
  std::set<double> values;
  for (const Json& row : rows) {
    if (is_prompt(row) != what.prompts) continue;
    const bool over_depth = std::string_view(what.along) == "depth";
    const std::string test = what.prompts ? fmt::format("pp{:g}", number_at(row, "prompt"))
                                          : fmt::format("tg{:g}", number_at(row, "generate"));
    const std::string name = what.prompts ? test
                             : over_depth ? fmt::format("{}, batch {:g}", test, number_at(row, "batch"))
                                          : fmt::format("{} @ d{:g}", test, number_at(row, "depth"));
    auto series = std::ranges::find(plot.series, name, &PlotSeries::name);
    if (series == plot.series.end()) series = plot.series.insert(series, {name, {}});
    const double x = number_at(row, what.along);
    series->points.push_back({x, number_at(row, "tokens_per_second.mean"), number_at(row, "tokens_per_second.sd")});
    values.insert(x);
  }
  return values.size() < 2 ? "" : svg_lines(plot);
}

std::string bench_bars(const Json& rows, const char* title, bool prompts) {
  BarPlot plot{.title = title, .unit = "tokens per second", .bars = {}};
  for (const Json& row : rows) {
    if (is_prompt(row) != prompts) continue;
    const double mean = number_at(row, "tokens_per_second.mean"), sd = number_at(row, "tokens_per_second.sd");
    plot.bars.push_back({label_of(row), mean, std::pair{std::max(0.0, mean - sd), mean + sd}});
  }
  return plot.bars.empty() ? "" : svg_bars(plot);
}

std::string limit_bars(const Json& rows) {
  constexpr double kPercent = 100;
  BarPlot plot{.title = "Share of what the device allows", .unit = "% of the limit", .bars = {}, .least_top = kPercent};
  for (const Json& row : rows)
    if (row.contains("of_limit")) plot.bars.push_back({label_of(row), kPercent * number_at(row, "of_limit")});
  return plot.bars.empty() ? "" : svg_bars(plot);
}

std::string bench_plots(const Json& rows) {
  return bench_lines(rows, {"Prompts: throughput against depth", "depth", "depth, tokens", true}) +
         bench_lines(rows, {"Generation: throughput against depth", "depth", "depth, tokens", false}) +
         bench_lines(rows, {"Generation: throughput against batch", "batch", "batch, sequences", false}) +
         bench_bars(rows, "Prompts, ± standard deviation", true) +
         bench_bars(rows, "Generation, ± standard deviation", false) + limit_bars(rows);
}

std::string latency_lines(const Json& rows, const char* word, const std::string& name) {
  const bool rates = rows.front().contains("request_rate");
  LinePlot plot{.title = name, .x = rates ? "requests per second" : "concurrency, requests", .y = "ms", .series = {}};
  for (const char* percentile : {"p50", "p90", "p99"}) {
    PlotSeries series{percentile, {}};
    for (const Json& row : rows) {
      if (number_at(row, fmt::format("{}.count", word)) == 0) continue;
      series.points.push_back({number_at(row, rates ? "request_rate" : "concurrency"),
                               number_at(row, fmt::format("{}.{}_ms", word, percentile))});
    }
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  return plot.series.empty() ? "" : svg_lines(plot);
}

std::string load_plots(const Json& rows) {
  LinePlot interactivity{.title = "Throughput and interactivity",
                         .x = "tokens per second of a user, median",
                         .y = "output tokens per second and GPU",
                         .series = {{"each point a concurrency", {}}}};
  for (const Json& row : rows) {
    const double user = number_at(row, "tokens_per_second_per_user.p50");
    const std::string label = row.contains("concurrency") ? fmt::format("{:g}", number_at(row, "concurrency"))
                                                          : fmt::format("{:g}/s", number_at(row, "request_rate"));
    if (user > 0)
      interactivity.series[0].points.push_back({user, number_at(row, "output_tokens_per_second_per_gpu"), 0, label});
  }
  std::string drawn = interactivity.series[0].points.empty() ? "" : svg_lines(interactivity);
  for (const auto& [word, name] : {std::pair{"ttft", "Time to the first token (TTFT)"},
                                   {"tpot", "Time per output token (TPOT)"},
                                   {"itl", "Time between events (ITL)"},
                                   {"e2e", "Until the last token (E2E)"}})
    drawn += latency_lines(rows, word, name);
  return drawn;
}

}  // namespace

std::string result_plots(const Json& rows) {
  if (!rows.is_array() || rows.empty()) return {};
  return rows.front().contains("test") ? bench_plots(rows) : load_plots(rows);
}

std::string comparison_plots(const ResultComparison& comparison) {
  constexpr double kPercent = 100;
  BarPlot change{.title = "B beside A, 95 % interval of Welch's t", .unit = "change, %", .bars = {}};
  for (const ComparedRow& row : comparison.rows) {
    PlotBar& bar =
        change.bars.emplace_back(fmt::format("{}, {}", row.name, row.metric), kPercent * row.change.relative);
    if (row.change.interval) bar.interval = {kPercent * row.change.interval->low, kPercent * row.change.interval->high};
  }
  return change.bars.empty() ? "" : svg_bars(change);
}

}  // namespace nibble::app
