#pragma once
// The flags of speculation, for commands that answer: where guesses come from, and how many.

#include "app/flags.h"
#include "app/options.h"
#include "engine/proposer.h"

#include <string>
#include <vector>

namespace nibble::app {

void add_speculation(Flags flags, ModelOptions& into);
// Of `bench`, which makes up a head by itself. Returns --speculative, which says `about` that.
Flag add_bench_speculation(Flags flags, engine::SpeculationLimits& into, const std::string& about);
// BenchOptions::acceptances.
Flag add_acceptances(Flags flags, std::vector<double>& into);
// Throws Error(kInvalidRequest) for flags that need each other.
void require_speculation(const ModelOptions& options);

// For people: "no speculation", "speculation suffix, up to 8 tokens".
[[nodiscard]] std::string describe_speculation(const engine::SpeculationLimits& limits);

}  // namespace nibble::app
