#include "text/json_grammar.h"

#include "text/json_number.h"
#include "text/json_pattern.h"
#include "text/json_schema.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace nibble::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxAlternatives = 256;  // of anyOf and oneOf
constexpr int kMaxIndentation = 48;

struct Format {
  std::string_view name;
  std::string_view pattern;
  std::optional<int64_t> most = {};  // characters, well below what the format allows
};
// Narrower than the RFCs: what all readers of a format take.
constexpr std::array<Format, 10> kFormats = {{
    {"date", R"(^\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))$)"},
    {"time", R"(^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$)"},
    {"date-time", R"(^\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$)"},
    {"duration",
     R"(^P(\d{1,9}W|\d{1,9}D(T\d{1,9}H(\d{1,9}M(\d{1,9}S)?)?)?|T(\d{1,9}H(\d{1,9}M(\d{1,9}S)?)?|\d{1,9}M(\d{1,9}S)?|\d{1,9}S))$)"},
    {"email", R"(^[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9]+(-[A-Za-z0-9]+)*\.)+[A-Za-z]{2,12}$)", 48},
    {"hostname", R"(^[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)*$)", 48},
    {"ipv4", R"(^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)$)"},
    {"ipv6", R"(^([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}$)"},
    {"uuid", R"(^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$)"},
    {"uri", R"(^[a-z][a-z0-9+.-]*:(\/\/)?[A-Za-z0-9._~:@!$&'()*+,;=\/?-]+$)"},
}};

// The text as a string literal of the notation.
std::string literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == 0x7F) {
      out += "\\u007F";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// What every schema grammar needs.
std::string shared_rules() {
  std::string out = fmt::format("ws ::= \" \"? | \"\\n\" [ \\t]{{0,{}}}\n", kMaxIndentation);
  // One regular expression per string, for the compiler knows for each of its states at once which tokens fit; what may follow
  // the string in any document spares it most of the others.
  out += fmt::format("string ::= (Regex({})) (= [ \\n\\t]* [,:}}\\]])\n", literal(fmt::format("\"{}*\"", any_character_expression())));
  out += fmt::format("number ::= {}\n", number_expression({}));
  out += "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n";
  out += "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)* ws)? \"}\"\n";
  out += "array ::= \"[\" ws (value (\",\" ws value)* ws)? \"]\"\n";
  return out;
}

std::string repetition(int64_t least, std::optional<int64_t> most) {
  return most ? fmt::format("{{{},{}}}", least, *most) : fmt::format("{{{},}}", least);
}

// `least` to `most` items with commas between, and the white space after the last.
std::string list_of(std::string_view item, int64_t least, std::optional<int64_t> most) {
  if (most && *most == 0) return "\"\"";
  const std::optional<int64_t> more = most ? std::optional(*most - 1) : std::nullopt;
  const std::string list =
      fmt::format("{} (\",\" ws {}){} ws", item, item, repetition(std::max<int64_t>(0, least - 1), more));
  return least == 0 ? fmt::format("({})?", list) : list;
}

class SchemaGrammar {
 public:
  SchemaGrammar(const Json& schema, std::string_view where) : document_(schema, where), where_(where) {}
  std::string write();

 private:
  using Rules = std::vector<size_t>;
  struct Rule {
    SchemaPlace place;
    std::vector<Rules> needs{};  // per alternative, the rules that every document of it contains
    Rules aliases{};             // rules that stand alone as an alternative
  };
  struct Property {
    std::string key;       // as JSON
    std::string value;     // a rule's name
    bool required = false;
  };

  size_t rule_of(const SchemaPlace& place);
  static std::string name_of_rule(size_t rule) { return fmt::format("v{}", rule); }
  void emit(std::string_view name, std::string_view body);
  std::string helper() { return fmt::format("h{}", helpers_++); }

  std::string body_of(size_t rule);
  std::string alternatives(size_t rule, std::string_view keyword);
  std::string body_of_type(size_t rule, JsonType type);
  std::string string_body(const SchemaPlace& at);
  std::string bounded_string(const SchemaPlace& at, int64_t least, std::optional<int64_t> most);
  std::string quoted(std::string_view inside, std::optional<int64_t> most);
  void spend(const SchemaPlace& at, int64_t cost);
  std::string number_body(const SchemaPlace& at, bool whole);
  std::string object_body(size_t rule);
  std::string map_body(size_t rule, const std::optional<SchemaPlace>& value);
  std::string array_body(size_t rule);
  std::string key_expression(const SchemaPlace& at);
  std::string other_key(const Json& properties);
  std::string property_chain(const std::vector<Property>& properties, const std::string& other);
  std::optional<NumberBound> bound(const SchemaPlace& at, std::string_view keyword, std::string_view exclusive, bool lower);
  std::string dumped(const SchemaPlace& at, const Json& value) const;

  void expect_no_loops() const;
  void expect_finite() const;

  SchemaDocument document_;
  std::string_view where_;
  std::vector<Rule> rules_;
  std::unordered_map<const Json*, size_t> rule_of_schema_;
  size_t helpers_ = 0;
  int64_t cost_ = 0;  // of patterns and lengths
  std::string out_;
  const Json anything_ = true;
};

void SchemaGrammar::emit(std::string_view name, std::string_view body) {
  out_ += fmt::format("{} ::= {}\n", name, body);
  if (out_.size() > kMaxGrammarBytes) {
    document_.fail(document_.root(), fmt::format("it is too large: its grammar takes more than {} bytes", kMaxGrammarBytes));
  }
}

size_t SchemaGrammar::rule_of(const SchemaPlace& place) {
  const auto [it, is_new] = rule_of_schema_.try_emplace(place.schema, rules_.size());
  if (is_new) rules_.push_back({.place = place});
  return it->second;
}

std::string SchemaGrammar::dumped(const SchemaPlace& at, const Json& value) const {
  try {
    return value.dump();
  } catch (const nlohmann::json::exception&) {
    document_.fail(at, "a text that is not UTF-8");
  }
}

std::string SchemaGrammar::body_of(size_t rule) {
  const SchemaPlace at = rules_[rule].place;
  if (at.schema->is_boolean()) {
    if (!at.schema->get<bool>()) document_.fail(at, "false allows nothing");
    rules_[rule].needs = {{}};
    return "value";
  }
  document_.expect_known(at);
  if (at.schema->contains("$ref")) {
    document_.expect_only(at, {"$ref"});
    const size_t target = rule_of(document_.referenced(at));
    rules_[rule].needs = {{target}};
    rules_[rule].aliases = {target};
    return name_of_rule(target);
  }
  for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
    if (at.schema->contains(keyword)) return alternatives(rule, keyword);
  }
  if (const auto values = document_.values(at); !values.empty()) {
    document_.expect_only(at, {at.schema->contains("enum") ? "enum" : "const", "const", "type"});
    std::vector<std::string> literals;
    for (const Json* value : values) literals.push_back(literal(dumped(at, *value)));
    rules_[rule].needs = {{}};
    return fmt::format("{}", fmt::join(literals, " | "));
  }
  const JsonTypes types = document_.types(at);
  if (types.empty()) {
    rules_[rule].needs = {{}};
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
  const SchemaPlace at = rules_[rule].place;
  document_.expect_only(at, {keyword});
  const SchemaPlace list = document_.child(at, keyword);
  if (!list.schema->is_array() || list.schema->empty()) {
    document_.fail(at, fmt::format("{}: want a list of at least one schema", keyword));
  }
  const size_t count = list.schema->size();
  if (keyword == "allOf" && count > 1) document_.fail(at, "allOf of more than one schema is not supported");
  if (count > kMaxAlternatives) document_.fail(at, fmt::format("{}: want at most {} schemas", keyword, kMaxAlternatives));
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    const SchemaPlace option = document_.item(list, i);
    for (size_t j = 0; keyword == "oneOf" && j < i; ++j) {
      if (!document_.are_disjoint(option, document_.item(list, j))) {
        document_.fail(at, fmt::format("oneOf: schemas {} and {} may both allow a value; want anyOf, or a required "
                                       "property whose const tells them apart", j, i));
      }
    }
    const size_t target = rule_of(option);
    rules_[rule].needs.push_back({target});
    rules_[rule].aliases.push_back(target);
    names.push_back(name_of_rule(target));
  }
  return fmt::format("{}", fmt::join(names, " | "));
}

std::string SchemaGrammar::body_of_type(size_t rule, JsonType type) {
  const SchemaPlace at = rules_[rule].place;
  if (type == JsonType::kObject) return object_body(rule);
  if (type == JsonType::kArray) return array_body(rule);
  rules_[rule].needs.emplace_back();
  switch (type) {
    case JsonType::kNull: return "\"null\"";
    case JsonType::kBoolean: return "\"true\" | \"false\"";
    case JsonType::kString: return string_body(at);
    default: return number_body(at, type == JsonType::kInteger);
  }
}

std::string SchemaGrammar::string_body(const SchemaPlace& at) {
  const std::string* pattern = document_.text(at, "pattern");
  const std::string* format = document_.text(at, "format");
  const int64_t least = document_.count(at, "minLength").value_or(0);
  const std::optional<int64_t> most = document_.count(at, "maxLength");
  if (most && *most < least) document_.fail(at, "maxLength is less than minLength");
  if (pattern != nullptr && format != nullptr) document_.fail(at, "pattern cannot be combined with format");
  if (pattern == nullptr && format == nullptr) {
    if (least == 0 && !most) return "string";
    return bounded_string(at, least, most);
  }
  std::string_view expression = pattern != nullptr ? std::string_view(*pattern) : std::string_view();
  std::optional<int64_t> longest;
  if (format != nullptr) {
    const auto known = std::find_if(kFormats.begin(), kFormats.end(), [&](const auto& f) { return f.name == *format; });
    if (known == kFormats.end()) {
      document_.fail(at, fmt::format("format: want date-time, date, time, duration, email, hostname, ipv4, ipv6, uuid or uri, "
                                     "found {}", format->substr(0, 40)));
    }
    expression = known->pattern;
    longest = known->most;
  }
  const StringExpression inside = pattern_expression(expression, fmt::format("[grammar] {}: the schema at {}", where_, at.path));
  if (inside.shortest < least || (most && (inside.longest == kUnbounded || inside.longest > *most))) {
    document_.fail(at, fmt::format("{} cannot be combined with minLength or maxLength that it does not keep by itself",
                                   pattern != nullptr ? "pattern" : "format"));
  }
  spend(at, inside.cost);
  return quoted(fmt::format("Regex({})", literal(inside.expression)), longest);
}

// A string whose inside is a rule of its own. `most` counts characters as written, so an escape counts as several.
std::string SchemaGrammar::quoted(std::string_view inside, std::optional<int64_t> most) {
  const std::string rule = helper();
  emit(most ? fmt::format("{}[max_chars={}]", rule, *most) : rule, inside);
  return fmt::format("\"\\\"\" {} \"\\\"\"", rule);
}

std::string SchemaGrammar::bounded_string(const SchemaPlace& at, int64_t least, std::optional<int64_t> most) {
  if (most && *most == 0) return "\"\\\"\\\"\"";
  if (least > kMaxPatternRepetitions) {
    document_.fail(at, fmt::format("minLength: want at most {}", kMaxPatternRepetitions));
  }
  spend(at, kLetterCost * (least + 1));
  const std::string character = any_character_expression();
  const std::string first = least > 0 ? fmt::format("{}{{{}}}", character, least) : std::string();
  return quoted(fmt::format("Regex({})", literal(fmt::format("{}{}*", first, character))), most);
}

void SchemaGrammar::spend(const SchemaPlace& at, int64_t cost) {
  cost_ += cost;
  if (cost_ > kMaxPatternCost) document_.fail(at, "the patterns and lengths of the schema's strings are too large together");
}

// The tighter one of a keyword and its exclusive form.
std::optional<NumberBound> SchemaGrammar::bound(const SchemaPlace& at, std::string_view keyword,
                                                std::string_view exclusive, bool lower) {
  std::optional<NumberBound> out;
  for (const std::string_view name : {keyword, exclusive}) {
    if (!at.schema->contains(name)) continue;
    const auto value = decimal_of(*at.schema->find(name));
    if (!value) {
      document_.fail(at, fmt::format("{}: want a number with at most {} digits before and after the point", name, kMaxNumberDigits));
    }
    const NumberBound found = {*value, name == exclusive};
    const bool tighter = !out || (lower ? is_less(out->value, *value) : is_less(*value, out->value)) || out->value == *value;
    if (tighter) out = found;
  }
  return out;
}

std::string SchemaGrammar::number_body(const SchemaPlace& at, bool whole) {
  NumberRange range{.lowest = bound(at, "minimum", "exclusiveMinimum", true),
                    .highest = bound(at, "maximum", "exclusiveMaximum", false)};
  if (whole) range.fraction_digits = 0;
  if (at.schema->contains("multipleOf")) {
    const auto step = decimal_of(*at.schema->find("multipleOf"));
    const bool one = step && step->integer == "1" && step->fraction.empty() && !step->negative;
    const bool tenth = step && !step->negative && step->integer == "0" && !step->fraction.empty() &&
                       step->fraction.find_first_not_of('0') == step->fraction.size() - 1 && step->fraction.back() == '1';
    if (!one && !tenth) document_.fail(at, "multipleOf: only 1, 0.1, 0.01 and so on are supported");
    range.fraction_digits = std::min(range.fraction_digits, one ? 0 : static_cast<int>(step->fraction.size()));
  }
  std::string expression = number_expression(range);
  if (expression.empty()) document_.fail(at, "no number lies within minimum, maximum and multipleOf");
  return expression;
}

// A key of an object without named properties.
std::string SchemaGrammar::key_expression(const SchemaPlace& at) {
  if (!at.schema->contains("propertyNames")) return "string";
  const SchemaPlace names = document_.child(at, "propertyNames");
  document_.expect_known(names);
  document_.expect_only(names, {"propertyNames", "type", "enum", "const", "pattern", "format", "minLength", "maxLength"});
  if (names.schema->contains("type") && *names.schema->find("type") != "string") document_.fail(names, "a name is a string");
  const auto values = document_.values(names);
  if (values.empty()) return fmt::format("({})", string_body(names));
  std::vector<std::string> literals;
  for (const Json* value : values) {
    if (!value->is_string()) document_.fail(names, "a name is a string");
    literals.push_back(literal(dumped(names, *value)));
  }
  return fmt::format("({})", fmt::join(literals, " | "));
}

std::string SchemaGrammar::map_body(size_t rule, const std::optional<SchemaPlace>& value) {
  const SchemaPlace at = rules_[rule].place;
  const int64_t least = document_.count(at, "minProperties").value_or(0);
  const std::optional<int64_t> most = document_.count(at, "maxProperties");
  if (most && *most < least) document_.fail(at, "maxProperties is less than minProperties");
  if (!value && least > 0) document_.fail(at, "minProperties, but no property is allowed");
  if (!value || (most && *most == 0)) {
    rules_[rule].needs.emplace_back();
    return "\"{\" ws \"}\"";
  }
  const size_t target = rule_of(*value);
  rules_[rule].needs.push_back(least > 0 ? Rules{target} : Rules{});
  const std::string pair = helper();
  emit(pair, fmt::format("{} \":\" ws {}", key_expression(at), name_of_rule(target)));
  return fmt::format("\"{{\" ws {} \"}}\"", list_of(pair, least, most));
}

// A key that is none of the properties': plain characters only, so that no escape can spell one of theirs. A trie.
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
      const auto lead = static_cast<unsigned char>(key[i]);
      const size_t length = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
      uint32_t c = length == 1 ? lead : lead & (0xFFU >> (length + 1));
      for (size_t k = 1; k < length && i + k < key.size(); ++k) c = c << 6 | (static_cast<unsigned char>(key[i + k]) & 0x3FU);
      i += length;
      const auto [it, is_new] = nodes[node].next.try_emplace(c, nodes.size());
      node = it->second;
      if (is_new) nodes.emplace_back();
    }
    nodes[node].ends = true;
  }
  const std::string prefix = helper();
  const std::string rest = helper();
  emit(rest, fmt::format("(Regex({})) (= \":\")", literal(fmt::format("{}*\"", plain_class(complement({}))))));
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
    emit(fmt::format("{}_{}", prefix, i), fmt::format("{}", fmt::join(choices, " | ")));
  }
  return fmt::format("\"\\\"\" {}_0", prefix);
}

// The properties in their order, then the others, with commas. Two states per place: nothing came yet, something did.
std::string SchemaGrammar::property_chain(const std::vector<Property>& properties, const std::string& other) {
  const std::string prefix = helper();
  const size_t count = properties.size();
  const auto state = [&](bool begun, size_t at) { return fmt::format("{}{}{}", prefix, begun ? "s" : "f", at); };
  for (const bool begun : {false, true}) {
    const std::string comma = begun ? "\",\" ws " : "";
    for (size_t i = 0; i < count; ++i) {
      const Property& p = properties[i];
      std::string body = fmt::format("{}{} ws {} {}", comma, literal(p.key + ":"), p.value, state(true, i + 1));
      if (!p.required) body += " | " + state(begun, i + 1);
      emit(state(begun, i), body);
    }
    std::string end = begun ? "ws" : "\"\"";
    if (!other.empty()) end = begun ? fmt::format("(\",\" ws {})* ws", other) : fmt::format("({} (\",\" ws {})* ws)?", other, other);
    emit(state(begun, count), end);
  }
  return state(false, 0);
}

std::string SchemaGrammar::object_body(size_t rule) {
  const SchemaPlace at = rules_[rule].place;
  const bool has_properties = at.schema->contains("properties");
  std::unordered_set<std::string> required;
  if (at.schema->contains("required")) {
    const Json& names = *at.schema->find("required");
    if (!names.is_array()) document_.fail(at, "required: want a list of names");
    for (const Json& name : names) {
      if (!name.is_string()) document_.fail(at, "required: want a list of names");
      required.insert(name.get<std::string>());
    }
  }
  std::optional<SchemaPlace> additional;  // the schema of other properties; empty: there are none
  if (!at.schema->contains("additionalProperties")) {
    if (!has_properties) additional = SchemaPlace{&anything_, at.path};
  } else if (const SchemaPlace place = document_.child(at, "additionalProperties");
             !place.schema->is_boolean() || place.schema->get<bool>()) {
    additional = place;
  }
  const Json none = Json::object();
  const Json* properties = has_properties ? &*at.schema->find("properties") : &none;
  if (!properties->is_object()) document_.fail(at, "properties: want an object of schemas");
  if (properties->empty() && required.empty()) return map_body(rule, additional);

  std::vector<Property> chain;
  Rules needs;
  Json names = Json::object();
  const auto add = [&](const std::string& name, const SchemaPlace& schema) {
    const size_t target = rule_of(schema);
    const bool is_required = required.erase(name) > 0;
    if (is_required) needs.push_back(target);
    chain.push_back({dumped(at, Json(name)), name_of_rule(target), is_required});
  };
  std::vector<std::string> named;
  for (const auto& entry : properties->items()) {
    add(entry.key(), {&entry.value(), fmt::format("{}/properties/{}", at.path, entry.key())});
  }
  if (!required.empty() && !additional) {
    document_.fail(at, fmt::format("required: {} is not among the properties, and others are not allowed",
                                   required.begin()->substr(0, 80)));
  }
  Json known = *properties;
  if (!required.empty()) {  // in the order of `required`
    for (const Json& name : *at.schema->find("required")) {
      if (!required.contains(name.get<std::string>())) continue;
      known[name.get<std::string>()] = true;
      add(name.get<std::string>(), *additional);
    }
  }
  if (document_.count(at, "minProperties").value_or(0) > static_cast<int64_t>(needs.size())) {
    document_.fail(at, "minProperties cannot be combined with properties");
  }
  const auto most = document_.count(at, "maxProperties");
  if (most && (additional || *most < static_cast<int64_t>(chain.size()))) {
    document_.fail(at, "maxProperties cannot be combined with properties");
  }
  if (at.schema->contains("propertyNames")) document_.fail(at, "propertyNames cannot be combined with properties");
  rules_[rule].needs.push_back(std::move(needs));
  std::string other;
  if (additional) {
    other = helper();
    emit(other, fmt::format("{} \":\" ws {}", other_key(known), name_of_rule(rule_of(*additional))));
  }
  return fmt::format("\"{{\" ws {} \"}}\"", property_chain(chain, other));
}

std::string SchemaGrammar::array_body(size_t rule) {
  const SchemaPlace at = rules_[rule].place;
  const int64_t least = document_.count(at, "minItems").value_or(0);
  const std::optional<int64_t> most = document_.count(at, "maxItems");
  if (most && *most < least) document_.fail(at, "maxItems is less than minItems");
  std::vector<size_t> first;
  if (at.schema->contains("prefixItems")) {
    const SchemaPlace list = document_.child(at, "prefixItems");
    if (!list.schema->is_array()) document_.fail(at, "prefixItems: want a list of schemas");
    for (size_t i = 0; i < list.schema->size(); ++i) {
      if (!most || static_cast<int64_t>(i) < *most) first.push_back(rule_of(document_.item(list, i)));
    }
  }
  const auto prefix = static_cast<int64_t>(first.size());
  std::optional<size_t> rest;
  if (!at.schema->contains("items")) {
    if (!at.schema->contains("prefixItems")) rest = rule_of({&anything_, at.path});
  } else if (const SchemaPlace items = document_.child(at, "items"); !items.schema->is_boolean() || items.schema->get<bool>()) {
    rest = rule_of(items);
  }
  if (!rest && least > prefix) document_.fail(at, "minItems is more than the items that are allowed");
  Rules needs(first.begin(), first.begin() + std::min(least, prefix));
  if (least > prefix) needs.push_back(*rest);
  rules_[rule].needs.push_back(std::move(needs));
  if (first.empty()) {
    return fmt::format("\"[\" ws {} \"]\"", rest ? list_of(name_of_rule(*rest), least, most) : "\"\"");
  }
  // A chain of rules, each: the item in its place and what follows it.
  const std::string chain = helper();
  for (size_t i = 0; i <= first.size(); ++i) {
    std::string body = "ws";
    if (i < first.size()) {
      body = fmt::format("{}{} {}_{}", i > 0 ? "\",\" ws " : "", name_of_rule(first[i]), chain, i + 1);
      if (static_cast<int64_t>(i) >= least) body += i > 0 ? " | ws" : " | \"\"";
    } else if (rest) {
      const std::optional<int64_t> more = most ? std::optional(*most - prefix) : std::nullopt;
      body = fmt::format("(\",\" ws {}){} ws", name_of_rule(*rest), repetition(std::max<int64_t>(0, least - prefix), more));
    }
    emit(fmt::format("{}_{}", chain, i), body);
  }
  return fmt::format("\"[\" ws {}_0 \"]\"", chain);
}

// A rule that leads back to itself through alternatives alone says nothing.
void SchemaGrammar::expect_no_loops() const {
  std::vector<size_t> waiting(rules_.size());  // aliases not yet settled
  std::vector<Rules> used_by(rules_.size());
  Rules settled;
  for (size_t i = 0; i < rules_.size(); ++i) {
    waiting[i] = rules_[i].aliases.size();
    for (const size_t target : rules_[i].aliases) used_by[target].push_back(i);
    if (waiting[i] == 0) settled.push_back(i);
  }
  for (size_t next = 0; next < settled.size(); ++next) {
    for (const size_t user : used_by[settled[next]]) {
      if (--waiting[user] == 0) settled.push_back(user);
    }
  }
  if (settled.size() == rules_.size()) return;
  const auto looped = std::find_if(waiting.begin(), waiting.end(), [](size_t n) { return n > 0; });
  document_.fail(rules_[static_cast<size_t>(looped - waiting.begin())].place, "it refers to itself with nothing in between");
}

// Every rule must allow a finite document: a model that entered another could never leave.
void SchemaGrammar::expect_finite() const {
  struct Alternative {
    size_t rule, open;
  };
  std::vector<Alternative> alternatives;
  std::vector<Rules> used_by(rules_.size());
  std::vector<bool> finite(rules_.size(), false);
  Rules settled;
  const auto settle = [&](size_t rule) {
    if (!finite[rule]) settled.push_back(rule);
    finite[rule] = true;
  };
  for (size_t i = 0; i < rules_.size(); ++i) {
    for (const Rules& needs : rules_[i].needs) {
      for (const size_t target : needs) used_by[target].push_back(alternatives.size());
      alternatives.push_back({i, needs.size()});
      if (needs.empty()) settle(i);
    }
  }
  for (size_t next = 0; next < settled.size(); ++next) {
    for (const size_t user : used_by[settled[next]]) {
      if (--alternatives[user].open == 0) settle(alternatives[user].rule);
    }
  }
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (!finite[i]) document_.fail(rules_[i].place, "no finite document satisfies it: it always contains itself");
  }
}

std::string SchemaGrammar::write() {
  out_ = shared_rules();
  emit("root", name_of_rule(rule_of(document_.root())));
  for (size_t i = 0; i < rules_.size(); ++i) {
    const std::string body = body_of(i);  // may add rules
    emit(name_of_rule(i), body);
  }
  expect_no_loops();
  expect_finite();
  return std::move(out_);
}

}  // namespace

std::string json_schema_grammar(const Json& schema, std::string_view where) { return SchemaGrammar(schema, where).write(); }

std::string json_object_grammar() { return shared_rules() + "root ::= object\n"; }

}  // namespace nibble::text
