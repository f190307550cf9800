#include "text/json_schema.h"

#include "text/json_grammar.h"
#include "text/text_stream.h"
#include "text/typescript_schema.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace nibble::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 12> kAnnotations = {"title",      "description", "default",     "examples",
                                                           "deprecated", "readOnly",    "writeOnly",   "$schema",
                                                           "$comment",   "$defs",       "definitions", "discriminator"};
struct TypedKeywords {
  JsonType type;
  std::array<std::string_view, 6> keywords;
};
constexpr TypedKeywords kTyped[] = {
    {JsonType::kObject,
     {"properties", "required", "additionalProperties", "minProperties", "maxProperties", "propertyNames"}},
    {JsonType::kArray, {"items", "prefixItems", "minItems", "maxItems"}},
    {JsonType::kString, {"minLength", "maxLength", "pattern", "format"}},
    {JsonType::kNumber, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
constexpr std::array<std::string_view, 7> kOfAnyType = {"$ref", "anyOf", "oneOf", "allOf", "type", "enum", "const"};
constexpr int kMaxReferences = 64;  // that lead to one another

bool is_annotation(std::string_view key, bool at_root) {
  if (key.starts_with("x-") || (at_root && key == "$id")) return true;
  return std::find(kAnnotations.begin(), kAnnotations.end(), key) != kAnnotations.end();
}

std::optional<JsonType> type_named(std::string_view name) {
  for (int i = 0; i < kJsonTypes; ++i) {
    if (name_of(static_cast<JsonType>(i)) == name) return static_cast<JsonType>(i);
  }
  return std::nullopt;
}

const Json* find(const Json& object, std::string_view key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

bool is_required(const Json& schema, const std::string& name) {
  const Json* required = find(schema, "required");
  return required != nullptr && required->is_array() &&
         std::find(required->begin(), required->end(), name) != required->end();
}

bool share_value(const std::vector<const Json*>& a, const std::vector<const Json*>& b) {
  const auto is_in_b = [&b](const Json* v) { return std::ranges::any_of(b, [v](const Json* o) { return *v == *o; }); };
  return std::ranges::any_of(a, is_in_b);
}

}  // namespace

std::string shortened(std::string_view text) {
  size_t end = std::min<size_t>(text.size(), 80);
  const auto is_inside = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; };  // of a character
  while (end > 0 && end < text.size() && is_inside(text[end])) --end;
  std::string out(text.substr(0, end));
  const auto controls = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7F; };
  std::replace_if(out.begin(), out.end(), controls, '?');
  return end < text.size() ? out + "…" : out;
}

std::string_view name_of(JsonType type) {
  constexpr std::array<std::string_view, kJsonTypes> kNames = {"null",   "boolean", "integer", "number",
                                                               "string", "array",   "object"};
  return kNames[static_cast<size_t>(type)];
}

bool JsonTypes::holds(const Json& value) const {
  switch (value.type()) {
    case Json::value_t::null: return has(JsonType::kNull);
    case Json::value_t::boolean: return has(JsonType::kBoolean);
    case Json::value_t::string: return has(JsonType::kString);
    case Json::value_t::array: return has(JsonType::kArray);
    case Json::value_t::object: return has(JsonType::kObject);
    default: break;
  }
  if (has(JsonType::kNumber)) return true;
  return has(JsonType::kInteger) &&
         (!value.is_number_float() || std::floor(value.get<double>()) == value.get<double>());
}

bool JsonTypes::overlaps(JsonTypes other) const {
  constexpr unsigned kNumbers =
      1U << static_cast<unsigned>(JsonType::kInteger) | 1U << static_cast<unsigned>(JsonType::kNumber);
  return (bits_ & other.bits_) != 0 || ((bits_ & kNumbers) != 0 && (other.bits_ & kNumbers) != 0);
}

SchemaDocument::SchemaDocument(const Json& root, std::string_view where) : root_(root), where_(where) {
  expect_within_limits();
}

void expect_schema_within_limits(const Json& schema, std::string_view where) {
  static_cast<void>(SchemaDocument(schema, where));
}

void SchemaDocument::fail(const SchemaPlace& at, std::string_view what) const {
  throw Error(Code::kInvalidRequest, "{}: the schema at {}: {}", where_, shortened(at.path), what);
}

void SchemaDocument::expect_within_limits() const {
  struct Visit {
    const Json* value;
    int depth;
  };
  std::vector<Visit> open = {{&root_, 0}};
  size_t values = 0, bytes = 0;
  while (!open.empty()) {
    const auto [value, depth] = open.back();
    open.pop_back();
    // A schema nests at most twice per level: under a keyword, and under a property's name or an index.
    if (depth > 2 * kMaxSchemaDepth) fail(root(), fmt::format("it nests deeper than {} levels", kMaxSchemaDepth));
    if (++values > kMaxSchemaValues) fail(root(), fmt::format("it holds more than {} values", kMaxSchemaValues));
    if (value->is_string()) bytes += value->get_ref<const std::string&>().size();
    for (const auto& entry : value->items()) {
      if (value->is_object()) {
        bytes += entry.key().size();
        if (entry.value().is_string() && is_annotation(entry.key(), true)) continue;
      }
      if (value->is_structured()) open.push_back({&entry.value(), depth + 1});
    }
    if (bytes > kMaxSchemaBytes)
      fail(root(), fmt::format("its names and texts are longer than {} bytes", kMaxSchemaBytes));
  }
}

void SchemaDocument::expect_known(const SchemaPlace& at) const {
  if (!at.schema->is_object()) fail(at, fmt::format("want an object or true, found {}", at.schema->type_name()));
  for (const auto& entry : at.schema->items()) {
    const std::string& key = entry.key();
    const auto has_key = [&](const TypedKeywords& of) {
      return std::ranges::find(of.keywords, key) != of.keywords.end();
    };
    const bool known = std::ranges::any_of(kTyped, has_key) || std::ranges::find(kOfAnyType, key) != kOfAnyType.end();
    if (key.empty() || (!known && !is_annotation(key, at.schema == &root_))) {
      fail(at, fmt::format("the keyword {} is not supported", shortened(key)));
    }
  }
}

void SchemaDocument::expect_only(const SchemaPlace& at, const std::vector<std::string_view>& own) const {
  for (const auto& entry : at.schema->items()) {
    const std::string& key = entry.key();
    if (is_annotation(key, at.schema == &root_) || std::find(own.begin(), own.end(), key) != own.end()) continue;
    fail(at, fmt::format("{} cannot be combined with {}", shortened(key), own.front()));
  }
}

SchemaPlace SchemaDocument::child(const SchemaPlace& at, std::string_view key) const {
  return {&*at.schema->find(key), fmt::format("{}/{}", at.path, key)};
}
SchemaPlace SchemaDocument::item(const SchemaPlace& at, size_t idx) const {
  return {&(*at.schema)[idx], fmt::format("{}/{}", at.path, idx)};
}

SchemaPlace SchemaDocument::referenced(const SchemaPlace& at) const {
  const std::string* ref = text(at, "$ref");
  if (ref == nullptr) return at;
  const auto bad = [&](std::string_view why) { fail(at, fmt::format("$ref {}: {}", shortened(*ref), why)); };
  if (!ref->starts_with('#')) bad("want a reference inside the schema, #/…");
  if (*ref == "#") return root();
  try {
    const Json::json_pointer where(percent_decoded(ref->substr(1)));
    if (!root_.contains(where)) bad("there is nothing there");
    return {&root_.at(where), *ref};
  } catch (const nlohmann::ordered_json::exception&) {
    bad("want a JSON pointer, #/…");
  }
  return at;
}

JsonTypes SchemaDocument::types(const SchemaPlace& at) const {
  JsonTypes out;
  const Json* type = find(*at.schema, "type");
  if (type == nullptr) {
    for (const auto& [of, keywords] : kTyped) {
      const auto stands_there = [&](std::string_view key) { return !key.empty() && at.schema->contains(key); };
      if (std::ranges::any_of(keywords, stands_there)) out.add(of);
    }
    return out;
  }
  const auto add = [&](const Json& name) {
    const auto known = name.is_string() ? type_named(name.get_ref<const std::string&>()) : std::nullopt;
    if (!known)
      fail(at, fmt::format("type: want null, boolean, integer, number, string, array or object, found {}",
                           shortened(name.is_string() ? name.get_ref<const std::string&>() : name.type_name())));
    out.add(*known);
  };
  if (!type->is_array()) {
    add(*type);
    return out;
  }
  if (type->empty()) fail(at, "type: want at least one type");
  for (const Json& name : *type) add(name);
  return out;
}

std::vector<const Json*> SchemaDocument::values(const SchemaPlace& at) const {
  const Json* constant = find(*at.schema, "const");
  const Json* values = find(*at.schema, "enum");
  if (constant == nullptr && values == nullptr) return {};
  if (values != nullptr && (!values->is_array() || values->empty()))
    fail(at, "enum: want a list of at least one value");
  std::vector<const Json*> out;
  const auto add = [&](const Json& value) {
    if (!at.schema->contains("type") || types(at).holds(value)) out.push_back(&value);
  };
  if (constant != nullptr) {
    if (values == nullptr || std::find(values->begin(), values->end(), *constant) != values->end()) add(*constant);
  } else {
    for (const Json& value : *values) add(value);
  }
  if (out.empty()) fail(at, "no value is allowed by const, enum and type together");
  return out;
}

std::optional<int64_t> SchemaDocument::count(const SchemaPlace& at, std::string_view keyword) const {
  const Json* value = find(*at.schema, keyword);
  if (value == nullptr) return std::nullopt;
  const bool whole =
      value->is_number() && value->get<double>() >= 0 && std::floor(value->get<double>()) == value->get<double>();
  if (!whole) fail(at, fmt::format("{}: want a whole number, 0 or more", keyword));
  if (value->get<double>() > static_cast<double>(kMaxRepetitions)) {
    fail(at, fmt::format("{}: want at most {}", keyword, kMaxRepetitions));
  }
  return static_cast<int64_t>(value->get<double>());
}

const std::string* SchemaDocument::text(const SchemaPlace& at, std::string_view keyword) const {
  const Json* value = find(*at.schema, keyword);
  if (value == nullptr) return nullptr;
  if (!value->is_string()) fail(at, fmt::format("{}: want a string, found {}", keyword, value->type_name()));
  return &value->get_ref<const std::string&>();
}

SchemaPlace SchemaDocument::followed(SchemaPlace at) const {
  for (int i = 0; i < kMaxReferences && at.schema->is_object() && at.schema->contains("$ref"); ++i) at = referenced(at);
  return at;
}

bool SchemaDocument::has_disjoint_objects(const SchemaPlace& a, const SchemaPlace& b) const {
  const Json* properties = find(*a.schema, "properties");
  const Json* others = find(*b.schema, "properties");
  if (properties == nullptr || !properties->is_object() || others == nullptr || !others->is_object()) return false;
  const Json* additional = find(*b.schema, "additionalProperties");
  const bool closed = additional != nullptr && additional->is_boolean() && !additional->get<bool>();
  for (const auto& entry : properties->items()) {
    if (!is_required(*a.schema, entry.key())) continue;
    const Json* other = find(*others, entry.key());
    if (other == nullptr && closed) return true;
    if (other == nullptr || !entry.value().is_object() || !other->is_object()) continue;
    const SchemaPlace mine = followed({&entry.value(), a.path}), yours = followed({other, b.path});
    if (!mine.schema->is_object() || !yours.schema->is_object()) continue;
    const auto values = this->values(mine), other_values = this->values(yours);
    if (values.empty() || other_values.empty() || !is_required(*b.schema, entry.key())) continue;
    if (!share_value(values, other_values)) return true;
  }
  return false;
}

bool SchemaDocument::are_disjoint(SchemaPlace a, SchemaPlace b) const {
  a = followed(std::move(a));
  b = followed(std::move(b));
  if (!a.schema->is_object() || !b.schema->is_object()) return false;
  for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
    if (a.schema->contains(keyword) || b.schema->contains(keyword)) return false;
  }
  const auto values_a = values(a), values_b = values(b);
  if (!values_a.empty() && !values_b.empty()) return !share_value(values_a, values_b);
  const auto none_fits = [&](const std::vector<const Json*>& values, const SchemaPlace& other) {
    return !values.empty() && other.schema->contains("type") &&
           std::none_of(values.begin(), values.end(), [&](const Json* v) { return types(other).holds(*v); });
  };
  if (none_fits(values_a, b) || none_fits(values_b, a)) return true;
  if (!a.schema->contains("type") || !b.schema->contains("type")) return false;
  const JsonTypes types_a = types(a), types_b = types(b);
  if (!types_a.overlaps(types_b)) return true;
  const bool both_objects = a.schema->at("type") == "object" && b.schema->at("type") == "object";
  return both_objects && (has_disjoint_objects(a, b) || has_disjoint_objects(b, a));
}

}  // namespace nibble::text
