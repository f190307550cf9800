#include "lab/results/report_page.h"

#include "lab/results/result_metadata.h"
#include "app/setup/terminal.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <set>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;

double number_at(const Json& json, std::string_view path) {
  const Json value = value_at(json, path);
  return value.is_number() ? value.get<double>() : 0;
}

std::string section(const std::string& title, const std::string& inside) {
  return inside.empty() ? "" : fmt::format("<h2>{}</h2>\n{}", html_escape(title), inside);
}

std::string plots(const std::string& inside) {
  return inside.empty() ? "" : fmt::format("<div class=\"plots\">\n{}</div>\n", inside);
}

// What a reader wants to know first.
std::string facts(const Json& metadata) {
  HtmlTable table{.head = {"", ""}, .rows = {}};
  const auto fact = [&](const char* name, const char* path) {
    if (const Json value = value_at(metadata, path); !value.is_null() && value != "")
      table.rows.push_back({name, text_of(value)});
  };
  fact("device", "device.name");
  fact("GPUs", "device.gpus");
  fact("backend", "device.backend");
  fact("kernels", "device.kernels");
  fact("driver", "device.driver");
  fact("CUDA", "build.cuda");
  fact("clock, MHz", "device.clock_mhz");
  fact("power limit, W", "device.power_limit_watts");
  fact("model", "model.name");
  fact("SHA-256", "model.sha256");
  fact("server", "server.base_url");
  fact("commit", "build.commit");
  fact("date", "date");
  fact("command", "command");
  fact("warm-up", "warm_up");
  if (const double seconds = number_at(metadata, "startup_seconds"); seconds > 0)
    table.rows.push_back({"start", fmt::format("{:.3g} s", seconds)});
  for (const auto& [name, path] :
       {std::pair{"peak memory, process", "peak_memory_bytes.host"}, {"peak memory, card", "peak_memory_bytes.device"}})
    if (const double bytes = number_at(metadata, path); bytes > 0) table.rows.push_back({name, format_bytes(bytes)});
  return html_table(table);
}

std::string all_metadata(const Json& metadata) {
  HtmlTable table{.head = {"", ""}, .rows = {}};
  for (const auto& [path, value] : flat_metadata(metadata)) table.rows.push_back({path, value});
  return "<details><summary>All that is known of it</summary>\n" + html_table(table) + "</details>\n";
}

std::string verdicts(const Json& checks) {
  std::string out =
      "<table>\n<tr><th>level</th><th>check</th><th>verdict</th><th class=\"n\">seconds</th><th>found</th></tr>\n";
  for (const Json& check : checks) {
    const std::string verdict = text_of(value_at(check, "verdict"));
    const char* const look = verdict == "pass" ? "pass" : verdict == "fail" ? "fail" : "faint";
    out += fmt::format(
        "<tr><td>{}</td><td class=\"name\">{}</td><td class=\"{}\">{}</td><td class=\"n\">{:.1f}</td><td>{}</td></tr>\n",
        html_escape(text_of(value_at(check, "level"))), html_escape(text_of(value_at(check, "check"))), look,
        html_escape(verdict), number_at(check, "seconds"), html_escape(text_of(value_at(check, "found"))));
  }
  return html_wide(out + "</table>");
}

std::vector<std::string> cells_of(std::string_view row) {
  constexpr std::string_view kSpace = " ";
  std::vector<std::string> cells;
  for (size_t at = 0; at + 1 < row.size();) {
    const size_t end = std::min(row.find('|', at + 1), row.size());
    std::string_view cell = row.substr(at + 1, end - at - 1);
    cell.remove_prefix(std::min(cell.find_first_not_of(kSpace), cell.size()));
    cells.emplace_back(cell.substr(0, cell.find_last_not_of(kSpace) + 1));
    at = end;
  }
  return cells;
}

// Tables, headings and lines; what else Markdown has stays as it is.
std::string html_of_markdown(const std::string& text) {
  std::string out;
  std::optional<HtmlTable> table;
  const std::string_view all = text;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    const std::string_view line = all.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("|---") || line.starts_with("|--:")) continue;
    if (line.starts_with('|')) {
      std::vector<std::string> cells = cells_of(line);
      if (table) {
        table->rows.push_back(std::move(cells));
      } else {
        table = HtmlTable{.head = std::move(cells), .rows = {}};
      }
      continue;
    }
    if (table) out += html_table(*table);
    table.reset();
    if (line.starts_with("### "))
      out += fmt::format("<h3>{}</h3>\n", html_escape(line.substr(4)));
    else if (!line.empty())
      out += fmt::format("<p>{}</p>\n", html_escape(line));
  }
  if (table) out += html_table(*table);
  return out;
}

bool is_prompt(const Json& row) { return number_at(row, "prompt") > 0; }

std::string bench_label(const Json& row) {
  const std::string test = text_of(value_at(row, "test"));
  return is_prompt(row) ? test : fmt::format("{}, batch {:g}", test, number_at(row, "batch"));
}

// One line per combination of the other two, over `along` ("depth"), if that takes more than one value.
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
    plot.bars.push_back({bench_label(row), mean, std::pair{std::max(0.0, mean - sd), mean + sd}});
  }
  return plot.bars.empty() ? "" : svg_bars(plot);
}

std::string limit_bars(const Json& rows) {
  constexpr double kPercent = 100;
  BarPlot plot{.title = "Share of what the device allows", .unit = "% of the limit", .bars = {}, .least_top = kPercent};
  for (const Json& row : rows)
    if (row.contains("of_limit")) plot.bars.push_back({bench_label(row), kPercent * number_at(row, "of_limit")});
  return plot.bars.empty() ? "" : svg_bars(plot);
}

std::string bench_section(const Json& rows) {
  HtmlTable table{.head = {"row", "tokens/s", "sd", "repetitions", "limit, tokens/s", "of limit"},
                  .rows = {},
                  .numbers = {1, 2, 3, 4, 5}};
  for (const Json& row : rows) {
    const bool limit = row.contains("of_limit");
    table.rows.push_back({bench_label(row), fmt::format("{:.2f}", number_at(row, "tokens_per_second.mean")),
                          fmt::format("{:.2f}", number_at(row, "tokens_per_second.sd")),
                          fmt::format("{}", value_at(row, "seconds").size()),
                          limit ? fmt::format("{:.2f}", number_at(row, "limit_tokens_per_second")) : "—",
                          limit ? fmt::format("{:.1f} %", 100 * number_at(row, "of_limit")) : "—"});
  }
  const std::string lines =
      bench_lines(rows, {"Prompts: throughput against depth", "depth", "depth, tokens", true}) +
      bench_lines(rows, {"Generation: throughput against depth", "depth", "depth, tokens", false}) +
      bench_lines(rows, {"Generation: throughput against batch", "batch", "batch, sequences", false});
  return section("Speed", plots(lines + bench_bars(rows, "Prompts, ± standard deviation", true) +
                                bench_bars(rows, "Generation, ± standard deviation", false) + limit_bars(rows)) +
                              html_table(table));
}

std::string point_label(const Json& row) {
  return row.contains("concurrency") ? fmt::format("{:g}", number_at(row, "concurrency"))
                                     : fmt::format("{:g}/s", number_at(row, "request_rate"));
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

std::string load_section(const Json& rows) {
  LinePlot interactivity{.title = "Throughput and interactivity",
                         .x = "tokens per second of a user, median",
                         .y = "output tokens per second and GPU",
                         .series = {{"each point a concurrency", {}}}};
  HtmlTable table{.head = {"concurrency", "ok", "failed", "out tokens/s", "of a user, p50", "TTFT p50 ms",
                           "TTFT p99 ms", "TPOT p50 ms", "TPOT p99 ms", "E2E p50 ms", "E2E p99 ms"},
                  .rows = {},
                  .numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};
  HtmlTable failures{.head = {"concurrency", "failure", "count", "the first one"}, .rows = {}, .numbers = {0, 2}};
  for (const Json& row : rows) {
    const double user = number_at(row, "tokens_per_second_per_user.p50");
    if (user > 0)
      interactivity.series[0].points.push_back(
          {user, number_at(row, "output_tokens_per_second_per_gpu"), 0, point_label(row)});
    std::vector<std::string> cells = {
        point_label(row), text_of(value_at(row, "requests.ok")), text_of(value_at(row, "requests.failed")),
        fmt::format("{:.1f}", number_at(row, "output_tokens_per_second")), fmt::format("{:.1f}", user)};
    for (const char* path : {"ttft.p50_ms", "ttft.p99_ms", "tpot.p50_ms", "tpot.p99_ms", "e2e.p50_ms", "e2e.p99_ms"})
      cells.push_back(fmt::format("{:.2f}", number_at(row, path)));
    table.rows.push_back(std::move(cells));
    const Json failed = value_at(row, "failures");
    for (const auto& [kind, failure] : failed.items())
      failures.rows.push_back(
          {point_label(row), kind, text_of(value_at(failure, "count")), text_of(value_at(failure, "first_message"))});
  }
  std::string drawn = interactivity.series[0].points.empty() ? "" : svg_lines(interactivity);
  for (const auto& [word, name] : {std::pair{"ttft", "Time to the first token (TTFT)"},
                                   {"tpot", "Time per output token (TPOT)"},
                                   {"itl", "Time between events (ITL)"},
                                   {"e2e", "Until the last token (E2E)"}})
    drawn += latency_lines(rows, word, name);
  return section("Speed", plots(drawn) + html_table(table)) +
         (failures.rows.empty() ? "" : section("Failures", html_table(failures)));
}

std::string rows_section(const Json& rows) {
  if (!rows.is_array() || rows.empty()) return {};
  return rows.front().contains("test") ? bench_section(rows) : load_section(rows);
}

std::string comparison_section(const ResultComparison& comparison) {
  constexpr double kPercent = 100;
  BarPlot change{.title = "B beside A, 95 % interval of Welch's t", .unit = "change, %", .bars = {}};
  std::map<std::string, BarPlot> both;  // by metric, whose unit all its bars have
  HtmlTable table{
      .head = {"row", "metric", "A", "B", "change", "95 % interval", "verdict"}, .rows = {}, .numbers = {2, 3, 4, 5}};
  for (const ComparedRow& row : comparison.rows) {
    PlotBar bar{fmt::format("{}, {}", row.name, row.metric), kPercent * row.change.relative};
    std::string interval = "—";
    if (row.change.interval) {
      bar.interval = {kPercent * row.change.interval->low, kPercent * row.change.interval->high};
      interval = fmt::format("{:+.2f} % to {:+.2f} %", bar.interval->first, bar.interval->second);
    }
    table.rows.push_back({row.name, row.metric, fmt::format("{:.2f}", row.a), fmt::format("{:.2f}", row.b),
                          fmt::format("{:+.2f} %", bar.value), interval, row.verdict()});
    change.bars.push_back(std::move(bar));
    BarPlot& metric = both[row.metric];
    metric.title = row.metric + ", A and B";
    metric.unit = row.metric;
    metric.legend = {"A", "B"};
    metric.bars.push_back({row.name, row.a});
    metric.bars.push_back({"", row.b, std::nullopt, 1});
  }
  if (change.bars.empty()) return section("Before and after", "<p>No row is in both.</p>\n");
  std::string drawn = svg_bars(change);
  for (const auto& [metric, plot] : both) drawn += svg_bars(plot);
  return section("Before and after", plots(drawn) + html_table(table));
}

std::string list(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& each : lines) out += "<li>" + html_escape(each) + "</li>\n";
  return out.empty() ? "" : "<ul>\n" + out + "</ul>\n";
}

}  // namespace

ReportFormat report_format(const std::filesystem::path& path) {
  if (path.extension() == ".html") return ReportFormat::kHtml;
  if (path.extension() == ".md") return ReportFormat::kMarkdown;
  throw Error(Code::kInvalidRequest, "--report: want a name that ends in .md or .html, found {}", path.string());
}

void require_writable(std::string_view flag, const std::filesystem::path& path) {
  if (path.empty()) return;
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(path, ignored);
  if (!std::ofstream(path, std::ios::app)) throw Error(Code::kIo, "{} {}: it cannot be written", flag, path.string());
  if (!was_there) std::filesystem::remove(path, ignored);
}

void write_report(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) throw Error(Code::kIo, "--report {}: it cannot be written", path.string());
}

std::string metadata_section(const nlohmann::ordered_json& metadata) {
  std::string out = "\n## Where this comes from\n\n| | |\n| :-- | :-- |\n";
  for (const auto& [path, value] : flat_metadata(metadata))
    out += fmt::format("| {} | {} |\n", markdown_cell(path), markdown_cell(value));
  return out;
}

std::string markdown_cell(std::string text) {
  for (char& c : text)
    if (c == '|' || c == '\n') c = c == '|' ? '/' : ' ';
  return text;
}

std::string report_html(const std::string& command, const Json& result, const std::vector<ReportSection>& sections,
                        const ResultComparison* before) {
  const Json metadata = value_at(result, "metadata"), checks = value_at(result, "checks");
  const std::string model = text_of(value_at(metadata, "model.name"));
  const std::string title = fmt::format("{}: {}", command, model);
  std::string body = fmt::format("<h1>{}</h1>\n{}", html_escape(title), facts(metadata));
  const Json passed = value_at(result, "passed");
  const char* const all = passed.is_null() ? "Checks so far"
                          : passed == true ? "Checks: all hold"
                                           : "Checks: not all hold";
  if (checks.is_array()) body += section(all, verdicts(checks));
  body += rows_section(value_at(result, "rows"));
  if (before != nullptr) body += comparison_section(*before);
  for (const ReportSection& each : sections)
    body += section(each.title, each.markdown ? html_of_markdown(each.text)
                                              : html_wide("<pre>" + html_escape(each.text) + "</pre>"));
  return html_page(title, body + section("Where this comes from", all_metadata(metadata)));
}

std::string comparison_html(const ResultComparison& comparison, const NamedResult& a, const NamedResult& b) {
  std::string body =
      fmt::format("<h1>nibble bench --compare</h1>\n<p>A: {}<br>B: {}</p>\n", html_escape(a.name), html_escape(b.name));
  body += comparison_section(comparison);
  body += section("Of one alone", list(comparison.unmatched));
  body += section("What differs, A first", list(comparison.differences));
  for (const auto& [name, side] : {std::pair{"A", &a}, {"B", &b}}) {
    const Json metadata = value_at(side->json, "metadata");
    body += section(fmt::format("{}: {}", name, side->name), facts(metadata) + all_metadata(metadata));
  }
  return html_page("nibble bench --compare", body);
}

}  // namespace nibble::app
