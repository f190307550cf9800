#pragma once
// The flags of `nibble load`.

#include "app/flags.h"
#include "app/options.h"

namespace nibble::app {

// For commands that talk to a server.
void add_trust(Flags flags, std::filesystem::path& cacert, bool& insecure);
void add_load_flags(Flags flags, LoadOptions& options);

}  // namespace nibble::app
