#pragma once
// The backend's host code with launchers that launch nothing: they check their arguments, count, and note how the work
// would be cut. Built with emulation/runtime first in the include path.

#include "backend/cuda/launch/kernel_table.h"

#include <map>
#include <set>
#include <string>

namespace nibble::backend::cuda {

// How each kernel's launches were cut so far, in the plans' words.
[[nodiscard]] std::map<std::string, std::set<std::string>, std::less<>>& emulated_tiles();
// Adds one.
void note(Kernel kernel, std::string tile);

}  // namespace nibble::backend::cuda
