#pragma once
// Accepts flags and commands as users of llama.cpp and Ollama type them.

#include "app/options/flags.h"

#include <string>
#include <vector>

namespace nibble::app {

// Rewrites what means the same here. For anything else it throws Error(kInvalidRequest), with what to write instead.
// Flags that the command itself declares stay as they are.
void respell_foreign_flags(const CommandLine& line, std::vector<std::string>& arguments);

}  // namespace nibble::app
