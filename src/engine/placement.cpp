#include "engine/placement.h"

#include "backend/args.h"

#include <algorithm>
#include <tuple>

namespace nibble::engine {

using backend::kPageTokens;

Placement::Placement(int engines, int64_t pages_per_engine)
    : engines_(static_cast<size_t>(engines)), pages_per_engine_(pages_per_engine) {}

Placement::Hashes Placement::hashes_of(std::span<const int32_t> prompt) {
  Hashes hashes;
  uint64_t hash = 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    hash = (hash ^ static_cast<uint64_t>(prompt[i]) ^ hash >> 29) * 0x9E3779B97F4A7C15u;
    if ((i + 1) % kPageTokens == 0) hashes.push_back(hash);
  }
  return hashes;
}

int64_t Placement::cached_tokens(const Engine& engine, const Hashes& hashes) const {
  const auto unknown = std::ranges::find_if(hashes, [&](uint64_t hash) { return !engine.pages.contains(hash); });
  return (unknown - hashes.begin()) * kPageTokens;
}

std::vector<Placement::Placed> Placement::choices(const Ask& ask) const {
  const Hashes hashes = ask.takes ? hashes_of(ask.prompt) : Hashes();
  std::vector<Placed> choices;
  for (size_t e = 0; e < engines_.size(); ++e) {
    const int64_t read = std::ssize(ask.prompt) - cached_tokens(engines_[e], hashes);
    choices.push_back({static_cast<int>(e), read + std::min(ask.max_tokens, kAnswerTokens)});
  }
  const auto rank = [&](const Placed& choice) {
    const Engine& engine = engines_[static_cast<size_t>(choice.engine)];
    return std::tuple(engine.work + choice.work, engine.placed);
  };
  std::ranges::stable_sort(choices, {}, rank);
  return choices;
}

void Placement::place(const Placed& placed, const Ask& ask) {
  Engine& engine = engines_[static_cast<size_t>(placed.engine)];
  engine.work += placed.work;
  ++engine.placed;
  if (!ask.leaves) return;
  const Hashes hashes = hashes_of(ask.prompt);
  // From the last page to the first, so that the end of a prompt is forgotten first.
  for (auto hash = hashes.rbegin(); hash != hashes.rend(); ++hash) {
    if (const auto known = engine.pages.find(*hash); known != engine.pages.end()) {
      engine.latest.splice(engine.latest.begin(), engine.latest, known->second);
    } else {
      engine.latest.push_front(*hash);
      engine.pages.emplace(*hash, engine.latest.begin());
    }
  }
  while (std::ssize(engine.latest) > pages_per_engine_) {
    engine.pages.erase(engine.latest.back());
    engine.latest.pop_back();
  }
}

void Placement::done(const Placed& placed) { engines_[static_cast<size_t>(placed.engine)].work -= placed.work; }

}  // namespace nibble::engine
