#include "app/report_page.h"

#include "app/result_testing.h"
#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nibble::app {
namespace {

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

TEST(ReportPage, of_a_benchmark_says_where_it_comes_from_and_draws_it) {
  const std::string page = report_html("nibble bench", bench_result());
  for (const char* words : {"<title>nibble bench: tiny</title>", ">H100<", ">abc<", "2026-11-25T13:20:01Z",
                            "host.cpu_governor", "Generation: throughput against depth",
                            "Generation: throughput against batch", "Share of what the device allows", "depth, tokens",
                            "batch, sequences", "tokens per second", "% of the limit", "tg128, batch 8"})
    EXPECT_THAT(page, HasSubstr(words));
  EXPECT_THAT(page, Not(HasSubstr("Prompts")));
}

TEST(ReportPage, of_a_load_draws_throughput_over_interactivity_and_latencies) {
  const std::string page = report_html("nibble load", load_result());
  for (const char* words :
       {"Throughput and interactivity", "tokens per second of a user, median", "output tokens per second and GPU",
        "Time to the first token (TTFT)", "Time per output token (TPOT)", ">p99<", "concurrency, requests", ">ms<"})
    EXPECT_THAT(page, HasSubstr(words));
}

TEST(ReportPage, of_checks_says_which_failed) {
  Json json{{"metadata", whole_metadata()}, {"passed", false}};
  json["checks"] = {{{"level", "1"}, {"check", "starts"}, {"verdict", "pass"}, {"found", "<b>"}},
                    {{"level", "2"}, {"check", "finite"}, {"verdict", "fail"}, {"found", "nan"}}};
  const std::string page = report_html("nibble verify", json, {{"Features", "a <table>"}});
  EXPECT_THAT(page, HasSubstr("Checks: not all hold"));
  EXPECT_THAT(page, HasSubstr("<td class=\"fail\">fail</td><td class=\"n\">0.0</td><td>nan</td>"));
  EXPECT_THAT(page, HasSubstr("<td>&lt;b&gt;</td>"));
  EXPECT_THAT(page, HasSubstr("<pre>a &lt;table&gt;</pre>"));
  json.erase("passed");
  EXPECT_THAT(report_html("nibble verify", json), HasSubstr("Checks so far"));
}

TEST(ReportPage, markdown_becomes_tables_and_lines) {
  const std::string page = report_html("nibble verify", {{"metadata", whole_metadata()}},
                                       {{.title = "Features",
                                         .text = "all of it\n\n### Alone\n| a | b |\n|---|--:|\n| <i> |  2 |\n",
                                         .markdown = true}});
  EXPECT_THAT(page, HasSubstr("<p>all of it</p>\n<h3>Alone</h3>\n"));
  EXPECT_THAT(page, HasSubstr("<tr><th>a</th><th>b</th></tr>\n<tr><td>&lt;i&gt;</td><td>2</td></tr>\n</table>"));
  EXPECT_THAT(page, Not(HasSubstr("|")));
}

TEST(ReportPage, before_and_after_stand_side_by_side) {
  const NamedResult a{"a.json", bench_result()}, b{"b.json", bench_result()};
  const ResultComparison comparison = compare_results(a, b, Mismatch::kRefuse);
  for (const std::string& page :
       {comparison_html(comparison, a, b), report_html("nibble verify", b.json, {}, &comparison)}) {
    for (const char* words : {"Before and after", "Welch", "change, %", "t/s, A and B", "within noise"})
      EXPECT_THAT(page, HasSubstr(words));
  }
}

TEST(ReportPage, foreign_text_stays_text) {
  Json bench = bench_result(), load = load_result();
  make_hostile(bench);
  make_hostile(load);
  expect_safe(report_html(kHostile, bench, {{kHostile, kHostile}}));
  expect_safe(report_html(kHostile, load, {{.title = kHostile, .text = kHostile, .markdown = true}}));
  NamedResult a{kHostile, bench_result()}, b{kHostile, bench_result()};
  a.json["rows"].push_back({{"test", kHostile}, {"prompt", 1}, {"generate", 0}, {"batch", 1}, {"seconds", {1.0}}});
  b.json["rows"][0]["test"] = kHostile;
  a.json["rows"][0]["test"] = kHostile;
  b.json["metadata"]["build"]["commit"] = kHostile;
  expect_safe(comparison_html(compare_results(a, b, Mismatch::kRefuse), a, b));
}

TEST(ReportPage, nothing_measured_is_a_page_without_plots) {
  const std::string page = report_html("nibble bench", {{"metadata", whole_metadata()}, {"rows", Json::array()}});
  EXPECT_THAT(page, HasSubstr("</html>"));
  EXPECT_THAT(page, Not(HasSubstr("<svg")));
}

TEST(ReportPage, what_is_no_number_is_not_drawn) {
  Json json = bench_result();
  json["rows"][0]["tokens_per_second"]["mean"] = nullptr;
  json["rows"][1]["of_limit"] = "much";
  EXPECT_THAT(report_html("nibble bench", json), HasSubstr("</html>"));
}

TEST(ReportFile, is_known_by_its_ending) {
  EXPECT_EQ(report_format("a.html"), ReportFormat::kHtml);
  EXPECT_EQ(report_format("a.md"), ReportFormat::kMarkdown);
  for (const char* name : {"a", "a.txt", "a.html.gz", "html"})
    EXPECT_THROW(static_cast<void>(report_format(name)), Error) << name;
}

}  // namespace
}  // namespace nibble::app
