#include "lab/results/compare.h"

#include "base/error.h"
#include "lab/results/testing/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;

Json bench_row(const std::string& test, int generate, int batch, std::vector<double> seconds) {
  return {{"test", test}, {"prompt", 0}, {"generate", generate}, {"batch", batch}, {"seconds", std::move(seconds)}};
}

NamedResult bench(const std::string& name, Json rows) {
  return {name, {{"metadata", whole_metadata()}, {"rows", std::move(rows)}}};
}

// scipy.stats: the same ratio and its Welch interval by the delta method, with t.ppf(0.975, degrees).
TEST(ResultCompare, an_interval_is_welchs) {
  const Change equal = change_of(std::vector{10.0, 10.2, 9.8, 10.1, 9.9}, std::vector{10.0, 10.2, 9.8, 10.1, 9.9});
  ASSERT_TRUE(equal.interval);
  EXPECT_NEAR(equal.relative, 0, 1e-12);
  EXPECT_NEAR(equal.interval->high, 2.306 * std::sqrt(2 * 0.025 / 5) / 10, 1e-6);  // sd² 0.025, 8 degrees of freedom
  EXPECT_NEAR(equal.interval->low, -equal.interval->high, 1e-12);
  EXPECT_FALSE(equal.shown());
  const Change faster = change_of(std::vector{10.0, 10.1}, std::vector{20.0, 20.2});
  EXPECT_NEAR(faster.relative, 1, 1e-9);
  EXPECT_TRUE(faster.shown());
  EXPECT_FALSE(change_of(std::vector{10.0}, std::vector{20.0, 21.0}).interval);
  const Change exact = change_of(std::vector{10.0, 10.0}, std::vector{11.0, 11.0});
  EXPECT_NEAR(exact.interval->low, 0.1, 1e-9);
}

TEST(ResultCompare, rows_are_joined_by_test_depth_and_batch) {
  const NamedResult a = bench("a", {bench_row("tg8", 8, 1, {1.0, 1.01, 0.99}), bench_row("tg8", 8, 4, {1.0, 1.0}),
                                    bench_row("tg16", 16, 1, {1.0, 1.1})});
  const NamedResult b = bench("b", {bench_row("tg8", 8, 4, {1.0, 1.0}), bench_row("tg8", 8, 1, {2.0, 2.01, 1.99}),
                                    bench_row("tg8 @ d64", 8, 1, {1.0, 1.1})});
  const ResultComparison c = compare_results(a, b, Mismatch::kRefuse);
  ASSERT_EQ(c.rows.size(), 2U);
  EXPECT_EQ(c.rows[0].name, "tg8, batch 1");
  EXPECT_NEAR(c.rows[0].change.relative, -0.5, 1e-3);
  EXPECT_EQ(c.rows[0].verdict(), "slower");
  EXPECT_EQ(c.rows[1].name, "tg8, batch 4");
  EXPECT_EQ(c.rows[1].verdict(), "within noise");
  EXPECT_THAT(c.unmatched, ElementsAre("a alone: tg16, batch 1", "b alone: tg8 @ d64, batch 1"));
  EXPECT_THAT(comparison_text(c, a, b), HasSubstr("-50.00%"));
  EXPECT_EQ(comparison_json(c, a, b)["rows"][0]["verdict"], "slower");
}

TEST(ResultCompare, says_what_else_differs) {
  NamedResult a = bench("a", {bench_row("tg8", 8, 1, {1.0})}), b = a;
  b.json["metadata"]["build"]["commit"] = "def";
  b.json["metadata"]["settings"]["threads"]["resolved"] = "4";
  b.json["metadata"]["settings"]["fast"] = {{"value", "true"}, {"origin", "command line"}};
  const ResultComparison c = compare_results(a, b, Mismatch::kRefuse);
  EXPECT_THAT(c.differences, ElementsAre("build.commit: abc, def", "--fast: not set, true", "--threads: 2, 4"));
  EXPECT_EQ(c.rows[0].verdict(), "one repetition");
}

TEST(ResultCompare, refuses_what_is_not_alike_unless_told) {
  const NamedResult a = bench("a", {bench_row("tg8", 8, 1, {1.0})});
  NamedResult bare = a, other = a, dummy = a, undated = a;
  bare.json.erase("metadata");
  undated.json["metadata"].erase("date");
  other.json["metadata"] = whole_metadata("Epyc");
  dummy.json["metadata"]["model"] = {{"name", "tiny"}, {"sha256", nullptr}, {"dummy_seed", 1}};
  for (const NamedResult& b : {bare, other, dummy, undated}) {
    EXPECT_THROW(static_cast<void>(compare_results(a, b, Mismatch::kRefuse)), Error);
    EXPECT_THROW(static_cast<void>(compare_results(b, a, Mismatch::kRefuse)), Error);
    EXPECT_EQ(compare_results(a, b, Mismatch::kAllow).rows.size(), 1U);
  }
  EXPECT_THAT(compare_results(a, other, Mismatch::kAllow).differences, ElementsAre("device.name: Xeon, Epyc"));
}

TEST(ResultCompare, refuses_what_is_no_result) {
  const NamedResult a = bench("a", {bench_row("tg8", 8, 1, {1.0})});
  const Json load_row = {{"concurrency", 4}, {"output_tokens_per_second_of_repetitions", {5.0}}};
  for (const Json& json : {Json::object(), Json{{"rows", 7}}, Json{{"rows", Json::array()}}, Json{{"rows", {7}}},
                           Json{{"metadata", whole_metadata()}, {"rows", {bench_row("tg8", 8, 1, {})}}},
                           Json{{"metadata", whole_metadata()}, {"rows", {bench_row("tg8", 8, 1, {0.0, -1.0})}}},
                           Json{{"metadata", whole_metadata()}, {"rows", {bench_row("tg8", 8, 1, {1e-320})}}},
                           Json{{"metadata", whole_metadata()}, {"rows", {{{"test", 7}, {"seconds", 3}}}}},
                           Json{{"metadata", whole_metadata()}, {"rows", {load_row}}}}) {
    EXPECT_THROW(static_cast<void>(compare_results(a, {"b", json}, Mismatch::kAllow)), Error) << json;
  }
}

TEST(ResultCompare, a_load_is_faster_where_waits_are_shorter) {
  Json row = {{"concurrency", 4}, {"output_tokens_per_second_of_repetitions", {50.0, 51.0}}};
  for (const char* name : {"ttft", "tpot", "itl", "e2e"})
    row[name] = {{"count", 9}, {"p50_ms", 10.0}, {"p99_ms", 20.0}};
  Json later = row;
  later["ttft"]["p50_ms"] = 5.0;
  later["tpot"]["count"] = 0;
  const ResultComparison c = compare_results(bench("a", {row}), bench("b", {later}), Mismatch::kRefuse);
  ASSERT_EQ(c.rows.size(), 7U);  // no TPOT
  EXPECT_EQ(c.rows[0].metric, "out tok/s");
  EXPECT_EQ(c.rows[0].verdict(), "within noise");
  EXPECT_EQ(c.rows[1].metric, "TTFT p50 ms");
  EXPECT_FALSE(c.rows[1].higher_is_better);
  EXPECT_NEAR(c.rows[1].change.relative, -0.5, 1e-9);
}

// What bench/foreign_result.py writes.
TEST(ResultCompare, another_programs_result_needs_the_same_device_alone) {
  const auto theirs = [](const std::string& device) {
    return NamedResult{
        "theirs.json",
        {{"metadata", {{"program", "llama-bench"}, {"device", {{"name", device}}}, {"model", {{"name", "tiny.gguf"}}}}},
         {"rows", {bench_row("tg8", 8, 1, {2.0, 2.0})}}}};
  };
  const NamedResult ours = bench("ours.json", {bench_row("tg8", 8, 1, {1.0, 1.0})});
  const ResultComparison c = compare_results(theirs("Xeon"), ours, Mismatch::kRefuse);
  EXPECT_EQ(c.rows[0].verdict(), "faster");
  EXPECT_THAT(c.differences, ElementsAre("program: llama-bench, nibble", "model.name: tiny.gguf, tiny"));
  EXPECT_THROW(static_cast<void>(compare_results(theirs("Epyc"), ours, Mismatch::kRefuse)), Error);
  EXPECT_EQ(compare_results(theirs("Epyc"), ours, Mismatch::kAllow).rows.size(), 1U);
}

}  // namespace
}  // namespace nibble::app
