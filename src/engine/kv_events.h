#pragma once
// What a prefix cache keeps, reported as it changes. With it, a router can send a request to the server that has its
// prompt's beginning.

#include "backend/args.h"
#include "backend/dims.h"

#include <array>
#include <cstdint>
#include <functional>
#include <span>

namespace nibble::engine {

// A block is a whole page of tokens together with all tokens before it. Each kind of layers has pages of its own.
struct KvEvent {
  enum class What : uint8_t { kStored, kRemoved };
  What what = What::kStored;
  backend::LayerKind kind = backend::LayerKind::kFull;
  uint64_t block = 0;                                  // a hash of the tokens up to its end; never 0
  uint64_t parent = 0;                                 // kStored: the block before it; 0: it is the first
  std::array<int32_t, backend::kPageTokens> tokens{};  // kStored
};

// Called on the engine's thread after each step, in order; must neither block nor throw.
using KvEventSink = std::function<void(std::span<const KvEvent> events)>;

}  // namespace nibble::engine
