#include "text/json_grammar.h"

#include "base/error.h"
#include "text/grammar_rules.h"
#include "text/json_schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace nibble::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxProofs = 24;      // that lead to one another, of sets that nothing satisfies
constexpr size_t kMaxPatterns = 4;  // of patternProperties in one set: each name has or has not each of them
constexpr size_t kMaxUnique = 8;    // values of items that are unique: a rule for each set of them

bool is_equal(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) {
    if (!a.is_array() || !b.is_array()) return a == b;
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), is_equal);
  }
  return a.size() == b.size() && std::ranges::all_of(a.items(), [&](const auto& entry) {
           const auto other = b.find(entry.key());
           return other != b.end() && is_equal(entry.value(), *other);
         });
}

class SchemaGrammar {
 public:
  SchemaGrammar(const Json& schema, std::string_view where)
      : document_(schema, where), rules_(document_), strings_(document_, rules_, where) {}

  JsonGrammar write() {
    rules_.emit("root", GrammarRules::name_of(
                            rules_.rule_of(document_.together({.begin = document_.root()}, {document_.root()}))));
    for (size_t rule = 0; rule < rules_.size(); ++rule) {
      const std::string body = body_of(rule);  // may add rules
      rules_.emit(GrammarRules::name_of(rule), body);
    }
    rules_.expect_finite();
    return {rules_.take_text(), document_.widened()};
  }

 private:
  using Rules = GrammarRules::Rules;
  struct Property {
    std::string name;
    SchemaSet value;
    bool required = false;
  };
  struct Object {
    std::vector<Property> named{};  // that may come
    int64_t least = 0;              // properties
    std::optional<int64_t> most{};
    std::vector<std::pair<TextSets::Id, SchemaSet>> others{};  // their names, and what stands there
    std::optional<std::string> impossible{};                   // why there is none
  };
  struct Items {
    SchemaPlaces first{};  // in the first places
    std::optional<SchemaPlace> rest{};
  };
  struct Array {
    std::vector<SchemaSet> first{};   // in the first places
    std::optional<SchemaSet> rest{};  // in all after them; empty: none may come
    int64_t least = 0;
    std::optional<int64_t> most{};
  };

  std::string body_of(size_t rule) {
    const SchemaSet set = rules_.set(rule);
    if (set.is_false) document_.fail(set.begin, "false allows nothing");
    if (const auto choice = document_.choice(set)) return alternatives(rule, *choice);
    document_.widen(set.of(Facet::kOwn), {"not", "then", "else", "$dynamicRef", "dependentRequired", "dependentSchemas",
                                          "dependencies", "unevaluatedProperties", "unevaluatedItems", "contains"});
    if (const auto values = values_of(set)) {
      if (values->empty()) document_.fail(set.begin, "no value of enum or const is allowed by what stands beside it");
      std::vector<std::string> literals;
      for (const Json* value : *values) literals.push_back(literal(dumped(set.begin, *value)));
      rules_.add_alternative(rule, {});
      return fmt::format("{}", fmt::join(literals, " | "));
    }
    const auto says_nothing = [](const SchemaPart& part) {
      return !part.at.schema->contains("type") && implied_types(*part.at.schema).empty();
    };
    if (std::ranges::all_of(set.parts, says_nothing)) {
      rules_.add_alternative(rule, {});
      return "value";
    }
    const JsonTypes types = types_of(set);
    std::vector<JsonType> some, none;
    for (const JsonType type : types.list()) {
      const bool covered = type == JsonType::kInteger && types.has(JsonType::kNumber);
      if (!covered) (is_empty_of(set, type) ? none : some).push_back(type);
    }
    std::vector<std::string> bodies;
    for (const JsonType type : some.empty() ? none : some) bodies.push_back(body_of_type(rule, type));
    if (some.empty()) document_.fail(set.begin, "no type is allowed by all that stands together");
    return fmt::format("{}", fmt::join(bodies, " | "));
  }

  std::string alternatives(size_t rule, const SchemaChoice& choice) {
    const auto set_of = [&](SchemaPlaces more) {
      SchemaSet rest = choice.rest;
      rest.begin = more.front();
      return document_.together(std::move(rest), more);
    };
    SchemaPlaces options;
    for (const SchemaPlace& option : choice.options)
      if (!is_empty(set_of({option}))) options.push_back(option);
    std::vector<std::string> names;
    for (size_t i = 0; i < options.size(); ++i) {
      for (size_t j = 0; choice.exclusive && j < i; ++j)
        if (!is_empty(set_of({options[i], options[j]}))) document_.widen(choice.at, "oneOf");  // both may hold
      const size_t target = rules_.rule_of(set_of({options[i]}));
      rules_.add_alias(rule, target);
      names.push_back(GrammarRules::name_of(target));
    }
    if (names.empty()) document_.fail(choice.at, "none of the schemas of its anyOf or oneOf can hold");
    return fmt::format("{}", fmt::join(names, " | "));
  }

  std::string body_of_type(size_t rule, JsonType type) {
    if (type == JsonType::kObject) return object_body(rule);
    if (type == JsonType::kArray) return array_body(rule);
    rules_.add_alternative(rule, {});
    const SchemaPlaces all = rules_.set(rule).of(Facet::kOwn);
    switch (type) {
      case JsonType::kNull: return "\"null\"";
      case JsonType::kBoolean: return "\"true\" | \"false\"";
      case JsonType::kString: return strings_.expression(all);
      default: return number_rule(document_, rules_, all, type == JsonType::kInteger ? Numbers::kWhole : Numbers::kAll);
    }
  }

  std::string object_body(size_t rule) {
    const SchemaSet set = rules_.set(rule);
    const SchemaPlaces all = set.of(Facet::kOwn);
    Object object = object_of(set);
    if (object.impossible) document_.fail(set.begin, *object.impossible);
    Rules needs, may;
    for (const Property& property : object.named)
      (property.required ? needs : may).push_back(rules_.rule_of(property.value));
    std::vector<std::string> others;
    for (const auto& [key, value] : object.others) {
      may.push_back(rules_.rule_of(value));
      auto name = strings_.written(key, {});
      if (!name) {  // of names that are known, or of patterns: too many
        document_.widen(all, {"propertyNames", "patternProperties", "additionalProperties"});
        name = "string";
      }
      others.push_back(fmt::format("{} \":\" ws {}", *name, GrammarRules::name_of(may.back())));
    }
    // Every optional property may follow any other before it. Where they are too many they come in any order.
    const auto optional = std::ranges::count(object.named, false, &Property::required);
    if (!rules_.spend(optional * optional / 128)) {
      for (const Property& property : object.named) {
        if (property.required) continue;
        others.push_back(fmt::format("{} ws {}", literal(dumped(set.begin, property.name) + ":"),
                                     GrammarRules::name_of(rules_.rule_of(property.value))));
      }
      std::erase_if(object.named, [](const Property& property) { return !property.required; });
    }
    // Others may repeat one name, so that only one of them counts.
    const int64_t most_names = std::ssize(object.named) + (others.empty() ? 0 : 1);
    if (object.least > most_names) {
      document_.widen(all, {"minProperties"});
      object.least = most_names;
    }
    if (object.least <= std::ssize(needs))
      rules_.add_alternative(rule, needs);
    else {
      for (const size_t other : may) {
        Rules with = needs;
        with.push_back(other);
        rules_.add_alternative(rule, std::move(with));
      }
    }
    std::string other;
    if (!others.empty()) {
      other = rules_.new_helper();
      rules_.emit(other, fmt::format("{}", fmt::join(others, " | ")));
    }
    return fmt::format("\"{{\" ws {} \"}}\"", property_chain(set.begin, object, other));
  }

  std::string array_body(size_t rule) {
    const SchemaSet set = rules_.set(rule);
    const Array array = array_of(set);
    const auto& [first, rest, least, most] = array;
    if (most && *most < least)
      document_.fail(set.begin, "minItems is more than maxItems or the items that are allowed");
    if (is_unique(set) && (!most || *most > 1)) {
      if (first.empty() && rest) {
        if (const auto values = few_values(*rest)) {
          if (std::ssize(*values) < least)
            document_.fail(set.begin, "uniqueItems: minItems is more than the values of an item");
          return unique_body(rule, array, *values);
        }
      }
      document_.widen(set.of(Facet::kOwn), {"uniqueItems"});
    }
    const auto prefix = static_cast<int64_t>(first.size());
    Rules needs;
    for (size_t i = 0; i < first.size() && static_cast<int64_t>(i) < least; ++i)
      needs.push_back(rules_.rule_of(first[i]));
    if (least > prefix) needs.push_back(rules_.rule_of(*rest));
    const std::string item = rest ? GrammarRules::name_of(rules_.rule_of(*rest)) : "";
    rules_.add_alternative(rule, std::move(needs));
    if (first.empty()) return fmt::format("\"[\" ws {} \"]\"", rest ? list_of(item, least, most) : "\"\"");
    // A chain of rules, each: the item in its place and what follows it.
    const std::string chain = rules_.new_helper();
    for (size_t i = 0; i <= first.size(); ++i) {
      std::string body = "ws";
      if (i < first.size()) {
        body = fmt::format("{}{} {}_{}", i > 0 ? "\",\" ws " : "", GrammarRules::name_of(rules_.rule_of(first[i])),
                           chain, i + 1);
        if (static_cast<int64_t>(i) >= least) body += i > 0 ? " | ws" : " | \"\"";
      } else if (rest) {
        const std::optional<int64_t> more = most ? std::optional(*most - prefix) : std::nullopt;
        body = fmt::format("(\",\" ws {}){} ws", item, repetition(std::max<int64_t>(0, least - prefix), more));
      }
      rules_.emit(fmt::format("{}_{}", chain, i), body);
    }
    return fmt::format("\"[\" ws {}_0 \"]\"", chain);
  }

  // Each of the values at most once: a rule for each set of those that have come.
  std::string unique_body(size_t rule, const Array& array, const std::vector<const Json*>& values) {
    const SchemaPlace at = rules_.set(rule).begin;
    const std::string prefix = rules_.new_helper();
    const size_t all = size_t{1} << values.size();
    for (size_t come = 0; come < all; ++come) {
      std::vector<std::string> choices;
      const int64_t count = std::popcount(come);
      for (size_t i = 0; i < values.size() && (!array.most || count < *array.most); ++i) {
        if ((come >> i & 1) != 0) continue;
        choices.push_back(fmt::format("{}{} {}_{}", come == 0 ? "" : "\",\" ws ", literal(dumped(at, *values[i])),
                                      prefix, come | size_t{1} << i));
      }
      if (count >= array.least) choices.emplace_back(come == 0 ? "\"\"" : "ws");
      if (choices.empty()) continue;
      rules_.emit(fmt::format("{}_{}", prefix, come), fmt::format("{}", fmt::join(choices, " | ")));
    }
    rules_.add_alternative(rule, {});
    return fmt::format("\"[\" ws {}_0 \"]\"", prefix);
  }

  // The properties in their order, then the others, with commas. A state is how many have come, as far as it counts,
  // and the place in the order.
  std::string property_chain(const SchemaPlace& at, const Object& object, const std::string& other) {
    const std::string prefix = rules_.new_helper();
    const int64_t places = std::ssize(object.named), least = object.least;
    const bool bounded = object.most && (!other.empty() || *object.most < places);
    const int64_t most = bounded ? *object.most : INT64_MAX;
    const int64_t counted = std::max<int64_t>(1, std::min(places, bounded ? std::max(least, most) : least));
    std::vector<int64_t> required_from(static_cast<size_t>(places) + 1);
    for (int64_t i = places; i-- > 0;) {
      const auto at_i = static_cast<size_t>(i);
      required_from[at_i] = required_from[at_i + 1] + (object.named[at_i].required ? 1 : 0);
    }
    const auto state = [&](int64_t come, int64_t i) { return fmt::format("{}_{}_{}", prefix, come, i); };
    const auto may_be = [&](int64_t come, int64_t i) {
      return come + (places - i) + (other.empty() ? 0 : 1) >= least &&
             come + required_from[static_cast<size_t>(i)] <= most;
    };
    for (int64_t i = 0; i < places; ++i) {
      const Property& property = object.named[static_cast<size_t>(i)];
      const std::string pair = fmt::format("{} ws {}", literal(dumped(at, property.name) + ":"),
                                           GrammarRules::name_of(rules_.rule_of(property.value)));
      for (int64_t come = 0; come <= std::min(i, counted); ++come) {
        if (!may_be(come, i)) continue;
        std::vector<std::string> choices;
        if (may_be(come + 1, i + 1))
          choices.push_back(
              fmt::format("{}{} {}", come > 0 ? "\",\" ws " : "", pair, state(std::min(come + 1, counted), i + 1)));
        if (!property.required && may_be(come, i + 1)) choices.push_back(state(come, i + 1));
        rules_.emit(state(come, i), fmt::format("{}", fmt::join(choices, " | ")));
      }
    }
    for (int64_t come = 0; come <= std::min(places, counted); ++come) {
      if (!may_be(come, places)) continue;
      const int64_t wanted = std::max<int64_t>(0, least - come);
      const auto room = bounded ? std::optional(most - come) : std::nullopt;
      const bool any = !other.empty() && most > come;
      std::string end = come > 0 ? "ws" : "\"\"";
      if (any)
        end = come > 0 ? fmt::format("(\",\" ws {}){} ws", other, repetition(wanted, room))
                       : list_of(other, wanted, room);
      rules_.emit(state(come, places), end);
    }
    return state(0, 0);
  }

  // Those that all name; if none does, those that their keywords are about; if there are none, all.
  [[nodiscard]] JsonTypes types_of(const SchemaSet& set) const {
    JsonTypes implied, named = JsonTypes::all();
    bool any_named = false;
    for (const SchemaPart& part : set.parts) {
      implied = implied.either(implied_types(*part.at.schema));
      if (!part.at.schema->contains("type")) continue;
      named = named.both(document_.types(part.at));
      any_named = true;
    }
    return any_named || implied.empty() ? named : implied;
  }

  // The values that enum and const list, as far as all schemas of the set allow them; none where it has neither.
  std::optional<std::vector<const Json*>> values_of(const SchemaSet& set) {
    const SchemaPlaces all = set.of(Facet::kOwn);
    for (const SchemaPlace& at : all) {
      const auto values = document_.values(at);
      if (values.empty()) continue;
      std::vector<const Json*> out;
      for (const Json* value : values) {
        const auto allowed = [&](const SchemaPlace& each) { return allows(each, *value); };
        const auto is_same = [&](const Json* other) { return is_equal(*value, *other); };
        if (std::ranges::none_of(out, is_same) && std::ranges::all_of(all, allowed)) out.push_back(value);
      }
      return out;
    }
    return std::nullopt;
  }

  Object object_of(const SchemaSet& set) {
    const SchemaPlaces all = set.of(Facet::kOwn);
    const auto [least, most] = document_.counts(all, "minProperties", "maxProperties");
    Object out{.least = least, .most = most};
    std::vector<std::string> order;
    std::set<std::string> known, required;
    const auto add = [&](const std::string& name) {
      if (known.insert(name).second) order.push_back(name);
    };
    SchemaPlaces of_names;
    for (const SchemaPlace& at : all) {
      for (const auto& member : document_.members(at, "properties")) add(member.first);
      if (at.schema->contains("propertyNames")) of_names.push_back(document_.child(at, "propertyNames"));
    }
    for (const SchemaPlace& at : all)
      for (const std::string& name : document_.names(at, "required")) {
        add(name);
        required.insert(name);
      }
    TextSets& sets = strings_.sets();
    TextSets::Id names = TextSets::kAnything;
    if (!of_names.empty()) {
      const SchemaSet allowed = document_.together({.begin = of_names.front()}, of_names);
      if (allowed.is_false || !types_of(allowed).has(JsonType::kString)) {
        names = TextSets::kNone;
      } else if (document_.choice(allowed)) {
        document_.widen(all, {"propertyNames"});
      } else if (const auto values = values_of(allowed)) {
        std::vector<TextSets::Id> texts;
        for (const Json* value : *values) {
          if (!value->is_string()) continue;
          texts.push_back(sets.literal(value->get_ref<const std::string&>()));
          if (!is_closed(set)) add(value->get_ref<const std::string&>());
        }
        names = sets.any_of(std::move(texts));
      } else {
        names = strings_.texts(allowed.of(Facet::kOwn), SchemaStrings::Formats::kKept);
      }
    }
    for (const std::string& name : order) {
      const bool is_needed = required.contains(name);
      SchemaSet value = document_.together({.begin = set.begin}, values_of_name(set, name));
      if (sets.has(names, name) && !is_empty(value))
        out.named.push_back({name, std::move(value), is_needed});
      else if (is_needed && !out.impossible)
        out.impossible =
            fmt::format("required: {} is among the properties with no value that is allowed", shortened(name));
    }
    add_others(set, names, known, out);
    if (out.most && out.least > *out.most) out.impossible = "maxProperties is less than minProperties";
    if (out.most && std::ssize(required) > *out.most) out.impossible = "maxProperties is less than what is required";
    if (out.others.empty() && out.least > std::ssize(out.named))
      out.impossible = "minProperties is more than the properties that are allowed";
    return out;
  }

  Array array_of(const SchemaSet& set) {
    const SchemaPlaces all = set.of(Facet::kOwn);
    const auto [least, most] = document_.counts(all, "minItems", "maxItems");
    Array out{.least = least, .most = most};
    std::vector<Items> items;
    size_t first = 0;
    for (const SchemaPlace& at : all) {
      items.push_back(items_of(at));
      first = std::max(first, items.back().first.size());
    }
    for (size_t i = 0; i <= first && (!out.most || static_cast<int64_t>(i) < *out.most); ++i) {
      SchemaPlaces places;
      bool closed = false;
      for (const Items& of : items) {
        const auto place = i < of.first.size() ? std::optional(of.first[i]) : of.rest;
        if (place) places.push_back(*place);
        closed = closed || (!place && !of.first.empty());
      }
      SchemaSet item = document_.together({.begin = set.begin}, places);
      if (closed || is_empty(item))
        out.most = std::min<int64_t>(out.most.value_or(static_cast<int64_t>(i)), static_cast<int64_t>(i));
      else if (i < first)
        out.first.push_back(std::move(item));
      else
        out.rest = std::move(item);
    }
    return out;
  }

  // The schema's property. Null: it has none.
  const Json* property_of(const SchemaPlace& at, const std::string& name) {
    const auto [it, is_new] = properties_.try_emplace(at.schema);
    if (is_new)
      for (const auto& [key, place] : document_.members(at, "properties")) it->second[key] = place.schema;
    const auto property = it->second.find(name);
    return property == it->second.end() ? nullptr : property->second;
  }

  template <class Has>

  // The schemas of a property's value, where `has` tells whether a pattern of patternProperties has its name. Named: it
  // may stand in `properties`.
  SchemaPlaces values_at(const SchemaSet& set, const std::string* name, Has&& has) {
    SchemaPlaces out;
    for (const SchemaPlace& at : set.of(Facet::kOwn)) {
      bool matched = false;
      if (const Json* property = name != nullptr ? property_of(at, *name) : nullptr) {
        out.push_back(document_.child(document_.child(at, "properties"), *name, property));
        matched = true;
      }
      for (const auto& [text, place] : document_.members(at, "patternProperties")) {
        const auto pattern = strings_.pattern(at, text, "patternProperties");
        if (pattern && !has(*pattern)) continue;
        if (pattern) out.push_back(place);
        matched = true;  // a pattern that is not served may have any name
      }
      if (!matched && at.schema->contains("additionalProperties"))
        out.push_back(document_.child(at, "additionalProperties"));
    }
    return out;
  }

  SchemaPlaces values_of_name(const SchemaSet& set, const std::string& name) {
    return values_at(set, &name, [&](TextSets::Id pattern) { return strings_.sets().has(pattern, name); });
  }

  // Whether only properties that are named may come, as where nothing is said of others: a model would invent some.
  [[nodiscard]] static bool is_closed(const SchemaSet& set) {
    return std::ranges::any_of(set.of(Facet::kOwn), [](const SchemaPlace& at) {
      return at.schema->contains("properties") && !at.schema->contains("additionalProperties");
    });
  }

  // The schemas of its items, also where `items` is a list, as before 2020.
  [[nodiscard]] Items items_of(const SchemaPlace& at) const {
    Items out{.first = document_.list(at, "prefixItems")};
    std::string_view rest = "items";
    if (at.schema->contains("items") && at.schema->at("items").is_array()) {
      out.first = document_.list(at, "items");
      rest = "additionalItems";
    }
    if (at.schema->contains(rest)) out.rest = document_.child(at, rest);
    return out;
  }

  [[nodiscard]] bool is_unique(const SchemaSet& set) const {
    bool out = false;
    for (const SchemaPlace& at : set.of(Facet::kOwn)) {
      const auto unique = at.schema->find("uniqueItems");
      if (unique == at.schema->end()) continue;
      if (!unique->is_boolean()) document_.fail(at, "uniqueItems: want true or false");
      out = out || unique->get<bool>();
    }
    return out;
  }

  // All that an item may be. Empty: too many, or not known.
  std::optional<std::vector<const Json*>> few_values(const SchemaSet& items) {
    if (document_.choice(items)) return std::nullopt;
    auto out = values_of(items);
    if (!out) {
      const JsonTypes types = types_of(items);
      const auto has_many = [](JsonType type) { return type != JsonType::kNull && type != JsonType::kBoolean; };
      if (std::ranges::any_of(types.list(), has_many)) return std::nullopt;
      out.emplace();
      for (const Json& value : constants_)
        if (types.holds(value)) out->push_back(&value);
    }
    return out->size() <= kMaxUnique ? out : std::nullopt;
  }

  // Names have or have not each of the patterns of patternProperties; those that have the same ones have one schema.
  void add_others(const SchemaSet& set, TextSets::Id names, const std::set<std::string>& known, Object& out) {
    TextSets& sets = strings_.sets();
    const SchemaPlaces all = set.of(Facet::kOwn);
    std::vector<TextSets::Id> literals, patterns;
    for (const std::string& name : known) literals.push_back(sets.literal(name));
    for (const SchemaPlace& at : all)
      for (const auto& member : document_.members(at, "patternProperties")) {
        const auto pattern = strings_.pattern(at, member.first, "patternProperties");
        if (pattern && std::ranges::find(patterns, *pattern) == patterns.end()) patterns.push_back(*pattern);
      }
    if (patterns.size() > kMaxPatterns) {
      document_.widen(all, {"patternProperties"});
      out.others.emplace_back(sets.all_of({names, sets.others_than(sets.any_of(literals))}),
                              SchemaSet{.begin = set.begin});
      return;
    }
    for (size_t mask = 0; mask < size_t{1} << patterns.size(); ++mask) {
      if (mask == 0 && is_closed(set)) continue;
      const auto has = [&](TextSets::Id pattern) {
        return (mask >> static_cast<size_t>(std::ranges::find(patterns, pattern) - patterns.begin()) & 1) != 0;
      };
      std::vector<TextSets::Id> keys = {names, sets.others_than(sets.any_of(literals))};
      for (const TextSets::Id pattern : patterns) keys.push_back(has(pattern) ? pattern : sets.others_than(pattern));
      const TextSets::Id key = sets.all_of(std::move(keys));
      if (strings_.is_none(key)) continue;
      SchemaSet value = document_.together({.begin = set.begin}, values_at(set, nullptr, has));
      if (!is_empty(value)) out.others.emplace_back(key, std::move(value));
    }
  }

  // Whether an own part allows the value; of an object or a list, its keywords about them are widened.
  bool allows(const SchemaPlace& at, const Json& value) {
    const Json& schema = *at.schema;
    const auto is_same = [&](const Json& other) { return is_equal(value, other); };
    if (schema.contains("type") && !document_.types(at).holds(value)) return false;
    if (schema.contains("const") && !is_same(schema.at("const"))) return false;
    if (schema.contains("enum") && std::ranges::none_of(schema.at("enum"), is_same)) return false;
    if (value.is_number()) return allows_number(document_, at, value);
    if (value.is_structured())
      document_.widen({at}, keywords_of(value.is_object() ? JsonType::kObject : JsonType::kArray));
    if (!value.is_string()) return true;
    const auto& text = value.get_ref<const std::string&>();
    // A format is narrower here than elsewhere, so that the value counts.
    if (!strings_.sets().has(strings_.texts({at}, SchemaStrings::Formats::kKept), text)) document_.widen(at, "format");
    return strings_.sets().has(strings_.texts({at}), text);
  }

  // Whether it is proven that nothing satisfies the set.
  bool is_empty(const SchemaSet& set) {
    if (set.is_false) return true;
    if (proofs_ >= kMaxProofs) return false;
    const auto [it, is_new] = empty_.try_emplace(set.key(), false);  // while it is asked: not proven
    if (!is_new) return it->second;
    ++proofs_;
    bool out = false;
    if (const auto choice = document_.choice(set)) {
      out = std::ranges::all_of(choice->options, [&](const SchemaPlace& option) {
        return is_empty(document_.together(choice->rest, {option}));
      });
    } else if (const auto values = values_of(set)) {
      out = values->empty();
    } else {
      out = std::ranges::all_of(types_of(set).list(), [&](JsonType type) { return is_empty_of(set, type); });
    }
    --proofs_;
    return empty_[set.key()] = out;
  }

  bool is_empty_of(const SchemaSet& set, JsonType type) {
    const SchemaPlaces all = set.of(Facet::kOwn);
    switch (type) {
      case JsonType::kNull:
      case JsonType::kBoolean: return false;
      case JsonType::kInteger: return has_no_number(document_, all, Numbers::kWhole);
      case JsonType::kNumber: return has_no_number(document_, all, Numbers::kAll);
      case JsonType::kString: return strings_.is_none(strings_.texts(all));
      case JsonType::kArray: {
        const Array array = array_of(set);
        return array.most && array.least > *array.most;
      }
      case JsonType::kObject: return object_of(set).impossible.has_value();
    }
    return false;
  }

  std::string dumped(const SchemaPlace& at, const Json& value) const {
    try {
      return value.dump();
    } catch (const nlohmann::ordered_json::exception&) {
      document_.fail(at, "a text that is not UTF-8");
    }
  }

  SchemaDocument document_;
  GrammarRules rules_;
  SchemaStrings strings_;
  std::map<SchemaSet::Key, bool> empty_;
  std::unordered_map<const Json*, std::unordered_map<std::string, const Json*>> properties_;  // by name, of a schema
  int proofs_ = 0;
  const Json constants_ = {false, true, nullptr};
};

}  // namespace

JsonGrammar json_schema_grammar(const Json& schema, std::string_view where) {
  return SchemaGrammar(schema, where).write();
}

std::string json_object_grammar() { return shared_rules() + "root ::= object\n"; }

}  // namespace nibble::text
