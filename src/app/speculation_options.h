#pragma once
// The flags of speculation, for commands that answer: where guesses come from, and how many.

#include "app/flags.h"
#include "app/options.h"
#include "engine/proposer.h"

#include <string>
#include <vector>

namespace nibble::app {

void add_speculation(Flags flags, ModelOptions& into);
// Of `bench`, which makes up a head by itself, but no draft model. Returns --speculative, which says `about` that.
Flag add_bench_speculation(Flags flags, BenchOptions& into, const std::string& about);
// BenchOptions::acceptances.
Flag add_acceptances(Flags flags, std::vector<double>& into);
// Throws Error(kInvalidRequest) for flags that need each other, and Error(kUnsupported) for what does not go together.
void require_speculation(const ModelOptions& options);

// What --speculative draft runs beside the model, as a model of its own: on the same backend, in the same way.
[[nodiscard]] ModelOptions draft_options(const ModelOptions& options);

// For people: "no speculation", "speculation suffix, up to 8 tokens".
[[nodiscard]] std::string describe_speculation(const engine::SpeculationLimits& limits);

}  // namespace nibble::app
