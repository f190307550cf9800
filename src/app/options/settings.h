#pragma once
// Fills options that the command line leaves open, from the environment and then from --config. Every command that runs
// a model reads the variables that `nibble serve` reads.

#include "app/options/command_line.h"
#include "app/options/options.h"
#include "hub/http.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

[[nodiscard]] std::string variable_of(const std::string& flag);  // --max-model-len: NIBBLE_MAX_MODEL_LEN

// Variables are those of `nibble serve` (NIBBLE_PORT for --port), of vLLM and FlashInfer (foreign.h), and, for several
// processes as ranks, what torchrun, LeaderWorkerSet, Slurm's scripts and Open MPI set. Throws Error(kInvalidRequest).
void resolve_settings(Arguments& arguments, const Parts& parts, const Variables& environment);

// Records what the setting became; for a flag that is not listed, a default.
void note_resolved(Settings& settings, const std::string& flag, const std::string& value);

// For --print-config.
[[nodiscard]] std::string settings_text(const Settings& settings, bool json);

// What CUDA_VISIBLE_DEVICES is to be for a rank that shares a machine, and perhaps its list, with others; empty: as it
// is. Throws Error(kInvalidRequest) where the list is too short.
[[nodiscard]] std::string card_of(const Variables& environment);

// Hugging Face's variables, read as its own tools read them.
[[nodiscard]] hub::Settings hub_settings(const Variables& environment);
// Bytes that a model may take here: of the memory that is available, or of the first card where that is more.
[[nodiscard]] int64_t memory_for_models();

// Settings from servers' configuration files, in the flat part of YAML and of TOML: one `name: value` or `name = value`
// per line, lists as `[a, b]` or, in YAML, one `- item` per line; in YAML also an object, in JSON or as an indented
// block of `name: value`, whose value is its JSON. Everything else (tables, anchors, tags, values of several lines) is
// refused.

struct FlatSetting {
  std::string name;
  std::vector<std::string> values;
};

// Throw Error(kInvalidRequest) naming the line.
[[nodiscard]] std::vector<FlatSetting> parse_flat_yaml(std::string_view text);
[[nodiscard]] std::vector<FlatSetting> parse_flat_toml(std::string_view text);

}  // namespace nibble::app
