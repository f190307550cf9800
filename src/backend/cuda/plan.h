#pragma once
// The kernels of a step on a card, from data alone: needs neither CUDA nor a card. Says what CudaBackend's verbs
// launch; a verb that launches something else changes its rows here (launches_test.cpp compares the two). What is
// sampled afterwards depends on the requests and is not in it.

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_facts.h"
#include "backend/plan.h"

#include <optional>
#include <vector>

namespace nibble::backend {

struct CudaPlanArgs {
  const BackendConfig& config;
  const CudaOptions& options;
  StepShape step;
  const cuda::DeviceFacts& card;
};
struct CudaPlan {
  MoeKernel moe = MoeKernel::kAuto;  // what kAuto became
  bool flash = false;                // likewise
  ExpertActivations activations = ExpertActivations::kExact;
  std::vector<PlannedStage> stages;
};
// Throws Error(kUnsupported) for what make_cuda_backend refuses.
[[nodiscard]] CudaPlan cuda_plan(const CudaPlanArgs& args);

// This machine's card, for cuda_plan; none where there is none that this build runs on. Not pure: in the backend's
// library.
[[nodiscard]] std::optional<cuda::DeviceFacts> cuda_plan_device();

}  // namespace nibble::backend
