#pragma once
// The profile of a backend's one stream: its launches in order, each with the time that CUPTI gives it.

#include "backend/cuda/card/cupti.h"
#include "backend/cuda/program/step_graph.h"
#include "backend/profile.h"

#include <optional>

namespace nibble::backend::cuda {

class Profiler final : public KernelProfiler {
 public:
  // on: whose trace the backend's launches go to. graphs: may be null. Both outlive the profiler.
  Profiler(const Launch& on, StepGraphs* graphs) : on_(on), graphs_(graphs) {}

  void begin() override;
  [[nodiscard]] KernelProfile take() override;
  void end() override { cupti_.reset(); }

  // A step begins: its launches are kept behind those of the steps before it, or alone when nobody profiles.
  void begin_step() {
    if (!cupti_) on_.trace->clear();
  }

 private:
  const Launch& on_;
  StepGraphs* graphs_;
  std::optional<Cupti> cupti_;
};

}  // namespace nibble::backend::cuda
