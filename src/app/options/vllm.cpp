#include "app/options/vllm.h"

#include "base/error.h"
#include "base/read_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>
#include <system_error>

namespace nibble::app {
namespace {

constexpr std::pair<std::string_view, std::string_view> kShortNames[] = {
    {"-tp", "--tensor-parallel-size"},
    {"-n", "--nnodes"},
    {"-r", "--node-rank"},
    {"-pp", "--pipeline-parallel-size"},
    {"-dp", "--data-parallel-size"},
    {"-dpl", "--data-parallel-size-local"},
    {"-dpn", "--data-parallel-rank"},
    {"-dpr", "--data-parallel-start-rank"},
    {"-dpa", "--data-parallel-address"},
    {"-dpp", "--data-parallel-rpc-port"},
    {"-dpb", "--data-parallel-backend"},
    {"-dph", "--data-parallel-hybrid-lb"},
    {"-dpe", "--data-parallel-external-lb"},
    {"-dcp", "--decode-context-parallel-size"},
    {"-pcp", "--prefill-context-parallel-size"},
    {"-ep", "--enable-expert-parallel"},
    {"-asc", "--api-server-count"},
    {"-cc", "--compilation-config"},
    {"-ac", "--attention-config"},
    {"-sc", "--speculative-config"},
    {"-O", "--compilation-config"},
    {"--device-memory-utilization", "--gpu-memory-utilization"},
    {"--spec-method", "--speculative-config.method"},
    {"--spec-model", "--speculative-config.model"},
    {"--spec-tokens", "--speculative-config.num_speculative_tokens"},
};

bool has_word(std::string_view words, std::string_view word) {
  return word.find(' ') == std::string_view::npos &&
         fmt::format(" {} ", words).find(fmt::format(" {} ", word)) != std::string::npos;
}

// Whether the row covers this value. Flags without a value, and with several, are not checked.
bool takes(const ForeignRow& row, std::string_view value) {
  return row.values.empty() || row.values == "-" || row.values == "*" || has_word(row.values, value);
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// The first row of this name that covers the value, or null.
const ForeignRow* row_of(std::string_view name, std::string_view value) {
  const std::span<const ForeignRow> table = vllm_table();
  const auto it = std::ranges::find_if(
      table, [&](const ForeignRow& row) { return has_word(row.names, name) && takes(row, value); });
  return it == table.end() ? nullptr : &*it;
}

// -tp=2, -cc.level=3 and -O3 with their long names; anything else unchanged.
std::string with_long_name(const std::string& argument) {
  for (const auto& [short_name, name] : kShortNames) {
    if (!argument.starts_with(short_name)) continue;
    const std::string rest = argument.substr(short_name.size());
    if (rest.empty() || rest[0] == '=' || rest[0] == '.') return std::string(name) + rest;
    if (short_name == "-O") return fmt::format("{}={}", name, rest);
  }
  return argument;
}

struct ConfigField {
  std::string name, value;  // a bare number, as in -O3, has no name
};
// A JSON object, name=value or, for --compilation-config, a number. Ends the parse for anything else.
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

// Its value is read field by field, or as JSON.
bool holds_fields(std::string_view flag) {
  return (flag.ends_with("-config") && flag != "--generation-config") || flag.ends_with("-kwargs");
}

using OnValue = std::function<void(const std::string& value)>;

// If a flag is given twice the last one counts, as in vLLM.
Flag add_foreign_flag(Flags flags, const std::string& flag, std::string_view values, const OnValue& use) {
  if (values == "-") return flags.mention(flag + ",!--no-" + flag.substr(2), [use] { use(""); }).last_counts();
  const bool is_config = holds_fields(flag);
  if (values == "*" || is_config) {
    return flags
        .take_all(flag,
                  [use, is_config](const std::vector<std::string>& found) {
                    if (!is_config) return use(fmt::format("{}", fmt::join(found, " ")));
                    for (const std::string& value : found) use(value);
                  })
        .one_value(is_config);
  }
  return flags.take(flag, use).last_counts();
}

void note(Settings& settings, std::string text) {
  std::vector<std::string>& notes = settings.notes;
  if (std::find(notes.begin(), notes.end(), text) == notes.end()) notes.push_back(std::move(text));
}

// For a field without a row, or without one for its value.
[[noreturn]] void refuse_field(const std::string& flag, const ConfigField& field) {
  const std::string name = fmt::format("{}.{}", flag, field.name);
  std::string fields, values;
  for (const ForeignRow& row : vllm_table()) {
    if (row.becomes != Becomes::kFlag || !row.names.starts_with(flag + ".")) continue;
    if (has_word(row.names, name))
      values += fmt::format("{}{}", values.empty() ? "" : " or ", fmt::join(words_of(row.values), " or "));
    const bool again = fields.ends_with(row.names.substr(flag.size() + 1));  // the same with other values
    if (!again) fields += fmt::format("{}{}", fields.empty() ? "" : ", ", row.names.substr(flag.size() + 1));
  }
  if (!values.empty()) refuse_value(name, fmt::format("want {}, found {}", values, field.value));
  refuse_value(flag, fmt::format("want fields {}, found {}", fields, field.name));
}

// null, or an object without fields where none is needed.
bool asks_for_nothing(const ForeignRow& row, std::string_view flag, std::string_view value) {
  const bool is_object = row.becomes == Becomes::kRefused || holds_fields(flag);
  return is_object && (value == "null" || (value == "{}" && flag != "--speculative-config"));
}

// Accepts one of vLLM's flags: its value becomes flags of ours, or nothing.
void take_flag(Settings& settings, const std::string& flag, const ForeignRow& row, const std::string& value) {
  const bool is_config = holds_fields(flag);
  std::vector<ConfigField> fields = is_config ? config_fields(flag, value) : std::vector<ConfigField>{{"", value}};
  if (row.becomes == Becomes::kFields && fields.empty())
    refuse_value(flag, "want a field, as in " + std::string(row.text));
  size_t taken = 0;
  for (const ConfigField& field : fields) {
    const ForeignRow* ours = row_of(field.name.empty() ? flag : fmt::format("{}.{}", flag, field.name), field.value);
    if (ours != nullptr && ours->becomes == Becomes::kRefused)
      refuse_value(fmt::format("{}.{}", flag, field.name),
                   fmt::format("{} is not supported: {}", field.value, ours->text));
    if (ours == nullptr && row.becomes == Becomes::kFields) refuse_field(flag, field);
    if (row.becomes == Becomes::kFields && ours->becomes == Becomes::kNothing) {
      note(settings, fmt::format("{}.{} {} makes no difference: {}", flag, field.name, field.value, ours->text));
      ++taken;
      continue;
    }
    if (ours == nullptr || ours->becomes != Becomes::kFlag) continue;
    Setting implied{std::string(ours->text), ours->value.empty() ? field.value : std::string(ours->value), flag};
    note(settings, fmt::format("{} {} is taken as {} {}", flag, value, implied.flag, implied.value));
    settings.implied.push_back(std::move(implied));
    ++taken;
  }
  if (taken == 0 || taken < fields.size())
    note(settings, fmt::format("{} makes no difference{}: {}", flag, taken == 0 ? "" : " otherwise", row.text));
}

// Replaces vLLM's values of one of our flags.
void rewrite_values(Flag flag, Settings& settings) {
  const std::string name = flag.name();
  flag.rewrite([&settings, name](const std::string& found) -> std::string {
    settings.foreign_words.erase(name);
    const std::string ours = our_value(name, found);
    if (ours == found) return found;
    settings.foreign_words[name] = found;
    note(settings, fmt::format("{} {} is taken as {}", name, found, ours));
    return ours;
  });
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

}  // namespace

void respell_vllm_arguments(std::vector<std::string>& arguments) {
  for (size_t i = 0; i + 1 < arguments.size(); ++i)  // -q means --quiet here, unless one of vLLM's values follows
    if (arguments[i] == "-q" && arguments[i + 1] == "mxfp4") arguments[i] = "--quantization";
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string& argument = arguments[i];
    argument = with_long_name(argument);
    if (!argument.starts_with("--")) continue;
    const size_t end = std::min(argument.find('='), argument.size());
    std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
    const size_t dot = argument.find("-config.");
    if (dot >= end) continue;
    if (end == argument.size()) {  // the next word is its value; without one: true
      const bool has_value = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
      argument += "=" + (has_value ? arguments[i + 1] : "true");
      if (has_value) arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
    arguments[i][dot + 7] = '=';  // --x-config=field=value: one field of a JSON flag
  }
}

void add_vllm_flags(Flags flags, ServeOptions& options) {
  Settings& settings = options.model.settings;
  std::vector<std::string> rewritten;
  for (const ForeignRow& row : vllm_table()) {
    for (const std::string& name : words_of(row.names)) {
      if (!name.starts_with("--") || name.find('.') != std::string::npos) continue;
      if (row.becomes == Becomes::kFlag) {
        const bool own = name == row.text && std::ranges::find(rewritten, name) == rewritten.end();
        if (own) rewrite_values(flags.get(name), settings), rewritten.push_back(name);
        continue;
      }
      const auto use = [&settings, row, name](const std::string& value) {
        if (asks_for_nothing(row, name, value))
          return note(settings, fmt::format("{} {} makes no difference: it asks for nothing", name, value));
        if (row.becomes == Becomes::kRefused) refuse_value(name, fmt::format("is not supported: {}", row.text));
        if (!takes(row, value))
          refuse_value(name, fmt::format("only {} is supported, found {}: {}", row.values, value, row.text));
        take_flag(settings, name, row, value);
      };
      add_foreign_flag(flags, name, row.values, use).hidden();
    }
  }
  for (const char* flag :
       {"--max-model-len", "--max-num-batched-tokens", "--max-num-seqs", "--kv-tokens", "--kv-cache-memory-bytes"}) {
    flags.get(flag).rewrite(without_unit);
  }
}

std::string our_value(const std::string& flag, const std::string& found) {
  const ForeignRow* row = row_of(flag, found);
  return row != nullptr && row->text == flag ? std::string(row->value) : found;
}

std::vector<ForeignSetting> read_vllm_variables(const std::map<std::string, std::string>& environment,
                                                std::vector<std::string>& notes) {
  std::vector<ForeignSetting> settings;
  for (const auto& [name, found] : environment) {
    if ((!name.starts_with("VLLM_") && !name.starts_with("FLASHINFER_")) || found.empty()) continue;
    const ForeignRow* row = row_of(name, found);
    if (row == nullptr) {
      std::string wanted;
      for (const ForeignRow& other : vllm_table())
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

}  // namespace nibble::app
