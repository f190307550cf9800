#pragma once
// Reads JSON from untrusted files, and the keys of its objects: what the library would accept or resolve silently is an
// error here.

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::checkpoint {

// Throws Error(kCorrupt), its message beginning with `where`, for text that is no JSON value, names a key twice in one
// object, or nests deeper than 16.
[[nodiscard]] nlohmann::json parse_strict_json(std::string_view text, std::string_view where);

// For messages. A value as JSON text, cut to a readable length.
[[nodiscard]] std::string excerpt_of(const nlohmann::json& value);
// A file's own text (a name, say): cut as an excerpt is; control characters and invalid UTF-8 are escaped.
[[nodiscard]] std::string printable(std::string_view text);

// Whether `words`, with blanks between them, have this one.
[[nodiscard]] bool has_word(std::string_view words, std::string_view word);

struct Limits {
  double low, high;
};

// The keys of one JSON object, for readers of configurations. Each is checked as it is read, and it is known which were
// read. A null counts as absent, which is how Python writes None, but not where a missing key has a default: other
// readers of the file would take the null.
class JsonObject {
 public:
  JsonObject(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw Error(Code::kCorrupt, "{}: want an object, found {}", where_, excerpt_of(object));
  }

  [[nodiscard]] const std::string& where() const { return where_; }

  [[nodiscard]] const nlohmann::json* find(const char* key) {
    read_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  [[nodiscard]] const nlohmann::json& get(const char* key) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) throw Error(Code::kCorrupt, "{}: {} is missing", where_, key);
    return *value;
  }

  [[noreturn]] void unsupported(const char* key, std::string_view want) {
    throw Error(Code::kUnsupported, "{}: {}: want {}, found {}", where_, key, want, excerpt_of(get(key)));
  }

  // The one of two names for the same value that is there.
  [[nodiscard]] const char* either(const char* key, const char* other) {
    return find(key) == nullptr && find(other) != nullptr ? other : key;
  }
  void require_same(const char* key, JsonObject& with, const char* other) {
    const nlohmann::json *mine = find(key), *theirs = with.find(other);
    if (mine == nullptr || theirs == nullptr || *mine == *theirs) return;
    throw Error(Code::kCorrupt, "{}: {}: want {} as {}{} says, which is the same value, found {}", with.where_, other,
                excerpt_of(*mine), where_ == with.where_ ? "" : where_ + ": ", key, excerpt_of(*theirs));
  }

  // Keys that were not read, and are no word of `others`.
  [[nodiscard]] std::vector<std::string> unread(std::string_view others) const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items())
      if (!read_.contains(key) && !has_word(others, key)) keys.push_back(key);
    return keys;
  }

  [[nodiscard]] int64_t integer(const char* key, int64_t low, int64_t high) {
    return integer_of(get(key), key, low, high);
  }
  // Under one of two names, or both.
  [[nodiscard]] int64_t integer(std::pair<const char*, const char*> names, int64_t low, int64_t high) {
    const int64_t value = integer(either(names.first, names.second), low, high);
    require_same(names.first, *this, names.second);
    return value;
  }

  [[nodiscard]] double number(const char* key, Limits limits) {
    const nlohmann::json& value = get(key);
    if (!value.is_number())
      throw Error(Code::kCorrupt, "{}: {}: want a number, found {}", where_, key, excerpt_of(value));
    const auto number = value.get<double>();
    if (!(number >= limits.low && number <= limits.high))
      throw Error(Code::kCorrupt, "{}: {}: want {} to {}, found {}", where_, key, limits.low, limits.high,
                  excerpt_of(value));
    return number;
  }
  [[nodiscard]] double number_or(const char* key, Limits limits, double otherwise) {
    refuse_null(key, "a number");
    return find(key) == nullptr ? otherwise : number(key, limits);
  }

  [[nodiscard]] bool boolean_or(const char* key, bool otherwise) {
    refuse_null(key, "true or false");
    const nlohmann::json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean())
      throw Error(Code::kCorrupt, "{}: {}: want true or false, found {}", where_, key, excerpt_of(*value));
    return value->get<bool>();
  }

  [[nodiscard]] std::optional<int64_t> token_id(const char* key, int64_t vocab) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return std::nullopt;
    return integer_of(*value, key, 0, vocab - 1);
  }

  // One id or a list of them; empty when absent.
  [[nodiscard]] std::vector<int64_t> token_ids(const char* key, int64_t vocab) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_array()) return {integer_of(*value, key, 0, vocab - 1)};
    std::vector<int64_t> ids;
    for (const nlohmann::json& id : *value) ids.push_back(integer_of(id, key, 0, vocab - 1));
    return ids;
  }

 private:
  void refuse_null(const char* key, const char* want) const {
    const auto it = object_.find(key);
    if (it != object_.end() && it->is_null())
      throw Error(Code::kUnsupported, "{}: {}: want {}, found null", where_, key, want);
  }
  [[nodiscard]] int64_t integer_of(const nlohmann::json& value, const char* key, int64_t low, int64_t high) const {
    if (!value.is_number_integer())
      throw Error(Code::kCorrupt, "{}: {}: want an integer, found {}", where_, key, excerpt_of(value));
    const bool too_big = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(high);
    if (too_big || value.get<int64_t>() < low)
      throw Error(Code::kCorrupt, "{}: {}: want {} to {}, found {}", where_, key, low, high, excerpt_of(value));
    return value.get<int64_t>();
  }

  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace nibble::checkpoint
