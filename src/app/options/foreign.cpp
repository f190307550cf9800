#include "app/options/foreign.h"

#include "app/options/command_line.h"
#include "app/options/help.h"
#include "base/error.h"
#include "base/read_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <system_error>
#include <utility>

namespace nibble::app {
namespace {

constexpr std::string_view kForeignText =
#include "app/options/foreign_words.txt"
    ;

using Heading = std::pair<std::string_view, Becomes>;
constexpr Heading kHeadings[] = {{"flags", Becomes::kFlag},      {"fields", Becomes::kFields},
                                 {"nothing", Becomes::kNothing}, {"refused", Becomes::kRefused},
                                 {"names", Becomes::kLongName},  {"commands", Becomes::kCommand}};

ForeignWord word_of(const std::string& spec, Becomes becomes, std::string_view text) {
  const size_t mark = spec.find('='), blank = becomes == Becomes::kFlag ? text.find(' ') : text.npos;
  ForeignWord word{.name = spec.substr(0, mark), .becomes = becomes, .text = text.substr(0, blank), .value = {}};
  if (blank != text.npos) word.value = text.substr(blank + 1);
  word.is_switch = mark == spec.npos;
  if (word.is_switch) return word;
  word.values = spec.substr(mark + 1);
  word.takes_several = word.values == "*";
  word.may_be_bare = word.values.starts_with('?');
  if (word.takes_several || word.may_be_bare) word.values.erase(0, 1);
  std::ranges::replace(word.values, '|', ' ');
  return word;
}

bool has_word(std::string_view words, std::string_view word) {
  return word.find(' ') == std::string_view::npos &&
         fmt::format(" {} ", words).find(fmt::format(" {} ", word)) != std::string::npos;
}

bool takes(const ForeignWord& word, std::string_view value) {
  return word.values.empty() || has_word(word.values, value);
}

bool is_of_vllm(const ForeignWord& word) { return word.becomes <= Becomes::kRefused; }

// Finds vLLM's first word of this name that covers the value; null: none.
const ForeignWord* word_for(std::string_view name, std::string_view value) {
  for (const ForeignWord& word : foreign_words())
    if (is_of_vllm(word) && word.name == name && takes(word, value)) return &word;
  return nullptr;
}

// Our option of this foreign name, null: none.
const Option* option_of(std::string_view name) {
  for (const Option& option : option_table())
    if (has_word(option.traits.foreign, name)) return &option;
  return nullptr;
}

// Our name for another program's command, or a long name for a short one of any command; empty: none is known.
std::string_view name_for(std::string_view name, Becomes becomes) {
  for (const ForeignWord& word : foreign_words())
    if (word.becomes == becomes && word.name == name && word.everywhere) return word.text;
  return {};
}

struct ConfigField {
  std::string name, value;  // a bare number, as in -O3, has no name
};
// A JSON object, name=value or, for --compilation-config, a number.
std::vector<ConfigField> config_fields(const std::string& flag, const std::string& value) {
  if (flag == "--compilation-config" && !value.empty() && std::ranges::all_of(value, is_digit)) return {{"", value}};
  if (const size_t mark = value.find('='); mark != std::string::npos && mark > 0 && value[0] != '{') {
    std::string name = value.substr(0, mark);
    std::replace(name.begin(), name.end(), '-', '_');
    return {{name, value.substr(mark + 1)}};
  }
  const nlohmann::json json = read_json(value);
  if (!json.is_object()) refuse_value(flag, "want a JSON object such as {\"name\": \"value\"}, found " + value);
  std::vector<ConfigField> fields;
  for (const auto& [name, field] : json.items())
    fields.push_back({name, field.is_string() ? field.get<std::string>() : field.dump()});
  return fields;
}

// For a field that nothing is known of, or not with its value.
[[noreturn]] void refuse_field(const std::string& flag, const ConfigField& field) {
  const std::string prefix = flag + ".", name = prefix + field.name;
  std::vector<std::string> fields, values;
  const auto add_field = [&](std::string_view each) {
    if (!each.starts_with(prefix)) return;
    each.remove_prefix(prefix.size());
    if (std::ranges::find(fields, each) == fields.end()) fields.emplace_back(each);
  };
  for (const ForeignWord& word : foreign_words()) {
    if (word.becomes != Becomes::kFlag) continue;
    if (word.name == name) std::ranges::move(split(word.values, ' '), std::back_inserter(values));
    add_field(word.name);
  }
  if (!values.empty()) refuse_value(name, fmt::format("want {}, found {}", fmt::join(values, " or "), field.value));
  for (const Option& option : option_table())
    for (const std::string& each : split(option.traits.foreign, ' ')) add_field(each);
  refuse_value(flag, fmt::format("want fields {}, found {}", fmt::join(fields, ", "), field.name));
}

void note(Settings& settings, std::string text) {
  if (std::ranges::find(settings.notes, text) == settings.notes.end()) settings.notes.push_back(std::move(text));
}

// The value, or each of its fields, becomes flags of ours, or nothing.
void take_value(Settings& settings, const ForeignWord& word, const std::string& value) {
  const std::string& flag = word.name;
  const bool of_fields = holds_fields(flag), has_fields = word.becomes == Becomes::kFields;
  const bool refused = word.becomes == Becomes::kRefused;
  if ((refused || of_fields) && (value == "null" || (value == "{}" && flag != "--speculative-config")))
    return note(settings, fmt::format("{} {} makes no difference: it asks for nothing", flag, value));
  if (refused)
    refuse_value(flag, fmt::format("{}is not supported: {}", word.values.empty() ? "" : value + " ", word.text));
  if (!takes(word, value))
    refuse_value(flag, fmt::format("only {} is supported, found {}: {}", word.values, value, word.text));
  const std::vector<ConfigField> fields =
      of_fields ? config_fields(flag, value) : std::vector<ConfigField>{{"", value}};
  if (has_fields && fields.empty()) refuse_value(flag, fmt::format("want a field, as in {}", word.text));
  size_t taken = 0;
  for (const ConfigField& field : fields) {
    const std::string name = field.name.empty() ? flag : fmt::format("{}.{}", flag, field.name);
    const ForeignWord* const said = word_for(name, field.value);
    const Option* const option = said == nullptr ? option_of(name) : nullptr;
    if (said != nullptr && said->becomes == Becomes::kRefused)
      refuse_value(name, fmt::format("{} is not supported: {}", field.value, said->text));
    if (said == nullptr && option == nullptr && has_fields) refuse_field(flag, field);
    if (option != nullptr || (said != nullptr && said->becomes == Becomes::kFlag)) {
      Setting implied{option != nullptr ? option->name() : std::string(said->text),
                      said == nullptr || said->value.empty() ? field.value : std::string(said->value), flag};
      note(settings,
           fmt::format("{}{}{} is taken as {} {}", flag, value.empty() ? "" : " ", value, implied.flag, implied.value));
      settings.implied.push_back(std::move(implied));
    } else if (has_fields) {
      note(settings, fmt::format("{} {} makes no difference: {}", name, field.value, said->text));
    } else {
      continue;
    }
    ++taken;
  }
  if (taken == 0 || taken < fields.size())
    note(settings, fmt::format("{} makes no difference{}: {}", flag, taken == 0 ? "" : " otherwise", word.text));
}

// vLLM's value of one of our flags as ours; anything else unchanged.
std::string our_value(std::string_view flag, const std::string& found) {
  const ForeignWord* const word = word_for(flag, found);
  return word != nullptr && word->text == flag ? std::string(word->value) : found;
}

// 25.6k is 25600, 8K is 8192, 2G is 2147483648. Anything else is left to the option's own check.
std::string without_unit(const std::string& found) {
  constexpr std::string_view kDecimal = "kmgt", kBinary = "KMGT";
  if (found.empty()) return found;
  const char letter = found.back(), *const end = found.data() + found.size() - 1;
  const size_t decimal = kDecimal.find(letter), binary = kBinary.find(letter);
  if (decimal != std::string_view::npos) {
    double value = 0;
    const auto [rest, error] = std::from_chars(found.data(), end, value, std::chars_format::fixed);
    for (size_t i = 0; i <= decimal; ++i) value *= 1000;
    if (error == std::errc() && rest == end && value >= 0 && value < 0x1p62)
      return fmt::format("{}", static_cast<int64_t>(value));
  } else if (binary != std::string_view::npos) {
    std::optional<int64_t> value = number_in<int64_t>(std::string_view(found.data(), end));
    if (value && !__builtin_mul_overflow(*value, int64_t{1024} << 10 * binary, &*value))
      return fmt::format("{}", *value);
  }
  return found;
}

// --max_model_len, -O3, -cc.x=1 and --compilation-config.x=1 as `nibble serve` spells them.
void respell_vllm_words(std::vector<std::string>& words) {
  for (size_t i = 0; i + 1 < words.size(); ++i)  // -q means --quiet here, unless one of vLLM's values follows
    if (words[i] == "-q" && words[i + 1] == "mxfp4") words[i] = "--quantization";
  for (size_t i = 0; i < words.size(); ++i) {
    for (const ForeignWord& word : foreign_words()) {
      if (word.becomes != Becomes::kLongName || word.everywhere || !words[i].starts_with(word.name)) continue;
      const std::string rest = words[i].substr(word.name.size());
      const bool whole = rest.empty() || rest[0] == '=' || rest[0] == '.';
      if (whole || word.name == "-O") words[i] = fmt::format("{}{}{}", word.text, whole ? "" : "=", rest);
    }
    std::string& word = words[i];
    if (!word.starts_with("--")) continue;
    const size_t end = std::min(word.find('='), word.size());
    std::replace(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
    const size_t dot = word.find("-config.");
    if (dot >= end) continue;
    if (end == word.size()) {  // the next word is its value; without one: true
      const bool has_value = i + 1 < words.size() && !words[i + 1].starts_with("--");
      word += "=" + (has_value ? words[i + 1] : "true");
      if (has_value) words.erase(words.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
    words[i][dot + 7] = '=';  // --x-config=field=value: one field of a JSON flag
  }
}

// The value of the flag at `i`, with = or behind it; both are taken out.
std::string take_flag(std::vector<std::string>& words, size_t i) {
  const size_t mark = words[i].find('=');
  const bool is_next = mark == std::string::npos;
  if (is_next && i + 1 == words.size()) refuse_value(words[i], "want a value, found none");
  std::string value = is_next ? words[i + 1] : words[i].substr(mark + 1);
  const auto at = words.begin() + static_cast<std::ptrdiff_t>(i);
  words.erase(at, at + (is_next ? 2 : 1));
  return value;
}

// llama.cpp's -hf REPO:QUANT and --hf-file FILE are the model's name, which may be pulled.
void add_repo(std::vector<std::string>& words, const Arguments& arguments, std::string repo, const std::string& file) {
  if (repo.empty() && file.empty()) return;
  if (repo.empty()) throw Error(Code::kInvalidRequest, "--hf-file {}: want --hf-repo ORG/REPO beside it", file);
  if (!file.empty()) repo = fmt::format("{}:{}", repo.substr(0, repo.find(':')), file);
  const bool pulls = arguments.find("--pull") != nullptr && std::ranges::find(words, "--offline") == words.end();
  words.insert(words.begin() + 1, (arguments.find("--model") == nullptr ? "" : "--model=") + repo);
  if (pulls) words.insert(words.begin() + 1, "--pull");
}

}  // namespace

std::span<const ForeignWord> foreign_words() {
  static const std::vector<ForeignWord> words = [] {
    std::vector<ForeignWord> all;
    Becomes becomes{};
    bool everywhere = false;
    std::string_view text;
    for (std::string_view rest = kForeignText; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      if (line.starts_with("## ")) {
        const std::vector<std::string> heading = split(line.substr(3, line.find(':') - 3), ' ');
        becomes = std::ranges::find(kHeadings, heading[0], &Heading::first)->second;
        everywhere = heading.back() == "everywhere";
      } else if (line.starts_with("  ")) {
        for (const std::string& spec : split(line.substr(2), ' '))
          all.emplace_back(word_of(spec, becomes, text)).everywhere = everywhere;
      } else if (!line.starts_with('#')) {
        text = line;
      }
    }
    return all;
  }();
  return words;
}

void respell_foreign_words(std::vector<std::string>& words) {
  if (words.empty()) return;
  const auto id_of = [](std::string_view name) -> std::optional<CommandId> {
    const std::span<const CommandText> texts = command_texts();
    const auto it = std::ranges::find(texts, name, &CommandText::name);
    return it == texts.end() ? std::nullopt : std::optional(static_cast<CommandId>(it - texts.begin()));
  };
  if (words[0] == "version" || words[0] == "-V" || words[0] == "-v") words[0] = "--version";
  if (words[0] == "help") {  // help COMMAND
    words.erase(words.begin());
    if (words.empty() || id_of(words[0])) words.emplace_back("--help");
  }
  const std::string name = words[0];
  const std::optional<CommandId> command = id_of(name);
  if (!command) {
    if (const std::string_view ours = name_for(name, Becomes::kCommand); !ours.empty())
      throw Error(Code::kInvalidRequest, "there is no command {}; want nibble {}", name, ours);
    return;
  }
  Command options = made(*command);
  Arguments arguments(*command, parts_of(options));
  std::string repo, repo_file;
  for (size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    const size_t end = std::min(words[i].find('='), words[i].size());
    const std::string flag = words[i].substr(0, end);
    if (!flag.starts_with("-")) continue;
    if (const Argument* const own = arguments.find(flag); own != nullptr) {
      if (own->is_switch || end < words[i].size()) continue;
      const bool may_be_bare = own->foreign != nullptr && own->foreign->may_be_bare;
      if (may_be_bare && (i + 1 == words.size() || !takes(*own->foreign, words[i + 1])))
        words[i] += "=" + split(own->foreign->values, ' ').front();
      else
        ++i;  // its value, whatever that looks like
      continue;
    }
    const bool is_file = flag == "-hff" || flag == "--hf-file";
    if (is_file || flag == "-hf" || flag == "-hfr" || flag == "--hf-repo") {
      (is_file ? repo_file : repo) = take_flag(words, i--);
      continue;
    }
    const auto same = std::ranges::find_if(arguments.all(), [&flag](const Argument& argument) {
      return argument.option != nullptr && has_word(argument.option->traits.foreign, flag);
    });
    if (same != arguments.all().end()) {
      words[i].replace(0, end, same->name);
      if (i + 1 == words.size()) continue;
      if (same->name == "--max-tokens" && words[i + 1] == "-1") words[i + 1] = "0";       // until the model stops
      if (same->name == "--max-model-len" && words[i + 1] == "0") words[i + 1] = "auto";  // as much as fits
      continue;
    }
    const std::string_view known = name_for(flag, Becomes::kLongName);
    if (!known.empty() && arguments.find(known) != nullptr) words[i--].replace(0, end, known);
  }
  add_repo(words, arguments, repo, repo_file);
  if (command == CommandId::kServe) respell_vllm_words(words);
}

bool holds_fields(std::string_view flag) {
  return (flag.ends_with("-config") && flag != "--generation-config") || flag.ends_with("-kwargs");
}

void take_foreign(Settings& settings, const ForeignWord& word, const std::vector<std::string>& values) {
  if (word.is_switch) {  // of a switch and of a value the last one counts, as in vLLM
    if (is_true(values.back()) || (word.everywhere && word.becomes == Becomes::kNothing))
      take_value(settings, word, "");
  } else if (holds_fields(word.name)) {
    for (const std::string& value : values) take_value(settings, word, value);
  } else {
    const std::string value = word.takes_several ? fmt::format("{}", fmt::join(values, " ")) : values.back();
    const ForeignWord* const said = word_for(word.name, value);
    take_value(settings, said != nullptr ? *said : word, value);
  }
}

std::string in_our_words(Settings& settings, const Option& option, const std::string& found) {
  if (option.range.sized) return without_unit(found);
  const std::string flag = option.name();
  settings.foreign_words.erase(flag);
  std::string ours = our_value(flag, found);
  if (ours == found) return ours;
  settings.foreign_words[flag] = found;
  note(settings, fmt::format("{} {} is taken as {}", flag, found, ours));
  return ours;
}

std::vector<Setting> read_foreign_variables(const Variables& environment, std::vector<std::string>& notes) {
  std::vector<Setting> settings;
  for (const auto& [name, found] : environment) {
    if ((!name.starts_with("VLLM_") && !name.starts_with("FLASHINFER_")) || found.empty()) continue;
    const ForeignWord* const word = word_for(name, found);
    const Option* const option = word == nullptr ? option_of(name) : nullptr;
    const std::string origin = "environment " + name;
    if (option != nullptr) {
      settings.push_back({option->name(), our_value(option->name(), found), origin});
    } else if (word == nullptr) {
      std::string wanted;
      for (const ForeignWord& other : foreign_words())
        if (other.name == name) wanted += fmt::format("{}{}", wanted.empty() ? "" : " ", other.values);
      if (!wanted.empty()) throw Error(Code::kInvalidRequest, "{}: want one of {}, found {}", origin, wanted, found);
      notes.push_back(fmt::format("{} makes no difference: nibble has nothing by that name", name));
    } else if (word->becomes == Becomes::kRefused) {
      throw Error(Code::kInvalidRequest, "{}: is not supported: {}", origin, word->text);
    } else if (word->becomes == Becomes::kNothing) {
      notes.push_back(fmt::format("{} makes no difference: {}", name, word->text));
    } else {
      settings.push_back({std::string(word->text), word->value.empty() ? found : std::string(word->value), origin});
    }
  }
  return settings;
}

std::vector<std::string> foreign_variables(const Option& option) {
  std::vector<std::string> names;
  for (std::string& name : split(option.traits.foreign, ' '))
    if (!name.empty() && !name.starts_with('-')) names.push_back(std::move(name));
  for (const ForeignWord& word : foreign_words()) {
    const bool ours = word.becomes == Becomes::kFlag && word.text == option.name() && !word.name.starts_with("-");
    if (ours && std::ranges::find(names, word.name) == names.end()) names.emplace_back(word.name);
  }
  return names;
}

}  // namespace nibble::app
