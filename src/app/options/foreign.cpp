#include "app/options/foreign.h"

#include "app/options/command_line.h"
#include "app/options/help.h"
#include "base/error.h"
#include "base/read_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <system_error>

namespace nibble::app {
namespace {

bool has_word(std::string_view words, std::string_view word) {
  return word.find(' ') == std::string_view::npos &&
         fmt::format(" {} ", words).find(fmt::format(" {} ", word)) != std::string::npos;
}

// Whether the row covers this value. Flags without a value, and with several, are not checked.
bool takes(const ForeignRow& row, std::string_view value) {
  return row.values.empty() || row.values == "-" || row.values == "*" || has_word(row.values, value);
}

// The first row of this name that covers the value, or null.
const ForeignRow* row_of(std::string_view name, std::string_view value) {
  const std::span<const ForeignRow> table = foreign_table();
  const auto it = std::ranges::find_if(
      table, [&](const ForeignRow& row) { return has_word(row.names, name) && takes(row, value); });
  return it == table.end() ? nullptr : &*it;
}

// Our option of this foreign name, null: none.
const Option* option_of(std::string_view name) {
  for (const Option& option : option_table())
    if (has_word(option.traits.foreign, name)) return &option;
  return nullptr;
}

std::string_view ours_of(std::span<const ForeignName> names, std::string_view theirs) {
  const auto it = std::ranges::find_if(names, [&](const ForeignName& name) { return has_word(name.theirs, theirs); });
  return it == names.end() ? std::string_view() : it->ours;
}

struct ConfigField {
  std::string name, value;  // a bare number, as in -O3, has no name
};
// A JSON object, name=value or, for --compilation-config, a number.
std::vector<ConfigField> config_fields(const std::string& flag, const std::string& value) {
  const auto digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  if (flag == "--compilation-config" && !value.empty() && std::all_of(value.begin(), value.end(), digit))
    return {{"", value}};
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
  const std::string name = fmt::format("{}.{}", flag, field.name);
  std::vector<std::string> fields, values;
  const auto add_field = [&](const std::string& each) {
    if (!each.starts_with(flag + ".")) return;
    std::string of = each.substr(flag.size() + 1);
    if (std::ranges::find(fields, of) == fields.end()) fields.push_back(std::move(of));
  };
  for (const ForeignRow& row : foreign_table()) {
    if (row.becomes != Becomes::kFlag || !row.names.starts_with(flag + ".")) continue;
    if (has_word(row.names, name)) std::ranges::move(split(row.values, ' '), std::back_inserter(values));
    add_field(std::string(row.names));
  }
  if (!values.empty()) refuse_value(name, fmt::format("want {}, found {}", fmt::join(values, " or "), field.value));
  for (const Option& option : option_table())
    for (const std::string& each : split(option.traits.foreign, ' ')) add_field(each);
  refuse_value(flag, fmt::format("want fields {}, found {}", fmt::join(fields, ", "), field.name));
}

// null, or an object without fields where none is needed.
bool asks_for_nothing(const ForeignRow& row, std::string_view flag, std::string_view value) {
  const bool is_object = row.becomes == Becomes::kRefused || holds_fields(flag);
  return is_object && (value == "null" || (value == "{}" && flag != "--speculative-config"));
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
    int64_t value = 0;
    const auto [rest, error] = std::from_chars(found.data(), end, value);
    if (error == std::errc() && rest == end && !__builtin_mul_overflow(value, int64_t{1024} << 10 * binary, &value))
      return fmt::format("{}", value);
  }
  return found;
}

// --max_model_len, -O3, -cc.x=1 and --compilation-config.x=1 as `nibble serve` spells them.
void respell_vllm_words(std::vector<std::string>& words) {
  for (size_t i = 0; i + 1 < words.size(); ++i)  // -q means --quiet here, unless one of vLLM's values follows
    if (words[i] == "-q" && words[i + 1] == "mxfp4") words[i] = "--quantization";
  for (size_t i = 0; i < words.size(); ++i) {
    for (const auto& [theirs, name] : vllm_names()) {
      if (!words[i].starts_with(theirs)) continue;
      const std::string rest = words[i].substr(theirs.size());
      const bool whole = rest.empty() || rest[0] == '=' || rest[0] == '.';
      if (whole || theirs == "-O") words[i] = fmt::format("{}{}{}", name, whole ? "" : "=", rest);
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

// -hf ORG/NAME:QUANTISATION, at `i`.
void respell_repo(std::vector<std::string>& words, size_t i, bool may_pull) {
  const size_t mark = words[i].find('=');
  const bool is_next = mark == std::string::npos && i + 1 < words.size();
  const std::string model = mark != std::string::npos ? words[i].substr(mark + 1) : is_next ? words[i + 1] : "";
  words[i] = "--model=" + model.substr(0, model.find(':'));
  if (is_next) words.erase(words.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  if (may_pull) words.insert(words.begin() + static_cast<std::ptrdiff_t>(i), "--pull");
}

}  // namespace

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
    if (const std::string_view ours = ours_of(foreign_commands(), name); !ours.empty())
      throw Error(Code::kInvalidRequest, "there is no command {}; want nibble {}", name, ours);
    return;
  }
  Command options = made(*command);
  Arguments arguments(*command, parts_of(options));
  for (size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    const size_t end = std::min(words[i].find('='), words[i].size());
    const std::string flag = words[i].substr(0, end);
    if (!flag.starts_with("-")) continue;
    if (const Argument* const own = arguments.find(flag); own != nullptr) {
      if (!own->is_switch && end == words[i].size()) ++i;  // its value, whatever that looks like
      continue;
    }
    if (flag == "-hf" || flag == "-hfr" || flag == "--hf-repo") {
      const bool may_pull = arguments.find("--pull") != nullptr;
      respell_repo(words, i, may_pull);
      if (may_pull) ++i;
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
    if (flag == "--chat-template-kwargs" && command == CommandId::kServe) {
      words[i].replace(0, end, "--default-chat-template-kwargs");
      continue;
    }
    if (const std::string_view instead = ours_of(flags_instead(), flag); !instead.empty())
      throw Error(Code::kInvalidRequest, "nibble {} has no {}: {} (nibble {} --help)", name, flag, instead, name);
  }
  if (command == CommandId::kServe) respell_vllm_words(words);
}

bool holds_fields(std::string_view flag) {
  return (flag.ends_with("-config") && flag != "--generation-config") || flag.ends_with("-kwargs");
}

void ForeignReader::note(std::string text) {
  std::vector<std::string>& notes = settings_.notes;
  if (std::ranges::find(notes, text) == notes.end()) notes.push_back(std::move(text));
}

void ForeignReader::take(const ForeignRow& row, const std::string& flag, const std::vector<std::string>& values) {
  if (row.values == "-") {  // of a switch and of a value the last one counts, as in vLLM
    if (is_true(values.back())) take_value(row, flag, "");
  } else if (holds_fields(flag)) {
    for (const std::string& value : values) take_value(row, flag, value);
  } else {
    take_value(row, flag, row.values == "*" ? fmt::format("{}", fmt::join(values, " ")) : values.back());
  }
}

void ForeignReader::take_value(const ForeignRow& row, const std::string& flag, const std::string& value) {
  if (asks_for_nothing(row, flag, value))
    return note(fmt::format("{} {} makes no difference: it asks for nothing", flag, value));
  if (row.becomes == Becomes::kRefused) refuse_value(flag, fmt::format("is not supported: {}", row.text));
  if (!takes(row, value))
    refuse_value(flag, fmt::format("only {} is supported, found {}: {}", row.values, value, row.text));
  take_fields(row, flag, value);
}

// The value, or each of its fields, becomes flags of ours, or nothing.
void ForeignReader::take_fields(const ForeignRow& row, const std::string& flag, const std::string& value) {
  const std::vector<ConfigField> fields =
      holds_fields(flag) ? config_fields(flag, value) : std::vector<ConfigField>{{"", value}};
  if (row.becomes == Becomes::kFields && fields.empty())
    refuse_value(flag, "want a field, as in " + std::string(row.text));
  size_t taken = 0;
  for (const ConfigField& field : fields) {
    const std::string name = field.name.empty() ? flag : fmt::format("{}.{}", flag, field.name);
    const ForeignRow* const said = row_of(name, field.value);
    const Option* const option = said == nullptr ? option_of(name) : nullptr;
    if (said != nullptr && said->becomes == Becomes::kRefused)
      refuse_value(fmt::format("{}.{}", flag, field.name),
                   fmt::format("{} is not supported: {}", field.value, said->text));
    if (said == nullptr && option == nullptr && row.becomes == Becomes::kFields) refuse_field(flag, field);
    if (row.becomes == Becomes::kFields && said != nullptr && said->becomes == Becomes::kNothing) {
      note(fmt::format("{} {} makes no difference: {}", name, field.value, said->text));
      ++taken;
      continue;
    }
    if (option == nullptr && (said == nullptr || said->becomes != Becomes::kFlag)) continue;
    Setting implied{option != nullptr ? option->name() : std::string(said->text),
                    said == nullptr || said->value.empty() ? field.value : std::string(said->value), flag};
    note(fmt::format("{} {} is taken as {} {}", flag, value, implied.flag, implied.value));
    settings_.implied.push_back(std::move(implied));
    ++taken;
  }
  if (taken == 0 || taken < fields.size())
    note(fmt::format("{} makes no difference{}: {}", flag, taken == 0 ? "" : " otherwise", row.text));
}

std::string ForeignReader::in_our_words(const Option& option, const std::string& found) {
  if (option.range.sized) return without_unit(found);
  const std::string flag = option.name();
  settings_.foreign_words.erase(flag);
  std::string ours = our_value(flag, found);
  if (ours == found) return ours;
  settings_.foreign_words[flag] = found;
  note(fmt::format("{} {} is taken as {}", flag, found, ours));
  return ours;
}

std::string our_value(std::string_view flag, const std::string& found) {
  const ForeignRow* const row = row_of(flag, found);
  return row != nullptr && row->text == flag ? std::string(row->value) : found;
}

std::vector<ForeignSetting> read_foreign_variables(const Variables& environment, std::vector<std::string>& notes) {
  std::vector<ForeignSetting> settings;
  for (const auto& [name, found] : environment) {
    if ((!name.starts_with("VLLM_") && !name.starts_with("FLASHINFER_")) || found.empty()) continue;
    const ForeignRow* const row = row_of(name, found);
    if (row == nullptr) {
      if (const Option* const option = option_of(name); option != nullptr) {
        settings.push_back({name, option->name(), found});
        continue;
      }
      std::string wanted;
      for (const ForeignRow& other : foreign_table())
        if (other.names == name) wanted += fmt::format("{}{}", wanted.empty() ? "" : " ", other.values);
      if (!wanted.empty())
        throw Error(Code::kInvalidRequest, "environment {}: want one of {}, found {}", name, wanted, found);
      notes.push_back(fmt::format("{} makes no difference: nibble has nothing by that name", name));
    } else if (row->becomes == Becomes::kRefused) {
      throw Error(Code::kInvalidRequest, "environment {}: is not supported: {}", name, row->text);
    } else if (row->becomes == Becomes::kNothing) {
      notes.push_back(fmt::format("{} makes no difference: {}", name, row->text));
    } else {
      settings.push_back({name, std::string(row->text), row->value.empty() ? found : std::string(row->value)});
    }
  }
  return settings;
}

std::vector<std::string> foreign_variables(const Option& option) {
  std::vector<std::string> names;
  for (std::string& name : split(option.traits.foreign, ' '))
    if (!name.empty() && !name.starts_with('-')) names.push_back(std::move(name));
  for (const ForeignRow& row : foreign_table()) {
    const bool ours = row.becomes == Becomes::kFlag && row.text == option.name() && !row.names.starts_with("-");
    if (ours && std::ranges::find(names, row.names) == names.end()) names.emplace_back(row.names);
  }
  return names;
}

}  // namespace nibble::app
