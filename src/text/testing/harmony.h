#pragma once
// Test only: reads tests/data/harmony_goldens.json (written by tools/make_harmony_goldens.py).

#include "base/error.h"
#include "text/conversation.h"
#include "text/harmony_tokens.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace nibble::text::goldens {

using Json = nlohmann::ordered_json;

inline std::optional<std::string> optional_string(const Json& object, const char* key) {
  if (!object.contains(key) || object.at(key).is_null()) return std::nullopt;
  return object.at(key).get<std::string>();
}

inline SystemOptions system_of(const Json& json) {
  SystemOptions out;
  out.identity = optional_string(json, "identity");
  out.knowledge_cutoff = optional_string(json, "knowledge_cutoff");
  out.current_date = optional_string(json, "current_date");
  out.effort.reset();
  const std::string effort = optional_string(json, "effort").value_or("");
  if (effort == "low") out.effort = ReasoningEffort::kLow;
  if (effort == "medium") out.effort = ReasoningEffort::kMedium;
  if (effort == "high") out.effort = ReasoningEffort::kHigh;
  out.valid_channels = json.at("valid_channels").get<std::vector<std::string>>();
  out.channel_required = json.at("channel_required").get<bool>();
  return out;
}

inline DeveloperOptions developer_of(const Json& json) {
  DeveloperOptions out;
  out.instructions = optional_string(json, "instructions");
  for (const Json& function : json.at("functions")) {
    ToolSpec tool{function.at("name").get<std::string>(), function.at("description").get<std::string>(), std::nullopt};
    if (function.contains("parameters")) tool.parameters = function.at("parameters");
    if (function.contains("space"))
      tool.space = {function.at("space").get<std::string>(), function.at("space_description").get<std::string>()};
    out.tools.push_back(std::move(tool));
  }
  return out;
}

// The messages tell of built-in tools, which are not served.
inline bool has_built_in_tools(const Json& messages) {
  for (const Json& message : messages)
    for (const Json& part : message.at("content"))
      if (part.contains("system") && (part["system"].at("browser") == true || part["system"].at("python") == true))
        return true;
  return false;
}

// Read once.
inline const Json& document() {
  static const Json json = [] {
    std::ifstream file(NIBBLE_SOURCE_DIR "/tests/data/harmony_goldens.json");
    check(file.good(), "tests/data/harmony_goldens.json is missing");
    return Json::parse(file);
  }();
  return json;
}

inline HarmonyIds harmony_ids() {
  return HarmonyIds::from_names([](std::string_view name) -> std::optional<int32_t> {
    return document().at("specials").at(std::string(name.substr(2, name.size() - 4))).get<int32_t>();
  });
}

// What "<|constrain|>json" or "json" says.
inline ContentType content_type_of(const std::string& harmony_form) {
  const std::string_view marker = "<|constrain|>";
  if (!harmony_form.starts_with(marker)) return {harmony_form, false};
  return {harmony_form.substr(marker.size()), true};
}

inline Conversation conversation_of(const Json& messages) {
  Conversation out;
  for (const Json& json : messages) {
    Message message;
    message.role = role_named(json.at("role").get<std::string>()).value();
    message.name = optional_string(json, "name").value_or("");
    message.recipient = optional_string(json, "recipient");
    message.channel = optional_string(json, "channel");
    if (const auto type = optional_string(json, "content_type")) message.content_type = content_type_of(*type);
    for (const Json& part : json.at("content"))
      if (part.is_string())
        message.content.emplace_back(part.get<std::string>());
      else if (part.contains("system"))
        message.content.emplace_back(system_of(part.at("system")));
      else
        message.content.emplace_back(developer_of(part.at("developer")));
    out.messages.push_back(std::move(message));
  }
  return out;
}

struct Rendered {
  std::vector<int32_t> ids;
  std::vector<Segment> pieces;  // neighbouring texts joined
};
inline Rendered rendered(const Json& golden) {
  Rendered out;
  out.ids = golden.at("ids").get<std::vector<int32_t>>();
  for (const Json& piece : golden.at("pieces"))
    if (piece.is_string())
      out.pieces.emplace_back(piece.get<std::string>());
    else
      out.pieces.emplace_back(harmony_ids().special_of(piece.get<int32_t>()).value());
  return out;
}

// Neighbouring texts joined.
inline std::vector<Segment> joined(const std::vector<Segment>& segments) {
  std::vector<Segment> out;
  for (const Segment& segment : segments)
    if (!out.empty() && std::holds_alternative<std::string>(segment) && std::holds_alternative<std::string>(out.back()))
      std::get<std::string>(out.back()) += std::get<std::string>(segment);
    else
      out.push_back(segment);
  return out;
}

}  // namespace nibble::text::goldens
