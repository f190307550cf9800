#include "engine/eagle3_proposer.h"

#include "base/error.h"

#include <algorithm>

namespace nibble::engine {

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
    const int64_t from = std::max(state.seen, shown.from), end = shown.from + shown.count;
    if (from >= end) continue;
    check(end < std::ssize(text.tokens), "a row is a residual and the token after it");
    const int64_t width = std::ssize(shown.values) / shown.count;
    if (from > state.seen || !each.wanted) forget_waiting(state);
    state.residuals.insert(state.residuals.end(), shown.values.end() - (end - from) * width, shown.values.end());
    state.waiting += end - from;
    state.seen = end;
    if (each.wanted || from < text.prompt_tokens) at_once.push_back({&text, &state});
  }
  read(at_once);
}

void Eagle3Proposer::read(std::span<const Part> parts) {
  std::vector<backend::HeadRunner::Rows> rows;
  for (const auto& [text, state] : parts) {
    const int64_t from = state->seen - state->waiting;
    rows.push_back({.sequence = text->id,
                    .tokens = text->tokens.subspan(static_cast<size_t>(from) + 1, static_cast<size_t>(state->waiting)),
                    .residuals = state->residuals,
                    .position = from});
  }
  if (rows.empty()) return;
  runner_->read(rows);
  for (const Part& part : parts) forget_waiting(*part.state);
}

void Eagle3Proposer::propose_all(std::span<const Asked> all) {
  std::vector<backend::HeadRunner::Draft> drafts;
  std::vector<Part> waiting;
  for (const Asked& asked : all) {
    asked.draft->tokens.clear();
    asked.draft->matched = 1;  // nothing was looked up
    const auto found = of_.find(asked.text.id);
    if (found == of_.end() || found->second.seen + 1 != std::ssize(asked.text.tokens) || asked.most < 1) continue;
    State& state = found->second;
    drafts.push_back({.sequence = asked.text.id, .most = asked.most, .tokens = &asked.draft->tokens});
    if (state.waiting > 0) waiting.push_back({&asked.text, &state});
  }
  read(waiting);
  if (!drafts.empty()) runner_->draft(drafts);
}

void Eagle3Proposer::ended(const Text& text) {
  of_.erase(text.id);
  runner_->end(text.id);
}

}  // namespace nibble::engine
