#pragma once
// Whether features go together: what options become, as a command would resolve them, without a model's weights.

#include "app/options/features.h"
#include "backend/cuda/card/device_facts.h"

#include <optional>
#include <string>

namespace nibble::app {

// With the backend's choices, as it would run; a step of it is planned where a card is named. Throws
// Error(kUnsupported) or Error(kInvalidRequest) with the validator's words. REQUIRES a backend.
[[nodiscard]] ServeOptions resolved_features(ServeOptions options,
                                             const std::optional<backend::cuda::DeviceFacts>& card = {});

// gpt-oss-20b's shapes under these flags: why they are refused; empty where they are not.
[[nodiscard]] std::string refusal_of(const Refusal& asked);

}  // namespace nibble::app
