#pragma once

#include <string_view>

namespace nibble::app {

// Of the checkout that this was built from; "unknown" outside one. A file of its own, since each commit compiles it
// anew.
[[nodiscard]] std::string_view commit();

}  // namespace nibble::app
