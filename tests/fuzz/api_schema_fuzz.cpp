// Any body either becomes a request whose conversation can be read, or is refused by an ApiError. The first byte
// chooses the endpoint.

#include "base/error.h"
#include "server/json_fields.h"
#include "server/schema.h"
#include "text/harmony_render.h"

#include <string_view>

namespace {

using namespace nibble::server;

void parse(unsigned char endpoint, const Json& body) {
  const auto previous = [](const std::string&) { return StoredTurn(); };
  if (endpoint % 6 == 0) {
    const TurnRequest turn = parse_chat(body);
    nibble::check(!turn.history.empty() || !turn.instructions.empty(), "a chat says something");
    nibble::check(!nibble::text::render_for_completion({turn.history}).empty(), "a history renders");
  } else if (endpoint % 6 == 1) {
    nibble::check(!parse_completion(body).prompts.empty(), "a completion has a prompt");
  } else if (endpoint % 6 == 3) {
    const TurnRequest turn = parse_messages(body, MessagesFor::kAnswer);
    nibble::check(!nibble::text::render_for_completion({turn.history}).empty(), "messages render");
  } else if (endpoint % 6 == 2) {
    nibble::check(!to_text(parse_responses(body, previous).echoed).empty(), "a response repeats its fields");
  } else {
    const TurnRequest turn = parse_ollama(body, endpoint % 6 == 4 ? OllamaFor::kChat : OllamaFor::kGenerate);
    nibble::check(!nibble::text::render_for_completion({turn.history}).empty(), "one of Ollama's renders");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    parse(data[0], parse_json({reinterpret_cast<const char*>(data) + 1, size - 1}));
  } catch (const nibble::Error& e) {
    nibble::check(e.code() == nibble::Code::kInvalidRequest || e.code() == nibble::Code::kUnsupported,
                  "a client's error");
  }
  return 0;
}
