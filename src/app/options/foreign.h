#pragma once
// Other programs' words for what there is here: flags and commands of llama.cpp and Ollama; flags, fields of flags,
// values and variables of vLLM and FlashInfer. Other names of our options stand in their rows (option.h,
// Traits::foreign); foreign_words.txt has what is spelled otherwise, changes nothing here, or is refused.

#include "app/options/option.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// What a word becomes: one of our flags; nothing, with a note that says why; an error that says why; or, for a flag
// with fields, what each field says (an error for a field without a word). A short name becomes its long one; a command
// of another program becomes an error that says what to use instead.
enum class Becomes : uint8_t { kFlag, kFields, kNothing, kRefused, kLongName, kCommand };
struct ForeignWord {
  std::string name;  // "--flag" (vLLM's, or ours with vLLM's value), "--flag.field", "VARIABLE"
  Becomes becomes;
  std::string_view text, value;  // our flag, and its value (empty: the value as given); or why
  std::string values{};          // these alone, separated by blanks; empty: all
  bool is_switch = false;        // without a value, and has a --no-… as well
  bool takes_several = false;
  bool may_be_bare = false;  // a value may follow
  bool everywhere = false;   // of each command that runs a model, otherwise of serve
};
[[nodiscard]] std::span<const ForeignWord> foreign_words();

// Rewrites what means the same here, in the words of a whole command line. For anything else that is known it throws
// Error(kInvalidRequest), with what to write instead. Flags that the command itself has stay as they are.
void respell_foreign_words(std::vector<std::string>& words);

// Its value is read field by field, or as JSON.
[[nodiscard]] bool holds_fields(std::string_view flag);

// What a command takes of other programs' command lines. What it becomes is recorded in the settings.
// The flag with the values that it was given. Throws refuse_value().
void take_foreign(Settings& settings, const ForeignWord& word, const std::vector<std::string>& values);
// vLLM's value of our option, and 8k, as ours.
[[nodiscard]] std::string in_our_words(Settings& settings, const Option& option, const std::string& found);

// Reads vLLM's variables among all of a process. One that is set but means nothing here adds a line to `notes`. Throws
// Error(kInvalidRequest) for one that asks for what does not exist here, and for an invalid value.
[[nodiscard]] std::vector<Setting> read_foreign_variables(const Variables& environment,
                                                          std::vector<std::string>& notes);
// The variables of others that set this option.
[[nodiscard]] std::vector<std::string> foreign_variables(const Option& option);

}  // namespace nibble::app
