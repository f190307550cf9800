#pragma once
// Texts named on a command line, of at most 2^30 bytes. Throws Error(kIo) for what cannot be read.

#include "app/options.h"

#include <filesystem>
#include <string>

namespace nibble::app {

// The value of an option that takes a text, a file or standard input.
[[nodiscard]] std::string read_text(const TextInput& input);
// Reads anything that has a path: a file, a pipe, a shell's <(…).
[[nodiscard]] std::string read_text(const std::filesystem::path& path);

}  // namespace nibble::app
