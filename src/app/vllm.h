#pragma once
// vLLM's and FlashInfer's words: flags and their values, fields of flags, variables. One table (vllm_table.cpp) says
// what each becomes here.

#include "app/flags.h"
#include "app/options.h"

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// One of our flags; nothing, and a line says why; the end, and the message says why; or what each field has a row for,
// and the end for any other.
enum class Becomes : uint8_t { kFlag, kNothing, kRefused, kFields };
struct ForeignRow {
  // With blanks between: "--flag", of ours (whose value is theirs) or of theirs, "--flag.field", "VARIABLE".
  std::string_view names;
  // Those of this row, all where empty. "-": a flag without one, of which there is --no-… as well; "*": one or more.
  std::string_view values;
  Becomes becomes;
  std::string_view text;        // our flag, or why
  std::string_view value = {};  // the flag's; empty: as it was found
};
[[nodiscard]] std::span<const ForeignRow> vllm_table();

// Names as `nibble serve` spells them: --max_model_len, -tp 1, -O3, -cc.x=1 and --compilation-config.x=1.
void respell_vllm_arguments(std::vector<std::string>& arguments);

// The table's flags, and its values of our own. After all of our own.
void add_vllm_flags(Flags flags, ServeOptions& options);

// Their value of one of our flags as ours; anything else as it is.
[[nodiscard]] std::string our_value(const std::string& flag, const std::string& found);

// What a variable means here.
struct ForeignSetting {
  std::string variable, flag, value;
};
// Of all variables of a process, their own. Those that are set and mean nothing here get a line of `notes` each. Throws
// Error(kInvalidRequest) for one that asks for what is not there, and for a value that it cannot have.
[[nodiscard]] std::vector<ForeignSetting> read_vllm_variables(const std::map<std::string, std::string>& environment,
                                                              std::vector<std::string>& notes);

}  // namespace nibble::app
