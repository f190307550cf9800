#include "app/options/help.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace nibble::app {
namespace {

bool is_place(const FlagFacts& flag) { return flag.names[0][0] != '-'; }

// "a|b|c" as "a b c"; nothing where the value is no choice.
std::string choices_of(const FlagFacts& flag) {
  std::string words = flag.value.find('|') == std::string::npos ? "" : flag.value;
  std::ranges::replace(words, '|', ' ');
  return words;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// Inside single quotes of a POSIX shell.
std::string shell_quoted(const std::string& text) { return "'" + replaced(text, "'", R"('\'')") + "'"; }

// The command and a name of the flag, as a pattern of case.
std::string patterns_of(const CommandFacts& command, const FlagFacts& flag) {
  std::string out;
  for (const std::string& name : flag.names)
    out += fmt::format("{}'{} {}'", out.empty() ? "" : "|", command.name, name);
  return out;
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
  return fmt::format(R"(# bash completion for nibble; made by: nibble completion bash
_nibble() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command=${{COMP_WORDS[1]}} words=
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W '{} --help --version' -- "$current"))
    return
  fi
  case "$command $before" in
{}    *) ;;
  esac
  if [ -z "$words" ] && [ "${{current#-}}" != "$current" ]; then
    case $command in
{}    esac
  fi
  if [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  else
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -F _nibble nibble
)",
                     names.substr(1), values, flags);
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
  return fmt::format(R"(#compdef nibble
# zsh completion for nibble; made by: nibble completion zsh
_nibble() {{
  local -a commands
  commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{}  esac
}}
if [ "$funcstack[1]" = _nibble ]; then _nibble "$@"; else compdef _nibble nibble; fi
)",
                     names, cases);
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

std::string completion_text(const std::string& shell) {
  std::vector<CommandFacts> commands;
  for (size_t at = 0; at < command_texts().size(); ++at) commands.push_back(facts_of(static_cast<CommandId>(at)));
  if (shell == "bash") return bash_text(commands);
  if (shell == "zsh") return zsh_text(commands);
  if (shell == "fish") return fish_text(commands);
  throw Error(Code::kInvalidRequest, "nibble completion: want bash, zsh or fish, found {}", shell);
}

}  // namespace nibble::app
