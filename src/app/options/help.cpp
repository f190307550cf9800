#include "app/options/help.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

namespace nibble::app {
namespace {

constexpr std::string_view kGroupNames[] = {"common", "sampling", "performance", "expert"};  // by HelpGroup

// What --help calls a value.
std::string value_name(const Option& option, const ValueRef& slot) {
  if (option.is_switch()) return "";
  if (!option.traits.type.empty()) return std::string(option.traits.type);
  if (option.range.kind == Range::Kind::kList) return "LIST";
  if (option.range.kind == Range::Kind::kWords) {
    std::vector<std::string_view> names;
    for (const Word& word : option.range.words) names.push_back(word.word);
    return fmt::format("{}", fmt::join(names, "|"));
  }
  const bool is_real = std::holds_alternative<float*>(slot) || std::holds_alternative<double*>(slot) ||
                       std::holds_alternative<std::optional<double>*>(slot);
  if (std::holds_alternative<uint64_t*>(slot)) return "UINT";
  return option.range.kind == Range::Kind::kWhole ? "INT" : is_real ? "FLOAT" : "TEXT";
}

std::string filled(std::string_view text, const Option& option, CommandId command) {
  const size_t mark = text.find("{}");
  if (mark == std::string_view::npos || option.traits.fill == nullptr) return std::string(text);
  return fmt::format("{}{}{}", text.substr(0, mark), option.traits.fill(command), text.substr(mark + 2));
}

constexpr std::string_view kCommandTexts =
#include "app/options/command_texts.txt"
    ;
constexpr std::string_view kBashScript =
#include "app/options/completion_bash.txt"
    ;
constexpr std::string_view kZshScript =
#include "app/options/completion_zsh.txt"
    ;

// Those of the commands, and behind them the program's examples and its exit codes.
const std::vector<CommandText>& all_texts() {
  static const std::vector<CommandText> texts = [] {
    constexpr std::string_view kMark = "\n## ";
    std::vector<CommandText> all;
    std::string_view rest = kCommandTexts;
    for (size_t at = rest.find(kMark); at != rest.npos; at = rest.find(kMark)) {
      rest.remove_prefix(at + kMark.size());
      const size_t colon = rest.find(": "), line = rest.find('\n'), end = std::min(rest.find(kMark), rest.size() - 1);
      all.push_back(
          {rest.substr(0, colon), rest.substr(colon + 2, line - colon - 2), rest.substr(line + 1, end - line - 1)});
    }
    check(all.size() == std::variant_size_v<Command> + 2, "each command has its text");
    return all;
  }();
  return texts;
}

std::string_view examples() { return all_texts()[std::variant_size_v<Command>].examples; }
std::string_view exit_codes() { return all_texts()[std::variant_size_v<Command> + 1].examples; }

constexpr std::string_view kAllTopics = "sampling, performance, expert or all";
constexpr size_t kWidth = 80, kIndent = 28;

bool is_place(const FlagFacts& flag) { return flag.names[0][0] != '-'; }

// "  -n, --max-tokens INT"; of several long names, the first and any --no-….
std::string left_side(const FlagFacts& flag) {
  std::string left = "  ";
  bool has_long = false;
  for (const std::string& name : flag.names) {
    if (has_long && !name.starts_with("--no-")) continue;
    left += (left.size() > 2 ? ", " : "") + name;
    if (has_long) break;
    has_long = name.starts_with("--");
  }
  return flag.value.empty() || is_place(flag) ? left : left + " " + flag.value;
}

// The words in lines of kWidth, behind what stands on the left.
std::string in_columns(const std::string& left, std::string_view text) {
  std::string out = left;
  size_t column = left.size();
  if (column + 2 > kIndent) out += "\n", column = 0;
  out.append(kIndent - column, ' ');
  column = kIndent;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (column > kIndent && column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(kIndent, ' ');
      column = kIndent;
    }
    if (column > kIndent) out += ' ', ++column;
    out += word;
    column += word.size();
  }
  return out + "\n";
}

std::string flag_text(const FlagFacts& flag) {
  return in_columns(left_side(flag), flag.usual.empty() ? flag.help : fmt::format("{} [{}]", flag.help, flag.usual));
}

std::string group_text(const CommandFacts& command, HelpGroup group) {
  std::string out;
  for (const FlagFacts& flag : command.flags)
    if (flag.group == group) out += flag_text(flag);
  return out;
}

std::string command_help(CommandId id, const HelpTopic& topic) {
  const CommandFacts command = facts_of(id);
  std::string usage = fmt::format("nibble {} [flags]", command.name);
  for (const FlagFacts& flag : command.flags)
    if (is_place(flag)) usage += " [" + flag.names[0] + "]";
  std::string out = fmt::format("{}\n\n{}\n", command.about, usage);
  bool has_more = false;
  for (const HelpGroup group :
       {HelpGroup::kCommon, HelpGroup::kSampling, HelpGroup::kPerformance, HelpGroup::kExpert}) {
    const std::string flags = group_text(command, group);
    if (flags.empty()) continue;
    if (!topic.all && topic.group != group) {
      has_more = true;
      continue;
    }
    out += fmt::format("\n{}:\n{}", group == HelpGroup::kCommon ? "flags" : name_of(group), flags);
  }
  if (!topic.all && topic.group != HelpGroup::kCommon) return out;
  out += fmt::format("\nexamples:\n{}\n", text_of(id).examples);
  if (has_more) out += fmt::format("\nMore flags: nibble {} --help {}\n", command.name, kAllTopics);
  return out;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// Text as roff prints it: a \ or - for itself, and no line that looks like a request.
std::string escaped(std::string_view text) {
  std::string out = replaced(replaced(fmt::format("\n{}", text), "\\", "\\e"), "-", "\\-");
  return replaced(replaced(std::move(out), "\n.", "\n\\&."), "\n'", "\n\\&'").substr(1);
}

std::string flag_entry(const FlagFacts& flag) {
  std::string out = fmt::format(".TP\n\\fB{}\\fR", escaped(fmt::format("{}", fmt::join(flag.names, ", "))));
  if (!flag.value.empty() && !is_place(flag)) out += fmt::format(" \\fI{}\\fR", escaped(flag.value));
  out += fmt::format("\n{}", escaped(flag.help));
  if (!flag.usual.empty()) out += fmt::format(" (default: {})", escaped(flag.usual));
  return out + "\n";
}

std::string example_block(std::string_view text) { return fmt::format(".nf\n{}\n.fi\n", escaped(text)); }

// "a|b|c" as "a b c"; nothing where the value is no choice.
std::string choices_of(const FlagFacts& flag) {
  std::string words = flag.value.find('|') == std::string::npos ? "" : flag.value;
  std::ranges::replace(words, '|', ' ');
  return words;
}

// Inside single quotes of a POSIX shell.
std::string shell_quoted(const std::string& text) { return "'" + replaced(text, "'", R"('\'')") + "'"; }

// The command and a name of the flag, as a pattern of case.
std::string patterns_of(const CommandFacts& command, const FlagFacts& flag) {
  return fmt::format("'{} {}'", command.name, fmt::join(flag.names, fmt::format("'|'{} ", command.name)));
}

std::string bash_text(const std::vector<CommandFacts>& commands) {
  std::string names, flags, values;
  for (const CommandFacts& command : commands) {
    names += fmt::format(" {}", command.name);
    std::string own = "--help";
    for (const FlagFacts& flag : command.flags) {
      if (is_place(flag)) continue;
      for (const std::string& name : flag.names) own += " " + name;
      if (const std::string words = choices_of(flag); !words.empty())
        values += fmt::format("    {}) words={} ;;\n", patterns_of(command, flag), shell_quoted(words));
    }
    flags += fmt::format("    {}) words={} ;;\n", command.name, shell_quoted(own));
  }
  return fmt::format(kBashScript, names.substr(1), values, flags);
}

std::string zsh_text(const std::vector<CommandFacts>& commands) {
  const auto plain = [](const std::string& text) {  // in a spec, brackets and colons have a meaning
    return replaced(replaced(replaced(replaced(text, "\\", "\\\\"), "[", "\\["), "]", "\\]"), ":", "\\:");
  };
  std::string names, cases;
  for (const CommandFacts& command : commands) {
    names += fmt::format("    {}\n", shell_quoted(fmt::format("{}:{}", command.name, command.about)));
    cases += fmt::format("    {})\n      _arguments -s '--help[flags and examples]'", command.name);
    for (const FlagFacts& flag : command.flags) {
      if (is_place(flag)) continue;
      for (const std::string& name : flag.names) {
        std::string spec = fmt::format("*{}[{}]", name, plain(flag.help));
        const std::string words = choices_of(flag);
        if (!flag.value.empty()) spec += words.empty() ? ":value:_files" : fmt::format(":value:({})", words);
        cases += " \\\n        " + shell_quoted(spec);
      }
    }
    cases += " \\\n        '*:file:_files'\n      ;;\n";
  }
  return fmt::format(kZshScript, names, cases);
}

std::string fish_text(const std::vector<CommandFacts>& commands) {
  const auto quoted_for_fish = [](const std::string& text) {
    return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
  };
  std::string out = "# fish completion for nibble; made by: nibble completion fish\n";
  for (const CommandFacts& command : commands) {
    out += fmt::format("complete -c nibble -n __fish_use_subcommand -xa {} -d {}\n", command.name,
                       quoted_for_fish(std::string(command.about)));
    for (const FlagFacts& flag : command.flags) {
      if (is_place(flag)) continue;
      out += fmt::format("complete -c nibble -n '__fish_seen_subcommand_from {}'", command.name);
      for (const std::string& name : flag.names)
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      const std::string words = choices_of(flag);
      if (!flag.value.empty()) out += words.empty() ? " -r" : fmt::format(" -xa {}", quoted_for_fish(words));
      out += fmt::format(" -d {}\n", quoted_for_fish(flag.help));
    }
  }
  return out;
}

}  // namespace

std::string_view name_of(HelpGroup group) { return kGroupNames[static_cast<size_t>(group)]; }

CommandFacts facts_of(CommandId command) {
  Command options = made(command);
  const Parts parts = parts_of(options);
  CommandFacts facts{text_of(command).name, text_of(command).about, {}};
  for (const Option& option : option_table()) {
    if (!option.commands.has(command)) continue;
    const ValueRef slot = option.place.in == nullptr ? ValueRef() : option.place.in(parts);
    std::vector<std::string> names = split(option.flag, ',');
    for (std::string& name : names)
      if (name.starts_with('!')) name.erase(0, 1);
    std::ranges::stable_partition(names, [](const std::string& name) { return !name.starts_with("--"); });
    facts.flags.push_back({std::move(names), value_name(option, slot), shown_default(option, command),
                           filled(option.help, option, command), option.group});
  }
  return facts;
}

std::span<const CommandText> command_texts() { return std::span(all_texts()).first(std::variant_size_v<Command>); }
const CommandText& text_of(CommandId command) { return command_texts()[static_cast<size_t>(command)]; }

HelpTopic take_help_topic(std::vector<std::string>& arguments) {
  HelpTopic topic;
  const auto take = [&topic](std::string_view word) {
    const auto* const group = std::ranges::find(kGroupNames, word);
    topic.all = word == "all";
    if (group != std::end(kGroupNames)) topic.group = static_cast<HelpGroup>(group - kGroupNames);
    return topic.all || group != std::end(kGroupNames);
  };
  for (auto it = arguments.begin(); it != arguments.end() && *it != "--"; ++it) {
    if (it->starts_with("--help=")) {
      if (!take(std::string_view(*it).substr(7)))
        throw Error(Code::kInvalidRequest, "--help: want {}, or nothing behind it, found {}", kAllTopics,
                    it->substr(7));
      *it = "--help";
    } else if ((*it == "--help" || *it == "-h") && it + 1 != arguments.end() && take(*(it + 1))) {
      arguments.erase(it + 1);
      return topic;
    }
  }
  return topic;
}

std::string help_text(std::optional<CommandId> command, const HelpTopic& topic) {
  if (command) return command_help(*command, topic);
  std::string out = "Nibble runs gpt-oss on your own machine.\n\nnibble COMMAND [flags]\n\ncommands:\n";
  for (const CommandText& each : command_texts()) out += fmt::format("  {:<12}{}\n", each.name, each.about);
  return out +
         fmt::format("\nnibble COMMAND --help shows its flags, nibble --version the version.\n\nexamples:\n{}\n\n{}\n",
                     examples(), exit_codes());
}

std::string man_page_text() {
  std::string out = fmt::format(
      ".TH NIBBLE 1 \"\" \"nibble {}\" \"User commands\"\n.SH NAME\nnibble \\- run and serve gpt\\-oss\n"
      ".SH SYNOPSIS\n.B nibble\n.I command\n[flags]\n.SH DESCRIPTION\nRuns gpt\\-oss on your own machine: "
      "engine, chat and a server of OpenAI's API, in one program.\n.SH EXAMPLES\n{}",
      NIBBLE_VERSION, example_block(examples()));
  for (size_t at = 0; at < command_texts().size(); ++at) {
    const CommandFacts command = facts_of(static_cast<CommandId>(at));
    out += fmt::format(".SH NIBBLE {}\n{}.\n", escaped(command.name), escaped(command.about));
    for (const FlagFacts& flag : command.flags) out += flag_entry(flag);
    out += ".PP\n" + example_block(command_texts()[at].examples);
  }
  return out + fmt::format(".SH EXIT STATUS\n{}\n", escaped(exit_codes()));
}

std::string completion_text(const std::string& shell) {
  std::vector<CommandFacts> commands;
  for (size_t at = 0; at < command_texts().size(); ++at) commands.push_back(facts_of(static_cast<CommandId>(at)));
  if (shell == "bash") return bash_text(commands);
  if (shell == "zsh") return zsh_text(commands);
  if (shell == "fish") return fish_text(commands);
  throw Error(Code::kInvalidRequest, "nibble completion: want bash, zsh or fish, found {}", shell);
}

}  // namespace nibble::app
