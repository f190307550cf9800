#include "lab/results/report.h"

#include "base/error.h"
#include "lab/results/testing/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <string>

namespace nibble::app {
namespace {

TEST(ReportFile, that_cannot_be_written_is_refused_and_others_stay_as_they_are) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "nibble_report_file";
  std::filesystem::remove_all(dir);
  EXPECT_THROW(require_writable("--report", dir / "page.md"), Error);
  std::filesystem::create_directory(dir);
  require_writable("--report", dir / "page.md");
  EXPECT_FALSE(exists(dir / "page.md"));
  write_report(dir / "page.md", {.title = "t", .text = "kept"});
  require_writable("--report", dir / "page.md");
  EXPECT_EQ(file_size(dir / "page.md"), 4);
  require_writable("--report", "");
  std::filesystem::remove_all(dir);
}

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::ordered_json;

const std::string kHostile = "</script><img src=x onerror=alert(1)>\"'&\x1b[2J\xFF";

Json bench_result() {
  Json json{{"metadata", whole_metadata("H100")}, {"rows", Json::array()}};
  for (const int depth : {0, 4096}) {
    for (const int batch : {1, 8}) {
      json["rows"].push_back({{"test", "tg128"},
                              {"prompt", 0},
                              {"generate", 128},
                              {"depth", depth},
                              {"batch", batch},
                              {"seconds", {1.0, 1.1}},
                              {"tokens_per_second", {{"mean", 100.0 * batch}, {"sd", 3.0}}},
                              {"limit_tokens_per_second", 200.0 * batch},
                              {"of_limit", 0.5}});
    }
  }
  return json;
}

Json load_result() {
  Json json{{"metadata", whole_metadata("H100")}, {"rows", Json::array()}};
  for (const int concurrency : {1, 4}) {
    Json row = {{"concurrency", concurrency},
                {"requests", {{"ok", 9}, {"failed", 1}}},
                {"failures", {{kHostile, {{"count", 1}, {"first_message", kHostile}}}}},
                {"output_tokens_per_second", 10.0 * concurrency},
                {"output_tokens_per_second_per_gpu", 10.0 * concurrency},
                {"output_tokens_per_second_of_repetitions", {10.0 * concurrency}},
                {"tokens_per_second_per_user", {{"p50", 9.0}}}};
    for (const char* name : {"ttft", "tpot", "itl", "e2e"})
      row[name] = {{"count", 9}, {"p50_ms", 10.0}, {"p90_ms", 15.0}, {"p99_ms", 20.0}};
    json["rows"].push_back(row);
  }
  return json;
}

// Every text of a result, replaced.
void make_hostile(Json& json) {
  if (json.is_string()) {
    json = kHostile;
  } else if (json.is_object()) {
    Json named = Json::object();
    for (auto& [name, value] : json.items()) {
      make_hostile(value);
      named[name] = value;
    }
    json = named;
  } else if (json.is_array()) {
    for (Json& each : json) make_hostile(each);
  }
}

void expect_safe(const std::string& page) {
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("</script")));
  EXPECT_THAT(page, Not(HasSubstr("\x1b")));
  EXPECT_THAT(page, Not(HasSubstr("\xFF")));
  EXPECT_THAT(page, HasSubstr("&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;"));
}

TEST(ReportPlots, of_a_benchmark_are_over_depth_and_batch) {
  const std::string plots = result_plots(bench_result()["rows"]);
  for (const char* words : {"Generation: throughput against depth", "Generation: throughput against batch",
                            "Share of what the device allows", "depth, tokens", "batch, sequences", "tokens per second",
                            "% of the limit", "tg128, batch 8"})
    EXPECT_THAT(plots, HasSubstr(words));
  EXPECT_THAT(plots, Not(HasSubstr("Prompts")));
}

TEST(ReportPlots, of_a_load_are_throughput_over_interactivity_and_latencies) {
  const std::string plots = result_plots(load_result()["rows"]);
  for (const char* words :
       {"Throughput and interactivity", "tokens per second of a user, median", "output tokens per second and GPU",
        "Time to the first token (TTFT)", "Time per output token (TPOT)", ">p99<", "concurrency, requests", ">ms<"})
    EXPECT_THAT(plots, HasSubstr(words));
}

TEST(ReportPlots, of_a_comparison_are_changes_with_their_intervals) {
  const NamedResult a{"a.json", bench_result()}, b{"b.json", bench_result()};
  const std::string plots = comparison_plots(compare_results(a, b, Mismatch::kRefuse));
  for (const char* words : {"Welch", "change, %", "tg128, batch 8, t/s"}) EXPECT_THAT(plots, HasSubstr(words));
}

TEST(ReportPlots, nothing_measured_is_nothing_drawn) {
  EXPECT_EQ(result_plots(Json::array()), "");
  EXPECT_EQ(result_plots(nullptr), "");
  EXPECT_EQ(comparison_plots({}), "");
}

TEST(ReportPlots, what_is_no_number_is_not_drawn) {
  Json json = bench_result();
  json["rows"][0]["tokens_per_second"]["mean"] = nullptr;
  json["rows"][1]["of_limit"] = "much";
  EXPECT_THAT(result_plots(json["rows"]), HasSubstr("<svg"));
}

TEST(ReportPage, markdown_becomes_headings_tables_lists_and_lines) {
  const std::string page = html_page(
      {.title = "t", .text = "# T\n\nall of it\n\n### Alone\n- one\n- two\n| a | b |\n|---|--:|\n| <i> |  2 |\n"});
  EXPECT_THAT(page,
              HasSubstr("<h1>T</h1>\n<p>all of it</p>\n<h3>Alone</h3>\n<ul>\n<li>one</li>\n<li>two</li>\n</ul>\n"));
  EXPECT_THAT(
      page,
      HasSubstr(
          "<tr><th>a</th><th class=\"n\">b</th></tr>\n<tr><td>&lt;i&gt;</td><td class=\"n\">2</td></tr>\n</table>"));
  EXPECT_THAT(page, Not(HasSubstr("|")));
}

TEST(ReportPage, a_head_without_words_is_left_out) {
  const std::string page = html_page({.title = "t", .text = metadata_section(whole_metadata("H100"))});
  EXPECT_THAT(page, Not(HasSubstr("<th>")));
  for (const char* words : {"<h1>t</h1>", "<td>H100</td>", "<td>abc</td>", "2026-11-25T13:20:01Z", "host.cpu_governor"})
    EXPECT_THAT(page, HasSubstr(words));
}

TEST(ReportPage, says_which_checks_failed) {
  const std::string page =
      html_page({.title = "t", .text = "| check | verdict |\n| :-- | :-- |\n| a | pass |\n| b | FAIL |\n"});
  EXPECT_THAT(page, HasSubstr("<td class=\"pass\">pass</td>"));
  EXPECT_THAT(page, HasSubstr("<td class=\"fail\">FAIL</td>"));
}

TEST(ReportPage, foreign_text_stays_text) {
  Json bench = bench_result(), load = load_result();
  make_hostile(bench);
  make_hostile(load);
  const std::string text =
      kHostile + "\n# " + kHostile + "\n- " + kHostile + "\n| " + kHostile + " |\n| -- |\n| " + kHostile + " |\n";
  expect_safe(html_page({.title = kHostile, .text = text, .plots = result_plots(bench["rows"])}));
  expect_safe(
      html_page({.title = kHostile, .text = metadata_section(load["metadata"]), .plots = result_plots(load["rows"])}));
  NamedResult a{kHostile, bench_result()}, b{kHostile, bench_result()};
  a.json["rows"].push_back({{"test", kHostile}, {"prompt", 1}, {"generate", 0}, {"batch", 1}, {"seconds", {1.0}}});
  b.json["rows"][0]["test"] = kHostile;
  a.json["rows"][0]["test"] = kHostile;
  b.json["metadata"]["build"]["commit"] = kHostile;
  const ResultComparison comparison = compare_results(a, b, Mismatch::kRefuse);
  expect_safe(
      html_page({.title = "t", .text = comparison_text(comparison, a, b), .plots = comparison_plots(comparison)}));
}

TEST(Html, markup_becomes_text) {
  EXPECT_EQ(html_escape("<script>\"a\" & 'b'</script>"),
            "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;&lt;/script&gt;");
}

TEST(Html, control_characters_and_broken_utf8_are_replaced) {
  EXPECT_EQ(html_escape(std::string("a\0b\x1b\x7f\tc\nd", 9)),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\xEF\xBF\xBD\tc\nd");
  EXPECT_EQ(html_escape("x\xFFy\xC3"), "x\xEF\xBF\xBDy\xEF\xBF\xBD");
  EXPECT_EQ(html_escape("é—"), "é—");
}

TEST(Html, a_page_loads_and_runs_nothing) {
  const std::string page = html_page({.title = "</title>", .text = "body"});
  EXPECT_THAT(page, HasSubstr("<title>&lt;/title&gt;</title>"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'; style-src 'unsafe-inline'"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
  for (const char* word : {"<script", "http://", "https://", "url(", "@import", "@font-face", " src="})
    EXPECT_THAT(page, Not(HasSubstr(word)));
}

using testing::ElementsAre;

TEST(SvgPlot, marks_begin_at_zero_and_reach_the_highest) {
  EXPECT_THAT(axis_marks(0, 0), ElementsAre(0, 1));
  EXPECT_THAT(axis_marks(0, 5), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(axis_marks(0, 7), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(axis_marks(-3, 12), ElementsAre(-5, 0, 5, 10, 15));
  EXPECT_THAT(axis_marks(2, 10), ElementsAre(0, 2, 4, 6, 8, 10)) << "not from 2";
  for (const double high : {1e-9, 0.3, 1.0, 9.99, 1234.5, 8e12}) {
    const std::vector<double> marks = axis_marks(0, high);
    EXPECT_EQ(marks.front(), 0);
    EXPECT_GE(marks.back(), high * (1 - 1e-9));
    EXPECT_LE(marks.size(), 8U);
    EXPECT_GE(marks.size(), 3U);
  }
}

// A value's height above the axis is in proportion to it.
TEST(SvgPlot, a_value_twice_as_high_is_drawn_twice_as_high) {
  const std::string svg = svg_lines(
      {.title = "t", .x = "depth, tokens", .y = "tokens per second", .series = {{"a", {{0, 0}, {1, 50}, {2, 100}}}}});
  std::array<double, 3> y{};
  size_t at = 0;
  for (double& each : y) {
    at = svg.find("cy=\"", at) + 4;
    each = std::stod(svg.substr(at));
  }
  EXPECT_NEAR((y[0] - y[2]) / (y[0] - y[1]), 2, 0.01);
  EXPECT_THAT(svg, HasSubstr(">depth, tokens</text>"));
  EXPECT_THAT(svg, HasSubstr(">tokens per second</text>"));
}

TEST(SvgPlot, a_bar_is_as_long_as_its_value) {
  const std::string svg = svg_bars({.title = "t", .unit = "%", .bars = {{"a", 10}, {"b", -5}, {"c", 0}}});
  const auto width = [&](int which) {
    size_t at = 0;
    for (int i = 0; i <= which; ++i) at = svg.find("<rect", at) + 1;
    return std::stod(svg.substr(svg.find("width=\"", at) + 7));
  };
  EXPECT_NEAR(width(0) / width(1), 2, 0.02);
  EXPECT_EQ(width(2), 0);
}

TEST(SvgPlot, names_are_text) {
  const std::string hostile = "</text><script>alert(1)</script>\" onload=\"x";
  const std::string lines =
      svg_lines({.title = hostile, .x = hostile, .y = hostile, .series = {{hostile, {{1, 1, 0, hostile}}}}});
  const std::string bars = svg_bars({.title = hostile, .unit = hostile, .bars = {{hostile, 1}}});
  for (const std::string& svg : {lines, bars}) {
    EXPECT_THAT(svg, Not(HasSubstr("<script")));
    EXPECT_THAT(svg, Not(HasSubstr("\" onload")));
    EXPECT_THAT(svg, HasSubstr("&lt;script&gt;"));
  }
}

}  // namespace
}  // namespace nibble::app
