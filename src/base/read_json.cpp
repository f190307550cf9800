#include "base/read_json.h"

#include <nlohmann/json.hpp>

namespace nibble {
namespace {

template <class Json>
Json read(std::string_view text) {
  bool too_deep = false;
  const auto on_event = [&too_deep](int depth, typename Json::parse_event_t event, const Json&) {
    using E = typename Json::parse_event_t;
    if ((event == E::object_start || event == E::array_start) && depth >= kMostJsonDepth) too_deep = true;
    return !too_deep;  // false: what follows is not kept
  };
  Json json = Json::parse(text, on_event, /*allow_exceptions=*/false);
  return too_deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace

nlohmann::json read_json(std::string_view text) { return read<nlohmann::json>(text); }
nlohmann::ordered_json read_ordered_json(std::string_view text) { return read<nlohmann::ordered_json>(text); }

std::string plain_json_error(std::string_view what) {
  what = what.substr(0, what.find("; last read"));
  const size_t tag = what.find("] ");
  return std::string(tag == std::string_view::npos ? what : what.substr(tag + 2));
}

}  // namespace nibble
