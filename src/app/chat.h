#pragma once

#include "text/conversation.h"

#include <string_view>
#include <vector>

namespace nibble::app {

// OpenAI's "tools" array, or a plain array of functions. Throws Error(kInvalidRequest) naming the entry.
[[nodiscard]] std::vector<text::ToolSpec> parse_tools(std::string_view json_text);

}  // namespace nibble::app
