#include "app/options/command_line.h"

#include "app/options/help.h"
#include "base/ascii.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

namespace nibble::app {
namespace {

Argument argument_of(const Option& option) {
  Argument argument{.option = &option, .name = option.name(), .names = {}};
  for (std::string& name : split(option.flag, ',')) {
    const bool negates = name.starts_with('!');
    if (negates) name.erase(0, 1);
    (negates ? argument.negations : argument.names).push_back(std::move(name));
  }
  argument.is_switch = option.is_switch();
  argument.takes = option.range.takes;
  return argument;
}

Argument argument_of(const ForeignWord& word) {
  Argument argument{.foreign = &word, .name = word.name, .names = {word.name}};
  argument.is_switch = word.is_switch;
  if (word.is_switch) argument.negations.push_back("--no-" + word.name.substr(2));
  argument.takes = word.takes_several        ? Range::Takes::kSeveral
                   : holds_fields(word.name) ? Range::Takes::kRepeated
                                             : Range::Takes::kOne;
  return argument;
}

std::string_view program_name(CommandId command) { return text_of(command).name; }

bool looks_like_a_flag(const std::string& word) { return word.size() > 1 && word[0] == '-' && word[1] != ' '; }

}  // namespace

bool Argument::has_name(std::string_view of) const {
  return std::ranges::find(names, of) != names.end() || std::ranges::find(negations, of) != negations.end();
}

std::string Argument::switched(std::string_view of, const std::string& value) const {
  const std::string said = value.empty() ? "true" : value;
  if (std::ranges::find(negations, of) == negations.end() || !neither_yes_nor_no(said).empty()) return said;
  return is_true(said) ? "false" : "true";
}

Arguments::Arguments(CommandId command, const Parts& parts) : command_(command), parts_(parts) {
  for (const Option& option : option_table())
    if (option.commands.has(command)) all_.push_back(argument_of(option));
  if (find("--print-config") == nullptr) return;  // it runs no model
  for (const ForeignWord& word : foreign_words()) {
    if (command != CommandId::kServe && !word.everywhere) continue;
    const bool is_flag = word.name.starts_with("--") && word.name.find('.') == std::string::npos;
    // Values of ours are no flags, and those of other flags stand there again.
    if (!is_flag || word.becomes == Becomes::kFlag || word.becomes > Becomes::kRefused) continue;
    if (find(word.name) == nullptr) all_.push_back(argument_of(word));
  }
}

Argument* Arguments::find(std::string_view name) {
  const auto it = std::ranges::find_if(all_, [name](const Argument& argument) { return argument.has_name(name); });
  return it == all_.end() ? nullptr : &*it;
}

bool Arguments::given(std::string_view name) const {
  const Argument* const argument = find(name);
  return argument != nullptr && argument->given();
}

// The words of one command line, one after the other.
class Arguments::Words {
 public:
  Words(Arguments& arguments, std::span<const std::string> words, std::vector<std::string>& unknown)
      : arguments_(arguments), words_(words), unknown_(unknown) {}

  // What each argument got, in the words themselves.
  void read() {
    bool places_only = false;
    while (at_ < words_.size()) {
      const std::string& word = words_[at_++];
      if (!places_only && word == "--")
        places_only = true;
      else if (!places_only && is_flag(word))
        word.starts_with("--") ? read_long(word) : read_short(word);
      else
        read_place(word);
    }
  }

 private:
  [[nodiscard]] bool is_flag(const std::string& word) const {
    const bool is_number = word.size() > 1 && word[0] == '-' && is_digit(word[1]);
    return looks_like_a_flag(word) && !is_number;
  }
  void read_long(const std::string& word) {
    const size_t mark = std::min(word.find('='), word.size());
    const std::string name = word.substr(0, mark);
    Argument* const argument = arguments_.find(name);
    if (argument == nullptr) return unknown_.push_back(word);
    const bool has_value = mark < word.size();
    const std::string value = has_value ? word.substr(mark + 1) : "";
    if (!argument->is_switch) return read_values(*argument, name, has_value ? std::optional(value) : std::nullopt);
    if (has_value) {
      if (const std::string wrong = neither_yes_nor_no(value); !wrong.empty()) refuse_value(name, wrong);
    }
    argument->words.push_back(argument->switched(name, value));
  }
  // -n 5, -n5, and switches together: -qy.
  void read_short(const std::string& word) {
    if (word.size() > 2 && word[2] == '=') return read_long(word);
    for (size_t i = 1; i < word.size(); ++i) {
      const std::string name = {'-', word[i]}, rest = word.substr(i + 1);
      Argument* const argument = arguments_.find(name);
      if (argument == nullptr) return unknown_.push_back(i == 1 ? word : "-" + word.substr(i));
      if (!argument->is_switch) return read_values(*argument, name, rest.empty() ? std::nullopt : std::optional(rest));
      argument->words.emplace_back("true");
    }
  }
  void read_values(Argument& argument, const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      argument.words.push_back(*value);
    } else {
      if (at_ == words_.size()) refuse_value(argument.name, "want a value, found none");
      const std::string& next = words_[at_];
      // Whatever it looks like, but for serve no flag: --api-key $NONE --port 80
      if (arguments_.command_ == CommandId::kServe && next.starts_with("--") &&
          arguments_.find(next.substr(0, next.find('='))) != nullptr)
        refuse_value(name, fmt::format("want a value, found the flag {1}; as a value: {0}={1}", name, next));
      argument.words.push_back(next);
      ++at_;
    }
    while (argument.takes == Range::Takes::kSeveral && at_ < words_.size() && !is_flag(words_[at_]))
      argument.words.push_back(words_[at_++]);
  }
  void read_place(const std::string& word) {
    for (Argument& argument : arguments_.all_)
      if (argument.is_place() && (argument.words.empty() || argument.takes != Range::Takes::kOne))
        return argument.words.push_back(word);
    unknown_.push_back(word);
  }

  Arguments& arguments_;
  const std::span<const std::string> words_;
  std::vector<std::string>& unknown_;
  size_t at_ = 0;
};

bool Arguments::read(std::span<const std::string> words, std::vector<std::string> unknown) {
  const auto named = [this](const auto& step) {
    try {
      step();
    } catch (const Error& e) {
      throw Error(e.code(), "nibble {0}: {1} (nibble {0} --help)", program_name(command_), e.what());
    }
  };
  named([&] { Words(*this, words, unknown).read(); });
  const bool helps = !find("--help")->words.empty();
  std::vector<std::string> refused;
  for (Argument& argument : all_) {
    try {
      if (argument.foreign != nullptr && !argument.words.empty()) take(argument, argument.words);
    } catch (const Error& e) {
      refused.emplace_back(e.what());
    }
  }
  if (!helps) refuse_unknown(unknown, refused);
  named([&] {
    for (Argument& argument : all_)
      if (!argument.words.empty() && argument.foreign == nullptr) take(argument, argument.words);
    if (!helps) check_together();
  });
  return !helps;
}

void Arguments::set(Argument& argument, const std::vector<std::string>& values, std::string_view origin) {
  try {
    take(argument, values);
  } catch (const Error& e) {
    throw Error(e.code(), "{}: {}", origin, e.what());
  }
}

void Arguments::take(Argument& argument, const std::vector<std::string>& values) {
  if (argument.foreign != nullptr) {
    take_foreign(*std::get<Settings*>(parts_), *argument.foreign, values);
    argument.values = values;
  } else if (argument.is_place() && argument.option->place.in == nullptr) {
    argument.values = values;
    take_place(argument, values.back());
  } else {
    const Option& option = *argument.option;
    const ValueRef slot = option.place.in == nullptr ? ValueRef() : option.place.in(parts_);
    for (std::string value : values) {
      if (command_ == CommandId::kServe) value = in_our_words(*std::get<Settings*>(parts_), option, value);
      argument.values.push_back(read_value(option, slot, value));
    }
    if (TextInput* const text = std::get<TextInput*>(parts_); text != nullptr && option.place.fields.size() == 1)
      text->given |= option.place.fields[0].part == detail::kPart<TextInput>;
  }
  if (argument.takes == Range::Takes::kOne) argument.values.erase(argument.values.begin(), argument.values.end() - 1);
}

// NAME is --model or, after one or with blanks, as TEXT is, --prompt: nibble chat "What is the capital of France?"
void Arguments::take_place(const Argument& argument, const std::string& found) {
  Argument &model = *find("--model"), *const prompt = find("TEXT") == nullptr ? nullptr : find("--prompt");
  std::error_code ignored;
  const bool is_text = found.find(' ') != std::string::npos && !std::filesystem::exists(found, ignored);
  if (argument.name == "NAME" && found.empty()) refuse_value("NAME", "want a value, found an empty one");
  if (argument.name == "NAME" && !(prompt != nullptr && is_text)) {
    if (!model.given()) return take(model, {found});
    if (model.values.back() == found) return;
    if (prompt == nullptr)
      refuse_value("model", fmt::format("want one model, found --model {} and \"{}\". A text with blanks needs quotes",
                                        model.values.back(), found));
  }
  if (!prompt->given()) return take(*prompt, {found});
  refuse_value("prompt", fmt::format("want one text, found another: \"{}\". A text with blanks needs quotes", found));
}

void Arguments::check_together() const {
  const auto refuse = [](const Argument& a, std::string_view how, std::string_view b) {
    throw Error(Code::kInvalidRequest, "{} {} {}", a.name, how, b);
  };
  for (const Argument& argument : all_) {
    if (argument.option == nullptr) continue;
    const Traits& traits = argument.option->traits;
    if (traits.required && !argument.given()) throw Error(Code::kInvalidRequest, "{} is required", argument.name);
    if (!argument.given()) continue;
    if (!traits.needs.empty() && !given(traits.needs)) refuse(argument, "requires", traits.needs);
    if (command_ == CommandId::kInspect && is_of_run(*argument.option) && !given("--plan"))
      refuse(argument, "requires", "--plan");
    for (const Argument& other : all_) {
      if (other.option == nullptr || !other.given()) continue;
      const auto excludes = [](const Argument& a, const Argument& b) {
        const std::vector<std::string> names = split(a.option->traits.excludes, ' ');
        return std::ranges::find(names, b.name) != names.end();
      };
      if (excludes(argument, other) || excludes(other, argument)) refuse(argument, "excludes", other.name);
    }
  }
}

// All in one line, with the flags that were probably meant.
void Arguments::refuse_unknown(const std::vector<std::string>& unknown, const std::vector<std::string>& refused) const {
  const std::string name = fmt::format("nibble {}", program_name(command_));
  std::vector<std::string> known, flags;
  for (const Argument& argument : all_)
    for (const std::vector<std::string>& names : {argument.names, argument.negations})
      std::ranges::copy_if(names, std::back_inserter(known), [](const auto& each) { return each.starts_with("--"); });
  for (const std::string& word : unknown) {
    const std::string flag = word.substr(0, word.find('='));
    if (looks_like_a_flag(word)) flags.push_back(flag + suggestion(flag, known));
  }
  if (!flags.empty()) flags.front().insert(0, refused.empty() ? " has no " : "; and there is no ");
  if (!flags.empty() || !refused.empty())
    throw Error(Code::kInvalidRequest, "{}{}{}{} ({} --help lists its options)", name, refused.empty() ? "" : ": ",
                fmt::join(refused, "; "), fmt::join(flags, "; no "), name);
  if (unknown.empty()) return;
  const std::string& found = unknown.front();
  const bool is_quoted = found.find(' ') != std::string::npos, is_switched = neither_yes_nor_no(found).empty();
  throw Error(Code::kInvalidRequest, "{}: what is \"{}\"?{} ({} --help)", name, found,
              is_quoted     ? ""
              : is_switched ? fmt::format(" A switch takes its value as --switch={}", found)
                            : " A text with blanks needs quotes",
              name);
}

CommandWords find_command(std::span<const std::string> words) {
  CommandWords found;
  std::vector<std::string> names;
  for (const CommandText& command : command_texts()) names.emplace_back(command.name);
  for (size_t i = 0; i < words.size() && !found.command; ++i)
    if (words[i] == "--version")
      found.wants_version = true;
    else if (words[i] == "--help" || words[i] == "-h")
      found.wants_help = true;
    else if (const auto it = std::ranges::find(names, words[i]); it != names.end())
      found.command = static_cast<CommandId>(it - names.begin()), found.first = i + 1;
    else
      found.unknown.push_back(words[i]);
  if (found.command || found.wants_version || found.wants_help) return found;
  constexpr std::string_view kHint = "nibble --help lists the commands";
  for (const std::string& word : found.unknown) {
    if (!looks_like_a_flag(word)) continue;
    const std::string flag = word.substr(0, word.find('='));
    Command serve = made(CommandId::kServe);
    if (Arguments(CommandId::kServe, parts_of(serve))
            .find(found.unknown.front().substr(0, found.unknown.front().find('='))) != nullptr)
      throw Error(Code::kInvalidRequest,  // vLLM's image takes them without a command
                  "want a command before {}, as in nibble serve {} ({})", flag, flag, kHint);
    throw Error(Code::kInvalidRequest, "nibble has no {}{} (nibble --help lists its options)", flag,
                suggestion(flag, {"--help", "--version"}));
  }
  if (found.unknown.empty()) throw Error(Code::kInvalidRequest, "want a command, found none ({})", kHint);
  const std::string& word = found.unknown.front();
  const bool is_model = word.find('/') != std::string::npos || word.ends_with(".gguf") || word.starts_with("gpt-oss") ||
                        word.starts_with("nibble-");
  throw Error(
      Code::kInvalidRequest, "there is no command {}{} ({})", word,
      is_model ? fmt::format("; for a model want nibble chat {0} or nibble serve {0}", word) : suggestion(word, names),
      kHint);
}

}  // namespace nibble::app
