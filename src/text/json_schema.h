#pragma once
// A JSON Schema document as json_grammar reads it: its limits, references and types. Nothing here recurses over the
// document.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

enum class JsonType : uint8_t { kNull, kBoolean, kInteger, kNumber, kString, kArray, kObject };
inline constexpr int kJsonTypes = 7;
std::string_view name_of(JsonType type);

class JsonTypes {  // a set
 public:
  void add(JsonType type) { bits_ |= bit(type); }
  [[nodiscard]] bool has(JsonType type) const { return (bits_ & bit(type)) != 0; }
  [[nodiscard]] bool empty() const { return bits_ == 0; }
  // An integer is a number.
  [[nodiscard]] bool holds(const nlohmann::ordered_json& value) const;
  [[nodiscard]] bool overlaps(JsonTypes other) const;

 private:
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

class SchemaDocument {
 public:
  // Both must outlive this. Throws Error(kInvalidRequest), like every function here, for a document past the limits.
  SchemaDocument(const nlohmann::ordered_json& root, std::string_view where);

  [[nodiscard]] SchemaPlace root() const { return {&root_, "#"}; }
  [[noreturn]] void fail(const SchemaPlace& at, std::string_view what) const;

  // The schema is an object whose keywords are all known; those of `own`, if not empty, and annotations are the only
  // ones.
  void expect_known(const SchemaPlace& at) const;
  void expect_only(const SchemaPlace& at, const std::vector<std::string_view>& own) const;

  [[nodiscard]] SchemaPlace child(const SchemaPlace& at, std::string_view key) const;
  [[nodiscard]] SchemaPlace item(const SchemaPlace& at, size_t idx) const;
  [[nodiscard]] SchemaPlace referenced(const SchemaPlace& at) const;  // by its $ref

  // The types that `type` names, or the keywords present imply; empty: any value.
  [[nodiscard]] JsonTypes types(const SchemaPlace& at) const;
  // The values of enum or const that `type` allows; empty: neither keyword is there. Throws when none is left.
  [[nodiscard]] std::vector<const nlohmann::ordered_json*> values(const SchemaPlace& at) const;
  [[nodiscard]] std::optional<int64_t> count(const SchemaPlace& at, std::string_view keyword) const;
  [[nodiscard]] const std::string* text(const SchemaPlace& at, std::string_view keyword) const;

  // Whether it is proven that no value satisfies both.
  [[nodiscard]] bool are_disjoint(SchemaPlace a, SchemaPlace b) const;

 private:
  void expect_within_limits() const;
  [[nodiscard]] SchemaPlace followed(SchemaPlace at) const;  // through $ref
  [[nodiscard]] bool has_disjoint_objects(const SchemaPlace& a, const SchemaPlace& b) const;

  const nlohmann::ordered_json& root_;
  std::string_view where_;
};

}  // namespace nibble::text
