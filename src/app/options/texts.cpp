#include "app/options/options.h"

#include "base/error.h"
#include "base/read_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

namespace nibble::app {
namespace {

constexpr const char* kBuiltIn = "builtin";
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

constexpr size_t kMaxTextBytes = size_t{1} << 30;

std::string read_stream(std::FILE* stream, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, stream)) > 0;) {
    text.append(buffer, n);
    if (text.size() > kMaxTextBytes)
      throw Error(Code::kInvalidRequest, "{}: want at most {} bytes, found more", name, kMaxTextBytes);
  }
  if (std::ferror(stream) != 0) throw Error(Code::kIo, "{}: cannot read: {}", name, std::strerror(errno));
  return text;
}

}  // namespace

std::string read_text(const TextInput& input) {
  if (input.file.empty() && input.given) return input.text;
  if (input.file.empty() || input.file == "-") return read_stream(stdin, "standard input");
  return read_text(input.file);
}

std::string read_text(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) throw Error(Code::kIo, "{}: cannot open: {}", path.string(), std::strerror(errno));
  return read_stream(file.get(), path.string());
}

std::string tools_named(const std::string& name) { return document_named("--tools", name, kBuiltInTools); }
std::string json_schema_named(const std::string& name) { return document_named("--json-schema", name, kBuiltInSchema); }

}  // namespace nibble::app
