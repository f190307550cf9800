#pragma once
// What nibble prints about itself: the greeting, and help, the manual page and completions made from what the commands
// declare.

#include "app/options/flags.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// Which of a command's flags to show: --help, --help GROUP, --help=GROUP, --help all.
struct HelpTopic {
  HelpGroup group = HelpGroup::kCommon;
  bool all = false;
};
// Removes GROUP from the words. Throws Error(kInvalidRequest) for an unknown --help=….
[[nodiscard]] HelpTopic take_help_topic(std::vector<std::string>& arguments);

// Help for the command, or for the whole program if no command has that name. Lines of at most 80 columns, except for
// examples.
[[nodiscard]] std::string help_text(const std::vector<CommandFacts>& commands, std::string_view name,
                                    const HelpTopic& topic);
[[nodiscard]] std::string greeting_text();                             // where no command is named
[[nodiscard]] std::string_view examples_of(std::string_view command);  // "": the program's. REQUIRES: a command
[[nodiscard]] std::string_view exit_codes_text();

// nibble.1 for man: roff with man's macros.
[[nodiscard]] std::string man_page_text(const std::vector<CommandFacts>& commands);

// completion.cpp: the script of a shell that completes commands and flags. `shell`: bash, zsh or fish. Throws
// Error(kInvalidRequest) at another.
[[nodiscard]] std::string completion_text(const std::vector<CommandFacts>& commands, const std::string& shell);

}  // namespace nibble::app
