#pragma once
// The flags of `nibble serve` that no other command has.

#include "app/flags.h"
#include "app/options.h"

namespace nibble::app {

void add_serve_flags(Flags flags, ServeOptions& options);

}  // namespace nibble::app
