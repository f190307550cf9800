#pragma once
// vLLM's and FlashInfer's flags with their values, fields of flags, and variables. One table (vllm_table.cpp) says what
// each means here.

#include "app/options/flags.h"
#include "app/options/options.h"

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// What a row becomes: one of our flags; nothing, with a note that says why; an error that says why; or, for a flag with
// fields, what the row of each field says (an error for a field without one).
enum class Becomes : uint8_t { kFlag, kNothing, kRefused, kFields };
struct ForeignRow {
  // Separated by blanks: "--flag" (vLLM's, or ours with vLLM's value), "--flag.field", "VARIABLE".
  std::string_view names;
  // The values of this row; empty: all. "-": a flag without a value, which has a --no-… as well; "*": one or more
  // values.
  std::string_view values;
  Becomes becomes;
  std::string_view text;        // our flag, or why
  std::string_view value = {};  // the flag's value; empty: the value as given
};
[[nodiscard]] std::span<const ForeignRow> vllm_table();

// Rewrites names as `nibble serve` spells them: --max_model_len, -tp 1, -O3, -cc.x=1 and --compilation-config.x=1.
void respell_vllm_arguments(std::vector<std::string>& arguments);

// Adds the table's flags, and vLLM's values of our flags. To be called after our own flags are declared.
void add_vllm_flags(Flags flags, ServeOptions& options);

// vLLM's value of one of our flags as ours; anything else unchanged.
[[nodiscard]] std::string our_value(const std::string& flag, const std::string& found);

// What a variable means here.
struct ForeignSetting {
  std::string variable, flag, value;
};
// Reads vLLM's variables among all of a process. One that is set but means nothing here adds a line to `notes`. Throws
// Error(kInvalidRequest) for one that asks for what does not exist here, and for an invalid value.
[[nodiscard]] std::vector<ForeignSetting> read_vllm_variables(const std::map<std::string, std::string>& environment,
                                                              std::vector<std::string>& notes);

}  // namespace nibble::app
