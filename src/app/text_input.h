#pragma once
// Texts that a command line names, of at most 2^30 bytes. Throws Error(kIo) for what cannot be read.

#include "app/options.h"

#include <filesystem>
#include <string>

namespace nibble::app {

// The text of an option that takes text, a file or standard input.
[[nodiscard]] std::string read_text(const TextInput& input);
// A file or whatever else has a path and can be read: a pipe, a shell's <(…).
[[nodiscard]] std::string read_text(const std::filesystem::path& path);

}  // namespace nibble::app
