#pragma once
// Test only: nibble-tiny's tokenizer, and an engine that plays a script.

#include "base/error.h"
#include "server/generation.h"
#include "server/presenter.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::server::testing {

const text::Tokenizer& tokenizer();
ServedModel model();
// Formatting tokens spelt out, <|end|>, become those tokens.
std::vector<int32_t> tokens(std::string_view harmony);

// Each request gets the tokens of the next script, at once, and a Finished; the last script repeats. A script that ends
// with "…" never finishes. "!" fails.
class ScriptedEngine {
 public:
  explicit ScriptedEngine(std::vector<std::string> scripts) : scripts_(std::move(scripts)) {}
  EnginePort port();

  std::vector<engine::Request> requests;
  std::vector<engine::RequestId> cancelled;
  bool busy = false;              // refuses requests
  Code fails_as = Code::kDevice;  // "!"

 private:
  engine::RequestId submit(engine::Request request, engine::Receiver receiver);
  void cancel(engine::RequestId id);
  std::vector<std::string> scripts_;
  std::map<engine::RequestId, engine::Receiver> open_;
};

}  // namespace nibble::server::testing
