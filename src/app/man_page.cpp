#include "app/help.h"

#include <fmt/format.h>

#include <string_view>

namespace nibble::app {
namespace {

// Text as roff prints it: a \ or - for itself, and no line that looks like a request.
std::string escaped(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    begins = c == '\n';
  }
  return out;
}

std::string flag_entry(const FlagFacts& flag) {
  std::string names;
  for (const std::string& name : flag.names) names += (names.empty() ? "" : ", ") + name;
  const bool place = flag.names[0][0] != '-';
  std::string out = fmt::format(".TP\n\\fB{}\\fR", escaped(names));
  if (!flag.value.empty() && !place) out += fmt::format(" \\fI{}\\fR", escaped(flag.value));
  out += fmt::format("\n{}", escaped(flag.help));
  if (!flag.usual.empty()) out += fmt::format(" (default: {})", escaped(flag.usual));
  return out + "\n";
}

std::string example_block(std::string_view text) { return fmt::format(".nf\n{}\n.fi\n", escaped(text)); }

}  // namespace

std::string man_page_text(const std::vector<CommandFacts>& commands) {
  std::string out = fmt::format(
      ".TH NIBBLE 1 \"\" \"nibble {}\" \"User commands\"\n.SH NAME\nnibble \\- run and serve gpt\\-oss\n"
      ".SH SYNOPSIS\n.B nibble\n.I command\n[flags]\n.SH DESCRIPTION\nThe fastest gpt\\-oss on the machine you own: "
      "engine, chat and a server of OpenAI's API, in one program.\n.SH EXAMPLES\n{}",
      NIBBLE_VERSION, example_block(examples_of("")));
  for (const CommandFacts& command : commands) {
    out += fmt::format(".SH NIBBLE {}\n{}.\n", escaped(command.name), escaped(command.about));
    for (const FlagFacts& flag : command.flags) out += flag_entry(flag);
    out += ".PP\n" + example_block(examples_of(command.name));
  }
  return out + fmt::format(".SH EXIT STATUS\n{}\n", escaped(exit_codes_text()));
}

}  // namespace nibble::app
