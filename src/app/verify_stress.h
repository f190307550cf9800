#pragma once
// Level 3 in this process: many requests, long ones, more than the pages can hold, and cancelled ones. At the end
// nothing may be held any more.

#include "app/verify_report.h"
#include "engine/engine.h"
#include "server/generation.h"

#include <cstdint>

namespace nibble::app {

// A port to this engine, which must outlive it.
[[nodiscard]] server::EnginePort stress_port(engine::Engine& engine);

struct StressPlan {
  int64_t vocab = 0;
  int64_t context = 0;    // longest sequence, in tokens
  int64_t kv_tokens = 0;  // of the cache
  bool exact = false;     // results do not depend on batch neighbours, so texts must be the same however many run
};

// The port of an engine; tests pass one that loses events.
void verify_stress(const server::EnginePort& port, const StressPlan& plan, VerifyChecks& checks);

}  // namespace nibble::app
