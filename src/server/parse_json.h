#pragma once

#include "server/api_error.h"

#include <string_view>

namespace nibble::server {

// In time proportional to the text, whatever it is. Throws ApiError for text that is not JSON or not UTF-8, is deeper
// than kMostJsonDepth, has a name twice in one object, or has a number that no double holds.
[[nodiscard]] Json parse_json(std::string_view text);

}  // namespace nibble::server
