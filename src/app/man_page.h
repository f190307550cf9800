#pragma once
// The manual page, from what the commands declare.

#include "app/flags.h"

#include <string>
#include <vector>

namespace nibble::app {

// nibble.1 for man: roff with man's macros.
[[nodiscard]] std::string man_page_text(const std::vector<CommandFacts>& commands);

}  // namespace nibble::app
