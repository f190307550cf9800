#include "text/json_grammar.h"

#include "base/error.h"
#include "text/grammar_rules.h"
#include "text/json_schema.h"
#include "text/text_stream.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace nibble::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxAlternatives = 256;  // of anyOf and oneOf

class SchemaGrammar {
 public:
  SchemaGrammar(const Json& schema, std::string_view where)
      : document_(schema, where), where_(where), rules_(document_) {}
  std::string write();

 private:
  using Rules = GrammarRules::Rules;
  struct Property {
    std::string key;    // as JSON
    std::string value;  // a rule's name
    bool required = false;
  };

  std::string body_of(size_t rule);
  std::string alternatives(size_t rule, std::string_view keyword);
  std::string body_of_type(size_t rule, JsonType type);
  std::string object_body(size_t rule);
  std::string map_body(size_t rule, const std::optional<SchemaPlace>& value);
  std::string array_body(size_t rule);
  std::string key_expression(const SchemaPlace& at);
  std::string other_key(const Json& properties);
  std::string property_chain(const std::vector<Property>& properties, const std::string& other);
  [[nodiscard]] std::vector<std::string> required_names(const SchemaPlace& at) const;
  [[nodiscard]] std::optional<SchemaPlace> additional_properties(const SchemaPlace& at) const;
  void expect_free_count(const SchemaPlace& at, size_t least, std::optional<size_t> most) const;
  std::string dumped(const SchemaPlace& at, const Json& value) const;

  SchemaDocument document_;
  std::string_view where_;
  GrammarRules rules_;
  const Json anything_ = true;
};

std::string SchemaGrammar::dumped(const SchemaPlace& at, const Json& value) const {
  try {
    return value.dump();
  } catch (const nlohmann::ordered_json::exception&) {
    document_.fail(at, "a text that is not UTF-8");
  }
}

std::string SchemaGrammar::body_of(size_t rule) {
  const SchemaPlace at = rules_.place(rule);
  if (at.schema->is_boolean()) {
    if (!at.schema->get<bool>()) document_.fail(at, "false allows nothing");
    rules_.add_alternative(rule, {});
    return "value";
  }
  document_.expect_known(at);
  if (at.schema->contains("$ref")) {
    document_.expect_only(at, {"$ref"});
    const size_t target = rules_.rule_of(document_.referenced(at));
    rules_.add_alias(rule, target);
    return GrammarRules::name_of(target);
  }
  for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
    if (at.schema->contains(keyword)) return alternatives(rule, keyword);
  }
  if (const auto values = document_.values(at); !values.empty()) {
    document_.expect_only(at, {at.schema->contains("enum") ? "enum" : "const", "const", "type"});
    std::vector<std::string> literals;
    for (const Json* value : values) literals.push_back(literal(dumped(at, *value)));
    rules_.add_alternative(rule, {});
    return fmt::format("{}", fmt::join(literals, " | "));
  }
  const JsonTypes types = document_.types(at);
  if (types.empty()) {
    rules_.add_alternative(rule, {});
    return "value";
  }
  std::vector<std::string> bodies;
  for (int i = 0; i < kJsonTypes; ++i) {
    const auto type = static_cast<JsonType>(i);
    const bool covered = type == JsonType::kInteger && types.has(JsonType::kNumber);
    if (types.has(type) && !covered) bodies.push_back(body_of_type(rule, type));
  }
  return fmt::format("{}", fmt::join(bodies, " | "));
}

std::string SchemaGrammar::alternatives(size_t rule, std::string_view keyword) {
  const SchemaPlace at = rules_.place(rule);
  document_.expect_only(at, {keyword});
  const SchemaPlace list = document_.child(at, keyword);
  if (!list.schema->is_array() || list.schema->empty()) {
    document_.fail(at, fmt::format("{}: want a list of at least one schema", keyword));
  }
  const size_t count = list.schema->size();
  if (keyword == "allOf" && count > 1) document_.fail(at, "allOf of more than one schema is not supported");
  if (count > kMaxAlternatives)
    document_.fail(at, fmt::format("{}: want at most {} schemas", keyword, kMaxAlternatives));
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    const SchemaPlace option = document_.item(list, i);
    for (size_t j = 0; keyword == "oneOf" && j < i; ++j) {
      if (!document_.are_disjoint(option, document_.item(list, j))) {
        document_.fail(at, fmt::format("oneOf: schemas {} and {} may both allow a value; want anyOf, or a required "
                                       "property whose const tells them apart",
                                       j, i));
      }
    }
    const size_t target = rules_.rule_of(option);
    rules_.add_alias(rule, target);
    names.push_back(GrammarRules::name_of(target));
  }
  return fmt::format("{}", fmt::join(names, " | "));
}

std::string SchemaGrammar::body_of_type(size_t rule, JsonType type) {
  const SchemaPlace at = rules_.place(rule);
  if (type == JsonType::kObject) return object_body(rule);
  if (type == JsonType::kArray) return array_body(rule);
  rules_.add_alternative(rule, {});
  switch (type) {
    case JsonType::kNull: return "\"null\"";
    case JsonType::kBoolean: return "\"true\" | \"false\"";
    case JsonType::kString: return string_expression(document_, rules_, at, where_);
    default: return number_rule(document_, rules_, at, type == JsonType::kInteger ? Numbers::kWhole : Numbers::kAll);
  }
}

// A key of an object without named properties.
std::string SchemaGrammar::key_expression(const SchemaPlace& at) {
  if (!at.schema->contains("propertyNames")) return "string";
  const SchemaPlace names = document_.child(at, "propertyNames");
  document_.expect_known(names);
  document_.expect_only(names,
                        {"propertyNames", "type", "enum", "const", "pattern", "format", "minLength", "maxLength"});
  if (names.schema->contains("type") && *names.schema->find("type") != "string")
    document_.fail(names, "a name is a string");
  const auto values = document_.values(names);
  if (values.empty()) return fmt::format("({})", string_expression(document_, rules_, names, where_));
  std::vector<std::string> literals;
  for (const Json* value : values) {
    if (!value->is_string()) document_.fail(names, "a name is a string");
    literals.push_back(literal(dumped(names, *value)));
  }
  return fmt::format("({})", fmt::join(literals, " | "));
}

std::string SchemaGrammar::map_body(size_t rule, const std::optional<SchemaPlace>& value) {
  const SchemaPlace at = rules_.place(rule);
  const int64_t least = document_.count(at, "minProperties").value_or(0);
  const std::optional<int64_t> most = document_.count(at, "maxProperties");
  if (most && *most < least) document_.fail(at, "maxProperties is less than minProperties");
  if (!value && least > 0) document_.fail(at, "minProperties, but no property is allowed");
  if (!value || (most && *most == 0)) {
    rules_.add_alternative(rule, {});
    return "\"{\" ws \"}\"";
  }
  const size_t target = rules_.rule_of(*value);
  rules_.add_alternative(rule, least > 0 ? Rules{target} : Rules{});
  const std::string pair = rules_.new_helper();
  rules_.emit(pair, fmt::format("{} \":\" ws {}", key_expression(at), GrammarRules::name_of(target)));
  return fmt::format("\"{{\" ws {} \"}}\"", list_of(pair, least, most));
}

// A key that differs from all properties: plain characters only, so that no escape can spell one of them. A trie.
std::string SchemaGrammar::other_key(const Json& properties) {
  struct Node {
    std::map<uint32_t, size_t> next;
    bool ends = false;
  };
  std::vector<Node> nodes(1);
  for (const auto& entry : properties.items()) {
    size_t node = 0;
    const std::string& key = entry.key();
    for (size_t i = 0; i < key.size();) {
      const auto [it, is_new] = nodes[node].next.try_emplace(next_character(key, i), nodes.size());
      node = it->second;
      if (is_new) nodes.emplace_back();
    }
    nodes[node].ends = true;
  }
  const std::string prefix = rules_.new_helper();
  const std::string rest = rules_.new_helper();
  rules_.emit(rest, fmt::format("Regex({})", literal(fmt::format("{}*\"", plain_class(complement({}))))));
  for (size_t i = 0; i < nodes.size(); ++i) {
    CharacterRanges known;
    std::vector<std::string> choices;
    for (const auto& [c, next] : nodes[i].next) {
      known.emplace_back(c, c);
      const std::string one = plain_class({{c, c}});
      if (!one.empty()) choices.push_back(fmt::format("Regex({}) {}_{}", literal(one), prefix, next));
    }
    choices.push_back(fmt::format("Regex({}) {}", literal(plain_class(complement(known))), rest));
    if (!nodes[i].ends) choices.emplace_back("\"\\\"\"");
    rules_.emit(fmt::format("{}_{}", prefix, i), fmt::format("{}", fmt::join(choices, " | ")));
  }
  return fmt::format("\"\\\"\" {}_0", prefix);
}

// The properties in their order, then the others, with commas. Each place has two states: something came before, or
// nothing did.
std::string SchemaGrammar::property_chain(const std::vector<Property>& properties, const std::string& other) {
  const std::string prefix = rules_.new_helper();
  const size_t count = properties.size();
  const auto state = [&](bool begun, size_t at) { return fmt::format("{}{}{}", prefix, begun ? "s" : "f", at); };
  for (const bool begun : {false, true}) {
    const std::string comma = begun ? "\",\" ws " : "";
    for (size_t i = 0; i < count; ++i) {
      const Property& p = properties[i];
      std::string body = fmt::format("{}{} ws {} {}", comma, literal(p.key + ":"), p.value, state(true, i + 1));
      if (!p.required) body += " | " + state(begun, i + 1);
      rules_.emit(state(begun, i), body);
    }
    std::string end = begun ? "ws" : "\"\"";
    if (!other.empty())
      end = begun ? fmt::format("(\",\" ws {})* ws", other) : fmt::format("({} (\",\" ws {})* ws)?", other, other);
    rules_.emit(state(begun, count), end);
  }
  return state(false, 0);
}

// In their order, each once.
std::vector<std::string> SchemaGrammar::required_names(const SchemaPlace& at) const {
  std::vector<std::string> out;
  if (!at.schema->contains("required")) return out;
  const Json& names = *at.schema->find("required");
  if (!names.is_array()) document_.fail(at, "required: want a list of names");
  std::unordered_set<std::string> seen;
  for (const Json& name : names) {
    if (!name.is_string()) document_.fail(at, "required: want a list of names");
    if (seen.insert(name.get<std::string>()).second) out.push_back(name.get<std::string>());
  }
  return out;
}

// The schema of properties without a name in the schema; empty: there are none.
std::optional<SchemaPlace> SchemaGrammar::additional_properties(const SchemaPlace& at) const {
  if (at.schema->contains("additionalProperties")) {
    const SchemaPlace place = document_.child(at, "additionalProperties");
    if (place.schema->is_boolean() && !place.schema->get<bool>()) return std::nullopt;
    return place;
  }
  if (at.schema->contains("properties")) return std::nullopt;
  return SchemaPlace{&anything_, at.path};
}

// What counts or names properties says nothing new about an object of `least` to `most` named ones.
void SchemaGrammar::expect_free_count(const SchemaPlace& at, size_t least, std::optional<size_t> most) const {
  if (document_.count(at, "minProperties").value_or(0) > static_cast<int64_t>(least)) {
    document_.fail(at, "minProperties cannot be combined with properties");
  }
  const auto limit = document_.count(at, "maxProperties");
  if (limit && (!most || *limit < static_cast<int64_t>(*most))) {
    document_.fail(at, "maxProperties cannot be combined with properties");
  }
  if (at.schema->contains("propertyNames")) document_.fail(at, "propertyNames cannot be combined with properties");
}

std::string SchemaGrammar::object_body(size_t rule) {
  const SchemaPlace at = rules_.place(rule);
  const std::vector<std::string> required = required_names(at);
  const std::optional<SchemaPlace> additional = additional_properties(at);
  Json named = at.schema->contains("properties") ? *at.schema->find("properties") : Json::object();
  if (!named.is_object()) document_.fail(at, "properties: want an object of schemas");
  if (named.empty() && required.empty()) return map_body(rule, additional);

  std::vector<Property> chain;
  Rules needs;
  std::unordered_set<std::string> open(required.begin(), required.end());
  const auto add = [&](const std::string& name, const SchemaPlace& schema) {
    const size_t target = rules_.rule_of(schema);
    const bool is_required = open.erase(name) > 0;
    if (is_required) needs.push_back(target);
    chain.push_back({dumped(at, Json(name)), GrammarRules::name_of(target), is_required});
  };
  if (at.schema->contains("properties")) {
    for (const auto& entry : at.schema->find("properties")->items()) {
      add(entry.key(), {&entry.value(), fmt::format("{}/properties/{}", at.path, entry.key())});
    }
  }
  for (const std::string& name : required) {
    if (!open.contains(name)) continue;
    if (!additional) {
      document_.fail(
          at, fmt::format("required: {} is not among the properties, and others are not allowed", shortened(name)));
    }
    named[name] = true;
    add(name, *additional);
  }
  expect_free_count(at, needs.size(), additional ? std::nullopt : std::optional(chain.size()));
  // Every optional property may follow any other before it.
  const auto optional = static_cast<int64_t>(chain.size() - needs.size());
  rules_.spend(at, optional * optional / 128);
  rules_.add_alternative(rule, std::move(needs));
  std::string other;
  if (additional) {
    other = rules_.new_helper();
    rules_.emit(other,
                fmt::format("{} \":\" ws {}", other_key(named), GrammarRules::name_of(rules_.rule_of(*additional))));
  }
  return fmt::format("\"{{\" ws {} \"}}\"", property_chain(chain, other));
}

std::string SchemaGrammar::array_body(size_t rule) {
  const SchemaPlace at = rules_.place(rule);
  const int64_t least = document_.count(at, "minItems").value_or(0);
  const std::optional<int64_t> most = document_.count(at, "maxItems");
  if (most && *most < least) document_.fail(at, "maxItems is less than minItems");
  std::vector<size_t> first;
  if (at.schema->contains("prefixItems")) {
    const SchemaPlace list = document_.child(at, "prefixItems");
    if (!list.schema->is_array()) document_.fail(at, "prefixItems: want a list of schemas");
    for (size_t i = 0; i < list.schema->size(); ++i) {
      if (!most || static_cast<int64_t>(i) < *most) first.push_back(rules_.rule_of(document_.item(list, i)));
    }
  }
  const auto prefix = static_cast<int64_t>(first.size());
  std::optional<size_t> rest;
  if (!at.schema->contains("items")) {
    if (!at.schema->contains("prefixItems")) rest = rules_.rule_of({&anything_, at.path});
  } else if (const SchemaPlace items = document_.child(at, "items");
             !items.schema->is_boolean() || items.schema->get<bool>()) {
    rest = rules_.rule_of(items);
  }
  if (!rest && least > prefix) document_.fail(at, "minItems is more than the items that are allowed");
  Rules needs(first.begin(), first.begin() + std::min(least, prefix));
  if (least > prefix) needs.push_back(*rest);
  rules_.add_alternative(rule, std::move(needs));
  if (first.empty()) {
    return fmt::format("\"[\" ws {} \"]\"", rest ? list_of(GrammarRules::name_of(*rest), least, most) : "\"\"");
  }
  // A chain of rules, each: the item in its place and what follows it.
  const std::string chain = rules_.new_helper();
  for (size_t i = 0; i <= first.size(); ++i) {
    std::string body = "ws";
    if (i < first.size()) {
      body = fmt::format("{}{} {}_{}", i > 0 ? "\",\" ws " : "", GrammarRules::name_of(first[i]), chain, i + 1);
      if (static_cast<int64_t>(i) >= least) body += i > 0 ? " | ws" : " | \"\"";
    } else if (rest) {
      const std::optional<int64_t> more = most ? std::optional(*most - prefix) : std::nullopt;
      body = fmt::format("(\",\" ws {}){} ws", GrammarRules::name_of(*rest),
                         repetition(std::max<int64_t>(0, least - prefix), more));
    }
    rules_.emit(fmt::format("{}_{}", chain, i), body);
  }
  return fmt::format("\"[\" ws {}_0 \"]\"", chain);
}

std::string SchemaGrammar::write() {
  rules_.emit("root", GrammarRules::name_of(rules_.rule_of(document_.root())));
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    const std::string body = body_of(rule);  // may add rules
    rules_.emit(GrammarRules::name_of(rule), body);
  }
  rules_.expect_finite();
  return rules_.take_text();
}

}  // namespace

std::string json_schema_grammar(const Json& schema, std::string_view where) {
  return SchemaGrammar(schema, where).write();
}

std::string json_object_grammar() { return shared_rules() + "root ::= object\n"; }

}  // namespace nibble::text
