#pragma once
// Test only: reads tests/data/harmony_goldens.json (written by tools/make_harmony_goldens.py).

#include "text/conversation.h"
#include "text/harmony_tokens.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace nibble::text::goldens {

const nlohmann::ordered_json& document();  // read once
HarmonyIds harmony_ids();
Conversation conversation_of(const nlohmann::ordered_json& messages);
ContentType content_type_of(const std::string& harmony_form);  // "<|constrain|>json" or "json"

struct Rendered {
  std::vector<int32_t> ids;
  std::vector<Segment> pieces;  // neighbouring texts joined
};
Rendered rendered(const nlohmann::ordered_json& golden);
std::vector<Segment> joined(const std::vector<Segment>& segments);  // neighbouring texts joined

}  // namespace nibble::text::goldens
