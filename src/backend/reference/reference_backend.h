#pragma once
// The oracle: the formulas of backend.h as plain loops in double, never optimised.

#include "backend/backend.h"
#include "backend/activations.h"
#include "backend/kv_dtype.h"

#include <cstdint>
#include <memory>

namespace nibble::backend {

struct ReferenceOptions {
  Activations activations = Activations::kExact;
  // Keys and values are kept in double, after the rounding of kE4m3 or kInt8; of the others there is none.
  KvDtype kv = KvDtype::kF32;
  // kBf16: values in F16, F32 and Q8_0 are read as the nearest bf16, which is what a card holds of them; those that are
  // requantised are so from their own values, as there.
  enum class Weights : uint8_t { kAsStored, kBf16 } weights = Weights::kAsStored;
};
std::unique_ptr<Backend> make_reference_backend(const BackendConfig& config, const ReferenceOptions& options = {});

}  // namespace nibble::backend
