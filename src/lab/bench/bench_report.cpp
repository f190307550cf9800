#include "lab/bench/bench_report.h"

#include "app/setup/terminal.h"
#include "base/error.h"

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

// RFC 4180: quoted where it must be.
std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + "\"";
}

std::string percent_of_limit(double fraction) { return fmt::format("{:.1f}%", 100 * fraction); }

double ideal_tokens_per_second(const BenchRow& row, const backend::DevicePeaks& peaks) {
  return static_cast<double>(row.tokens()) / peaks_beside(row, peaks).ideal_seconds(row.cost());
}

// What held the clock down in any of the readings.
std::vector<std::string> clock_limits(const BenchRow& row) {
  std::vector<std::string> limits;
  const auto any = [&](bool backend::ClockReading::* limit) { return std::ranges::any_of(row.clocks, limit); };
  if (any(&backend::ClockReading::thermal)) limits.emplace_back("thermal");
  if (any(&backend::ClockReading::power)) limits.emplace_back("power");
  return limits;
}

int lowest_mhz(const BenchRow& row) { return std::ranges::min(row.clocks, {}, &backend::ClockReading::mhz).mhz; }

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

std::string BenchRow::label() const { return prompt > 0 ? name() : fmt::format("{}, batch {}", name(), batch); }

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

Fractions fractions(const BenchRow& row, const backend::DevicePeaks& of_head) {
  const backend::DevicePeaks peaks = peaks_beside(row, of_head);
  const double seconds = mean_sd(row.seconds).mean;
  const backend::MatrixPeak* peak = peaks.exact_peak();
  return {.read = row.cost().bytes / seconds / peaks.read_bytes_per_s,
          .matrix = peak == nullptr ? 0 : row.cost().flops / seconds / peak->flops_per_s,
          .limit = peaks.ideal_seconds(row.cost()) / seconds};
}

std::string markdown_head(const BenchHead& head) {
  std::vector<std::string> peaks;
  for (const backend::MatrixPeak& peak : head.peaks.matrix) peaks.push_back(peak_text(peak));
  std::string out = fmt::format("nibble {} ({}): `{}`\n\n", head.version, head.commit, head.command);
  out += fmt::format("- model {}: {} layers, {} experts, {} ({})\n", head.model, head.layers, head.experts,
                     format_bytes(static_cast<double>(head.weight_bytes)), head.formats);
  out += fmt::format("- backend {}{}, KV cache {}, at most {} tokens per step, {} repetition{}\n", head.backend,
                     head.kernels.empty() ? "" : fmt::format(" ({})", head.kernels), head.kv_cache, head.step_tokens,
                     head.repetitions, head.repetitions == 1 ? "" : "s");
  out += fmt::format("- device {}, measured now: reads {}/s; {}\n", head.peaks.device,
                     format_bytes(head.peaks.read_bytes_per_s), fmt::join(peaks, ", "));
  const backend::MatrixPeak* exact = head.peaks.exact_peak();
  out += fmt::format(
      "- limit: the weights (of as many experts as an even router would choose) and keys that must be read at that "
      "bandwidth, or the operations at {}\n\n",
      exact == nullptr ? "no peak" : exact->type);
  out +=
      "| test             | batch |               t/s |   limit t/s | GB read |   GFLOP | reads GB/s | of read | of "
      "matrix | of limit |\n";
  out +=
      "| ---------------- | ----: | ----------------: | ----------: | ------: | ------: | ---------: | ------: | "
      "--------: | -------: |\n";
  return out;
}

std::string markdown_row(const BenchRow& row, const backend::DevicePeaks& peaks) {
  const MeanSd rate = row.tokens_per_second();
  const Fractions of = fractions(row, peaks);
  return fmt::format(
      "| {:<16} | {:>5} | {:>17} | {:>11.2f} | {:>7.3g} | {:>7.4g} | {:>10.1f} | {:>7} | {:>9} | {:>8} |\n", row.name(),
      row.batch, fmt::format("{:.2f} ± {:.2f}", rate.mean, rate.sd), ideal_tokens_per_second(row, peaks),
      row.cost().bytes / 1e9, row.cost().flops / 1e9, peaks_beside(row, peaks).read_bytes_per_s / 1e9,
      percent_of_limit(of.read), percent_of_limit(of.matrix), percent_of_limit(of.limit));
}

std::string csv_head() {
  return "version,commit,command,model,formats,backend,device,threads,read_bytes_per_s,matrix_type,matrix_flops_per_s,"
         "prompt,generate,depth,batch,repetitions,tokens_per_second,tokens_per_second_sd,limit_tokens_per_second,"
         "bytes,flops,of_read,of_matrix,of_limit,lowest_clock_mhz,clock_limits\n";
}

std::string csv_row(const BenchHead& head, const BenchRow& row) {
  const MeanSd rate = row.tokens_per_second();
  const Fractions of = fractions(row, head.peaks);
  const backend::MatrixPeak* peak = head.peaks.exact_peak();
  const std::vector<std::string> fields = {csv_field(head.version),
                                           csv_field(head.commit),
                                           csv_field(head.command),
                                           csv_field(head.model),
                                           csv_field(head.formats),
                                           csv_field(head.backend),
                                           csv_field(head.peaks.device),
                                           fmt::format("{}", head.threads),
                                           fmt::format("{:.6g}", peaks_beside(row, head.peaks).read_bytes_per_s),
                                           csv_field(peak == nullptr ? "" : peak->type),
                                           fmt::format("{:.6g}", peak == nullptr ? 0 : peak->flops_per_s),
                                           fmt::format("{}", row.prompt),
                                           fmt::format("{}", row.generate),
                                           fmt::format("{}", row.depth),
                                           fmt::format("{}", row.batch),
                                           fmt::format("{}", row.seconds.size()),
                                           fmt::format("{:.6g}", rate.mean),
                                           fmt::format("{:.6g}", rate.sd),
                                           fmt::format("{:.6g}", ideal_tokens_per_second(row, head.peaks)),
                                           fmt::format("{:.6g}", row.cost().bytes),
                                           fmt::format("{:.6g}", row.cost().flops),
                                           fmt::format("{:.4f}", of.read),
                                           fmt::format("{:.4f}", of.matrix),
                                           fmt::format("{:.4f}", of.limit),
                                           row.clocks.empty() ? "" : fmt::format("{}", lowest_mhz(row)),
                                           fmt::format("{}", fmt::join(clock_limits(row), " "))};
  return fmt::format("{}\n", fmt::join(fields, ","));
}

Json bench_json(const BenchHead& head, std::span<const BenchRow> rows) {
  Json json = {{"version", head.version},
               {"commit", head.commit},
               {"command", head.command},
               {"model", head.model},
               {"layers", head.layers},
               {"experts", head.experts},
               {"weight_bytes", head.weight_bytes},
               {"formats", head.formats},
               {"backend", head.backend},
               {"kernels", head.kernels},
               {"threads", head.threads},
               {"kv_cache", head.kv_cache},
               {"step_tokens", head.step_tokens},
               {"device", head.peaks.device},
               {"read_bytes_per_s", head.peaks.read_bytes_per_s},
               {"matrix", Json::array()},
               {"rows", Json::array()}};
  for (const backend::MatrixPeak& peak : head.peaks.matrix)
    json["matrix"].push_back({{"type", peak.type}, {"exact", peak.exact16}, {"flops_per_s", peak.flops_per_s}});
  for (const BenchRow& row : rows) {
    const MeanSd rate = row.tokens_per_second();
    const Fractions of = fractions(row, head.peaks);
    json["rows"].push_back({{"test", row.name()},
                            {"prompt", row.prompt},
                            {"generate", row.generate},
                            {"depth", row.depth},
                            {"batch", row.batch},
                            {"seconds", row.seconds},
                            {"read_bytes_per_s", row.reads},
                            {"clock_mhz", Json::array()},
                            {"celsius", Json::array()},
                            {"watts", Json::array()},
                            {"clock_limits", clock_limits(row)},
                            {"tokens_per_second", {{"mean", rate.mean}, {"sd", rate.sd}}},
                            {"limit_tokens_per_second", ideal_tokens_per_second(row, head.peaks)},
                            {"bytes", row.cost().bytes},
                            {"flops", row.cost().flops},
                            {"of_read", of.read},
                            {"of_matrix", of.matrix},
                            {"of_limit", of.limit}});
    for (const backend::ClockReading& clock : row.clocks) {
      json["rows"].back()["clock_mhz"].push_back(clock.mhz);
      json["rows"].back()["celsius"].push_back(clock.celsius);
      json["rows"].back()["watts"].push_back(clock.watts);
    }
  }
  return json;
}

}  // namespace nibble::app
