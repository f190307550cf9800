#pragma once
// The oracle: the formulas of backend.h as plain loops in double, never optimised. KV cache in double.

#include "backend/backend.h"
#include "backend/expert_activations.h"

#include <memory>

namespace nibble::backend {

std::unique_ptr<Backend> make_reference_backend(const BackendConfig& config,
                                                ExpertActivations activations = ExpertActivations::kExact);

}  // namespace nibble::backend
