#pragma once
// Fills options that the command line leaves open, from the environment and then from --config. Every command that runs
// a model reads the variables that `nibble serve` reads.

#include "app/options/flags.h"
#include "app/options/options.h"
#include "hub/http.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nibble::app {

[[nodiscard]] std::string variable_of(const std::string& flag);  // --max-model-len: NIBBLE_MAX_MODEL_LEN

void add_print_config(Flags flags, Settings& settings);

// `known`: the flags that have variables (NIBBLE_PORT for --port): those of `nibble serve`. Variables of vLLM and
// FlashInfer: vllm.h. Throws Error(kInvalidRequest).
struct SettingSources {
  Flags known;
  const Variables& environment;
};
void resolve_settings(Flags flags, Settings& settings, const SettingSources& sources);

// Records what the setting became; for a flag that is not listed, a default.
void note_resolved(Settings& settings, const std::string& flag, const std::string& value);

// For --print-config.
[[nodiscard]] std::string settings_text(const Settings& settings, bool json);

// Hugging Face's variables, read as its own tools read them.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

[[nodiscard]] hub::Settings hub_settings(const Environment& environment);

}  // namespace nibble::app
