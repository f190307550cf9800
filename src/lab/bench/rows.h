#pragma once
// A benchmark's rows, as a table in Markdown or as JSON. Pure.

#include "backend/backend.h"
#include "backend/measure.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nibble::app {

struct MeanSd {
  double mean = 0;
  double sd = 0;  // of the sample; 0 for one value
};
[[nodiscard]] MeanSd mean_sd(std::span<const double> values);  // REQUIRES: at least one

// One test: a prompt of `prompt` tokens, or `batch` sequences that generate `generate` tokens each.
struct BenchRow {
  int64_t prompt = 0, generate = 0, depth = 0;
  int batch = 1;
  std::vector<double> seconds{};  // of each repetition
  std::vector<double> reads{};    // bytes per second, measured between repetitions; empty: use DevicePeaks'
  // A card's clock before the first repetition and after each, while its driver still reports the load; empty: unknown.
  std::vector<backend::ClockReading> clocks{};
  backend::StageCosts costs{};       // of one repetition, at the least
  backend::ScreenCounts screened{};  // of all repetitions
  double joules = 0;                 // of all repetitions, on the first card; 0: unknown, or too short to tell

  [[nodiscard]] backend::Cost cost() const { return total(costs); }

  [[nodiscard]] std::string name() const;  // llama-bench's: "pp512", "tg128 @ d4096"
  [[nodiscard]] int64_t tokens() const { return prompt > 0 ? prompt : batch * generate; }
  [[nodiscard]] MeanSd tokens_per_second() const;
};

// A warning if the card's clock fell by more than a tenth between repetitions, or heat held it down: then the row
// measures the card rather than this program. Otherwise empty.
[[nodiscard]] std::string clock_note(const BenchRow& row);

// The peaks, with the read bandwidth that was measured between the row's repetitions.
[[nodiscard]] backend::DevicePeaks peaks_beside(const BenchRow& row, backend::DevicePeaks peaks);

// Which test it was, and how long it took.
[[nodiscard]] nlohmann::ordered_json timed_json(const BenchRow& row);
// timed_json() with shares of what the device can do, from the mean time: of the read bandwidth, of the exact matrix
// peak, and of the least time that reading and computing allow, stage by stage.
[[nodiscard]] nlohmann::ordered_json json_of(const BenchRow& row, const backend::DevicePeaks& peaks);
// "tg128 @ d4096, batch 8"; of a prompt its name: of such JSON.
[[nodiscard]] std::string label_of(const nlohmann::ordered_json& row);

// The lines above the table, its head, and one line per row. `head`: what --json prints, without its rows.
[[nodiscard]] std::string markdown_head(const nlohmann::ordered_json& head, const backend::DevicePeaks& peaks,
                                        int repetitions);
[[nodiscard]] std::string markdown_row(const nlohmann::ordered_json& row, const backend::DevicePeaks& peaks);

}  // namespace nibble::app
