#pragma once
// The models on this machine.

#include "hub/cache.h"

#include <vector>

namespace nibble::app {

// Those that are whole, that nibble can run, and that fit the memory.
[[nodiscard]] std::vector<hub::Snapshot> models_that_run(const hub::Settings& settings);

}  // namespace nibble::app
