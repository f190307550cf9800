#include "client/conversations.h"

#include <nlohmann/json.hpp>

namespace nibble::client {
namespace {

using Json = nlohmann::json;

std::string json_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string answer_message(const Outcome& outcome) {
  Json message = {{"role", "assistant"}, {"content", outcome.text}};
  for (const ToolCall& call : outcome.calls)
    message["tool_calls"].push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  std::string text = json_text(message);
  for (const ToolCall& call : outcome.calls)
    text += "," + json_text({{"role", "tool"}, {"tool_call_id", call.id}, {"content", "done"}});
  return text;
}

}  // namespace

Conversations::Conversations(const Workload& workload, uint64_t first, size_t count)
    : workload_(workload), first_(first), said_(count / static_cast<size_t>(workload.turns)) {}

std::string Conversations::body(size_t request) const {
  return body_of(workload_, first_ + request, said_[conversation_of(request)]);
}

void Conversations::ended(size_t request, Outcome& outcome) {
  std::string& said = said_[conversation_of(request)];
  const bool last = request % static_cast<size_t>(workload_.turns) + 1 == static_cast<size_t>(workload_.turns);
  if (last || !outcome.ok()) {
    said = {};
  } else {
    const bool first = said.empty();
    said += (first ? "" : ",") + message_of(workload_, first_ + request, first) + "," + answer_message(outcome);
  }
  outcome.text = {};
  outcome.calls = {};
}

}  // namespace nibble::client
