#include "engine/eagle3_proposer.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace nibble::engine {

using model::eagle3::Head;

namespace {

std::span<const float> row_of(std::span<const float> rows, size_t row, size_t width) {
  return rows.subspan(row * width, width);
}

}  // namespace

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
  std::vector<float> residuals;
  std::vector<Head::Rows> rows;
  for (const auto& [text, state] : parts) {
    residuals.insert(residuals.end(), state->residuals.begin(), state->residuals.end());
    const int64_t from = state->seen - state->waiting;
    rows.push_back({.tokens = text->tokens.subspan(static_cast<size_t>(from) + 1, static_cast<size_t>(state->waiting)),
                    .features = {},
                    .position = from,
                    .cache = &state->cache});
  }
  if (rows.empty()) return;
  const std::vector<float> features = head_.features(residuals, pool_);
  const auto hidden = static_cast<size_t>(head_.weights().config.hidden_size);
  size_t row = 0;
  for (Head::Rows& of : rows) {
    of.features = std::span(features).subspan(row * hidden, of.tokens.size() * hidden);
    row += of.tokens.size();
  }
  const Head::Read read = head_.read(rows, pool_);
  row = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    row += rows[i].tokens.size();
    const auto normed = row_of(read.normed, row - 1, hidden), next = row_of(read.next, row - 1, hidden);
    State& state = *parts[i].state;
    state.normed.assign(normed.begin(), normed.end());
    state.next.assign(next.begin(), next.end());
    forget_waiting(state);
  }
}

// A token of each draft at a time.
void Eagle3Proposer::propose_all(std::span<const Asked> all) {
  struct Line {
    State* state;
    const Asked* asked;
    size_t settled = 0;  // rows of the cache
  };
  std::vector<Line> lines;
  std::vector<Part> waiting;
  for (const Asked& asked : all) {
    asked.draft->tokens.clear();
    asked.draft->matched = 1;  // nothing was looked up
    const auto found = of_.find(asked.text.id);
    if (found == of_.end() || found->second.seen + 1 != std::ssize(asked.text.tokens) || asked.most < 1) continue;
    State& state = found->second;
    lines.push_back({.state = &state, .asked = &asked});
    if (state.waiting > 0) waiting.push_back({&asked.text, &state});
  }
  read(waiting);
  Head::Read last;
  for (Line& line : lines) {
    line.settled = line.state->cache.rows();
    last.normed.insert(last.normed.end(), line.state->normed.begin(), line.state->normed.end());
    last.next.insert(last.next.end(), line.state->next.begin(), line.state->next.end());
  }
  const auto hidden = static_cast<size_t>(head_.weights().config.hidden_size);
  while (!lines.empty()) {
    const std::vector<int32_t> tokens = head_.draft(last.normed, pool_);
    std::vector<Line> longer;
    std::vector<Head::Rows> rows;
    for (size_t i = 0; i < lines.size(); ++i) {
      const Line& line = lines[i];
      std::vector<int32_t>& drafted = line.asked->draft->tokens;
      drafted.push_back(tokens[i]);
      if (std::ssize(drafted) == line.asked->most) {
        head_.keep(line.state->cache, line.settled);
        continue;
      }
      rows.push_back({.tokens = {&tokens[i], 1},
                      .features = row_of(last.next, i, hidden),
                      .position = line.state->seen + std::ssize(drafted) - 1,
                      .cache = &line.state->cache});
      longer.push_back(line);
    }
    lines = std::move(longer);
    if (!lines.empty()) last = head_.read(rows, pool_);
  }
}

}  // namespace nibble::engine
