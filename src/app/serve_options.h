#pragma once
// The flags of `nibble serve`: its own, and those of the command lines that people have for vLLM.

#include "app/flags.h"
#include "app/hub_options.h"
#include "app/options.h"

namespace nibble::app {

void add_serve_flags(Flags flags, ServeOptions& options);

// Fills what the command line left open from the environment (NIBBLE_PORT for --port, and vLLM's variables of
// docs/serving.md), then from --config, and notes where each setting came from. Throws Error(kInvalidRequest).
void resolve_serve_settings(Flags flags, ServeOptions& options, const Environment& environment);

}  // namespace nibble::app
