#include "engine/scheduler.h"

#include "base/error.h"

#include <algorithm>

namespace nibble::engine {
namespace {

bool older(const Sequence* a, const Sequence* b) { return a->id < b->id; }

}  // namespace

void Scheduler::add(Sequence& sequence) {
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), &sequence, older), &sequence);
}

void Scheduler::remove(Sequence& sequence) {
  std::erase(running_, &sequence);
  if (!waiting_.empty() && waiting_.front() == &sequence) refused_at_ = -1;
  std::erase(waiting_, &sequence);
}

bool Scheduler::wants_tokens() const {
  return std::any_of(running_.begin(), running_.end(),
                     [](const Sequence* s) { return s->pending > 0 && s->needs_host(); });
}

Batch& Scheduler::schedule(Flight flight) {
  const int64_t preempted = preemptions_;
  batch_.copies.clear();
  batch_.rows.clear();
  batch_.starved = false;
  tokens_left_ = limits_.max_tokens;
  logit_rows_left_ = limits_.max_logit_rows;
  preempt_ = flight == Flight::kNone ? Preempt::kNow : Preempt::kLater;
  for (Sequence* s : running_) {
    cache_.insert(s->settled(), s->pages);
    cache_.slide(s->computed, s->pages);
  }
  // By index: planning for one may preempt those behind it.
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i]->remaining(limits_.max_context) == 1) plan(*running_[i], 1);
  }
  for (size_t i = 0; i < running_.size(); ++i) {
    const int64_t want = running_[i]->remaining(limits_.max_context);
    if (want > 1) plan(*running_[i], want);
  }
  if (!batch_.starved && preemptions_ == preempted) admit();
  return batch_;
}

void Scheduler::enqueued(const Batch& batch) {
  int32_t logit_row = 0;
  for (const Batch::Row& row : batch.rows) {
    Sequence& s = *row.sequence;
    s.computed += row.count;
    s.scored = std::max(s.scored, row.score_to);
    logit_row += static_cast<int32_t>(row.score_to - row.score_from);
    if (!row.draws) continue;
    ++s.pending;
    s.pending_row = logit_row++;
  }
}

// Puts up to `want` tokens of it into the batch, as many as budgets and pages allow. False: none.
bool Scheduler::plan(Sequence& s, int64_t want) {
  const int64_t all = s.computed + want;
  int64_t to = s.computed + std::min(want, tokens_left_);
  const int64_t scores = s.to_score();
  const auto logit_rows = [&](int64_t end) {
    const int64_t scored = std::max<int64_t>(0, std::min(end, scores) - std::max(s.computed, s.scored));
    return scored + (end == all && s.request.max_tokens > 0 ? 1 : 0);
  };
  while (to > s.computed && logit_rows(to) > logit_rows_left_)
    to -= std::max<int64_t>(1, logit_rows(to) - logit_rows_left_);
  to = std::min(to, grow(s, to));
  if (to <= s.computed) return false;
  const int64_t score_from = std::max(s.computed, s.scored), score_to = std::max(score_from, std::min(to, scores));
  batch_.rows.push_back({.sequence = &s,
                         .from = s.computed,
                         .count = static_cast<int32_t>(to - s.computed),
                         .score_from = score_from,
                         .score_to = score_to,
                         .draws = to == all && s.request.max_tokens > 0});
  tokens_left_ -= to - s.computed;
  logit_rows_left_ -= score_to - score_from + (batch_.rows.back().draws ? 1 : 0);
  return true;
}

// Sees that it has pages for `length` tokens; at least for one more than it has computed, if those younger than it can
// give them. Returns for how many it has.
int64_t Scheduler::grow(Sequence& s, int64_t length) {
  const auto wanted = static_cast<size_t>(pages_for(length));
  int64_t got = length;
  for (const LayerKind kind : kKinds) {
    std::vector<int32_t>& ids = s.pages.ids[kind];
    while (ids.size() < wanted) {
      const int32_t page = cache_.take(kind);
      if (page >= 0) {
        ids.push_back(page);
      } else if (static_cast<int64_t>(ids.size()) * backend::kPageTokens > s.computed || !preempt_younger(s)) {
        break;
      }
    }
    got = std::min(got, static_cast<int64_t>(ids.size()) * backend::kPageTokens);
  }
  return got;
}

bool Scheduler::preempt_younger(const Sequence& than) {
  if (running_.empty() || !older(&than, running_.back())) return false;
  batch_.starved |= preempt_ == Preempt::kLater;
  if (preempt_ != Preempt::kNow) return false;
  Sequence& victim = *running_.back();
  running_.pop_back();
  const auto row =
      std::find_if(batch_.rows.begin(), batch_.rows.end(), [&](const Batch::Row& r) { return r.sequence == &victim; });
  if (row != batch_.rows.end()) {
    tokens_left_ += row->count;
    logit_rows_left_ += row->score_to - row->score_from + (row->draws ? 1 : 0);
    batch_.rows.erase(row);
  }
  cache_.release({}, victim.pages);
  victim.computed = 0;
  add(victim);
  refused_at_ = -1;
  ++preemptions_;
  return true;
}

void Scheduler::admit() {
  preempt_ = Preempt::kNever;
  while (!waiting_.empty() && static_cast<int>(running_.size()) < limits_.max_sequences && tokens_left_ > 0 &&
         logit_rows_left_ > 0) {
    if (!running_.empty() && refused_at_ >= cache_.available(LayerKind::kFull)) return;
    Sequence& s = *waiting_.front();
    if (!try_admit(s)) return;
    refused_at_ = -1;
    std::erase(waiting_, &s);
    s.admitted = true;
  }
}

// Takes what the prefix cache has of it and, when there are pages for the rest and one more for every running sequence,
// plans its first chunk.
bool Scheduler::try_admit(Sequence& s) {
  const int64_t available = cache_.available(LayerKind::kFull);
  // A prompt whose logprobs are still to come has to be computed for them.
  const auto known = static_cast<int64_t>(s.tokens.size());
  int64_t most = s.scored < s.to_score() ? s.scored : known - 1;
  if (!s.request.prefix_cache) most = 0;
  s.computed = cache_.resume(std::span(s.tokens).first(static_cast<size_t>(most)), s.pages, batch_.copies);
  s.pages.borders[1] = s.prompt_count;
  const int64_t resumed = s.computed;
  const int64_t pages = pages_for(known + 1) - static_cast<int64_t>(s.pages.ids[LayerKind::kFull].size());
  const auto others = static_cast<int64_t>(running_.size());
  const bool fits = others == 0 || pages + others <= cache_.available(LayerKind::kFull);
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &s, older), &s);
  if (fits && plan(s, s.remaining(limits_.max_context))) {
    if (!s.admitted) s.cached = std::min(resumed, s.prompt_count);
    return true;
  }
  std::erase(running_, &s);
  cache_.release(s.settled(), s.pages);
  s.computed = 0;
  if (!fits) refused_at_ = available;
  return false;
}

}  // namespace nibble::engine
