#pragma once
// A JSON Schema document as json_grammar reads it: its limits, references and types. Nothing here recurses over the
// document.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::text {

enum class JsonType : uint8_t { kNull, kBoolean, kInteger, kNumber, kString, kArray, kObject };
inline constexpr int kJsonTypes = 7;
std::string_view name_of(JsonType type);

class JsonTypes {  // a set
 public:
  JsonTypes() = default;
  void add(JsonType type) { bits_ |= bit(type); }
  [[nodiscard]] bool has(JsonType type) const { return (bits_ & bit(type)) != 0; }
  [[nodiscard]] bool empty() const { return bits_ == 0; }
  // An integer is a number.
  [[nodiscard]] bool holds(const nlohmann::ordered_json& value) const;
  [[nodiscard]] static JsonTypes all() { return JsonTypes((1U << kJsonTypes) - 1); }
  [[nodiscard]] JsonTypes both(JsonTypes other) const;
  [[nodiscard]] JsonTypes either(JsonTypes other) const { return JsonTypes(bits_ | other.bits_); }
  [[nodiscard]] std::vector<JsonType> list() const;

 private:
  explicit JsonTypes(unsigned bits) : bits_(bits) {}
  static unsigned bit(JsonType type) { return 1U << static_cast<unsigned>(type); }
  unsigned bits_ = 0;
};

// Its beginning, for a message: whole characters, and none that controls a terminal.
[[nodiscard]] std::string shortened(std::string_view text);

// A schema inside the document, and where it stands: `#/properties/a`.
struct SchemaPlace {
  const nlohmann::ordered_json* schema;
  std::string path;
};
using SchemaPlaces = std::vector<SchemaPlace>;

// What of a schema is meant: its keywords but $ref, allOf, anyOf and oneOf, or one of its choices.
enum class Facet : uint8_t { kOwn, kAnyOf, kOneOf };
struct SchemaPart {
  SchemaPlace at;
  Facet facet = Facet::kOwn;
};

// Schemas that a value satisfies together. No part: any value does.
struct SchemaSet {
  using Key = std::vector<std::pair<const nlohmann::ordered_json*, Facet>>;

  SchemaPlace begin;  // where it stands, for messages
  std::vector<SchemaPart> parts{};
  bool is_false = false;

  [[nodiscard]] Key key() const;
  [[nodiscard]] SchemaPlaces of(Facet facet) const;
};

// What a choice leaves to do: the set without it, and the schemas of which one holds.
struct SchemaChoice {
  SchemaPlace at;  // of the keyword
  SchemaSet rest;
  SchemaPlaces options;
  bool exclusive = false;  // oneOf
};

struct Counts {
  int64_t least = 0;
  std::optional<int64_t> most{};
};

class SchemaDocument {
 public:
  // The schema and `where` must outlive this. Throws Error(kInvalidRequest), like every function here, for a document
  // past the limits and a keyword whose value is none.
  SchemaDocument(const nlohmann::ordered_json& root, std::string_view where);

  [[nodiscard]] SchemaPlace root() const { return {&root_, "#"}; }
  [[noreturn]] void fail(const SchemaPlace& at, std::string_view what) const;
  // The keyword is not kept.
  void widen(const SchemaPlace& at, std::string_view keyword);
  void widen(const SchemaPlaces& all, const std::vector<std::string_view>& keywords);  // those that stand there
  // Pointers to the keywords that are not kept, each once.
  [[nodiscard]] const std::vector<std::string>& widened() const { return widened_; }

  // What stands there, if it is known, need not be looked for.
  [[nodiscard]] static SchemaPlace child(const SchemaPlace& at, std::string_view key,
                                         const nlohmann::ordered_json* there = nullptr);
  [[nodiscard]] static SchemaPlace item(const SchemaPlace& at, size_t idx);
  // By its $ref. Empty: it is outside the document, and widened.
  [[nodiscard]] std::optional<SchemaPlace> referenced(const SchemaPlace& at);
  // The set, more schemas, and what they refer to.
  [[nodiscard]] SchemaSet together(SchemaSet set, const SchemaPlaces& more);
  [[nodiscard]] std::optional<SchemaChoice> choice(const SchemaSet& set) const;  // the first

  // The list of a keyword, of schemas or of names; none where it is absent.
  [[nodiscard]] SchemaPlaces list(const SchemaPlace& at, std::string_view keyword) const;
  [[nodiscard]] std::vector<std::string> names(const SchemaPlace& at, std::string_view keyword) const;
  // The schemas by name of properties and patternProperties.
  [[nodiscard]] std::vector<std::pair<std::string, SchemaPlace>> members(const SchemaPlace& at,
                                                                         std::string_view keyword) const;
  // The types that `type` names; empty: it is absent.
  [[nodiscard]] JsonTypes types(const SchemaPlace& at) const;
  // The values of enum or const; empty: neither is there.
  [[nodiscard]] std::vector<const nlohmann::ordered_json*> values(const SchemaPlace& at) const;
  // What the two keywords leave, of which each may stand in several schemas. Clipped at kMaxRepetitions.
  [[nodiscard]] Counts counts(const SchemaPlaces& all, std::string_view least, std::string_view most);
  // Null: the keyword is absent.
  [[nodiscard]] const std::string* text(const SchemaPlace& at, std::string_view keyword) const;
  [[nodiscard]] const nlohmann::ordered_json* number(const SchemaPlace& at, std::string_view keyword) const;

 private:
  void expect_within_limits();
  std::optional<int64_t> count(const SchemaPlace& at, std::string_view keyword);
  void add(SchemaSet& set, const SchemaPlace& at, struct Visited& visited);
  const nlohmann::ordered_json& root_;
  std::string_view where_;
  bool has_ids_ = false;  // inside, so that references may start elsewhere
  std::vector<std::string> widened_;
};

// The keywords about values of the type.
[[nodiscard]] std::vector<std::string_view> keywords_of(JsonType type);
// The types that the keywords of a schema are about.
[[nodiscard]] JsonTypes implied_types(const nlohmann::ordered_json& schema);

}  // namespace nibble::text
