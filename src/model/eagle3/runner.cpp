#include "model/eagle3/runner.h"

#include "base/error.h"

#include <utility>

namespace nibble::model::eagle3 {
namespace {

std::span<const float> row_of(std::span<const float> rows, size_t row, size_t width) {
  return rows.subspan(row * width, width);
}

}  // namespace

HostRunner::HostRunner(const Head& head, int threads, std::unique_ptr<backend::HeadProducts> products)
    : head_(head), products_(std::move(products)), threads_(threads), workers_(threads_, products_.get()) {
  if (head.weights().mask_token) mask_feature_ = head.features(head.weights().mask_hidden, workers_);
}

// Of all rows, one sequence's behind another's.
std::vector<float> HostRunner::features(std::span<const Rows> sequences) {
  const backend::HeadDims& dims = head_.weights().dims;
  const auto width = static_cast<size_t>(dims.taps * dims.target_hidden);
  std::vector<float> residuals;
  for (const Rows& rows : sequences) {
    check(rows.residuals.size() == rows.tokens.size() * width, "residuals for each token");
    residuals.insert(residuals.end(), rows.residuals.begin(), rows.residuals.end());
  }
  return residuals.empty() ? residuals : head_.features(residuals, workers_);
}

void HostRunner::keep_last(State& state, const Head::Read& read, size_t row) const {
  const auto hidden = static_cast<size_t>(head_.weights().dims.hidden);
  const auto normed = row_of(read.normed, row, hidden), next = row_of(read.next, row, hidden);
  state.normed.assign(normed.begin(), normed.end());
  state.next.assign(next.begin(), next.end());
}

void HostRunner::read(std::span<const Rows> sequences) {
  if (sequences.empty()) return;
  const auto hidden = static_cast<size_t>(head_.weights().dims.hidden);
  const std::vector<float> features = this->features(sequences);
  std::vector<Head::Rows> all;
  size_t row = 0;
  for (const Rows& rows : sequences) {
    const size_t count = rows.tokens.size();
    all.push_back({.tokens = rows.tokens,
                   .features = std::span(features).subspan(row * hidden, count * hidden),
                   .position = rows.position,
                   .cache = &of_[rows.sequence].cache});
    row += count;
  }
  const Head::Read read = head_.read(all, workers_);
  row = 0;
  for (const Rows& rows : sequences) {
    row += rows.tokens.size();
    keep_last(of_[rows.sequence], read, row - 1);
  }
}

void HostRunner::draft(std::span<const Draft> sequences) {
  for (const Draft& draft : sequences) draft.tokens->clear();
  if (head_.weights().mask_token) return draft_at_once(sequences);
  read(unread_of(sequences));
  draft_in_turn(sequences);
}

// A token of each draft at a time.
void HostRunner::draft_in_turn(std::span<const Draft> sequences) {
  struct Line {
    State* state;
    const Draft* draft;
    size_t settled;  // rows of the cache
  };
  std::vector<Line> lines;
  Head::Read last;
  for (const Draft& draft : sequences) {
    const auto found = of_.find(draft.sequence);
    check(found != of_.end() && draft.most > 0, "rows to draft from");
    State& state = found->second;
    lines.push_back({.state = &state, .draft = &draft, .settled = state.cache.rows()});
    last.normed.insert(last.normed.end(), state.normed.begin(), state.normed.end());
    last.next.insert(last.next.end(), state.next.begin(), state.next.end());
  }
  const auto hidden = static_cast<size_t>(head_.weights().dims.hidden);
  while (!lines.empty()) {
    const std::vector<int32_t> tokens = head_.draft(last.normed, workers_);
    std::vector<Line> longer;
    std::vector<Head::Rows> rows;
    for (size_t i = 0; i < lines.size(); ++i) {
      const Line& line = lines[i];
      Cache& cache = line.state->cache;
      std::vector<int32_t>& drafted = *line.draft->tokens;
      drafted.push_back(tokens[i]);
      if (std::ssize(drafted) == line.draft->most) {
        head_.keep(cache, line.settled);
        continue;
      }
      rows.push_back({.tokens = {&tokens[i], 1},
                      .features = row_of(last.next, i, hidden),
                      .position = cache.positions.back() + 1,
                      .cache = &cache});
      longer.push_back(line);
    }
    lines = std::move(longer);
    if (!lines.empty()) last = head_.read(rows, workers_);
  }
}

// One pass of what is unread, and behind it of a mask token for each guess but the first.
void HostRunner::draft_at_once(std::span<const Draft> sequences) {
  const auto hidden = static_cast<size_t>(head_.weights().dims.hidden);
  const std::vector<float> features = this->features(unread_of(sequences));
  struct Line {
    State* state;
    size_t unread, masks;  // rows
    std::vector<int32_t> tokens;
    std::vector<float> features;
  };
  std::vector<Line> lines;
  size_t row = 0;
  for (const Draft& draft : sequences) {
    Line line{.state = &of_[draft.sequence],
              .unread = draft.unread == nullptr ? 0 : draft.unread->tokens.size(),
              .masks = static_cast<size_t>(draft.most - 1),
              .tokens = {},
              .features = {}};
    check((line.unread > 0 || line.state->cache.rows() > 0) && draft.most > 0, "rows to draft from");
    if (line.unread > 0) line.tokens.assign(draft.unread->tokens.begin(), draft.unread->tokens.end());
    line.tokens.resize(line.unread + line.masks, *head_.weights().mask_token);
    const auto theirs = std::span(features).subspan(row * hidden, line.unread * hidden);
    line.features.assign(theirs.begin(), theirs.end());
    for (size_t i = 0; i < line.masks; ++i)
      line.features.insert(line.features.end(), mask_feature_.begin(), mask_feature_.end());
    row += line.unread;
    lines.push_back(std::move(line));
  }
  std::vector<Head::Rows> rows;
  for (size_t i = 0; i < lines.size(); ++i) {
    Cache& cache = lines[i].state->cache;
    if (lines[i].tokens.empty()) continue;
    rows.push_back({.tokens = lines[i].tokens,
                    .features = lines[i].features,
                    .position = lines[i].unread > 0 ? sequences[i].unread->position : cache.positions.back() + 1,
                    .cache = &cache});
  }
  const Head::Read read = rows.empty() ? Head::Read() : head_.read(rows, workers_);
  std::vector<float> guesses;
  row = 0;
  for (const Line& line : lines) {
    row += line.unread;
    if (line.unread > 0) keep_last(*line.state, read, row - 1);
    guesses.insert(guesses.end(), line.state->normed.begin(), line.state->normed.end());
    const auto theirs = std::span(read.normed).subspan(row * hidden, line.masks * hidden);
    guesses.insert(guesses.end(), theirs.begin(), theirs.end());
    row += line.masks;
    head_.keep(line.state->cache, line.state->cache.rows() - line.masks);
  }
  const std::vector<int32_t> tokens = head_.draft(guesses, workers_);
  auto next = tokens.begin();
  for (const Draft& draft : sequences) {
    draft.tokens->assign(next, next + draft.most);
    next += draft.most;
  }
}

}  // namespace nibble::model::eagle3
