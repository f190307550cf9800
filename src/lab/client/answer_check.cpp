#include "lab/client/answer_check.h"

#include "base/error.h"
#include "base/read_json.h"
#include "lab/client/answer_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace nibble::client {
namespace {

using Json = nlohmann::json;

constexpr int kMostDepth = 100;  // levels of a schema or a value, and references in a row
constexpr size_t kMostShown = 60;

constexpr std::array kAnnotations = {"title",   "description", "default",     "examples",
                                     "$schema", "$defs",       "definitions", "format"};
constexpr std::array kChecked = {"type",
                                 "enum",
                                 "const",
                                 "anyOf",
                                 "properties",
                                 "required",
                                 "additionalProperties",
                                 "items",
                                 "minItems",
                                 "maxItems",
                                 "minLength",
                                 "maxLength",
                                 "minimum",
                                 "maximum",
                                 "exclusiveMinimum",
                                 "exclusiveMaximum",
                                 "$ref"};

const Json* keyword_of(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}

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

int64_t characters(const std::string& text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// What a document's schemas may be made of.
class Checkable {
 public:
  Checkable(const Json& document, std::string_view where) : document_(document), where_(where) {}

  void expect(const Json& schema, const std::string& path, int depth) const {
    if (depth > kMostDepth) refuse(path, fmt::format("at most {} levels", kMostDepth), "more");
    if (schema.is_boolean()) return;
    if (!schema.is_object()) refuse(path, "a schema, an object", shown(schema));
    for (const auto& [key, value] : schema.items()) keyword(key, value, path + "/" + key, depth);
  }

 private:
  [[noreturn]] void refuse(const std::string& path, std::string_view want, std::string_view found) const {
    throw Error(Code::kInvalidRequest, "{}: {}: want {}, found {}", where_, path, want, found);
  }

  void keyword(const std::string& key, const Json& value, const std::string& path, int depth) const {
    if (key == "$defs" || key == "definitions" || key == "properties") {
      if (!value.is_object()) refuse(path, "an object of schemas", shown(value));
      for (const auto& [name, schema] : value.items()) expect(schema, path + "/" + name, depth + 1);
    } else if (key == "items" || key == "additionalProperties") {
      expect(value, path, depth + 1);
    } else if (key == "anyOf") {
      if (!value.is_array() || value.empty()) refuse(path, "an array of schemas", shown(value));
      for (const Json& schema : value) expect(schema, path, depth + 1);
    } else if (key == "$ref") {
      if (!referenced(value)) refuse(path, "a place inside the schema, as #/$defs/a", shown(value));
    } else if (std::ranges::find(kChecked, key) != kChecked.end()) {
      if (!has_form(key, value)) refuse(path, "what JSON Schema has there", shown(value));
    } else if (std::ranges::find(kAnnotations, key) == kAnnotations.end()) {
      refuse(path, "a keyword that answers can be checked for", key);
    }
  }

  static bool has_form(std::string_view key, const Json& value) {
    const auto all_strings = [&] { return std::ranges::all_of(value, [](const Json& v) { return v.is_string(); }); };
    if (key == "type") return value.is_string() || (value.is_array() && all_strings());
    if (key == "enum") return value.is_array();
    if (key == "required") return value.is_array() && all_strings();
    if (key == "const") return true;
    if (key.ends_with("Items") || key.ends_with("Length")) return value.is_number_unsigned();
    return value.is_number();
  }

  [[nodiscard]] bool referenced(const Json& reference) const {
    if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with('#')) return false;
    try {
      return document_.contains(Json::json_pointer(reference.get_ref<const std::string&>().substr(1)));
    } catch (const Json::exception&) {  // no JSON pointer
      return false;
    }
  }

  const Json& document_;
  const std::string_view where_;
};

class Meets {
 public:
  explicit Meets(const Json& document) : document_(document) {}

  [[nodiscard]] std::string unmet(const Json& schema, const Json& value, const std::string& path, int depth) const {
    if (depth > kMostDepth) return fmt::format("{}: nested too deep", path);
    if (schema.is_boolean()) return schema.get<bool>() ? "" : fmt::format("{}: want nothing here", path);
    if (const Json* reference = keyword_of(schema, "$ref")) {
      const Json& target = document_.at(Json::json_pointer(reference->get_ref<const std::string&>().substr(1)));
      if (std::string wrong = unmet(target, value, path, depth + 1); !wrong.empty()) return wrong;
    }
    if (std::string wrong = of_any_type(schema, value, path, depth); !wrong.empty()) return wrong;
    if (value.is_object()) return of_object(schema, value, path, depth);
    if (value.is_array()) return of_array(schema, value, path, depth);
    if (value.is_string()) return of_string(schema, value, path);
    return value.is_number() ? of_number(schema, value, path) : "";
  }

 private:
  [[nodiscard]] std::string of_any_type(const Json& schema, const Json& value, const std::string& path,
                                        int depth) const {
    if (const Json* type = keyword_of(schema, "type")) {
      const bool fits =
          type->is_array() ? std::ranges::any_of(
                                 *type, [&](const Json& t) { return has_type(value, t.get_ref<const std::string&>()); })
                           : has_type(value, type->get_ref<const std::string&>());
      if (!fits)
        return fmt::format("{}: want {}, found {}", path, type->is_string() ? type->get<std::string>() : type->dump(),
                           shown(value));
    }
    if (const Json* all = keyword_of(schema, "enum"); all != nullptr && std::ranges::find(*all, value) == all->end())
      return fmt::format("{}: want one of its enum, found {}", path, shown(value));
    if (const Json* only = keyword_of(schema, "const"); only != nullptr && *only != value)
      return fmt::format("{}: want {}, found {}", path, shown(*only), shown(value));
    if (const Json* some = keyword_of(schema, "anyOf");
        some != nullptr &&
        std::ranges::none_of(*some, [&](const Json& s) { return unmet(s, value, path, depth + 1).empty(); }))
      return fmt::format("{}: meets none of anyOf", path);
    return {};
  }

  [[nodiscard]] std::string of_object(const Json& schema, const Json& value, const std::string& path, int depth) const {
    if (const Json* required = keyword_of(schema, "required")) {
      for (const Json& name : *required)
        if (!value.contains(name.get_ref<const std::string&>()))
          return fmt::format("{}: no {}", path, name.get_ref<const std::string&>());
    }
    const Json* properties = keyword_of(schema, "properties");
    const Json* others = keyword_of(schema, "additionalProperties");
    for (const auto& [name, part] : value.items()) {
      const Json* rule = properties != nullptr ? keyword_of(*properties, name.c_str()) : nullptr;
      if (rule == nullptr && others != nullptr && others->is_boolean() && !others->get<bool>())
        return fmt::format("{}: {} is not in the schema", path, shown(name));
      if (rule == nullptr) rule = others;
      if (rule == nullptr) continue;
      if (std::string wrong = unmet(*rule, part, path + "." + name, depth + 1); !wrong.empty()) return wrong;
    }
    return {};
  }

  [[nodiscard]] std::string of_array(const Json& schema, const Json& value, const std::string& path, int depth) const {
    if (std::string wrong = count(schema, {"minItems", "maxItems"}, value.size(), path + ": items"); !wrong.empty())
      return wrong;
    const Json* items = keyword_of(schema, "items");
    for (size_t i = 0; items != nullptr && i < value.size(); ++i)
      if (std::string wrong = unmet(*items, value[i], fmt::format("{}[{}]", path, i), depth + 1); !wrong.empty())
        return wrong;
    return {};
  }

  [[nodiscard]] static std::string of_string(const Json& schema, const Json& value, const std::string& path) {
    const auto length = static_cast<size_t>(characters(value.get_ref<const std::string&>()));
    return count(schema, {"minLength", "maxLength"}, length, path + ": characters");
  }

  [[nodiscard]] static std::string of_number(const Json& schema, const Json& value, const std::string& path) {
    const auto beyond = [&](const char* name, auto holds) -> std::string {
      const Json* limit = keyword_of(schema, name);
      if (limit == nullptr || holds(value.get<double>(), limit->get<double>())) return {};
      return fmt::format("{}: {} is {}, found {}", path, name, shown(*limit), shown(value));
    };
    for (std::string wrong : {beyond("minimum", std::greater_equal()), beyond("maximum", std::less_equal()),
                              beyond("exclusiveMinimum", std::greater()), beyond("exclusiveMaximum", std::less())})
      if (!wrong.empty()) return wrong;
    return {};
  }

  [[nodiscard]] static std::string count(const Json& schema, std::pair<const char*, const char*> limits, size_t found,
                                         const std::string& what) {
    const Json* least = keyword_of(schema, limits.first);
    const Json* most = keyword_of(schema, limits.second);
    if (least != nullptr && found < least->get<size_t>())
      return fmt::format("{}: want at least {}, found {}", what, least->get<size_t>(), found);
    if (most != nullptr && found > most->get<size_t>())
      return fmt::format("{}: want at most {}, found {}", what, most->get<size_t>(), found);
    return {};
  }

  const Json& document_;
};

}  // namespace

void expect_checkable(const Json& schema, std::string_view where) { Checkable(schema, where).expect(schema, "#", 0); }

std::string schema_unmet(const Json& schema, const Json& value) { return Meets(schema).unmet(schema, value, "$", 0); }

namespace {

using Json = nlohmann::json;

void fail(Outcome& outcome, Failure failure, std::string_view message) {
  outcome.failure = failure;
  outcome.message = short_text(message);
}

// Of text that should be JSON and meet a schema. An answer that ran into max_tokens is seldom whole.
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
