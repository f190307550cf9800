#include "server/parse_json.h"

#include "base/read_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <iterator>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace nibble::server {
namespace {

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
  std::vector<std::string> names_;  // and of objects
  std::vector<Open> open_;
};

}  // namespace

Json parse_json(std::string_view text) {
  Builder builder;
  static_cast<void>(Json::sax_parse(text, &builder));
  return builder.take();
}

}  // namespace nibble::server
