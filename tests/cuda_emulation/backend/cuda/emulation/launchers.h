#pragma once
// The backend's host code with launchers that launch nothing: they check their arguments, count, and note how the work
// would be cut. Built with emulation/runtime first in the include path.

#include "backend/cuda/launch/launch.h"
#include "base/dtype.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {

// How each kernel's launches were cut so far, in the plans' words.
[[nodiscard]] std::map<std::string, std::set<std::string>, std::less<>>& emulated_tiles();
// Adds one.
void note(Kernel kernel, std::string tile);
// The bias that each launch was given so far, or null; adds one.
[[nodiscard]] std::vector<const Bf16*>& emulated_biases();
void note_bias(const Bf16* bias);

// What stands in for a launch of X: the checks, and the noting of how it is cut.
template <class Args>
void counted(Kernel kernel, const Args& args, const Launch& on, std::string tile = {}) {
  if constexpr (requires { check_args(args); }) check_args(args);
  if constexpr (requires { note_bias(args.bias); }) note_bias(args.bias);
  if constexpr (requires { args.norm.bias; }) note_bias(args.norm.bias);
  if (!tile.empty()) note(kernel, std::move(tile));
  launched(kernel, on);
}

}  // namespace nibble::backend::cuda
