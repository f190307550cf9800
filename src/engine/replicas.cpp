#include "engine/replicas.h"

#include "base/error.h"

#include <utility>
#include <variant>

namespace nibble::engine {

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
    const Placement::Placed placed = shared_->placement.choices(ask)[nth];
    shared_->placement.place(placed, ask);
    return placed;
  };
  const auto done = [shared = shared_](const Placement::Placed& placed) {
    const std::lock_guard lock(shared->mutex);
    shared->placement.done(placed);
  };
  for (size_t nth = 0;; ++nth) {
    const Placement::Placed placed = choose(nth);
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

void Replicas::cancel(RequestId id) { engines_[id % engines_.size()]->cancel(id / engines_.size()); }

std::vector<EngineStats> Replicas::each() const {
  std::vector<EngineStats> all;
  for (const auto& engine : engines_) all.push_back(engine->stats());
  return all;
}

EngineStats Replicas::stats() const {
  EngineStats sum;
  for (const EngineStats& stats : each()) {
    sum.running += stats.running;
    sum.waiting += stats.waiting;
    sum.kv_pages += stats.kv_pages;
    sum.kv_pages_used += stats.kv_pages_used;
    sum.prefix_queries += stats.prefix_queries;
    sum.prefix_hits += stats.prefix_hits;
    sum.prompt_tokens += stats.prompt_tokens;
    sum.generated_tokens += stats.generated_tokens;
    sum.preemptions += stats.preemptions;
    sum.steps += stats.steps;
    sum.drafts.drafts += stats.drafts.drafts;
    sum.drafts.tokens += stats.drafts.tokens;
    sum.drafts.accepted += stats.drafts.accepted;
    sum.drafts.places = stats.drafts.places;
    for (size_t i = 0; i < sum.drafts.accepted_at.size(); ++i) sum.drafts.accepted_at[i] += stats.drafts.accepted_at[i];
  }
  return sum;
}

}  // namespace nibble::engine
