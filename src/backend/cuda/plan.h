#pragma once
// The kernels of a step on a card, from data alone: needs neither CUDA nor a card. Says what CudaBackend's verbs
// launch; a verb that launches something else changes its rows here.

#include "backend/cuda/kernels/any/attend_plan.h"
#include "backend/dims.h"
#include "backend/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nibble::backend {

struct CudaPlanArgs {
  const Dims& dims;
  StepShape step;
  cuda::AttendDevice device;
  int64_t kv_value_bytes = 2;  // 1 e4m3, 2 bf16, 4 f32
  bool flash = true;           // --attention-backend reference: false
};

// Of this machine's card, for cuda_plan; none where there is none, or no CUDA. Not pure: in the backend's library.
struct CudaPlanDevice {
  std::string name;
  cuda::AttendDevice facts;
};
[[nodiscard]] std::optional<CudaPlanDevice> cuda_plan_device();

[[nodiscard]] std::vector<PlannedStage> cuda_plan(const CudaPlanArgs& args);

}  // namespace nibble::backend
