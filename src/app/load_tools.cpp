#include "app/load_tools.h"

#include "app/text_input.h"
#include "base/error.h"
#include "base/read_json.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string_view>

namespace nibble::app {
namespace {

// Both are short and have no free text, so that a small model's answers end.
constexpr std::string_view kBuiltInTools = R"([
  {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": {
    "type": "object", "required": ["city", "unit"], "additionalProperties": false, "properties": {
      "city": {"enum": ["London", "Paris", "Rome", "Tokyo"]}, "unit": {"enum": ["celsius", "fahrenheit"]}}}}},
  {"type": "function", "function": {"name": "set_lamp", "description": "Turns a lamp on or off", "parameters": {
    "type": "object", "required": ["room", "on"], "additionalProperties": false, "properties": {
      "room": {"enum": ["kitchen", "hall", "bedroom"]}, "on": {"type": "boolean"}}}}}
])";
constexpr std::string_view kBuiltInSchema = R"({
  "type": "object", "required": ["mood", "score", "topics"], "additionalProperties": false, "properties": {
    "mood": {"enum": ["good", "neutral", "bad"]}, "score": {"type": "integer", "minimum": 0, "maximum": 10},
    "topics": {"type": "array", "items": {"enum": ["work", "home", "travel"]}, "maxItems": 3}}
})";

std::string document_named(const char* flag, const std::string& name, std::string_view built_in) {
  const std::string text = name == kBuiltIn ? std::string(built_in) : read_text(std::filesystem::path(name));
  const auto json = read_ordered_json(text);  // a schema's order may matter to a server
  if (json.is_discarded())
    throw Error(Code::kInvalidRequest, "{} {}: want JSON of at most {} levels, found something else", flag, name,
                kMostJsonDepth);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string tools_named(const std::string& name) { return document_named("--tools", name, kBuiltInTools); }
std::string json_schema_named(const std::string& name) { return document_named("--json-schema", name, kBuiltInSchema); }

}  // namespace nibble::app
