#pragma once
// What nibble prints about itself: the greeting, and help, the manual page and completions made from what the commands
// declare.

#include "app/options/option.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// What --help, the manual and completions say of an option.
struct FlagFacts {
  std::vector<std::string> names;  // with their dashes, the short one first; a place has one without
  std::string value;               // TEXT, INT, a|b|c; empty: a switch
  std::string usual, help;
  HelpGroup group;
};
struct CommandFacts {
  std::string_view name, about;
  std::vector<FlagFacts> flags;
};
[[nodiscard]] CommandFacts facts_of(CommandId command);
[[nodiscard]] std::string_view name_of(HelpGroup group);

// Which of a command's flags to show: --help, --help GROUP, --help=GROUP, --help all.
struct HelpTopic {
  HelpGroup group = HelpGroup::kCommon;
  bool all = false;
};
// Removes GROUP from the words. Throws Error(kInvalidRequest) for an unknown --help=….
[[nodiscard]] HelpTopic take_help_topic(std::vector<std::string>& arguments);

// A command as help begins with it.
struct CommandText {
  std::string_view name, about, examples;
};
[[nodiscard]] std::span<const CommandText> command_texts();  // in the order of CommandId
[[nodiscard]] const CommandText& text_of(CommandId command);

// Help for the command, or for the whole program. Lines of at most 80 columns, except for examples.
[[nodiscard]] std::string help_text(std::optional<CommandId> command, const HelpTopic& topic);

// nibble.1 for man: roff with man's macros.
[[nodiscard]] std::string man_page_text();

// The script of a shell that completes commands and flags. `shell`: bash, zsh or fish. Throws
// Error(kInvalidRequest) at another.
[[nodiscard]] std::string completion_text(const std::string& shell);

}  // namespace nibble::app
