#include "app/options/flags.h"

#include "base/error.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string_view>
#include <system_error>
#include <utility>

namespace nibble::app {
namespace {

// CLI11 alone takes 010 for 8 and 0x10 for 16.
CLI::Validator whole_number(int64_t least, int64_t most, const std::string& word) {
  const auto read = [least, most, word](std::string& found) -> std::string {
    int64_t value = -1;
    const char* const end = found.data() + found.size();
    const auto [rest, error] = std::from_chars(found.data(), end, value);
    const bool number = error == std::errc() && rest == end;
    const bool stands_for = !word.empty() && (found == word || (number && value == -1));
    if (!stands_for && (!number || value < least || value > most))
      return fmt::format("want a whole number from {} to {}{}, found {}", least, most,
                         word.empty() ? "" : " or " + word, found);
    found = fmt::format("{}", value);
    return "";
  };
  return {read, fmt::format("[{} - {}]{}", least, most, word.empty() ? "" : " or " + word)};
}

std::string not_finite(const std::string& found) {
  double value = 0;
  return CLI::detail::lexical_cast(found, value) && std::isfinite(value)
             ? std::string()
             : fmt::format("want a finite number, found {}", found);
}

// The library's own words for a switch. It also takes numbers, as counts, and fails at large ones.
std::string neither_yes_nor_no(std::string found) {
  constexpr std::string_view kWords[] = {"true", "on", "yes", "enable", "1", "false", "off", "no", "disable", "0"};
  std::string word = found;
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::find(kWords, word) != std::end(kWords) ? "" : "want true or false, found " + found;
}

std::vector<std::string> long_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// Levenshtein's distance.
size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string suggestion(std::string_view found, const std::vector<std::string>& names) {
  const std::string* best = nullptr;
  size_t best_edits = found.size() / 3 + 1;
  for (const std::string& name : names) {
    const size_t edits = found.size() > 4 && name.starts_with(found) ? 1 : edits_between(found, name);
    if (edits > best_edits || (best != nullptr && edits == best_edits)) continue;
    best = &name;
    best_edits = edits;
  }
  return best == nullptr ? "" : fmt::format("; did you mean {}?", *best);
}

namespace {

// What is wrong with a command line.
struct ParseFailure {
  std::string command = {};                            // the one that was named; empty: none was
  std::vector<std::string> commands = {}, flags = {};  // that there are; the flags are the command's
  bool is_of_serve = false;                            // without a command: serve has the first word
  std::vector<std::string> unknown = {};               // words that nothing took
  std::string what = {};                               // as the library says it
};

// In one line, with the flag or command that was probably meant.
std::string parse_error_text(const ParseFailure& failure) {
  const std::string name = failure.command.empty() ? "nibble" : "nibble " + failure.command;
  for (const std::string& word : failure.unknown) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string flag = word.substr(0, word.find('='));
    if (failure.is_of_serve)  // vLLM's image takes them without a command
      return fmt::format("want a command before {}, as in nibble serve {} (nibble --help lists the commands)", flag,
                         flag);
    return fmt::format("{} has no {}{} ({} --help lists its options)", name, flag, suggestion(flag, failure.flags),
                       name);
  }
  if (failure.command.empty()) {
    const std::string hint = "nibble --help lists the commands";
    if (failure.unknown.empty()) return fmt::format("want a command, found none ({})", hint);
    const std::string& found = failure.unknown.front();
    const bool is_model = found.find('/') != std::string::npos || found.ends_with(".gguf") ||
                          found.starts_with("gpt-oss") || found.starts_with("nibble-");
    return fmt::format("there is no command {}{} ({})", found,
                       is_model ? fmt::format("; for a model want nibble chat {0} or nibble serve {0}", found)
                                : suggestion(found, failure.commands),
                       hint);
  }
  if (!failure.unknown.empty()) {
    const std::string& found = failure.unknown.front();
    const bool is_quoted = found.find(' ') != std::string::npos, is_switched = neither_yes_nor_no(found).empty();
    return fmt::format("{}: what is \"{}\"?{} ({} --help)", name, found,
                       is_quoted     ? ""
                       : is_switched ? fmt::format(" A switch takes its value as --switch={}", found)
                                     : " A text with blanks needs quotes",
                       name);
  }
  return fmt::format("{}: {} ({} --help)", name, failure.what, name);
}

ParseFailure failure_of(const CLI::App& app, const CLI::ParseError& error) {
  ParseFailure failure{.unknown = app.remaining(true), .what = error.what()};
  for (const CLI::App* command : app.get_subcommands({})) failure.commands.push_back(command->get_name());
  if (const std::vector<CLI::App*> used = app.get_subcommands(); !used.empty())
    failure.command = used.front()->get_name();
  failure.flags = long_names(failure.command.empty() ? app : *app.get_subcommand(failure.command));
  if (failure.command.empty() && !failure.unknown.empty()) {
    const std::string flag = failure.unknown.front().substr(0, failure.unknown.front().find('='));
    failure.is_of_serve = app.get_subcommand("serve")->get_option_no_throw(flag) != nullptr;
  }
  if (failure.what.ends_with(" missing"))  // --seed: 1 required INT missing
    failure.what = failure.what.substr(0, failure.what.find(": ")) + ": want a value, found none";
  return failure;
}

constexpr std::pair<HelpGroup, std::string_view> kGroups[] = {{HelpGroup::kCommon, "common"},
                                                              {HelpGroup::kSampling, "sampling"},
                                                              {HelpGroup::kPerformance, "performance"},
                                                              {HelpGroup::kExpert, "expert"}};

FlagFacts facts_of(const CLI::Option& option) {
  FlagFacts facts{.names = {},
                  .value = "",
                  .usual = option.get_default_str(),
                  .help = option.get_description(),
                  .group = HelpGroup::kCommon};
  for (const auto& [group, name] : kGroups) {
    if (option.get_group() == name) facts.group = group;
  }
  for (const std::string& name : option.get_snames()) facts.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) facts.names.push_back("--" + name);
  if (facts.names.empty()) facts.names.push_back(option.get_single_name());
  const std::string type = option.get_type_name();  // INT:[0 - 10]: the range is told by who refuses a value
  if (option.get_expected_max() > 0) facts.value = type.substr(0, type.find(':'));
  const bool says_nothing =
      facts.usual == "[]" || facts.usual == "\"\"" || (facts.value.empty() && facts.usual == "false");
  if (says_nothing) facts.usual.clear();
  return facts;
}

}  // namespace

std::string_view name_of(HelpGroup group) {
  return std::ranges::find(kGroups, group, &std::pair<HelpGroup, std::string_view>::first)->second;
}

std::optional<HelpGroup> group_named(std::string_view name) {
  const auto* const it = std::ranges::find(kGroups, name, &std::pair<HelpGroup, std::string_view>::second);
  return it == std::end(kGroups) ? std::nullopt : std::optional(it->first);
}

void refuse_value(const std::string& flag, const std::string& why) { throw CLI::ValidationError(flag, why); }

Flag Flag::whole(int64_t least, int64_t most, const std::string& word) {
  option_->transform(whole_number(least, most, word));
  return *this;
}

Flag Flag::within(double least, double most) {
  finite();
  return check([least, most](const std::string& found) {
    double value = 0;
    return CLI::detail::lexical_cast(found, value) && value >= least && value <= most
               ? std::string()
               : fmt::format("want a number from {} to {}, found {}", least, most, found);
  });
}

Flag Flag::positive() {
  finite();
  option_->check(CLI::PositiveNumber);
  return *this;
}

Flag Flag::check(const Check& wrong) {
  option_->check(wrong);
  return *this;
}

Flag Flag::finite() { return check(not_finite); }

// "" is what a shell makes of a variable that is not set: a key that lets everybody in, another model than was meant.
Flag Flag::not_empty() {
  return check([](const std::string& found) { return found.empty() ? "want a value, found an empty one" : ""; });
}

Flag Flag::rewrite(const std::function<std::string(const std::string&)>& rewritten) {
  option_->transform(rewritten);
  return *this;
}

Flag Flag::type(const std::string& shown) {
  option_->type_name(shown);
  return *this;
}

Flag Flag::usual(const std::string& shown) {
  option_->default_str(shown);
  return *this;
}

Flag Flag::hidden() {
  option_->group("");
  return *this;
}

Flag Flag::required() {
  option_->required();
  return *this;
}

Flag Flag::last_counts() {
  option_->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  return *this;
}

Flag Flag::one_value(bool one) {
  option_->allow_extra_args(!one);
  return *this;
}

Flag Flag::excludes(Flag other) {
  option_->excludes(other.option_);
  return *this;
}

Flag Flag::needs(Flag other) {
  option_->needs(other.option_);
  return *this;
}

bool Flag::positional() const { return option_->get_lnames().empty(); }
std::string Flag::name() const { return "--" + option_->get_lnames()[0]; }
bool Flag::given() const { return option_->count() > 0; }
bool Flag::is_switch() const { return option_->get_expected_min() == 0; }
std::vector<std::string> Flag::values() const { return option_->reduced_results(); }
std::string Flag::usual() const { return option_->get_default_str(); }

std::string Flag::wrong_for_switch(const std::string& value) const {
  return is_switch() ? neither_yes_nor_no(value) : std::string();
}

std::string Flag::switched(const std::string& name, const std::string& value) const {
  return option_->get_flag_value(name.substr(2), value);
}

void Flag::set(const std::vector<std::string>& values, const std::string& origin) {
  for (const std::string& value : values)
    if (const std::string wrong = wrong_for_switch(value); !wrong.empty())
      throw Error(Code::kInvalidRequest, "{}: {}: {}", origin, name(), wrong);
  try {
    option_->add_result(values);
    option_->run_callback();
  } catch (const CLI::ParseError& e) {
    throw Error(Code::kInvalidRequest, "{}: {}", origin, e.what());
  }
}

Flag Flags::value(const std::string& names, std::string& into, const std::string& help) {
  return Flag(command_->add_option(names, into, help));
}
Flag Flags::value(const std::string& names, std::filesystem::path& into, const std::string& help) {
  return Flag(command_->add_option(names, into, help));
}
Flag Flags::value(const std::string& names, int& into, const std::string& help) {
  return Flag(command_->add_option(names, into, help));
}
Flag Flags::value(const std::string& names, int64_t& into, const std::string& help) {
  return Flag(command_->add_option(names, into, help));
}
Flag Flags::value(const std::string& names, float& into, const std::string& help) {
  return Flag(command_->add_option(names, into, help));
}
Flag Flags::value(const std::string& names, double& into, const std::string& help) {
  return Flag(command_->add_option(names, into, help));
}
Flag Flags::value(const std::string& names, std::optional<double>& into, const std::string& help) {
  return Flag(command_->add_option_function<double>(names, [&into](double found) { into = found; }, help));
}
Flag Flags::value(const std::string& names, std::vector<std::string>& into, const std::string& help) {
  return Flag(command_->add_option(names, into, help));
}
Flag Flags::value(const std::string& names, std::vector<int64_t>& into, const std::string& help) {
  return Flag(command_->add_option(names, into, help));
}

Flag Flags::take(const std::string& names, const std::function<void(const std::string&)>& use,
                 const std::string& help) {
  return Flag(command_->add_option_function<std::string>(names, use, help));
}

Flag Flags::take_all(const std::string& names, const std::function<void(const std::vector<std::string>&)>& use,
                     const std::string& help) {
  return Flag(command_->add_option_function<std::vector<std::string>>(names, use, help));
}

Flag Flags::turn(const std::string& names, bool& into, const std::string& help) {
  return Flag(command_->add_flag(names, into, help));
}

Flag Flags::turn(const std::string& names, std::optional<bool>& into, const std::string& help) {
  return Flag(command_->add_flag_function(names, [&into](int64_t count) { into = count > 0; }, help));
}

Flag Flags::mention(const std::string& names, const std::function<void()>& use, const std::string& help) {
  return Flag(command_->add_flag_callback(names, use, help));
}

void Flags::show_defaults(bool show) { command_->option_defaults()->always_capture_default(show); }
void Flags::then(const std::function<void()>& done) { command_->parse_complete_callback(done); }

std::vector<Flag> Flags::all() const {
  std::vector<Flag> flags;
  for (CLI::Option* option : command_->get_options()) flags.emplace_back(option);
  return flags;
}

std::optional<Flag> Flags::find(const std::string& name) const {
  CLI::Option* option = command_->get_option_no_throw(name);
  return option == nullptr ? std::nullopt : std::optional(Flag(option));
}

Flag Flags::get(const std::string& name) const {
  const std::optional<Flag> flag = find(name);
  check(flag.has_value(), "a flag that is declared");
  return *flag;
}

void Flags::group(HelpGroup group) { command_->option_defaults()->group(std::string(name_of(group))); }

CommandLine::CommandLine(const std::string& version) : app_(std::make_unique<CLI::App>("", "nibble")) {
  app_->set_version_flag("--version", version);
  app_->require_subcommand(1);
  app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // given twice: the last counts
}

CommandLine::~CommandLine() = default;

Flags CommandLine::command(const std::string& name, const std::string& what) {
  Flags flags(app_->add_subcommand(name, what));
  flags.group(HelpGroup::kCommon);
  return flags;
}

std::optional<Flags> CommandLine::find(const std::string& command) const {
  for (CLI::App* found : app_->get_subcommands({})) {
    if (found->get_name() == command) return Flags(found);
  }
  return std::nullopt;
}

std::vector<CommandFacts> CommandLine::facts() const {
  std::vector<CommandFacts> all;
  for (const CLI::App* command : app_->get_subcommands({})) {
    CommandFacts facts{command->get_name(), command->get_description(), {}};
    for (const CLI::Option* option : command->get_options()) {
      if (!option->get_group().empty()) facts.flags.push_back(facts_of(*option));
    }
    all.push_back(std::move(facts));
  }
  return all;
}

void CommandLine::check_equals(std::vector<std::string>& arguments) const {
  const std::optional<Flags> command = arguments.empty() ? std::nullopt : find(arguments[0]);
  for (size_t i = 1; command && i < arguments.size() && arguments[i] != "--"; ++i) {
    const size_t end = std::min(arguments[i].find('='), arguments[i].size());
    const std::string name = arguments[i].substr(0, end);
    const std::optional<Flag> flag = name.starts_with('-') ? command->find(name) : std::nullopt;
    if (!flag) continue;
    if (end == arguments[i].size()) {
      if (flag->is_switch()) continue;
      if (++i == arguments.size()) break;
      // Whatever it looks like, but for serve no flag: --api-key $NONE --port 80
      const std::string& value = arguments[i];
      if (arguments[0] == "serve" && value.starts_with("--") && command->find(value.substr(0, value.find('='))))
        throw Error(Code::kInvalidRequest,
                    "nibble serve: {0}: want a value, found the flag {1}; as a value: {0}={1} (nibble serve --help)",
                    name, value);
    } else if (!flag->is_switch() && end + 1 == arguments[i].size()) {
      arguments[i].pop_back();
      arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(++i), "");
    } else if (const std::string wrong = flag->wrong_for_switch(arguments[i].substr(end + 1)); !wrong.empty()) {
      throw Error(Code::kInvalidRequest, "nibble {}: {}: {} (nibble {} --help)", arguments[0], name, wrong,
                  arguments[0]);
    }
  }
}

CommandLine::Parsed CommandLine::parse(std::vector<std::string> arguments) {
  check_equals(arguments);
  std::reverse(arguments.begin(), arguments.end());  // as the library wants them
  const auto command = [this] {
    const std::vector<CLI::App*> used = app_->get_subcommands();
    return used.empty() ? std::string() : used.front()->get_name();
  };
  try {
    app_->parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    return {.command = command(), .wants_help = true};
  } catch (const CLI::CallForVersion&) {
    return {.command = command(), .wants_version = true};
  } catch (const CLI::ParseError& e) {
    throw Error(Code::kInvalidRequest, "{}", parse_error_text(failure_of(*app_, e)));
  }
  return {.command = command()};
}

}  // namespace nibble::app
