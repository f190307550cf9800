#include "engine/speculation.h"

#include "base/error.h"

#include <algorithm>

namespace nibble::engine {
namespace {

Proposer::Text text_of(const Sequence& s) {
  return {.id = s.id,
          .tokens = s.tokens,
          .prompt_tokens = s.prompt_count,
          .shares = s.request.prefix_cache && s.request.leaves_prefix,
          .sampling = &s.request.sampling};
}

// The step of sequences that decode.
DraftController::Step next_step(std::span<Sequence* const> running) {
  DraftController::Step step{.decoding = static_cast<int>(running.size())};
  for (const Sequence* s : running) step.depth += s->computed;
  step.depth /= std::max<int64_t>(1, std::ssize(running));
  return step;
}

constexpr int kMatchedNothing = 1;  // as in Draft

bool wants_drafts(DraftController::Why outlook) {
  return outlook == DraftController::Why::kPays || outlook == DraftController::Why::kProbe;
}

}  // namespace

Speculation::Speculation(const Limits& limits, std::unique_ptr<Proposer> proposer)
    : limits_(limits), proposer_(std::move(proposer)), controller_(limits.drafts) {
  stats_.places = limits.drafts.most_tokens;
}

// `known_later`: tokens in flight, which come before what is drafted.
void Speculation::ask(Sequence& s, int known_later) {
  const int64_t length = std::ssize(s.tokens) + known_later;
  // A step gives a token more than was drafted.
  const int64_t most =
      std::min({int64_t{limits_.drafts.most_tokens}, s.request.max_tokens - (length - s.prompt_count) - 1,
                limits_.max_context - length - 1});
  if (most <= 0 || drafted_.size() == kMostDrafting || proposer_->unread(text_of(s)) != 0) return;
  drafted_.push_back(&s);
  asked_.push_back({.text = text_of(s), .most = static_cast<int>(most), .draft = &s.draft});
}

// After a stop id nothing is drawn, and what it follows draws it.
void Speculation::propose() {
  proposer_->propose_all(asked_);
  for (size_t i = 0; i < asked_.size(); ++i) {
    std::vector<int32_t>& tokens = asked_[i].draft->tokens;
    const std::vector<int32_t>& stops = drafted_[i]->request.stop_ids;
    const auto end = std::find_if(tokens.begin(), tokens.end(), [&](int32_t token) {
      return token < 0 || token >= limits_.vocab || std::find(stops.begin(), stops.end(), token) != stops.end();
    });
    tokens.erase(end, tokens.end());
    check(std::ssize(tokens) <= asked_[i].most, "a draft is no longer than asked for");
  }
}

// Chooses among those that were asked; what is chosen stands in candidates_, beside drafted_.
DraftController::Why Speculation::choose(const DraftController::Step& step, int room) {
  const bool to_order = proposer_->drafts_to_order();
  if (!to_order) propose();
  size_t kept = 0;
  for (size_t i = 0; i < drafted_.size(); ++i) {
    const Sequence& s = *drafted_[i];
    const int length = to_order ? asked_[i].most : static_cast<int>(std::ssize(s.draft.tokens));
    if (length == 0) continue;
    drafted_[kept] = drafted_[i];
    asked_[kept++] = asked_[i];
    candidates_.push_back(
        {.rates = &s.draft_rates, .matched = to_order ? kMatchedNothing : s.draft.matched, .length = length});
  }
  drafted_.resize(kept);
  asked_.resize(kept);
  return candidates_.empty() ? DraftController::Why::kNothing : controller_.choose(step, room, candidates_);
}

void Speculation::begin() {
  drafted_.clear();
  asked_.clear();
  candidates_.clear();
}

bool Speculation::may_draft(std::span<Sequence* const> running) const {
  if (running.empty()) return false;
  const auto reads_prompt = [&](const Sequence* s) { return s->remaining(limits_.max_context) > 1; };
  if (std::ranges::any_of(running, reads_prompt)) return false;  // prompts are read first
  return wants_drafts(controller_.outlook(next_step(running)));
}

bool Speculation::reads(const Batch& batch) const { return wanted() || holds_prompts(batch); }

void Speculation::look_ahead(std::span<Sequence* const> running, int room) {
  begin();
  if (!may_draft(running)) return;
  const DraftController::Step step = next_step(running);
  for (Sequence* s : running)
    if (s->pending == 1 && !s->needs_host() && !s->waits) ask(*s, 1);
  static_cast<void>(choose(step, room));
  for (size_t i = 0; i < drafted_.size(); ++i) {
    drafted_[i]->waits = candidates_[i].chosen > 0;
    drafted_[i]->draft.tokens.clear();
  }
  int64_t planned = 0;
  for (Sequence* s : running.first(std::min(running.size(), kMostDrafting)))
    if (s->pending == 1 && !s->waits && may_read(*s, planned)) s->waits = true;
}

// `planned`: tokens of others that are to be read before.
bool Speculation::may_read(Sequence& s, int64_t& planned) const {
  const int64_t unread = proposer_->unread(text_of(s));
  s.draft_reads = unread > 0 && (s.draft_reads || controller_.may_read(planned, unread));
  if (s.draft_reads) planned += unread;
  return s.draft_reads;
}

int64_t Speculation::read(const Batch& batch) {
  if (!wants_drafts(controller_.outlook(draft_step(batch)))) return 0;
  std::vector<Proposer::Text> texts;
  int64_t planned = 0;
  for (const Batch::Row& row : std::span(batch.rows).first(std::min(batch.rows.size(), kMostDrafting)))
    if (row.draws && may_read(*row.sequence, planned)) texts.push_back(text_of(*row.sequence));
  return texts.empty() ? 0 : proposer_->read(texts);
}

DraftController::Why Speculation::draft(Batch& batch, int room) {
  begin();
  const DraftController::Step step = draft_step(batch);
  for (const Batch::Row& row : batch.rows) {
    row.sequence->draft.tokens.clear();
    row.sequence->waits = false;
  }
  if (const auto outlook = controller_.outlook(step); !wants_drafts(outlook)) return outlook;
  for (const Batch::Row& row : batch.rows)
    if (row.draws && row.sequence->pending == 0) ask(*row.sequence, 0);
  const DraftController::Why why = choose(step, room);
  if (proposer_->drafts_to_order())
    order();
  else
    for (size_t i = 0; i < candidates_.size(); ++i)
      drafted_[i]->draft.tokens.resize(static_cast<size_t>(candidates_[i].chosen));
  return why;
}

// The drafts that were chosen.
void Speculation::order() {
  size_t kept = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (candidates_[i].chosen == 0) continue;
    drafted_[kept] = drafted_[i];
    asked_[kept] = asked_[i];
    asked_[kept++].most = candidates_[i].chosen;
  }
  drafted_.resize(kept);
  asked_.resize(kept);
  if (kept > 0) propose();
}

void Speculation::verified(Sequence& s, int drafted, int tried, int right) {
  controller_.verified(s.draft_rates, s.draft.matched, tried, right);
  ++stats_.drafts;
  stats_.tokens += drafted;
  stats_.accepted += right;
  for (size_t i = 0; i < static_cast<size_t>(right); ++i) ++stats_.accepted_at[i];
}

void Speculation::took(const DraftController::Step& step, DraftController::Seconds seconds, int right) {
  if (proposer_->drafts_to_order() && step.drafted > 0) seconds.step += std::exchange(seconds.proposing, 0);
  controller_.took(step, seconds, right);
}

void Speculation::saw(std::span<const std::pair<const Sequence*, Proposer::Residuals>> all) {
  std::vector<Proposer::News> seen;
  for (const auto& [s, residuals] : all)
    seen.push_back({.text = text_of(*s), .residuals = residuals, .wanted = wanted()});
  proposer_->saw(seen);
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
