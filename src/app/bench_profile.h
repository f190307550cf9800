#pragma once
// Where a step's time goes: per stage, beside what the stage must read and compute.

#include "app/bench_report.h"
#include "backend/backend.h"
#include "backend/cost.h"
#include "backend/measure.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace nibble::app {

// Sums the stages' times over steps. begin(), after() as model::Probe, end(); once per step.
class StageTimes {
 public:
  void begin(backend::Backend& be);
  void after(backend::Backend& be, backend::Stage stage);
  void end(backend::Backend& be);

  [[nodiscard]] int64_t steps() const { return steps_; }
  [[nodiscard]] double us(backend::Stage stage) const { return us_[static_cast<size_t>(stage)]; }  // over all steps

 private:
  std::vector<backend::Stage> order_;
  std::array<double, backend::kStages> us_{};
  int64_t steps_ = 0;
};

// Costs over the same steps.
[[nodiscard]] std::string profile_table(const BenchRow& row, const StageTimes& times,
                                        const backend::DevicePeaks& peaks);
[[nodiscard]] nlohmann::ordered_json profile_json(const StageTimes& times, const backend::StageCosts& costs,
                                                  const backend::DevicePeaks& peaks);

}  // namespace nibble::app
