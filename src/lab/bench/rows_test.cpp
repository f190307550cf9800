#include "lab/bench/rows.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nibble::app {
namespace {

const backend::DevicePeaks kPeaks{
    .device = "A \"card\", large", .read_bytes_per_s = 1e9, .matrix = {{"bf16", true, 1e12}, {"int8", false, 4e12}}};

BenchRow generated() {
  BenchRow row{.generate = 10, .depth = 64, .batch = 2, .seconds = {1.0, 2.0, 4.0}};
  row.costs[0] = {.bytes = 5e8, .flops = 7e10};
  row.costs[1] = {.bytes = 2e8, .flops = 0};
  return row;
}

TEST(bench_report, mean_and_deviation_of_the_sample) {
  const std::vector<double> values = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_DOUBLE_EQ(mean_sd(values).mean, 5);
  EXPECT_NEAR(mean_sd(values).sd, 2.138089935, 1e-9);
  EXPECT_EQ(mean_sd(std::vector<double>{3}).sd, 0);
}

TEST(bench_report, rates_count_the_tokens_of_all_sequences) {
  const BenchRow row = generated();
  EXPECT_EQ(row.tokens(), 20);
  EXPECT_DOUBLE_EQ(row.tokens_per_second().mean, (20.0 + 10.0 + 5.0) / 3);
  EXPECT_EQ((BenchRow{.prompt = 512, .batch = 1}).tokens(), 512);
}

TEST(bench_report, names_are_those_of_llama_bench) {
  EXPECT_EQ((BenchRow{.prompt = 512}).name(), "pp512");
  EXPECT_EQ(generated().name(), "tg10 @ d64");
}

TEST(bench_report, fractions_are_of_the_mean_time) {
  const auto of = json_of(generated(), kPeaks);  // 7/3 s; 0.7 s to read, 0.07 s to compute
  EXPECT_NEAR(of["of_read"].get<double>(), 0.3, 1e-12);
  EXPECT_NEAR(of["of_matrix"].get<double>(), 0.03, 1e-12);
  EXPECT_NEAR(of["of_limit"].get<double>(), 0.3, 1e-12);
  BenchRow heavy = generated();
  heavy.costs[0].flops = 1.4e12;
  // 1.4 s to compute the first stage, and 0.2 to read the second
  EXPECT_NEAR(json_of(heavy, kPeaks)["of_limit"].get<double>(), 1.6 / 7 * 3, 1e-12);
}

TEST(bench_report, shares_are_of_the_reads_measured_beside_the_row) {
  BenchRow row = generated();
  row.reads = {1e8, 3e8};  // for kPeaks' 1e9
  const auto of = json_of(row, kPeaks);
  EXPECT_NEAR(of["of_read"].get<double>(), 1.5, 1e-12);
  EXPECT_NEAR(of["of_limit"].get<double>(), 1.5, 1e-12);
  EXPECT_NE(markdown_row(of, kPeaks).find(" 0.2 "), std::string::npos);
}

TEST(bench_report, every_line_has_the_columns_of_its_head) {
  const nlohmann::ordered_json head = {{"version", "1"}, {"commit", "c"},  {"command", "x"},     {"model", "m"},
                                       {"layers", 1},    {"experts", 2},   {"weight_bytes", 3},  {"formats", "f"},
                                       {"kernels", ""},  {"backend", "b"}, {"kv_cache", "bf16"}, {"step_tokens", 4}};
  const auto bars = [](std::string text) { return std::count(text.begin(), text.end(), '|'); };
  EXPECT_NE(markdown_head(head, kPeaks, 1).find(" per step, 1 repetition\n"), std::string::npos);
  const std::string text = markdown_head(head, kPeaks, 2);
  EXPECT_NE(text.find(" per step, 2 repetitions\n"), std::string::npos);
  const std::string last = text.substr(text.rfind('\n', text.size() - 2) + 1);
  EXPECT_EQ(bars(last), bars(markdown_row(json_of(generated(), kPeaks), kPeaks)));
}

// A card whose clock reads so before the first repetition and after each.
BenchRow clocked(std::vector<backend::ClockReading> clocks) {
  BenchRow row = generated();
  row.clocks = std::move(clocks);
  return row;
}

TEST(bench_report, a_clock_that_falls_by_more_than_a_tenth_is_told_of) {
  EXPECT_EQ(clock_note(generated()), "");
  EXPECT_EQ(clock_note(clocked({{1980, 60}, {1980, 61}, {1785, 62, false, true}, {1790, 62}})), "");
  EXPECT_EQ(clock_note(clocked({{345, 40}, {1980, 60}, {1980, 60}, {1980, 60}})), "");  // rises
  EXPECT_EQ(clock_note(clocked({{345, 70}, {1980, 80}, {1005, 85, true, false}, {1200, 84}})),
            "tg10 @ d64, batch 2: the card's clock fell from 1980 to 1005 MHz (85 °C, thermal limit): repetitions 20, "
            "10, 5 tok/s\n");
  EXPECT_EQ(clock_note(clocked({{1980, 60}, {1500, 61, false, true}, {1980, 62}, {1980, 62}})),
            "tg10 @ d64, batch 2: the card's clock fell from 1980 to 1500 MHz (62 °C, power limit): repetitions 20, "
            "10, 5 tok/s\n");
  EXPECT_EQ(clock_note(clocked({{1100, 85, true, true}, {1095, 85}, {1100, 85}, {1100, 85}})),
            "tg10 @ d64, batch 2: the card's clock was held down at 1095 MHz (85 °C, thermal limit, power limit): "
            "repetitions 20, 10, 5 tok/s\n");
  BenchRow fast = clocked({{1980, 60}, {1500, 61, false, true}, {1980, 62}, {1980, 62}});
  fast.seconds = {fast.seconds.front() / 1815.7};
  EXPECT_TRUE(clock_note(fast).ends_with("repetitions 36314 tok/s\n")) << clock_note(fast);
}

TEST(bench_report, rows_hold_the_clock) {
  const auto json = json_of(clocked({{1980, 60}, {1005, 85, true, false, 412.5}}), kPeaks);
  EXPECT_EQ(json["clock_mhz"], nlohmann::json({1980, 1005}));
  EXPECT_EQ(json["celsius"], nlohmann::json({60, 85}));
  EXPECT_EQ(json["watts"], nlohmann::json({0.0, 412.5}));
  EXPECT_EQ(json["clock_limits"], nlohmann::json({"thermal"}));
  EXPECT_TRUE(json_of(generated(), kPeaks)["clock_mhz"].empty());
}

TEST(bench_report, rows_hold_the_joules_of_a_token) {
  BenchRow row = generated();
  EXPECT_FALSE(json_of(row, kPeaks).contains("joules_per_token"));
  EXPECT_NE(markdown_row(json_of(row, kPeaks), kPeaks).find(" - |"), std::string::npos);
  row.joules = 90;  // of 3 repetitions of 20 tokens
  EXPECT_DOUBLE_EQ(json_of(row, kPeaks)["joules_per_token"].get<double>(), 1.5);
  EXPECT_NE(markdown_row(json_of(row, kPeaks), kPeaks).find(" 1.5 |"), std::string::npos);
}

TEST(bench_report, json_holds_each_repetition) {
  const auto json = json_of(generated(), kPeaks);
  EXPECT_EQ(json["seconds"].size(), 3);
  EXPECT_EQ(json["test"], "tg10 @ d64");
  EXPECT_DOUBLE_EQ(json["limit_tokens_per_second"].get<double>(), 20 / 0.7);
}

}  // namespace
}  // namespace nibble::app
