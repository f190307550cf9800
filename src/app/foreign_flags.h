#pragma once
// Flags and commands as llama.cpp's and Ollama's users type them.

#include "app/flags.h"

#include <string>
#include <vector>

namespace nibble::app {

// Rewrites what means the same here. Throws Error(kInvalidRequest), with what to write instead, at what does not. What
// the command itself declares stays as it is.
void respell_foreign_flags(const CommandLine& line, std::vector<std::string>& arguments);

}  // namespace nibble::app
