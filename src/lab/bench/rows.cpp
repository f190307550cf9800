#include "lab/bench/rows.h"

#include "app/setup/terminal.h"
#include "base/error.h"
#include "lab/results/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;

std::string peak_text(const backend::MatrixPeak& peak) {
  const bool integers = peak.type.starts_with("int");
  return fmt::format("{} {:.3g} T{}/s", peak.type, peak.flops_per_s / 1e12, integers ? "OP" : "FLOP");
}

// What held the clock down in any of the readings.
std::vector<std::string> clock_limits(const BenchRow& row) {
  std::vector<std::string> limits;
  const auto any = [&](bool backend::ClockReading::* limit) { return std::ranges::any_of(row.clocks, limit); };
  if (any(&backend::ClockReading::thermal)) limits.emplace_back("thermal");
  if (any(&backend::ClockReading::power)) limits.emplace_back("power");
  return limits;
}

// The clock before and after its deepest fall; the first reading twice if it never fell.
std::pair<backend::ClockReading, backend::ClockReading> deepest_fall(const std::vector<backend::ClockReading>& clocks) {
  std::pair fall{clocks.front(), clocks.front()};
  backend::ClockReading highest = clocks.front();
  for (const backend::ClockReading& now : clocks) {
    if (now.mhz > highest.mhz) highest = now;
    if (int64_t{now.mhz} * fall.first.mhz < int64_t{fall.second.mhz} * highest.mhz) fall = {highest, now};
  }
  return fall;
}

}  // namespace

MeanSd mean_sd(std::span<const double> values) {
  check(!values.empty(), "a mean is of something");
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double mean = sum / count;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return {mean, values.size() > 1 ? std::sqrt(squares / (count - 1)) : 0};
}

std::string BenchRow::name() const {
  std::string name = prompt > 0 ? fmt::format("pp{}", prompt) : fmt::format("tg{}", generate);
  if (depth > 0) name += fmt::format(" @ d{}", depth);
  return name;
}

MeanSd BenchRow::tokens_per_second() const {
  std::vector<double> rates;
  for (const double s : seconds) rates.push_back(static_cast<double>(tokens()) / s);
  return mean_sd(rates);
}

std::string clock_note(const BenchRow& row) {
  if (row.clocks.empty()) return {};
  constexpr double kFall = 0.9;
  const auto [from, to] = deepest_fall(row.clocks);
  const bool fell = to.mhz < kFall * from.mhz, hot = std::ranges::any_of(row.clocks, &backend::ClockReading::thermal);
  if (!fell && !hot) return {};
  std::vector<std::string> why, rates;
  for (const std::string& limit : clock_limits(row)) why.push_back(limit + " limit");
  for (const double s : row.seconds) {
    const double rate = static_cast<double>(row.tokens()) / s;
    rates.push_back(rate < 1000 ? fmt::format("{:.4g}", rate) : fmt::format("{:.0f}", rate));
  }
  return fmt::format(
      "{}, batch {}: the card's clock {} ({} °C{}{}): repetitions {} tok/s\n", row.name(), row.batch,
      fell ? fmt::format("fell from {} to {} MHz", from.mhz, to.mhz) : fmt::format("was held down at {} MHz", to.mhz),
      std::ranges::max(row.clocks, {}, &backend::ClockReading::celsius).celsius, why.empty() ? "" : ", ",
      fmt::join(why, ", "), fmt::join(rates, ", "));
}

backend::DevicePeaks peaks_beside(const BenchRow& row, backend::DevicePeaks peaks) {
  if (!row.reads.empty()) peaks.read_bytes_per_s = mean_sd(row.reads).mean;
  return peaks;
}

std::string markdown_head(const Json& head, const backend::DevicePeaks& peaks, int repetitions) {
  const auto text = [&](const char* name) { return head.at(name).get<std::string>(); };
  const auto number = [&](const char* name) { return head.at(name).get<int64_t>(); };
  std::vector<std::string> rates;
  for (const backend::MatrixPeak& peak : peaks.matrix) rates.push_back(peak_text(peak));
  std::string out = fmt::format("nibble {} ({}): `{}`\n\n", text("version"), text("commit"), text("command"));
  out += fmt::format("- model {}: {} layers, {} experts, {} ({})\n", text("model"), number("layers"), number("experts"),
                     format_bytes(head.at("weight_bytes").get<double>()), text("formats"));
  out += fmt::format("- backend {}{}, KV cache {}, at most {} tokens per step, {} repetition{}\n", text("backend"),
                     text("kernels").empty() ? "" : fmt::format(" ({})", text("kernels")), text("kv_cache"),
                     number("step_tokens"), repetitions, repetitions == 1 ? "" : "s");
  if (peaks.host)
    out += fmt::format("- experts of {:.0f} layers on the host, measured now: reads {}/s; copies to the card {}/s\n",
                       peaks.host->layers * static_cast<double>(number("layers")),
                       format_bytes(peaks.host->read_bytes_per_s), format_bytes(peaks.host->link_bytes_per_s));
  out += fmt::format("- device {}, measured now: reads {}/s; {}\n", peaks.device, format_bytes(peaks.read_bytes_per_s),
                     fmt::join(rates, ", "));
  const backend::MatrixPeak* exact = peaks.exact_peak();
  out += fmt::format(
      "- limit: in each stage the weights (of as many experts as an even router would choose) and keys that must be read "
      "at that bandwidth, or the operations at {}\n\n",
      exact == nullptr ? "no peak" : exact->type);
  out +=
      "| test             | batch |               t/s |   limit t/s | GB read |   GFLOP | reads GB/s | of read | of "
      "matrix | of limit | J/token |\n";
  out +=
      "| ---------------- | ----: | ----------------: | ----------: | ------: | ------: | ---------: | ------: | "
      "--------: | -------: | ------: |\n";
  return out;
}

std::string markdown_row(const Json& row, const backend::DevicePeaks& peaks) {
  const auto number = [&](std::string_view path) { return value_at(row, path).get<double>(); };
  const auto percent = [&](std::string_view path) { return fmt::format("{:.1f}%", 100 * number(path)); };
  const auto reads = row.at("read_bytes_per_s").get<std::vector<double>>();
  return fmt::format(
      "| {:<16} | {:>5} | {:>17} | {:>11.2f} | {:>7.3g} | {:>7.4g} | {:>10.1f} | {:>7} | {:>9} | {:>8} | {:>7} |\n",
      text_of(row.at("test")), row.at("batch").get<int>(),
      fmt::format("{:.2f} ± {:.2f}", number("tokens_per_second.mean"), number("tokens_per_second.sd")),
      number("limit_tokens_per_second"), number("bytes") / 1e9, number("flops") / 1e9,
      (reads.empty() ? peaks.read_bytes_per_s : mean_sd(reads).mean) / 1e9, percent("of_read"), percent("of_matrix"),
      percent("of_limit"), row.contains("joules_per_token") ? fmt::format("{:.3g}", number("joules_per_token")) : "-");
}

Json timed_json(const BenchRow& row) {
  return {{"test", row.name()}, {"prompt", row.prompt}, {"generate", row.generate},
          {"depth", row.depth}, {"batch", row.batch},   {"seconds", row.seconds}};
}

std::string label_of(const Json& row) {
  const std::string test = text_of(value_at(row, "test"));
  return value_at(row, "prompt") > 0 ? test : fmt::format("{}, batch {}", test, text_of(value_at(row, "batch")));
}

Json json_of(const BenchRow& row, const backend::DevicePeaks& of_head) {
  const backend::DevicePeaks peaks = peaks_beside(row, of_head);
  const backend::MatrixPeak* peak = peaks.exact_peak();
  const MeanSd rate = row.tokens_per_second();
  const double seconds = mean_sd(row.seconds).mean, ideal = peaks.ideal_seconds(row.costs);
  Json json = timed_json(row);
  json.update({{"read_bytes_per_s", row.reads},
               {"clock_mhz", Json::array()},
               {"celsius", Json::array()},
               {"watts", Json::array()},
               {"clock_limits", clock_limits(row)},
               {"tokens_per_second", {{"mean", rate.mean}, {"sd", rate.sd}}},
               {"limit_tokens_per_second", static_cast<double>(row.tokens()) / ideal},
               {"bytes", row.cost().bytes},
               {"flops", row.cost().flops},
               {"of_read", row.cost().bytes / seconds / peaks.read_bytes_per_s},
               {"of_matrix", peak == nullptr ? 0 : row.cost().flops / seconds / peak->flops_per_s},
               {"of_limit", ideal / seconds}});
  if (row.joules > 0)
    json["joules_per_token"] = row.joules / static_cast<double>(row.tokens() * std::ssize(row.seconds));
  if (row.screened.steps > 0)
    json["screened_tiles_of_a_step"] =
        static_cast<double>(row.screened.tiles) / static_cast<double>(row.screened.steps);
  for (const backend::ClockReading& clock : row.clocks) {
    json["clock_mhz"].push_back(clock.mhz);
    json["celsius"].push_back(clock.celsius);
    json["watts"].push_back(clock.watts);
  }
  return json;
}

}  // namespace nibble::app
