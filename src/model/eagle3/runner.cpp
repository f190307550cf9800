#include "model/eagle3/runner.h"

#include "base/error.h"

namespace nibble::model::eagle3 {
namespace {

std::span<const float> row_of(std::span<const float> rows, size_t row, size_t width) {
  return rows.subspan(row * width, width);
}

}  // namespace

void HostRunner::read(std::span<const Rows> sequences) {
  const backend::HeadDims& dims = head_.weights().dims;
  const auto hidden = static_cast<size_t>(dims.hidden);
  const auto width = static_cast<size_t>(dims.taps * dims.target_hidden);
  std::vector<float> residuals;
  for (const Rows& rows : sequences) {
    check(rows.residuals.size() == rows.tokens.size() * width, "residuals for each token");
    residuals.insert(residuals.end(), rows.residuals.begin(), rows.residuals.end());
  }
  if (residuals.empty()) return;
  const std::vector<float> features = head_.features(residuals, workers_);
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
    const auto normed = row_of(read.normed, row - 1, hidden), next = row_of(read.next, row - 1, hidden);
    State& state = of_[rows.sequence];
    state.normed.assign(normed.begin(), normed.end());
    state.next.assign(next.begin(), next.end());
  }
}

// A token of each draft at a time.
void HostRunner::draft(std::span<const Draft> sequences) {
  struct Line {
    State* state;
    const Draft* draft;
    size_t settled;  // rows of the cache
  };
  std::vector<Line> lines;
  Head::Read last;
  for (const Draft& draft : sequences) {
    draft.tokens->clear();
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

}  // namespace nibble::model::eagle3
