#include "base/read_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble {
namespace {

// Most levels of brackets. What it says of a text that is no JSON means nothing.
int depth_of(std::string_view text) {
  int depth = 0, most = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted && c == '\\') ++i;  // not the end of the string
    if (quoted) continue;
    if (c == '[' || c == '{') most = std::max(most, ++depth);
    if (c == ']' || c == '}') --depth;
  }
  return most;
}

// Before anything is made of it, so that no call is needed for each value.
template <class Json>
Json read(std::string_view text) {
  if (depth_of(text) > kMostJsonDepth) return Json(Json::value_t::discarded);
  return Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
}

}  // namespace

nlohmann::json read_json(std::string_view text) { return read<nlohmann::json>(text); }
nlohmann::ordered_json read_ordered_json(std::string_view text) { return read<nlohmann::ordered_json>(text); }

std::string why_no_json(std::string_view text) {
  if (depth_of(text) > kMostJsonDepth) return fmt::format("more than {} levels", kMostJsonDepth);
  try {
    const nlohmann::json parsed = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    return plain_json_error(e.what());
  }
  return {};
}

std::string text_at(const nlohmann::json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

std::string plain_json_error(std::string_view what) {
  what = what.substr(0, what.find("; last read"));
  const size_t tag = what.find("] ");
  return std::string(tag == std::string_view::npos ? what : what.substr(tag + 2));
}

}  // namespace nibble
