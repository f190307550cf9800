#pragma once
// The features, told: a page for people (docs/feature-matrix.md), JSON for programs, a list for a terminal. Pure.

#include "app/flags.h"

#include <nlohmann/json.hpp>

#include <string>

namespace nibble::app {

// `flags`: what those of features say of themselves.
[[nodiscard]] std::string features_page(const CommandFacts& flags);
[[nodiscard]] std::string features_text(const CommandFacts& flags);
[[nodiscard]] nlohmann::ordered_json features_json(const CommandFacts& flags);

}  // namespace nibble::app
