#pragma once
// The backend's host code with launchers that launch nothing: they check their arguments, count, and note how the work
// would be cut. Built with emulation/runtime first in the include path.

#include "backend/cuda/launch/launch.h"
#include "base/dtype.h"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace nibble::backend::cuda {

// How each kernel's launches were cut so far, in the plans' words.
[[nodiscard]] std::map<std::string, std::set<std::string>, std::less<>>& emulated_tiles();
// Adds one.
void note(Kernel kernel, std::string tile);
// The bias that each launch was given so far, or null.
[[nodiscard]] std::vector<const Bf16*>& emulated_biases();

}  // namespace nibble::backend::cuda
