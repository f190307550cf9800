#pragma once
// Where a step's time goes, next to what each part must at least read and compute. On a host: per stage, timed as the
// verbs return. On a device: per kernel, with begin and end as the device reports them.

#include "backend/cost.h"
#include "backend/cuda/program/program.h"
#include "backend/measure.h"
#include "backend/plan.h"
#include "lab/bench/rows.h"
#include "model/config.h"

#include <nlohmann/json.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace nibble::app {

// Sums the stages' times over steps. begin() before each step, after() as model::Probe.
class StageTimes {
 public:
  void begin();
  void after(backend::Stage stage);

  [[nodiscard]] int64_t steps() const { return steps_; }
  [[nodiscard]] double us(backend::Stage stage) const { return us_[static_cast<size_t>(stage)]; }  // over all steps

 private:
  std::chrono::steady_clock::time_point last_;
  std::array<double, backend::kStages> us_{};
  int64_t steps_ = 0;
};

// The least that each kernel must read and compute, over all layers and steps. Kernels that are in no program have
// none: sampling, sums of activations.
using KernelCosts = std::map<std::pair<backend::Stage, std::string>, backend::Cost>;
void add_step(KernelCosts& costs, const backend::cuda::Program& program, const model::ModelConfig& config);

// Costs over the same steps.
[[nodiscard]] std::string profile_table(const BenchRow& row, const StageTimes& times,
                                        const backend::DevicePeaks& peaks);
[[nodiscard]] nlohmann::ordered_json profile_json(const StageTimes& times, const backend::StageCosts& costs,
                                                  const backend::DevicePeaks& peaks);
// A line per kernel, what lies between kernels and between steps, and their sum: the profiled step.
struct DeviceProfile {
  backend::KernelProfile times;
  KernelCosts costs;
};
[[nodiscard]] std::string profile_table(const BenchRow& row, const DeviceProfile& profile,
                                        const backend::DevicePeaks& peaks);
[[nodiscard]] nlohmann::ordered_json profile_json(const DeviceProfile& profile, const backend::DevicePeaks& peaks);

}  // namespace nibble::app
