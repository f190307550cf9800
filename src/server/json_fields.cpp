#include "server/json_fields.h"

#include "base/ascii.h"
#include "base/read_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <unordered_set>
#include <utility>

namespace nibble::server {
namespace {

ApiError want(const std::string& path, std::string_view what, const Json& found, const char* code = "invalid_type") {
  std::string text = to_text(found);
  if (text.size() > 60) text = fmt::format("{} of {} bytes", found.type_name(), text.size());
  return {path, fmt::format("{}: want {}, found {}", path.empty() ? "the request" : path, what, text), 400, code};
}

bool is_empty(const Json& value) {
  return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
}

// What the library calls for each value. Its own builder compares a name with every other of the object, and looks
// through an array again at the end of each object in it.
class Builder {
 public:
  Json take() { return std::move(values_.front()); }

  // NOLINTBEGIN(readability-identifier-naming): the library's names
  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string& /*text*/) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t& /*value*/) { return false; }  // no JSON
  bool start_object(size_t /*size*/) { return open(); }
  bool start_array(size_t /*size*/) { return open(); }
  bool key(std::string& name) {
    names_.push_back(std::move(name));
    return true;
  }
  bool end_object() {
    const auto [values, names] = close();
    std::unordered_set<std::string_view> seen;
    for (size_t i = names; i < names_.size(); ++i)
      if (!seen.insert(names_[i]).second)
        throw ApiError(names_[i], fmt::format("the field {} stands twice in one object", names_[i]));
    Json::object_t object;
    object.reserve(names_.size() - names);
    for (size_t i = 0; names + i < names_.size(); ++i)
      object.emplace_back(std::move(names_[names + i]), std::move(values_[values + i]));
    names_.resize(names);
    values_.resize(values);
    return add(std::move(object));
  }
  bool end_array() {
    const size_t values = close().values;
    const auto begin = values_.begin() + static_cast<int64_t>(values);
    Json::array_t array(std::make_move_iterator(begin), std::make_move_iterator(values_.end()));
    values_.resize(values);
    return add(std::move(array));
  }
  bool parse_error(size_t /*at*/, const std::string& /*token*/, const nlohmann::detail::exception& error) {
    throw ApiError("", fmt::format("the body is no JSON: {}", plain_json_error(error.what())));
  }
  // NOLINTEND(readability-identifier-naming)

 private:
  struct Open {
    size_t values, names;  // how many there were before it
  };
  template <class T>
  bool add(T&& value) {
    values_.emplace_back(std::forward<T>(value));
    return true;
  }
  bool open() {
    if (open_.size() >= size_t{kMostJsonDepth})
      throw ApiError("", fmt::format("the JSON nests deeper than {}", kMostJsonDepth));
    open_.push_back({values_.size(), names_.size()});
    return true;
  }
  Open close() {
    const Open closed = open_.back();
    open_.pop_back();
    return closed;
  }

  std::vector<Json> values_;        // of everything that is open, one behind the other
  std::vector<std::string> names_;  // names in the objects among it
  std::vector<Open> open_;
};

template <class T>
T in_range(T number, Range<T> range, const std::string& path, const Json& found) {
  if (number < range.least || number > range.most)
    throw want(path, fmt::format("a number from {} to {}", range.least, range.most), found, "invalid_value");
  return number;
}

}  // namespace

Json parse_json(std::string_view text) {
  Builder builder;
  static_cast<void>(Json::sax_parse(text, &builder));
  return builder.take();
}

bool boolean_of(const Json& value, const std::string& path) {
  if (!value.is_boolean()) throw want(path, "true or false", value);
  return value.get<bool>();
}

int64_t integer_of(const Json& value, const std::string& path) {
  constexpr double kExact = 9007199254740992;  // 2^53: every whole double below is exact
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::abs(number) <= kExact && number == std::floor(number)) return static_cast<int64_t>(number);
  }
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}))
    throw want(path, "a whole number of 64 bits", value);
  return value.get<int64_t>();
}

double number_of(const Json& value, const std::string& path) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) throw want(path, "a number", value);
  return value.get<double>();
}

std::string string_of(const Json& value, const std::string& path) {
  if (!value.is_string()) throw want(path, "a string", value);
  return value.get<std::string>();
}

const Json& array_of(const Json& value, std::string_view path) {
  if (!value.is_array()) throw want(std::string(path), "an array", value);
  return value;
}

std::vector<int32_t> token_ids_of(const Json& value, const std::string& path) {
  std::vector<int32_t> ids;
  for (const Json& item : array_of(value, path)) {
    const int64_t id = integer_of(item, path);
    if (id < 0 || id > INT32_MAX) throw invalid_value(path, "want token ids from 0 on, found {}", id);
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

void Leniency::ignore(std::string_view path) {
  constexpr size_t kMost = 32, kMostBytes = 160;
  std::string name;
  for (const char c : path.substr(0, kMostBytes)) {
    const bool index = is_digit(c) && name.ends_with('[');  // which of them says nothing
    if (!index) name += is_word_char(c, "_-.[] #/$~") ? c : '?';
  }
  if (ignored.size() < kMost && std::ranges::find(ignored, name) == ignored.end()) ignored.push_back(std::move(name));
}

Fields::Fields(const Json& json, Place place) : json_(&json), place_(std::move(place)) {
  if (!json.is_object()) throw want(place_.path, "an object", json);
}

std::string Fields::path(std::string_view name) const {
  return place_.path.empty() ? std::string(name) : fmt::format("{}.{}", place_.path, name);
}

void Fields::ignore_all(std::string_view what) {
  ignored_ = true;
  if (place_.leniency != nullptr) place_.leniency->ignore(path(what));
}

const Json* Fields::find(std::string_view name) {
  const auto known = known_.emplace(name).first;
  const auto it = json_->find(*known);
  return it == json_->end() || it->is_null() ? nullptr : &*it;
}

std::optional<int64_t> Fields::integer(std::string_view name, Range<int64_t> range) {
  const auto number = read(name, integer_of);
  return number ? std::optional(in_range(*number, range, path(name), *find(name))) : std::nullopt;
}

std::optional<double> Fields::number(std::string_view name, Range<double> range) {
  const auto number = read(name, number_of);
  return number ? std::optional(in_range(*number, range, path(name), *find(name))) : std::nullopt;
}

const Json* Fields::array(std::string_view name) {
  const Json* value = find(name);
  return value == nullptr ? nullptr : &array_of(*value, path(name));
}

std::optional<Fields> Fields::object(std::string_view name) {
  const Json* value = find(name);
  return value == nullptr ? std::nullopt : std::optional(Fields(*value, place(name)));
}

const Json& Fields::required(std::string_view name, std::string_view what) {
  const Json* value = find(name);
  if (value != nullptr) return *value;
  throw ApiError(path(name), fmt::format("{}: want {}, found nothing", path(name), what), 400,
                 "missing_required_parameter");
}

std::optional<size_t> Fields::choice(std::string_view name, std::initializer_list<std::string_view> words) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto it =
      value->is_string() ? std::find(words.begin(), words.end(), value->get_ref<const std::string&>()) : words.end();
  if (it == words.end()) throw want(path(name), fmt::format("{}", fmt::join(words, " or ")), *value, "invalid_value");
  return static_cast<size_t>(it - words.begin());
}

size_t Fields::required_choice(std::string_view name, std::initializer_list<std::string_view> words) {
  static_cast<void>(required(name, fmt::format("{}", fmt::join(words, " or "))));
  return *choice(name, words);
}

void Fields::ignore_strings(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) static_cast<void>(string(name));
}

void Fields::ignore_booleans(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) static_cast<void>(boolean(name));
}

void Fields::ignore_arrays(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) static_cast<void>(array(name));
}

void Fields::refuse(std::initializer_list<std::string_view> names, std::string_view why) {
  for (const std::string_view name : names) {
    const Json* value = find(name);
    if (value != nullptr && !is_empty(*value))
      throw ApiError(path(name), fmt::format("{} is not supported: {}", path(name), why), 400, "unsupported_parameter");
  }
}

void Fields::only(std::string_view name, const Json& served, std::string_view why) {
  const Json* value = find(name);
  if (value == nullptr || *value == served) return;
  throw unsupported_value(path(name), "only {} is supported: {}", to_text(served), why);
}

void Fields::done() const {
  for (const auto& [name, value] : json_->items()) {
    if (ignored_ || value.is_null() || known_.contains(name)) continue;
    if (place_.leniency != nullptr && place_.leniency->unknown_fields) {
      place_.leniency->ignore(path(name));
      continue;
    }
    throw ApiError(path(name), fmt::format("there is no field {}", path(name)), 400, "unknown_parameter");
  }
}

}  // namespace nibble::server
