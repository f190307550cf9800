#include "lab/bench/profile.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::app {
namespace {

using backend::Stage;

struct Share {
  double us_per_step = 0, bytes_per_s = 0, of_read = 0, of_matrix = 0, of_time = 0;
};

struct Whole {
  int64_t steps = 0;
  double us = 0;
};
Share share_of(double us, const backend::Cost& cost, const Whole& whole, const backend::DevicePeaks& peaks) {
  const backend::MatrixPeak* peak = peaks.exact_peak();
  if (us <= 0 || whole.steps == 0) return {};
  return {.us_per_step = us / static_cast<double>(whole.steps),
          .bytes_per_s = cost.bytes / us * 1e6,
          .of_read = cost.bytes / us * 1e6 / peaks.read_bytes_per_s,
          .of_matrix = peak == nullptr ? 0 : cost.flops / us * 1e6 / peak->flops_per_s,
          .of_time = us / whole.us};
}

Whole whole_of(const StageTimes& times) {
  Whole whole{.steps = times.steps()};
  for (int s = 0; s < backend::kStages; ++s) whole.us += times.us(static_cast<Stage>(s));
  return whole;
}

nlohmann::ordered_json& add_share(nlohmann::ordered_json& json, const Share& share) {
  json["us_per_step"] = share.us_per_step;
  json["bytes_per_s"] = share.bytes_per_s;
  json["of_read"] = share.of_read;
  json["of_matrix"] = share.of_matrix;
  json["of_time"] = share.of_time;
  return json;
}

std::string title(const BenchRow& row, int64_t steps) {
  return fmt::format("\n{}, batch {}: per step, over {} steps and all layers\n\n", row.name(), row.batch, steps);
}

// A share of nothing is no number.
std::string percent_if_any(double of) { return of > 0 ? fmt::format("{:.1f}%", 100 * of) : std::string(); }

constexpr auto kKernelLine = "| {:<8} | {:<31} | {:>8} | {:>7} | {:>8} | {:>7} | {:>7} | {:>9} | {:>7} |\n";

Share share_of(const backend::KernelTime& time, const DeviceProfile& profile, const backend::DevicePeaks& peaks) {
  const auto cost = profile.costs.find({time.stage, std::string(time.kernel)});
  return share_of(time.own_us, cost == profile.costs.end() ? backend::Cost{} : cost->second,
                  {profile.times.steps, profile.times.total_us()}, peaks);
}

}  // namespace

void StageTimes::begin() {
  last_ = std::chrono::steady_clock::now();
  ++steps_;
}

void StageTimes::after(Stage stage) {
  const auto now = std::chrono::steady_clock::now();
  us_[static_cast<size_t>(stage)] += std::chrono::duration<double, std::micro>(now - last_).count();
  last_ = now;
}

void add_step(KernelCosts& costs, const backend::cuda::Program& program, const model::ModelConfig& config) {
  for (const backend::PlannedKernel& planned : program.nodes) {
    const auto layers = static_cast<double>(backend::layers_of(planned, config.layer_kinds));
    costs[{planned.stage, planned.kernel}] += {layers * planned.cost.bytes, layers * planned.cost.flops};
  }
}

std::string profile_table(const BenchRow& row, const StageTimes& times, const backend::DevicePeaks& peaks) {
  std::string out = title(row, times.steps());
  out += "| stage    |    µs/step |     GB/s | of read | of matrix | of time |\n";
  out += "| -------- | ---------: | -------: | ------: | --------: | ------: |\n";
  for (int s = 0; s < backend::kStages; ++s) {
    const auto stage = static_cast<Stage>(s);
    const Share share = share_of(times.us(stage), row.costs[static_cast<size_t>(s)], whole_of(times), peaks);
    out += fmt::format("| {:<8} | {:>10.1f} | {:>8.1f} | {:>6.1f}% | {:>8.1f}% | {:>6.1f}% |\n", name_of(stage),
                       share.us_per_step, share.bytes_per_s / 1e9, 100 * share.of_read, 100 * share.of_matrix,
                       100 * share.of_time);
  }
  return out;
}

nlohmann::ordered_json profile_json(const StageTimes& times, const backend::StageCosts& costs,
                                    const backend::DevicePeaks& peaks) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (int s = 0; s < backend::kStages; ++s) {
    const auto stage = static_cast<Stage>(s);
    nlohmann::ordered_json line = {{"stage", name_of(stage)}};
    json.push_back(add_share(line, share_of(times.us(stage), costs[static_cast<size_t>(s)], whole_of(times), peaks)));
  }
  return json;
}

std::string profile_table(const BenchRow& row, const DeviceProfile& profile, const backend::DevicePeaks& peaks) {
  const backend::KernelProfile& times = profile.times;
  const Whole whole{times.steps, times.total_us()};
  std::string out = title(row, times.steps);
  out += fmt::format(kKernelLine, "stage", "kernel", "launches", "µs each", "µs/step", "GB/s", "of read", "of matrix",
                     "of time");
  out += fmt::format("|{:-<10}|{:-<33}|{:->9}:|{:->8}:|{:->9}:|{:->8}:|{:->8}:|{:->10}:|{:->8}:|\n", "", "", "", "", "",
                     "", "", "", "");
  const auto line = [&](const backend::KernelTime& time, const Share& share) {
    const auto launches = static_cast<double>(time.launches), steps = static_cast<double>(times.steps);
    const bool kernel = time.launches > 0;
    out +=
        fmt::format(kKernelLine, kernel ? name_of(time.stage) : "", time.kernel,
                    kernel ? fmt::format("{:.4g}", launches / steps) : "",
                    kernel ? fmt::format("{:.2f}", time.us / launches) : "", fmt::format("{:.1f}", share.us_per_step),
                    share.bytes_per_s > 0 ? fmt::format("{:.1f}", share.bytes_per_s / 1e9) : "",
                    percent_if_any(share.of_read), percent_if_any(share.of_matrix), percent_if_any(share.of_time));
  };
  for (const backend::KernelTime& time : times.kernels) line(time, share_of(time, profile, peaks));
  line({.kernel = "between kernels"}, share_of(times.between_kernels_us, {}, whole, peaks));
  line({.kernel = "between steps"}, share_of(times.between_steps_us, {}, whole, peaks));
  line({.kernel = "the step"}, share_of(whole.us, row.cost(), whole, peaks));
  return out;
}

nlohmann::ordered_json profile_json(const DeviceProfile& profile, const backend::DevicePeaks& peaks) {
  const backend::KernelProfile& times = profile.times;
  const auto steps = static_cast<double>(std::max<int64_t>(1, times.steps));
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const backend::KernelTime& time : times.kernels) {
    nlohmann::ordered_json line = {{"stage", name_of(time.stage)},
                                   {"kernel", time.kernel},
                                   {"launches_per_step", static_cast<double>(time.launches) / steps},
                                   {"us_per_launch", time.us / static_cast<double>(time.launches)}};
    kernels.push_back(add_share(line, share_of(time, profile, peaks)));
  }
  return {{"steps", times.steps},
          {"us_per_step", times.total_us() / steps},
          {"between_kernels_us_per_step", times.between_kernels_us / steps},
          {"between_steps_us_per_step", times.between_steps_us / steps},
          {"kernels", std::move(kernels)}};
}

}  // namespace nibble::app
