#pragma once
// The oracle: the formulas of backend.h as plain loops in double, never optimised.

#include "backend/backend.h"
#include "backend/run_config.h"

#include <memory>

namespace nibble::backend {

// Keys and values are kept in double, after the rounding of a lossy KV type; of the others there is none. Beside
// run.backend cuda, values in F16, F32 and Q8_0 are read as the nearest bf16, which is what a card holds of them, but
// for Q8_0 that it holds as it is (DenseFormats); those that are requantised are so from their own values, as there.
std::unique_ptr<Backend> make_reference_backend(const BackendConfig& config, const RunConfig& run = {});

// With what was left open decided: one thread, nothing rounded.
[[nodiscard]] RunConfig resolved_reference(const RunConfig& run);

}  // namespace nibble::backend
