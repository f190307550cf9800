#pragma once
// What stands below the options in a --help.

#include <string>
#include <string_view>

namespace nibble::app {

// Examples of a command, or of the program where it is empty, and the exit codes.
[[nodiscard]] std::string help_footer(std::string_view command);

}  // namespace nibble::app
