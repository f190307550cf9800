#pragma once
// The flags of speculation, of the commands that answer: what guesses come from, and how many.

#include "app/flags.h"
#include "engine/proposer.h"

#include <string>

namespace nibble::app {

// Returns --speculative, which says `about` that.
Flag add_speculation(Flags flags, engine::SpeculationLimits& into, const std::string& about);
void add_speculation(Flags flags, engine::SpeculationLimits& into);

// For people: "no speculation", "speculation suffix, up to 8 tokens".
[[nodiscard]] std::string describe_speculation(const engine::SpeculationLimits& limits);

}  // namespace nibble::app
