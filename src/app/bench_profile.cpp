#include "app/bench_profile.h"

#include "base/error.h"

#include <fmt/format.h>

namespace nibble::app {
namespace {

using backend::Stage;

struct StageShare {
  double us_per_step = 0, bytes_per_s = 0, of_read = 0, of_matrix = 0, of_time = 0;
};

StageShare share_of(Stage stage, const StageTimes& times, const backend::StageCosts& costs,
                    const backend::DevicePeaks& peaks) {
  double all = 0;
  for (int s = 0; s < backend::kStages; ++s) all += times.us(static_cast<Stage>(s));
  const double us = times.us(stage);
  const backend::Cost& cost = costs[static_cast<size_t>(stage)];
  const backend::MatrixPeak* peak = peaks.exact_peak();
  if (us <= 0 || times.steps() == 0) return {};
  return {.us_per_step = us / static_cast<double>(times.steps()),
          .bytes_per_s = cost.bytes / us * 1e6,
          .of_read = cost.bytes / us * 1e6 / peaks.read_bytes_per_s,
          .of_matrix = peak == nullptr ? 0 : cost.flops / us * 1e6 / peak->flops_per_s,
          .of_time = us / all};
}

}  // namespace

void StageTimes::begin(backend::Backend& be) {
  order_.clear();
  be.mark();
}

void StageTimes::after(backend::Backend& be, Stage stage) {
  order_.push_back(stage);
  be.mark();
}

void StageTimes::end(backend::Backend& be) {
  const std::vector<double> us = be.take_marks_us();
  check(us.size() == order_.size() + 1, "a mark before the step and one after each stage");
  for (size_t i = 0; i < order_.size(); ++i) us_[static_cast<size_t>(order_[i])] += us[i + 1] - us[i];
  ++steps_;
}

std::string profile_table(const BenchRow& row, const StageTimes& times, const backend::DevicePeaks& peaks) {
  std::string out =
      fmt::format("\n{}, batch {}: per step, over {} steps and all layers\n\n", row.name(), row.batch, times.steps());
  out += "| stage    |    µs/step |     GB/s | of read | of matrix | of time |\n";
  out += "| -------- | ---------: | -------: | ------: | --------: | ------: |\n";
  for (int s = 0; s < backend::kStages; ++s) {
    const auto stage = static_cast<Stage>(s);
    const StageShare share = share_of(stage, times, row.costs, peaks);
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
    const StageShare share = share_of(stage, times, costs, peaks);
    json.push_back({{"stage", name_of(stage)},
                    {"us_per_step", share.us_per_step},
                    {"bytes_per_s", share.bytes_per_s},
                    {"of_read", share.of_read},
                    {"of_matrix", share.of_matrix},
                    {"of_time", share.of_time}});
  }
  return json;
}

}  // namespace nibble::app
