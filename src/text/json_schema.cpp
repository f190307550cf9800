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

namespace nibble::text {
namespace {

using Json = nlohmann::ordered_json;

// Texts of them are not counted; what else nobody knows is an annotation, too.
constexpr std::array<std::string_view, 3> kTexts = {"title", "description", "$comment"};
struct TypedKeywords {
  JsonType type;
  std::array<std::string_view, 11> keywords;
};
constexpr TypedKeywords kTyped[] = {
    {JsonType::kObject,
     {"properties", "required", "additionalProperties", "minProperties", "maxProperties", "propertyNames",
      "patternProperties", "unevaluatedProperties", "dependentRequired", "dependentSchemas", "dependencies"}},
    {JsonType::kArray, {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "unevaluatedItems"}},
    {JsonType::kString, {"minLength", "maxLength", "pattern", "format"}},
    {JsonType::kNumber, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
constexpr std::array<std::string_view, 7> kOfAnyType = {"type", "enum", "const", "not", "then", "else", "$dynamicRef"};
constexpr int kMaxReferences = 256;  // that lead to one another
constexpr size_t kMaxChoices = 256;  // of a set's anyOf and oneOf together

std::optional<JsonType> type_named(std::string_view name) {
  for (const JsonType type : JsonTypes::all().list())
    if (name_of(type) == name) return type;
  return std::nullopt;
}

const Json* find(const Json& object, std::string_view key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

bool has_own_keyword(const Json& schema) {
  if (std::ranges::any_of(kOfAnyType, [&](std::string_view key) { return schema.contains(key); })) return true;
  return !implied_types(schema).empty();
}

}  // namespace

std::string shortened(std::string_view text) {
  std::string out(beginning_of(text, 80));
  const auto controls = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7F; };
  std::replace_if(out.begin(), out.end(), controls, '?');
  return out.size() < text.size() ? out + "…" : out;
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

std::vector<JsonType> JsonTypes::list() const {
  std::vector<JsonType> out;
  for (int i = 0; i < kJsonTypes; ++i)
    if (has(static_cast<JsonType>(i))) out.push_back(static_cast<JsonType>(i));
  return out;
}

JsonTypes JsonTypes::both(JsonTypes other) const {
  JsonTypes out(bits_ & other.bits_);
  const auto has_number = [](JsonTypes of) { return of.has(JsonType::kInteger) || of.has(JsonType::kNumber); };
  if (has_number(*this) && has_number(other)) out.add(JsonType::kInteger);
  return out;
}

std::vector<std::string_view> keywords_of(JsonType type) {
  const auto& keywords = std::ranges::find(kTyped, type, &TypedKeywords::type)->keywords;
  return {keywords.begin(), std::ranges::find(keywords, "")};
}

JsonTypes implied_types(const Json& schema) {
  JsonTypes out;
  for (const auto& [of, keywords] : kTyped) {
    const auto stands_there = [&](std::string_view key) { return !key.empty() && schema.contains(key); };
    if (std::ranges::any_of(keywords, stands_there)) out.add(of);
  }
  return out;
}

SchemaSet::Key SchemaSet::key() const {
  Key out;
  for (const SchemaPart& part : parts) out.emplace_back(part.at.schema, part.facet);
  std::sort(out.begin(), out.end());
  return out;
}

SchemaPlaces SchemaSet::of(Facet facet) const {
  SchemaPlaces out;
  for (const SchemaPart& part : parts)
    if (part.facet == facet) out.push_back(part.at);
  return out;
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

void SchemaDocument::widen(const SchemaPlace& at, std::string_view keyword) {
  std::string pointer = fmt::format("{}/{}", at.path, keyword);
  if (std::ranges::find(widened_, pointer) == widened_.end()) widened_.push_back(std::move(pointer));
}

void SchemaDocument::widen(const SchemaPlaces& all, const std::vector<std::string_view>& keywords) {
  for (const SchemaPlace& at : all)
    for (const std::string_view keyword : keywords)
      if (at.schema->contains(keyword)) widen(at, keyword);
}

void SchemaDocument::expect_within_limits() {
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
        const bool is_text = std::ranges::find(kTexts, entry.key()) != kTexts.end() || entry.key().starts_with("x-");
        if (entry.value().is_string() && is_text) continue;
        has_ids_ = has_ids_ || (depth > 0 && entry.key() == "$id" && entry.value().is_string());
      }
      if (value->is_structured()) open.push_back({&entry.value(), depth + 1});
    }
    if (bytes > kMaxSchemaBytes)
      fail(root(), fmt::format("its names and texts are longer than {} bytes", kMaxSchemaBytes));
  }
}

SchemaPlace SchemaDocument::child(const SchemaPlace& at, std::string_view key, const Json* there) {
  std::string name;  // as a JSON pointer has it
  for (const char c : key) name += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return {there != nullptr ? there : &*at.schema->find(key), fmt::format("{}/{}", at.path, name)};
}
SchemaPlace SchemaDocument::item(const SchemaPlace& at, size_t idx) {
  return {&(*at.schema)[idx], fmt::format("{}/{}", at.path, idx)};
}

std::optional<SchemaPlace> SchemaDocument::referenced(const SchemaPlace& at) {
  const std::string* ref = text(at, "$ref");
  if (has_ids_ || !(*ref == "#" || ref->starts_with("#/"))) {
    widen(at, "$ref");
    return std::nullopt;
  }
  const auto bad = [&](std::string_view why) { fail(at, fmt::format("$ref {}: {}", shortened(*ref), why)); };
  try {
    const Json::json_pointer where(percent_decoded(ref->substr(1)));
    if (!root_.contains(where)) bad("there is nothing there");
    return SchemaPlace{&root_.at(where), *ref};
  } catch (const nlohmann::ordered_json::exception&) {
    bad("want a JSON pointer, #/…");
  }
  return std::nullopt;
}

// The schemas of one set that were seen, and those on the way to the one at hand.
struct Visited {
  std::map<const Json*, bool> is_open{};
  int depth = 0;
};

void SchemaDocument::add(SchemaSet& set, const SchemaPlace& at, Visited& visited) {
  const Json& schema = *at.schema;
  if (schema.is_boolean()) {
    set.is_false = set.is_false || !schema.get<bool>();
    return;
  }
  if (!schema.is_object()) fail(at, fmt::format("want an object or a boolean, found {}", schema.type_name()));
  const auto [it, is_new] = visited.is_open.try_emplace(&schema, true);
  if (!is_new && it->second) fail(at, "it refers to itself with nothing in between");
  if (!is_new) return;
  if (++visited.depth > kMaxReferences)
    fail(at, fmt::format("more than {} schemas lead to one another", kMaxReferences));
  const auto add_part = [&](Facet facet) {
    const auto same = [&](const SchemaPart& part) { return part.at.schema == at.schema && part.facet == facet; };
    if (std::ranges::none_of(set.parts, same)) set.parts.push_back({at, facet});
  };
  if (has_own_keyword(schema)) add_part(Facet::kOwn);
  if (schema.contains("$ref")) {
    if (const auto target = referenced(at)) add(set, *target, visited);
  }
  for (const SchemaPlace& each : list(at, "allOf")) add(set, each, visited);
  if (schema.contains("anyOf")) add_part(Facet::kAnyOf);
  if (schema.contains("oneOf")) add_part(Facet::kOneOf);
  --visited.depth;
  visited.is_open[&schema] = false;
}

SchemaSet SchemaDocument::together(SchemaSet set, const SchemaPlaces& more) {
  Visited visited;
  for (const SchemaPart& part : set.parts)
    if (part.facet == Facet::kOwn) visited.is_open.emplace(part.at.schema, false);
  for (const SchemaPlace& at : more) add(set, at, visited);
  size_t choices = 1;
  std::erase_if(set.parts, [&](const SchemaPart& part) {
    if (part.facet != Facet::kAnyOf && part.facet != Facet::kOneOf) return false;
    const std::string_view keyword = part.facet == Facet::kAnyOf ? "anyOf" : "oneOf";
    choices *= std::max<size_t>(1, list(part.at, keyword).size());
    if (choices <= kMaxChoices) return false;
    choices = kMaxChoices;
    widen(part.at, keyword);
    return true;
  });
  return set;
}

std::optional<SchemaChoice> SchemaDocument::choice(const SchemaSet& set) const {
  for (size_t i = 0; i < set.parts.size(); ++i) {
    const auto& [at, facet] = set.parts[i];
    if (facet != Facet::kAnyOf && facet != Facet::kOneOf) continue;
    const std::string_view keyword = facet == Facet::kAnyOf ? "anyOf" : "oneOf";
    SchemaChoice out{.at = at, .rest = set, .options = list(at, keyword), .exclusive = facet == Facet::kOneOf};
    out.rest.parts.erase(out.rest.parts.begin() + static_cast<int64_t>(i));
    return out;
  }
  return std::nullopt;
}

SchemaPlaces SchemaDocument::list(const SchemaPlace& at, std::string_view keyword) const {
  SchemaPlaces out;
  if (!at.schema->contains(keyword)) return out;
  const SchemaPlace all = child(at, keyword);
  if (!all.schema->is_array() || (all.schema->empty() && keyword.ends_with("Of")))
    fail(at, fmt::format("{}: want a list of at least one schema", keyword));
  for (size_t i = 0; i < all.schema->size(); ++i) out.push_back(item(all, i));
  return out;
}

std::vector<std::string> SchemaDocument::names(const SchemaPlace& at, std::string_view keyword) const {
  std::vector<std::string> out;
  const Json* names = find(*at.schema, keyword);
  if (names == nullptr) return out;
  const bool good = names->is_array() && std::ranges::all_of(*names, [](const Json& name) { return name.is_string(); });
  if (!good) fail(at, fmt::format("{}: want a list of names", keyword));
  return names->get<std::vector<std::string>>();
}

std::vector<std::pair<std::string, SchemaPlace>> SchemaDocument::members(const SchemaPlace& at,
                                                                         std::string_view keyword) const {
  std::vector<std::pair<std::string, SchemaPlace>> out;
  if (!at.schema->contains(keyword)) return out;
  const SchemaPlace all = child(at, keyword);
  if (!all.schema->is_object()) fail(at, fmt::format("{}: want an object", keyword));
  for (const auto& entry : all.schema->items()) out.emplace_back(entry.key(), child(all, entry.key(), &entry.value()));
  return out;
}

JsonTypes SchemaDocument::types(const SchemaPlace& at) const {
  JsonTypes out;
  const Json* type = find(*at.schema, "type");
  if (type == nullptr) return out;
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
  std::vector<const Json*> out;
  if (const Json* constant = find(*at.schema, "const")) out.push_back(constant);
  const Json* values = find(*at.schema, "enum");
  if (values == nullptr) return out;
  if (!values->is_array() || values->empty()) fail(at, "enum: want a list of at least one value");
  if (out.empty())
    for (const Json& value : *values) out.push_back(&value);
  return out;
}

std::optional<int64_t> SchemaDocument::count(const SchemaPlace& at, std::string_view keyword) {
  const Json* value = find(*at.schema, keyword);
  if (value == nullptr) return std::nullopt;
  const bool whole =
      value->is_number() && value->get<double>() >= 0 && std::floor(value->get<double>()) == value->get<double>();
  if (!whole) fail(at, fmt::format("{}: want a whole number, 0 or more", keyword));
  if (value->get<double>() <= static_cast<double>(kMaxRepetitions)) return static_cast<int64_t>(value->get<double>());
  if (keyword.starts_with("min")) widen(at, keyword);
  return kMaxRepetitions;
}

Counts SchemaDocument::counts(const SchemaPlaces& all, std::string_view least, std::string_view most) {
  Counts out;
  for (const SchemaPlace& at : all) {
    out.least = std::max(out.least, count(at, least).value_or(0));
    if (const auto here = count(at, most)) out.most = std::min(out.most.value_or(*here), *here);
  }
  return out;
}

const std::string* SchemaDocument::text(const SchemaPlace& at, std::string_view keyword) const {
  const Json* value = find(*at.schema, keyword);
  if (value == nullptr) return nullptr;
  if (!value->is_string()) fail(at, fmt::format("{}: want a string, found {}", keyword, value->type_name()));
  return &value->get_ref<const std::string&>();
}

const Json* SchemaDocument::number(const SchemaPlace& at, std::string_view keyword) const {
  const Json* value = find(*at.schema, keyword);
  if (value != nullptr && !value->is_number())
    fail(at, fmt::format("{}: want a number, found {}", keyword, value->type_name()));
  return value;
}

}  // namespace nibble::text
