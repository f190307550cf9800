#pragma once
// The oracle: the formulas of backend.h as plain loops in double, never optimised.

#include "backend/backend.h"
#include "backend/expert_activations.h"
#include "backend/kv_dtype.h"

#include <memory>

namespace nibble::backend {

// Keys and values are kept in double, after the rounding of kE4m3 or kInt8; of the others there is none.
std::unique_ptr<Backend> make_reference_backend(const BackendConfig& config,
                                                ExpertActivations activations = ExpertActivations::kExact,
                                                KvDtype kv = KvDtype::kF32);

}  // namespace nibble::backend
