#include "lab/client/workload.h"

#include "base/error.h"
#include "base/read_json.h"
#include "lab/client/answer_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>

namespace nibble::client {
namespace {

using Json = nlohmann::json;

constexpr int kMostDepth = 100;  // levels of a schema or a value, and references in a row
constexpr size_t kMostShown = 60;

std::string shown(const Json& value) {
  if (value.is_structured()) return value.type_name();
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > kMostShown ? text.substr(0, kMostShown) + "…" : text;
}

bool has_type(const Json& value, std::string_view type) {
  if (type == "integer")
    return value.is_number_integer() || (value.is_number() && std::trunc(value.get<double>()) == value.get<double>());
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  return type == "null" && value.is_null();
}

// A limit of a number, or of how many there are of something.
struct Limit {
  const char* keyword;
  const char* what;              // "$.a: minimum is 0, found -1"
  Json (*measure)(const Json&);  // null: the limit is of other values
  bool (*holds)(double found, double limit);
};
Json items(const Json& value) { return value.is_array() ? Json(value.size()) : Json(); }
Json characters(const Json& value) {
  if (!value.is_string()) return {};
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return std::ranges::count_if(value.get_ref<const std::string&>(), begins);
}
Json number(const Json& value) { return value.is_number() ? value : Json(); }
bool at_least(double found, double limit) { return found >= limit; }
bool at_most(double found, double limit) { return found <= limit; }
bool above(double found, double limit) { return found > limit; }
bool below(double found, double limit) { return found < limit; }
constexpr Limit kLimits[] = {{"minItems", "items: want at least", items, at_least},
                             {"maxItems", "items: want at most", items, at_most},
                             {"minLength", "characters: want at least", characters, at_least},
                             {"maxLength", "characters: want at most", characters, at_most},
                             {"minimum", "minimum is", number, at_least},
                             {"maximum", "maximum is", number, at_most},
                             {"exclusiveMinimum", "exclusiveMinimum is", number, above},
                             {"exclusiveMaximum", "exclusiveMaximum is", number, below}};

bool is_strings(const Json& value) {
  return value.is_array() && std::ranges::all_of(value, [](const Json& v) { return v.is_string(); });
}

// Whether JSON Schema has such a value behind a keyword that is checked here, or that says nothing of values; none:
// another keyword.
std::optional<bool> has_form(std::string_view keyword, const Json& value) {
  constexpr std::array<std::string_view, 7> kFree = {"const",   "title",    "description", "default",
                                                     "$schema", "examples", "format"};
  if (std::ranges::find(kFree, keyword) != kFree.end()) return true;
  if (keyword == "type") return value.is_string() || is_strings(value);
  if (keyword == "enum") return value.is_array();
  if (keyword == "required") return is_strings(value);
  const auto limit = std::ranges::find(kLimits, keyword, &Limit::keyword);
  if (limit == std::end(kLimits)) return std::nullopt;
  return limit->measure == number ? value.is_number() : value.is_number_unsigned();
}

// A document, whose schemas may refer to each other.
class SchemaDocument {
 public:
  SchemaDocument(const Json& document, std::string_view where) : document_(document), where_(where) {}

  // expect_checkable(), of a schema within.
  void expect(const Json& schema, const std::string& path, int depth) const {
    if (depth > kMostDepth) refuse(path, fmt::format("at most {} levels", kMostDepth), "more");
    if (schema.is_boolean()) return;
    if (!schema.is_object()) refuse(path, "a schema, an object", shown(schema));
    for (const auto& [key, value] : schema.items()) expect_keyword(key, value, path + "/" + key, depth);
  }

  // schema_unmet(), of a schema within and a part of the value.
  [[nodiscard]] std::string unmet(const Json& schema, const Json& value, const std::string& path, int depth) const {
    if (depth > kMostDepth) return fmt::format("{}: nested too deep", path);
    if (schema.is_boolean()) return schema.get<bool>() ? "" : fmt::format("{}: want nothing here", path);
    for (const auto& [key, rule] : schema.items())
      if (std::string wrong = keyword_unmet({schema, key, rule}, value, path, depth); !wrong.empty()) return wrong;
    return {};
  }

 private:
  [[noreturn]] void refuse(const std::string& path, std::string_view want, std::string_view found) const {
    throw Error(Code::kInvalidRequest, "{}: {}: want {}, found {}", where_, path, want, found);
  }

  void expect_keyword(const std::string& key, const Json& value, const std::string& path, int depth) const {
    if (key == "$defs" || key == "definitions" || key == "properties") {
      if (!value.is_object()) refuse(path, "an object of schemas", shown(value));
      for (const auto& [name, schema] : value.items()) expect(schema, path + "/" + name, depth + 1);
    } else if (key == "items" || key == "additionalProperties") {
      expect(value, path, depth + 1);
    } else if (key == "anyOf") {
      if (!value.is_array() || value.empty()) refuse(path, "an array of schemas", shown(value));
      for (const Json& schema : value) expect(schema, path, depth + 1);
    } else if (key == "$ref") {
      if (referenced(value) == nullptr) refuse(path, "a place inside the schema, as #/$defs/a", shown(value));
    } else if (const std::optional<bool> good = has_form(key, value); !good) {
      refuse(path, "a keyword that answers can be checked for", key);
    } else if (!*good) {
      refuse(path, "what JSON Schema has there", shown(value));
    }
  }

  // Null: no place in the document.
  [[nodiscard]] const Json* referenced(const Json& reference) const {
    if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with('#')) return nullptr;
    try {
      return &document_.at(Json::json_pointer(reference.get_ref<const std::string&>().substr(1)));
    } catch (const Json::exception&) {  // no JSON pointer, or nothing there
      return nullptr;
    }
  }

  struct Keyword {
    const Json& schema;
    std::string_view name;
    const Json& rule;
  };
  [[nodiscard]] std::string keyword_unmet(const Keyword& keyword, const Json& value, const std::string& path,
                                          int depth) const {
    const auto& [schema, name, rule] = keyword;
    if (name == "$ref") return unmet(*referenced(rule), value, path, depth + 1);
    if (name == "type") {
      const auto is_of = [&](const Json& type) { return has_type(value, type.get_ref<const std::string&>()); };
      if (rule.is_array() ? std::ranges::any_of(rule, is_of) : is_of(rule)) return {};
      return fmt::format("{}: want {}, found {}", path, rule.is_string() ? rule.get<std::string>() : rule.dump(),
                         shown(value));
    }
    if (name == "enum" && std::ranges::find(rule, value) == rule.end())
      return fmt::format("{}: want one of its enum, found {}", path, shown(value));
    if (name == "const" && rule != value) return fmt::format("{}: want {}, found {}", path, shown(rule), shown(value));
    if (name == "anyOf") {
      const auto met = [&](const Json& each) { return unmet(each, value, path, depth + 1).empty(); };
      return std::ranges::any_of(rule, met) ? "" : fmt::format("{}: meets none of anyOf", path);
    }
    if (name == "required" && value.is_object()) {
      for (const Json& each : rule)
        if (!value.contains(each.get_ref<const std::string&>()))
          return fmt::format("{}: no {}", path, each.get_ref<const std::string&>());
    }
    if ((name == "properties" || name == "additionalProperties") && value.is_object())
      return parts_unmet(keyword, value, path, depth);
    if (name == "items" && value.is_array()) {
      for (size_t i = 0; i < value.size(); ++i)
        if (std::string wrong = unmet(rule, value[i], fmt::format("{}[{}]", path, i), depth + 1); !wrong.empty())
          return wrong;
    }
    const auto limit = std::ranges::find(kLimits, name, &Limit::keyword);
    if (limit == std::end(kLimits)) return {};
    const Json found = limit->measure(value);
    if (found.is_null() || limit->holds(found.get<double>(), rule.get<double>())) return {};
    return fmt::format("{}: {} {}, found {}", path, limit->what, shown(rule), shown(found));
  }

  // "properties" and "additionalProperties", each of its part of an object.
  [[nodiscard]] std::string parts_unmet(const Keyword& keyword, const Json& value, const std::string& path,
                                        int depth) const {
    const auto& [schema, name, rule] = keyword;
    for (const auto& [part_name, part] : value.items()) {
      const bool named = schema.contains("properties") && schema["properties"].contains(part_name);
      if (named != (name == "properties")) continue;
      if (!named && rule == false) return fmt::format("{}: {} is not in the schema", path, shown(part_name));
      const Json& of_part = named ? rule[part_name] : rule;
      if (std::string wrong = unmet(of_part, part, path + "." + part_name, depth + 1); !wrong.empty()) return wrong;
    }
    return {};
  }

  const Json& document_;
  const std::string_view where_;
};

}  // namespace

void expect_checkable(const Json& schema, std::string_view where) {
  SchemaDocument(schema, where).expect(schema, "#", 0);
}

std::string schema_unmet(const Json& schema, const Json& value) {
  return SchemaDocument(schema, "").unmet(schema, value, "$", 0);
}

namespace {

void fail(Outcome& outcome, Failure failure, std::string_view message) {
  outcome.failure = failure;
  outcome.message = short_text(message);
}

// Judges text that should be JSON and meet a schema. An answer that ran into max_tokens is seldom whole.
void judge_json(const std::string& text, const Json& schema, const std::string& what, Outcome& outcome) {
  const Json value = read_json(text);
  if (value.is_discarded())
    return fail(outcome, Failure::kInvalidJson,
                fmt::format("{}, ended by {}: {}", what,
                            outcome.finish_reason.empty() ? "nothing that it says" : outcome.finish_reason, text));
  if (const std::string unmet = schema_unmet(schema, value); !unmet.empty())
    fail(outcome, Failure::kSchemaUnmet, fmt::format("{}: {}", what, unmet));
}

}  // namespace

AnswerCheck::AnswerCheck(const Workload& workload) : must_call_(workload.must_call) {
  if (!workload.tools.empty()) {
    const auto refuse = [](const std::string& found) -> Error {
      return {Code::kInvalidRequest,
              "--tools: want an array as OpenAI's \"tools\", each {{\"type\":\"function\",\"function\":{{\"name\":…, "
              "\"parameters\":…}}}}, found {}",
              short_text(found)};
    };
    const Json tools = read_json(workload.tools);
    if (!tools.is_array() || tools.empty()) throw refuse(workload.tools);
    for (const Json& tool : tools) {
      const Json::json_pointer at_name("/function/name"), at_parameters("/function/parameters");
      if (!tool.is_object() || !tool.contains(at_name) || !tool[at_name].is_string()) throw refuse(tool.dump());
      const auto name = tool[at_name].get<std::string>();
      const Json parameters = tool.contains(at_parameters) ? tool[at_parameters] : Json::object();
      expect_checkable(parameters, fmt::format("--tools: {}", name));
      if (!tools_.emplace(name, parameters).second) throw refuse(fmt::format("two of the name {}", name));
    }
  }
  if (!workload.json_schema.empty()) {
    schema_ = read_json(workload.json_schema);
    if (!schema_.is_object())
      throw Error(Code::kInvalidRequest, "--json-schema: want a JSON object, found {}",
                  short_text(workload.json_schema));
    expect_checkable(schema_, "--json-schema");
  }
}

void AnswerCheck::judge(Outcome& outcome) const {
  if (!outcome.ok()) return;
  if (!tools_.empty()) return judge_calls(outcome);
  if (!schema_.is_null()) judge_json(outcome.text, schema_, "the answer", outcome);
}

void AnswerCheck::judge_calls(Outcome& outcome) const {
  if (outcome.calls.empty() && must_call_)
    return fail(outcome, Failure::kNoCall,
                fmt::format("ended by {}, with the text \"{}\"", outcome.finish_reason, outcome.text));
  for (const ToolCall& call : outcome.calls) {
    const auto tool = tools_.find(call.name);
    if (tool == tools_.end()) return fail(outcome, Failure::kUnknownTool, fmt::format("a call of \"{}\"", call.name));
    judge_json(call.arguments.empty() ? "{}" : call.arguments, tool->second, "arguments of " + call.name, outcome);
    if (!outcome.ok()) return;
  }
}

}  // namespace nibble::client
