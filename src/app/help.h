#pragma once
// What nibble says of itself: the greeting and, from what the commands declare, help, the manual page, completions.

#include "app/flags.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// What of a command's flags is wanted: --help, --help GROUP, --help=GROUP, --help all.
struct HelpTopic {
  HelpGroup group = HelpGroup::kCommon;
  bool all = false;
};
// Takes GROUP out of the words. Throws Error(kInvalidRequest) at a --help=… that is none.
[[nodiscard]] HelpTopic take_help_topic(std::vector<std::string>& arguments);

// Of the command, or where there is none of that name of the whole program. Lines of at most 80 columns but for
// examples.
[[nodiscard]] std::string help_text(const std::vector<CommandFacts>& commands, std::string_view name,
                                    const HelpTopic& topic);
[[nodiscard]] std::string greeting_text();                             // where no command is named
[[nodiscard]] std::string_view examples_of(std::string_view command);  // "": the program's. REQUIRES: a command
[[nodiscard]] std::string_view exit_codes_text();

// man_page.cpp: nibble.1 for man: roff with man's macros.
[[nodiscard]] std::string man_page_text(const std::vector<CommandFacts>& commands);

// completion.cpp: the script of a shell that completes commands and flags. `shell`: bash, zsh or fish. Throws
// Error(kInvalidRequest) at another.
[[nodiscard]] std::string completion_text(const std::vector<CommandFacts>& commands, const std::string& shell);

}  // namespace nibble::app
