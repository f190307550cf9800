#include "engine/eagle3_proposer.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace nibble::engine {
namespace {

std::vector<float> last_row(std::vector<float> rows, int64_t count) {
  const auto width = std::ssize(rows) / count;
  rows.erase(rows.begin(), rows.end() - width);
  return rows;
}

}  // namespace

void Eagle3Proposer::saw(const Text& text, const Residuals& residuals) {
  State& state = of_[text.id];
  const int64_t from = std::max(state.seen, residuals.from), end = residuals.from + residuals.count;
  if (from >= end) return;
  check(end < std::ssize(text.tokens), "a row is a residual and the token after it");
  const auto width = static_cast<size_t>(std::ssize(residuals.values) / residuals.count);
  const auto count = static_cast<size_t>(end - from);
  const std::vector<float> features =
      head_.features(residuals.values.subspan(static_cast<size_t>(from - residuals.from) * width), pool_);
  model::eagle3::Head::Read read = head_.read(
      {.tokens = text.tokens.subspan(static_cast<size_t>(from) + 1, count), .features = features, .position = from},
      state.cache, pool_);
  state.seen = end;
  state.normed = last_row(std::move(read.normed), end - from);
  state.next = last_row(std::move(read.next), end - from);
}

void Eagle3Proposer::propose(const Text& text, int most, Draft& draft) {
  draft.tokens.clear();
  draft.matched = 1;  // nothing was looked up
  const auto found = of_.find(text.id);
  if (found == of_.end() || found->second.seen + 1 != std::ssize(text.tokens)) return;
  State& state = found->second;
  const size_t settled = state.cache.rows();
  model::eagle3::Head::Read last{.normed = state.normed, .next = state.next};
  for (int64_t position = state.seen; std::ssize(draft.tokens) < most; ++position) {
    draft.tokens.push_back(head_.draft(last.normed, pool_));
    if (std::ssize(draft.tokens) == most) break;
    const std::span<const int32_t> token(&draft.tokens.back(), 1);
    last = head_.read({.tokens = token, .features = last.next, .position = position}, state.cache, pool_);
  }
  head_.keep(state.cache, settled);
}

}  // namespace nibble::engine
