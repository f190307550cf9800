#pragma once
// Level 3 in this process: many requests, long ones, too many pages' worth, requests that are left; then nothing is
// held any more.

#include "app/verify_report.h"
#include "engine/engine.h"
#include "server/generation.h"

#include <cstdint>

namespace nibble::app {

// One engine, which outlives it.
[[nodiscard]] server::EnginePort stress_port(engine::Engine& engine);

struct StressPlan {
  int64_t vocab = 0;
  int64_t context = 0;    // most tokens of a sequence
  int64_t kv_tokens = 0;  // of the cache
  bool exact = false;     // a token does not see its batch neighbours: texts must be the same, however many run
};

// The port is an engine's; tests put one before it that loses something.
void verify_stress(const server::EnginePort& port, const StressPlan& plan, VerifyChecks& checks);

}  // namespace nibble::app
