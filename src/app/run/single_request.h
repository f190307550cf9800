#pragma once
// What run and chat share: a request made from options, and the summary at its end.

#include "app/setup/interrupt.h"
#include "app/options/options.h"
#include "app/setup/terminal.h"
#include "engine/request.h"
#include "engine/loop.h"
#include "model/config.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace nibble::app {

// Refuses what the engine would refuse, before anything is printed: throws Error(kInvalidRequest) for sampling
// parameters out of range and for a prompt that leaves no room in `context`.
[[nodiscard]] engine::Request make_request(const GenerateOptions& options, const model::ModelConfig& config,
                                           int64_t context, std::vector<int32_t> prompt);

// Shows how far the prompt is read, and stops at Ctrl-C.
[[nodiscard]] engine::Loop::OnPrompt show_prompt(Terminal& terminal, const Interrupt& interrupt);

// `stop_string`: the text ended at a stop string. The engine only knows that the receiver had enough.
struct Outcome {
  engine::Finished finished;
  bool stop_string = false;
  bool interrupted = false;
};

// "stop", "length", "context" or "interrupted".
[[nodiscard]] std::string finish_reason(const Outcome& outcome);
[[nodiscard]] std::string summary(const Outcome& outcome, const GenerateOptions& options);
[[nodiscard]] nlohmann::ordered_json usage_json(const Outcome& outcome, const GenerateOptions& options);

}  // namespace nibble::app
