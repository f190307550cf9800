#pragma once
// What run and chat share: a request from options, and what is told about how it went.

#include "app/options.h"
#include "app/terminal.h"
#include "engine/request.h"
#include "model/config.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace nibble::app {

[[nodiscard]] engine::Request make_request(const GenerateOptions& options, const model::ModelConfig& config,
                                           std::vector<int32_t> prompt);

// `stop_string`: the text ended at one; the engine only saw the receiver's "enough".
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
