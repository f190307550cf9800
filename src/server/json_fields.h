#pragma once
// Reads a request's JSON strictly: every value is checked, and a field that nobody reads is refused by name, or noted.

#include "server/api_error.h"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::server {

// In time proportional to the text, whatever it is. Throws ApiError for text that is not JSON or not UTF-8, is deeper
// than kMostJsonDepth, has a name twice in one object, or has a number that no double holds.
[[nodiscard]] Json parse_json(std::string_view text);

// Return the typed value, or throw ApiError naming `path`.
[[nodiscard]] bool boolean_of(const Json& value, const std::string& path);
[[nodiscard]] int64_t integer_of(const Json& value, const std::string& path);  // 5.0 is 5
[[nodiscard]] double number_of(const Json& value, const std::string& path);    // finite
[[nodiscard]] std::string string_of(const Json& value, const std::string& path);
[[nodiscard]] const Json& array_of(const Json& value, std::string_view path);
[[nodiscard]] std::vector<int32_t> token_ids_of(const Json& value, const std::string& path);  // from 0 on

template <class T>
struct Range {
  T least, most;
};

// What a request has that asks for nothing this server does, and whether that is let pass.
struct Leniency {
  bool unknown_fields = true;  // fields that nobody reads; false: they are refused
  bool images = true;          // a text takes their place; false: they are refused

  std::vector<std::string> ignored{};  // where what was let pass stands, each once; fit for a header and a log
  int64_t images_left_out = 0;

  void ignore(std::string_view path);
};

// Where a value stands in a request. Without a leniency nothing unknown passes.
struct Place {
  std::string path;  // empty: the request itself
  Leniency* leniency = nullptr;

  [[nodiscard]] Place item(size_t index) const { return {fmt::format("{}[{}]", path, index), leniency}; }
};

// One object. Every reader marks its name as known; null is the same as absent.
class Fields {
 public:
  // Throws unless `json` is an object; it outlives this.
  Fields(const Json& json, Place place);
  Fields(const Json& json, std::string path) : Fields(json, Place{std::move(path)}) {}

  [[nodiscard]] const Json* find(std::string_view name);  // null where absent
  [[nodiscard]] std::optional<bool> boolean(std::string_view name) { return read(name, boolean_of); }
  [[nodiscard]] std::optional<int64_t> integer(std::string_view name, Range<int64_t> range);
  [[nodiscard]] std::optional<double> number(std::string_view name, Range<double> range);
  [[nodiscard]] std::optional<std::string> string(std::string_view name) { return read(name, string_of); }
  [[nodiscard]] const Json* array(std::string_view name);
  [[nodiscard]] std::optional<Fields> object(std::string_view name);
  // For a field that must be there; `what`: what it should hold.
  [[nodiscard]] const Json& required(std::string_view name, std::string_view what);
  [[nodiscard]] std::string required_string(std::string_view name) {
    return string_of(required(name, "a string"), path(name));
  }
  [[nodiscard]] Fields required_object(std::string_view name) { return {required(name, "an object"), place(name)}; }
  // Index of the value among the words.
  [[nodiscard]] std::optional<size_t> choice(std::string_view name, std::initializer_list<std::string_view> words);
  [[nodiscard]] size_t required_choice(std::string_view name, std::initializer_list<std::string_view> words);

  // Accepts fields that do not affect the answer; docs/api.md says why for each. Throws ApiError for another type.
  void ignore_strings(std::initializer_list<std::string_view> names);
  void ignore_booleans(std::initializer_list<std::string_view> names);
  void ignore_arrays(std::initializer_list<std::string_view> names);
  // Refuses fields that are known but not served: anything but null, false, "", [] and {} is an ApiError with `why`.
  void refuse(std::initializer_list<std::string_view> names, std::string_view why);
  // Accepts the one value of this field that makes no difference.
  void only(std::string_view name, const Json& value, std::string_view why);
  // Fields that nothing above asked for are noted, or the first is an ApiError that names it.
  void done() const;
  // This object asks for nothing that is done here, whatever else is in it: notes it as `what`.
  void ignore_all(std::string_view what);

  [[nodiscard]] std::string path(std::string_view name) const;
  [[nodiscard]] Place place(std::string_view name) const { return {path(name), place_.leniency}; }
  [[nodiscard]] Leniency* leniency() const { return place_.leniency; }

 private:
  // What `of` makes of the field's value; none where it is absent.
  template <class T>
  std::optional<T> read(std::string_view name, T (*of)(const Json& value, const std::string& path)) {
    const Json* value = find(name);
    return value == nullptr ? std::nullopt : std::optional(of(*value, path(name)));
  }

  const Json* json_;
  Place place_;
  bool ignored_ = false;
  std::set<std::string, std::less<>> known_;
};

}  // namespace nibble::server
