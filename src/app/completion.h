#pragma once
// Scripts that complete nibble's commands and flags in a shell, from what the commands declare.

#include "app/flags.h"

#include <string>
#include <vector>

namespace nibble::app {

// `shell`: bash, zsh or fish. Throws Error(kInvalidRequest) at another.
[[nodiscard]] std::string completion_text(const std::vector<CommandFacts>& commands, const std::string& shell);

}  // namespace nibble::app
