#pragma once
// The flags of `nibble load`.

#include "app/flags.h"
#include "app/options.h"

namespace nibble::app {

void add_load_flags(Flags flags, LoadOptions& options);

}  // namespace nibble::app
