#include "engine/eagle3_proposer.h"

#include "base/error.h"
#include "model/eagle3/runner.h"

#include <algorithm>

namespace nibble::engine {

std::unique_ptr<backend::HeadRunner> make_head_runner(backend::Backend& be, const SpeculationLimits& drafts) {
  if (drafts.method != DraftMethod::kEagle3) return nullptr;
  check(drafts.head != nullptr, "a head drafts");
  if (auto runner = be.head_runner()) return runner;
  return std::make_unique<model::eagle3::HostRunner>(*drafts.head, drafts.head_threads,
                                                     be.head_products(drafts.head->weights()));
}

void Eagle3Proposer::forget_waiting(State& state) {
  state.waiting = 0;
  state.residuals.clear();
}

void Eagle3Proposer::saw(std::span<const Seen> all) {
  std::vector<Part> at_once;
  for (const Seen& each : all) {
    const Text& text = each.text;
    const Residuals& shown = each.residuals;
    State& state = of_[text.id];
    const int64_t end = shown.from + shown.count;
    int64_t from = std::max(state.seen, shown.from);
    if (from >= end) continue;
    check(end < std::ssize(text.tokens), "a row is a residual and the token after it");
    const int64_t width = std::ssize(shown.values) / shown.count;
    const bool prompt = from < text.prompt_tokens;
    if (prompt && !each.wanted) from = end < text.prompt_tokens ? end : std::max(from, end - kPassRows);
    if (from > state.seen || !each.wanted) forget_waiting(state);
    state.seen = end;
    if (from == end) continue;
    const auto fresh = shown.values.last(static_cast<size_t>((end - from) * width));
    const bool alone = state.waiting == 0;
    state.waiting += end - from;
    const bool now = prompt || state.waiting >= kPassRows;
    if (!now || !alone) state.residuals.insert(state.residuals.end(), fresh.begin(), fresh.end());
    if (now) at_once.push_back({&text, &state, alone ? fresh : state.residuals});
  }
  read_parts(at_once);
}

backend::HeadRunner::Rows Eagle3Proposer::rows_of(const Part& part) {
  const auto& [text, state, residuals] = part;
  const int64_t from = state->seen - state->waiting;
  return {.sequence = text->id,
          .tokens = text->tokens.subspan(static_cast<size_t>(from) + 1, static_cast<size_t>(state->waiting)),
          .residuals = residuals,
          .position = from};
}

void Eagle3Proposer::read_parts(std::span<const Part> parts) {
  std::vector<backend::HeadRunner::Rows> rows;
  for (const Part& part : parts) rows.push_back(rows_of(part));
  if (rows.empty()) return;
  runner_->read(rows);
  for (const Part& part : parts) forget_waiting(*part.state);
}

void Eagle3Proposer::propose_all(std::span<const Asked> all) {
  std::vector<backend::HeadRunner::Draft> drafts;
  std::vector<backend::HeadRunner::Rows> unread;
  std::vector<State*> reading;
  unread.reserve(all.size());  // drafts point into it
  for (const Asked& asked : all) {
    asked.draft->tokens.clear();
    asked.draft->matched = 1;  // nothing was looked up
    const auto found = of_.find(asked.text.id);
    if (found == of_.end() || found->second.seen + 1 != std::ssize(asked.text.tokens) || asked.most < 1) continue;
    State& state = found->second;
    drafts.push_back({.sequence = asked.text.id, .most = asked.most, .tokens = &asked.draft->tokens});
    if (state.waiting == 0) continue;
    unread.push_back(rows_of({&asked.text, &state, state.residuals}));
    drafts.back().unread = &unread.back();
    reading.push_back(&state);
  }
  if (!drafts.empty()) runner_->draft(drafts);
  for (State* state : reading) forget_waiting(*state);
}

void Eagle3Proposer::ended(const Text& text) {
  of_.erase(text.id);
  runner_->end(text.id);
}

}  // namespace nibble::engine
