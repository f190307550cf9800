#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace nibble::engine {
namespace {

// The order in which sequences get seats and pages.
bool before(const Sequence* a, const Sequence* b) {
  return std::tie(a->request.priority, a->id) < std::tie(b->request.priority, b->id);
}

constexpr int64_t quarter(int64_t of) { return (of + 3) / 4; }

}  // namespace

void Scheduler::add(Sequence& s) {
  s.from_cache = cache_.resumable(s.skippable());
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), &s, before), &s);
  if (waiting_.front() == &s) refused_at_ = -1;
}

void Scheduler::remove(Sequence& s) {
  std::erase(running_, &s);
  if (!waiting_.empty() && waiting_.front() == &s) refused_at_ = -1;
  std::erase(waiting_, &s);
  s.running = false;
}

bool Scheduler::wants_tokens() const {
  return std::any_of(running_.begin(), running_.end(), [](const Sequence* s) { return s->waits_for_token(); });
}

int Scheduler::decoding() const {
  return static_cast<int>(
      std::count_if(running_.begin(), running_.end(), [&](const Sequence* s) { return !is_reading(*s); }));
}

int64_t Scheduler::unread() const {
  int64_t tokens = 0;
  for (const Sequence* s : running_) tokens += is_reading(*s) ? counted(s->computed, left_of(*s)) : 0;
  for (const Sequence* s : waiting_) tokens += counted(s->from_cache, left_of(*s));
  return tokens;
}

// Tokens to compute before it has its next one, as far as that is known.
int64_t Scheduler::left_of(const Sequence& s) const {
  const int64_t left = s.remaining(limits_.max_context);
  return s.running ? left : std::max<int64_t>(1, left - s.from_cache);
}

Batch& Scheduler::schedule(Flight flight, int64_t allowed) {
  batch_.rows.clear();
  batch_.starved = false;
  left_ = {.tokens = limits_.max_tokens, .logit_rows = limits_.max_logit_rows, .prompt_tokens = kNoLimit};
  preempt_ = flight == Flight::kNone ? Preempt::kNow : Preempt::kLater;
  closed_ = false;
  for (Sequence* s : running_) {
    cache_.insert(s->settled(), s->pages);
    cache_.slide(s->computed, s->pages);
  }
  // By index, since adding a row may preempt sequences behind it.
  for (size_t i = 0; i < running_.size(); ++i)
    if (left_of(*running_[i]) == 1) add_row(*running_[i], left_);
  add_prompts(allowed);
  batch_.decoding = 0;
  batch_.prompt_tokens = 0;
  for (const Batch::Row& row : batch_.rows)
    if (row.count == 1 && row.draws)
      ++batch_.decoding;
    else
      batch_.prompt_tokens += counted(row.from, row.count);
  return batch_;
}

void Scheduler::enqueued(const Batch& batch) {
  int32_t logit_row = 0;
  for (const Batch::Row& row : batch.rows) {
    Sequence& s = *row.sequence;
    s.computed += row.count - row.drafted;  // guesses count once they turn out right
    s.scored = std::max(s.scored, row.score_to);
    logit_row += static_cast<int32_t>(row.score_to - row.score_from);
    if (!row.draws) continue;
    ++s.pending;
    s.pending_row = logit_row;
    s.waits = row.drafted > 0;
    logit_row += 1 + row.drafted;
  }
}

int Scheduler::room_for_drafts() const {
  return static_cast<int>(std::max<int64_t>(0, std::min(left_.tokens, left_.logit_rows)));
}

void Scheduler::add_draft(Batch::Row& row) {
  Sequence& s = *row.sequence;
  const Preempt usual = std::exchange(preempt_, Preempt::kNever);
  const int64_t known = row.from + row.count;
  const int64_t wanted = std::min<int64_t>(std::ssize(s.draft.tokens), room_for_drafts());
  row.drafted = static_cast<int32_t>(std::max<int64_t>(0, std::min(wanted, grow(s, known + wanted) - known)));
  preempt_ = usual;
  s.draft.tokens.resize(static_cast<size_t>(row.drafted));
  row.count += row.drafted;
  left_.tokens -= row.drafted;
  left_.logit_rows -= row.drafted;
}

// How many of its tokens there is room for.
int64_t Scheduler::most_tokens(const Sequence& s, const Room& room) const {
  const int64_t left = left_of(s);
  int64_t most = std::min(left, room.tokens);
  if (left == 1) return most;
  if (limits_.long_prompt_tokens > 0) most = std::min(most, limits_.long_prompt_tokens);
  if (room.prompt_tokens <= 0) return 0;
  const int64_t keys = limits_.keys_per_token, costs = keys + (s.running ? s.computed : s.from_cache);
  return std::min(most, (room.prompt_tokens * keys + costs - 1) / costs);
}

// Adds as many of its tokens to the batch as room and pages allow. False: none.
bool Scheduler::add_row(Sequence& s, const Room& room) {
  const int64_t left = left_of(s), all = s.computed + left;
  int64_t to = s.computed + most_tokens(s, room);
  const int64_t scores = s.to_score();
  const auto logit_rows = [&](int64_t end) {
    const int64_t scored = std::max<int64_t>(0, std::min(end, scores) - std::max(s.computed, s.scored));
    return scored + (end == all && s.request.max_tokens > 0 ? 1 : 0);
  };
  while (to > s.computed && logit_rows(to) > room.logit_rows)
    to -= std::max<int64_t>(1, logit_rows(to) - room.logit_rows);
  to = std::min(to, grow(s, to));
  if (to <= s.computed) return false;
  const int64_t score_from = std::max(s.computed, s.scored), score_to = std::max(score_from, std::min(to, scores));
  batch_.rows.push_back({.sequence = &s,
                         .from = s.computed,
                         .count = static_cast<int32_t>(to - s.computed),
                         .score_from = score_from,
                         .score_to = score_to,
                         .draws = to == all && s.request.max_tokens > 0});
  left_.tokens -= to - s.computed;
  left_.logit_rows -= score_to - score_from + (batch_.rows.back().draws ? 1 : 0);
  if (left > 1) left_.prompt_tokens -= counted(s.computed, to - s.computed);
  if (left > 1 && to == all) --partial_;
  return true;
}

// Gives it pages for `length` tokens, or at least for one more than it has computed if those after it in order can give
// pages up. Returns for how many tokens it has pages.
int64_t Scheduler::grow(Sequence& s, int64_t length) {
  const auto wanted = static_cast<size_t>(pages_for(length));
  int64_t got = length;
  for (const LayerKind kind : cache_.kinds()) {
    std::vector<int32_t>& ids = s.pages.ids[kind];
    while (ids.size() < wanted) {
      const int32_t page = cache_.take(kind);
      if (page >= 0)
        ids.push_back(page);
      else if (static_cast<int64_t>(ids.size()) * backend::kPageTokens > s.computed || !preempt_after(s))
        break;
    }
    got = std::min(got, static_cast<int64_t>(ids.size()) * backend::kPageTokens);
  }
  return got;
}

// Only if no step is in flight: the victim resumes later from its tokens, and one of them may be on its way.
bool Scheduler::preempt_after(const Sequence& than) {
  if (running_.empty() || !before(&than, running_.back()) || preempt_ == Preempt::kNever) return false;
  closed_ = true;
  batch_.starved |= preempt_ == Preempt::kLater;
  if (preempt_ != Preempt::kNow) return false;
  Sequence& victim = *running_.back();
  const auto row =
      std::find_if(batch_.rows.begin(), batch_.rows.end(), [&](const Batch::Row& r) { return r.sequence == &victim; });
  if (row != batch_.rows.end()) {
    left_.tokens += row->count;
    left_.logit_rows += row->score_to - row->score_from + (row->draws ? 1 : 0);
    if (row->count > 1) left_.prompt_tokens += counted(row->from, row->count);
    batch_.rows.erase(row);
  }
  unseat(victim, {});
  add(victim);
  ++preemptions_;
  return true;
}

// Takes its seat and its pages. The cache may keep what `settled` fills.
void Scheduler::unseat(Sequence& s, std::span<const int32_t> settled) {
  std::erase(running_, &s);
  s.running = false;
  cache_.release(settled, s.pages);
  s.computed = 0;
  refused_at_ = -1;
}

// The shortest prompts first. The prompt whose turn it is has a quarter to itself, and what the others leave.
void Scheduler::add_prompts(int64_t allowed) {
  left_.prompt_tokens = allowed;
  partial_ = static_cast<int>(running_.size()) - decoding();
  const Sequence* const admitted = admit_first();
  const Sequence* const first = first_reading();
  Room reserved = first == nullptr ? Room() : quarter_for(*first);
  gather_prompts(admitted);
  const auto longer = [](const Prompt& a, const Prompt& b) {
    return std::tie(a.sequence->request.priority, a.left, a.sequence->id) >
           std::tie(b.sequence->request.priority, b.left, b.sequence->id);
  };
  std::make_heap(prompts_.begin(), prompts_.end(), longer);
  for (; !prompts_.empty() && left_.tokens > 0 && left_.prompt_tokens > 0; prompts_.pop_back()) {
    std::pop_heap(prompts_.begin(), prompts_.end(), longer);
    const auto [left, s] = prompts_.back();
    if (s == first) reserved = {};
    const Room room{.tokens = left_.tokens - reserved.tokens,
                    .logit_rows = left_.logit_rows - reserved.logit_rows,
                    .prompt_tokens = left_.prompt_tokens - reserved.prompt_tokens};
    if (s->running)
      add_row(*s, room);
    else if (!closed_)
      admit_and_add(*s, room);
  }
}

// Prompts of running sequences (`admitted` too, unless the cache has all but its last token), and of waiting ones if
// there are seats.
void Scheduler::gather_prompts(const Sequence* admitted) {
  prompts_.clear();
  for (Sequence* s : running_)
    if (is_reading(*s) || s == admitted) prompts_.push_back({left_of(*s), s});
  closed_ |= static_cast<int>(running_.size()) >= limits_.max_sequences;
  closed_ |= blocked_ != nullptr && blocked_->passed >= limits_.max_sequences;
  if (closed_) return;
  for (Sequence* s : waiting_)
    if (s != blocked_) prompts_.push_back({left_of(*s), s});
}

Sequence* Scheduler::first_reading() const {
  const auto first = std::find_if(running_.begin(), running_.end(), [&](const Sequence* s) { return is_reading(*s); });
  return first == running_.end() ? nullptr : *first;
}

// A quarter of the remaining room, or less if it cannot use that.
Scheduler::Room Scheduler::quarter_for(const Sequence& first) const {
  const int64_t left = left_of(first);
  return {.tokens = std::min(quarter(left_.tokens), left),
          .logit_rows = std::min(quarter(left_.logit_rows), left),
          .prompt_tokens = std::min(quarter(left_.prompt_tokens), counted(first.computed, left))};
}

// Admits the sequence whose turn it is, if it waits. It gets its seat even if this step has no tokens for it. Null: it
// does not wait, or cannot be admitted.
const Sequence* Scheduler::admit_first() {
  blocked_ = nullptr;
  if (waiting_.empty() || closed_ || left_.tokens == 0) return nullptr;
  Sequence& s = *waiting_.front();
  const Sequence* const reading = first_reading();
  if (reading != nullptr && before(reading, &s)) return nullptr;
  const int64_t free = spare_pages();
  const bool known = !running_.empty() && refused_at_ >= free;
  if (!known && admit(s, left_)) return &s;
  blocked_ = &s;
  if (!known && may_begin(s, left_)) refused_at_ = free;
  return nullptr;
}

// Another prompt: admitted if it gets tokens at once, and if its pages are free without evicting from the prefix cache.
void Scheduler::admit_and_add(Sequence& s, const Room& room) {
  if (most_tokens(s, room) < 1 || room.logit_rows < 1) return;
  if (!running_.empty() && pages_for(static_cast<int64_t>(s.tokens.size()) + 1) > spare_pages()) {
    closed_ = true;  // the others are longer
    return;
  }
  if (!admit(s, room)) return;
  const Preempt usual = std::exchange(preempt_, Preempt::kNever);
  if (!add_row(s, room)) {
    unseat(s, s.settled());
    add(s);
    closed_ = true;
  } else if (blocked_ != nullptr) {
    closed_ |= ++blocked_->passed >= limits_.max_sequences;
  }
  closed_ |= static_cast<int>(running_.size()) >= limits_.max_sequences;
  preempt_ = usual;
}

// Takes what the prefix cache has of it, and a seat, if there are pages for the rest.
bool Scheduler::admit(Sequence& s, const Room& room) {
  if (!may_begin(s, room)) return false;
  s.computed = cache_.resume(s.skippable(), s.pages, batch_.copies);
  s.pages.resume_lengths[1] = s.prompt_count;
  s.from_cache = s.computed;
  const int64_t pages =
      pages_for(static_cast<int64_t>(s.tokens.size()) + 1) - static_cast<int64_t>(s.pages.ids[LayerKind::kFull].size());
  if ((!running_.empty() && pages > spare_pages()) || !may_begin(s, room)) {
    cache_.release(s.settled(), s.pages);
    s.computed = 0;
    return false;
  }
  std::erase(waiting_, &s);
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &s, before), &s);
  s.running = true;
  s.passed = 0;
  refused_at_ = -1;
  if (is_reading(s)) ++partial_;
  return true;
}

// Whether a seat is free and, if this step would not read it to its end, not too many prompts are being read in parts.
bool Scheduler::may_begin(const Sequence& s, const Room& room) const {
  if (static_cast<int>(running_.size()) >= limits_.max_sequences) return false;
  const int64_t left = left_of(s);
  if (left > most_tokens(s, room) && partial_ >= limits_.max_partial_prompts) return false;
  const int64_t is_long = limits_.long_prompt_tokens;
  if (is_long == 0 || left <= is_long) return true;
  const auto others =
      std::count_if(running_.begin(), running_.end(), [&](const Sequence* other) { return left_of(*other) > is_long; });
  return others < limits_.max_long_partial_prompts;
}

// Pages of full attention, less those that running sequences still need for their prompts and one token more.
int64_t Scheduler::spare_pages() const {
  int64_t free = cache_.available(LayerKind::kFull);
  for (const Sequence* s : running_) {
    const int64_t owed = pages_for(static_cast<int64_t>(s->tokens.size()) + 1) -
                         static_cast<int64_t>(s->pages.ids[LayerKind::kFull].size());
    free -= std::max<int64_t>(1, owed);
  }
  return free;
}

}  // namespace nibble::engine
