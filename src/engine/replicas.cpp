#include "engine/replicas.h"

#include "backend/args.h"
#include "base/error.h"
#include "engine/pages.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

namespace nibble::engine {

using backend::kPageTokens;

Placement::Placement(int engines, int64_t pages_per_engine)
    : engines_(static_cast<size_t>(engines)), pages_per_engine_(pages_per_engine) {}

Placement::Hashes Placement::hashes_of(std::span<const int32_t> prompt) {
  Hashes hashes;
  uint64_t hash = 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    hash = hashed(hash, static_cast<uint32_t>(prompt[i]));
    if ((i + 1) % kPageTokens == 0) hashes.push_back(hash);
  }
  return hashes;
}

int64_t Placement::cached_tokens(const Engine& engine, const Hashes& hashes) const {
  const auto unknown = std::ranges::find_if(hashes, [&](uint64_t hash) { return !engine.pages.contains(hash); });
  return (unknown - hashes.begin()) * kPageTokens;
}

std::vector<Placement::Choice> Placement::choices(const Ask& ask) const {
  const Hashes hashes = ask.takes ? hashes_of(ask.prompt) : Hashes();
  std::vector<Choice> choices;
  for (size_t e = 0; e < engines_.size(); ++e) {
    const int64_t read = std::ssize(ask.prompt) - cached_tokens(engines_[e], hashes);
    choices.push_back({static_cast<int>(e), read + std::min(ask.max_tokens, kAnswerTokens)});
  }
  const auto rank = [&](const Choice& choice) {
    const Engine& engine = engines_[static_cast<size_t>(choice.engine)];
    return std::tuple(engine.work + choice.work, engine.placed);
  };
  std::ranges::stable_sort(choices, {}, rank);
  return choices;
}

void Placement::place(const Choice& placed, const Ask& ask) {
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

Replicas::Replicas(std::vector<std::unique_ptr<Engine>> engines, int64_t pages_per_engine)
    : shared_(new Shared{{}, Placement(static_cast<int>(engines.size()), pages_per_engine)}),
      engines_(std::move(engines)) {}

RequestId Replicas::submit(Request request, Receiver receiver) {
  const std::vector<int32_t> prompt = request.prompt;
  const Placement::Ask ask{.prompt = prompt,
                           .max_tokens = request.max_tokens,
                           .takes = request.prefix_cache,
                           .leaves = request.prefix_cache && request.leaves_prefix};
  const auto choose = [&](size_t nth) {
    const std::lock_guard lock(shared_->mutex);
    const Placement::Choice placed = shared_->placement.choices(ask)[nth];
    shared_->placement.place(placed, ask);
    return placed;
  };
  const auto done = [shared = shared_](const Placement::Choice& placed) {
    const std::lock_guard lock(shared->mutex);
    shared->placement.done(placed);
  };
  for (size_t nth = 0;; ++nth) {
    const Placement::Choice placed = choose(nth);
    const auto counted = [done, placed, receiver](const Event& event) {
      if (std::holds_alternative<Finished>(event)) done(placed);
      receiver(event);
    };
    try {
      const RequestId own = engines_[static_cast<size_t>(placed.engine)]->submit(request, counted);
      return own * engines_.size() + static_cast<RequestId>(placed.engine);
    } catch (const Error& error) {
      done(placed);
      if (error.code() != Code::kBusy || nth + 1 == engines_.size()) throw;
    }
  }
}

std::vector<EngineStats> Replicas::each() const {
  std::vector<EngineStats> all;
  for (const auto& engine : engines_) all.push_back(engine->stats());
  return all;
}

EngineStats Replicas::stats() const {
  EngineStats sum;
  for (const EngineStats& stats : each()) {
    using S = EngineStats;
    for (const auto count :
         {&S::running, &S::waiting, &S::kv_pages, &S::kv_pages_used, &S::prefix_queries, &S::prefix_hits,
          &S::prompt_tokens, &S::generated_tokens, &S::preemptions, &S::steps, &S::screened_steps, &S::screened_tiles})
      sum.*count += stats.*count;
    sum.turn_seconds = std::max(sum.turn_seconds, stats.turn_seconds);
    sum.drafts.drafts += stats.drafts.drafts;
    sum.drafts.tokens += stats.drafts.tokens;
    sum.drafts.accepted += stats.drafts.accepted;
    sum.drafts.places = stats.drafts.places;
    for (size_t i = 0; i < sum.drafts.accepted_at.size(); ++i) sum.drafts.accepted_at[i] += stats.drafts.accepted_at[i];
  }
  return sum;
}

}  // namespace nibble::engine
