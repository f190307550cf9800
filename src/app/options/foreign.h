#pragma once
// Other programs' words for what there is here: flags and commands of llama.cpp and Ollama; flags, fields of flags,
// values and variables of vLLM and FlashInfer. Other names of our options stand in their rows (option_table.h,
// Traits::foreign); foreign_table.cpp has what is spelled otherwise, changes nothing here, or is refused.

#include "app/options/option.h"

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
[[nodiscard]] std::span<const ForeignRow> foreign_table();

// Names, separated by blanks, and ours or what to use instead.
struct ForeignName {
  std::string_view theirs, ours;
};
[[nodiscard]] std::span<const ForeignName> vllm_names();        // short ones, of rows of the table
[[nodiscard]] std::span<const ForeignName> foreign_commands();  // the command that does the same
[[nodiscard]] std::span<const ForeignName> flags_instead();     // why a flag is not there

// Rewrites what means the same here, in the words of a whole command line. For anything else that is known it throws
// Error(kInvalidRequest), with what to write instead. Flags that the command itself has stay as they are.
void respell_foreign_words(std::vector<std::string>& words);

// Its value is read field by field, or as JSON.
[[nodiscard]] bool holds_fields(std::string_view flag);
// vLLM's value of one of our flags as ours; anything else unchanged.
[[nodiscard]] std::string our_value(std::string_view flag, const std::string& found);

// What `nibble serve` takes of vLLM's command lines. What it becomes is recorded in the settings.
class ForeignReader {
 public:
  explicit ForeignReader(Settings& settings) : settings_(settings) {}

  // The row's flag with the values that it was given. Throws refuse_value().
  void take(const ForeignRow& row, const std::string& flag, const std::vector<std::string>& values);
  // vLLM's value of our option, and 8k, as ours.
  [[nodiscard]] std::string in_our_words(const Option& option, const std::string& found);

 private:
  void take_value(const ForeignRow& row, const std::string& flag, const std::string& value);
  void take_fields(const ForeignRow& row, const std::string& flag, const std::string& value);
  void note(std::string text);

  Settings& settings_;
};

// What a variable means here.
struct ForeignSetting {
  std::string variable, flag, value;
};
// Reads vLLM's variables among all of a process. One that is set but means nothing here adds a line to `notes`. Throws
// Error(kInvalidRequest) for one that asks for what does not exist here, and for an invalid value.
[[nodiscard]] std::vector<ForeignSetting> read_foreign_variables(const Variables& environment,
                                                                 std::vector<std::string>& notes);
// The variables of others that set this option.
[[nodiscard]] std::vector<std::string> foreign_variables(const Option& option);

}  // namespace nibble::app
