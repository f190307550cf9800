#pragma once
// The flags of `nibble verify`.

#include "app/flags.h"
#include "app/options.h"

#include <string_view>

namespace nibble::app {

[[nodiscard]] std::string_view name_of(VerifyLevel level);  // "1.5"

void add_verify_flags(Flags flags, VerifyOptions& options);

}  // namespace nibble::app
