#pragma once
// The flags and values of vLLM's command lines, as `nibble serve` takes them.

#include "app/flags.h"
#include "app/options.h"

#include <string>
#include <vector>

namespace nibble::app {

// Names as `nibble serve` spells them: --max_model_len, -tp 1, -O3, -cc.x=1 and --compilation-config.x=1.
void respell_vllm_arguments(std::vector<std::string>& arguments);

// Flags that need nothing from us, each with a note; flags that are refused by name; and vLLM's values of our own
// flags. After all of our own.
void add_vllm_flags(Flags flags, ServeOptions& options);

// Another program's value of one of our flags as ours; anything else as it is.
[[nodiscard]] std::string our_value(const std::string& flag, const std::string& found);

}  // namespace nibble::app
