#pragma once
// The flags, values and variables of vLLM's command lines, as `nibble serve` takes them.

#include "app/flags.h"
#include "app/options.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nibble::app {

// Names as `nibble serve` spells them: --max_model_len, -tp 1, -O3, -cc.x=1 and --compilation-config.x=1.
void respell_vllm_arguments(std::vector<std::string>& arguments);

// Flags that need nothing from us, each with a note; flags that are refused by name; and vLLM's values of our own
// flags. After all of our own.
void add_vllm_flags(Flags flags, ServeOptions& options);

// Variables of vLLM's and FlashInfer's, each with our flag.
[[nodiscard]] std::span<const std::pair<const char*, const char*>> vllm_variables();

}  // namespace nibble::app
