#pragma once
// Hugging Face's variables, read as its own tools read them.

#include "hub/settings.h"

#include <functional>
#include <optional>
#include <string>

namespace nibble::app {

using Environment = std::function<std::optional<std::string>(const std::string& name)>;

[[nodiscard]] hub::Settings hub_settings(const Environment& environment);

}  // namespace nibble::app
