#pragma once
// Test only: nibble-tiny's tokenizer, and an engine that plays a script.

#include "base/error.h"
#include "server/engine_call.h"
#include "server/presenter.h"
#include "text/tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::server::testing {

inline const text::Tokenizer& tokenizer() {
  static const text::Tokenizer one =
      text::Tokenizer::from_file(std::filesystem::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny/tokenizer.json");
  return one;
}

inline ServedModel model() {
  static const text::GrammarCompiler grammars(tokenizer());
  const auto id_of = [](std::string_view name) { return tokenizer().special_id(name); };
  return {.tokenizer = &tokenizer(),
          .grammars = &grammars,
          .ids = text::HarmonyIds::from_names(id_of),
          .names = {"tiny", "other-name"},
          .eos_ids = {*tokenizer().special_id("<|return|>")},
          .max_context = 2000,
          .vocab = tokenizer().max_id() + 1};
}

// Formatting tokens spelt out, <|end|>, become those tokens.
inline std::vector<int32_t> tokens(std::string_view harmony) {
  return tokenizer().encode(harmony, text::SpecialTokens::kAllowed);
}

// Each request gets the tokens of the next script, at once, and a Finished; the last script repeats. A script that ends
// with "…" never finishes. "!" fails.
class ScriptedEngine {
 public:
  explicit ScriptedEngine(std::vector<std::string> scripts) : scripts_(std::move(scripts)) {}
  EnginePort port();

  std::vector<engine::Request> requests;
  std::vector<engine::RequestId> cancelled;
  bool busy = false;              // refuses requests
  double turn_seconds = 0;        // of its stats
  Code fails_as = Code::kDevice;  // "!"

 private:
  engine::RequestId submit(engine::Request request, engine::Receiver receiver);
  void cancel(engine::RequestId id);
  std::vector<std::string> scripts_;
  std::map<engine::RequestId, engine::Receiver> open_;
};

inline EnginePort ScriptedEngine::port() {
  return {.submit = [this](engine::Request r, engine::Receiver on) { return submit(std::move(r), std::move(on)); },
          .cancel = [this](engine::RequestId id) { cancel(id); },
          .stats =
              [this] {
                return engine::EngineStats{
                    .running = 3,
                    .kv_pages = 4,
                    .kv_pages_used = 1,
                    .prefix_hits = 30,
                    .prompt_tokens = 400,
                    .generated_tokens = 500,
                    .screened_steps = 40,
                    .screened_tiles = 640,
                    .drafts = {.drafts = 20, .tokens = 70, .accepted = 25, .places = 2, .accepted_at = {16, 9}},
                    .turn_seconds = turn_seconds};
              }};
}

inline engine::RequestId ScriptedEngine::submit(engine::Request request, engine::Receiver receiver) {
  if (busy) throw Error(Code::kBusy, "full");
  const engine::RequestId id = requests.size() + 1;
  std::string script = scripts_[std::min(requests.size(), scripts_.size() - 1)];
  requests.push_back(request);
  engine::Finished finished{.prompt_tokens = static_cast<int64_t>(request.prompt.size()), .cached_tokens = 5};
  const bool endless = script.ends_with("…"), fails = script.ends_with("!");
  if (endless) script.resize(script.size() - std::string_view("…").size());
  if (fails) {
    script.pop_back();
    finished.reason = engine::FinishReason::kFailed;
    finished.code = fails_as;
    finished.message = "the device is lost";
  }
  if (endless) open_[id] = receiver;
  if (request.progress) receiver(engine::PromptProgress{.done = 1, .total = std::ssize(request.prompt)});
  for (const int32_t token : tokens(script)) {
    if (finished.generated_tokens == request.max_tokens) {
      finished.reason = engine::FinishReason::kLength;
      break;
    }
    engine::TokenEvent event{.token = token};
    if (request.logprobs >= 0) event.logprobs = engine::TokenLogprobs{.value = -0.5f, .top = {{token, -0.5f}}};
    receiver(event);
    ++finished.generated_tokens;
  }
  if (!endless) receiver(finished);
  return id;
}

inline void ScriptedEngine::cancel(engine::RequestId id) {
  cancelled.push_back(id);
  const auto it = open_.find(id);
  if (it == open_.end()) return;
  const engine::Receiver receiver = std::exchange(it->second, nullptr);
  open_.erase(it);
  receiver(engine::Finished{.reason = engine::FinishReason::kCancelled, .prompt_tokens = 9});
}

}  // namespace nibble::server::testing
