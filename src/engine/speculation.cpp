#include "engine/speculation.h"

#include <algorithm>
#include <utility>

namespace nibble::engine {
namespace {

Proposer::Text text_of(const Sequence& s) {
  return {.id = s.id,
          .tokens = s.tokens,
          .prompt_tokens = s.prompt_count,
          .shares = s.request.prefix_cache && s.request.leaves_prefix};
}

bool wants_drafts(DraftController::Why outlook) {
  return outlook == DraftController::Why::kPays || outlook == DraftController::Why::kProbe;
}

}  // namespace

Speculation::Speculation(const Limits& limits, std::unique_ptr<Proposer> proposer)
    : limits_(limits), proposer_(std::move(proposer)), controller_(limits.drafts) {
  stats_.places = limits.drafts.most_tokens;
}

// `known_later`: tokens in flight, which come before what is drafted.
void Speculation::propose(Sequence& s, int known_later) {
  const int64_t length = std::ssize(s.tokens) + known_later;
  // A step gives a token more than was drafted.
  const int64_t most =
      std::min({int64_t{limits_.drafts.most_tokens}, s.request.max_tokens - (length - s.prompt_count) - 1,
                limits_.max_context - length - 1});
  if (most <= 0 || candidates_.size() == kMostDrafting) return;
  proposer_->propose(text_of(s), static_cast<int>(most), draft_);
  // After a stop id nothing is drawn, and what it follows draws it.
  const auto end = std::find_if(draft_.tokens.begin(), draft_.tokens.end(), [&](int32_t token) {
    const std::vector<int32_t>& stops = s.request.stop_ids;
    return token < 0 || token >= limits_.vocab || std::find(stops.begin(), stops.end(), token) != stops.end();
  });
  const auto drafted = std::min(most, static_cast<int64_t>(end - draft_.tokens.begin()));
  if (drafted == 0) return;
  s.draft.tokens.assign(draft_.tokens.begin(), draft_.tokens.begin() + drafted);
  s.draft.matched = draft_.matched;
  drafted_.push_back(&s);
  candidates_.push_back({.rates = &s.draft_rates, .matched = s.draft.matched, .length = static_cast<int>(drafted)});
}

DraftController::Why Speculation::choose(const DraftController::Step& step, int room) {
  if (candidates_.empty()) return DraftController::Why::kNothing;
  const auto why = controller_.choose(step, room, candidates_);
  for (size_t i = 0; i < candidates_.size(); ++i)
    drafted_[i]->draft.tokens.resize(static_cast<size_t>(candidates_[i].chosen));
  return why;
}

void Speculation::look_ahead(std::span<Sequence* const> running, int room) {
  drafted_.clear();
  candidates_.clear();
  DraftController::Step step{.decoding = static_cast<int>(running.size())};
  for (const Sequence* s : running) {
    if (s->remaining(limits_.max_context) > 1) return;  // prompts are read first
    step.depth += s->computed;
  }
  if (running.empty()) return;
  step.depth /= step.decoding;
  if (!wants_drafts(controller_.outlook(step))) return;
  for (Sequence* s : running)
    if (s->pending == 1 && !s->needs_host() && !s->waits) propose(*s, 1);
  static_cast<void>(choose(step, room));
  for (Sequence* s : drafted_) {
    s->waits = !s->draft.tokens.empty();
    s->draft.tokens.clear();
  }
}

DraftController::Why Speculation::draft(Batch& batch, int room) {
  drafted_.clear();
  candidates_.clear();
  const DraftController::Step step = draft_step(batch);
  for (const Batch::Row& row : batch.rows) {
    row.sequence->draft.tokens.clear();
    row.sequence->waits = false;
  }
  if (const auto outlook = controller_.outlook(step); !wants_drafts(outlook)) return outlook;
  for (const Batch::Row& row : batch.rows)
    if (row.draws && row.sequence->pending == 0) propose(*row.sequence, 0);
  return choose(step, room);
}

void Speculation::verified(Sequence& s, int drafted, int tried, int right) {
  controller_.verified(s.draft_rates, s.draft.matched, tried, right);
  ++stats_.drafts;
  stats_.tokens += drafted;
  stats_.accepted += right;
  for (size_t i = 0; i < static_cast<size_t>(right); ++i) ++stats_.accepted_at[i];
}

void Speculation::saw(const Sequence& s, const Proposer::Residuals& residuals) {
  proposer_->saw(text_of(s), residuals);
}

void Speculation::ended(const Sequence& s) { proposer_->ended(text_of(s)); }

DraftController::Step draft_step(const Batch& batch) {
  DraftController::Step step{.decoding = static_cast<int>(batch.rows.size())};
  for (const Batch::Row& row : batch.rows) {
    step.depth += row.from;
    step.drafted += row.drafted;
  }
  step.depth /= std::max<int64_t>(1, std::ssize(batch.rows));
  return step;
}

bool holds_prompts(const Batch& batch) {
  return std::any_of(batch.rows.begin(), batch.rows.end(),
                     [](const Batch::Row& row) { return row.count - row.drafted != 1 || !row.draws; });
}

}  // namespace nibble::engine
