#include "engine/draft_model_proposer.h"

#include "base/error.h"
#include "engine/speculation.h"
#include "model/eagle3/head.h"

#include <algorithm>
#include <array>
#include <utility>

namespace nibble::engine {

model::StepLimits draft_step_limits(const model::StepLimits& of_model) {
  return {.max_tokens = std::min(of_model.max_tokens, DraftModelProposer::kMostStepTokens),
          .max_rows = std::min(of_model.max_rows, static_cast<int>(Speculation::kMostDrafting)),
          .kv_pages = of_model.kv_pages};
}

model::StepLimits head_step_limits(const model::StepLimits& of_model) {
  constexpr int kRows = DraftModelProposer::kPassRows;
  return {.max_tokens = kRows, .max_rows = kRows, .kv_pages = of_model.kv_pages};
}

DraftModelProposer::DraftModelProposer(const DraftModel& of)
    : be_(of.be),
      model_(of.model),
      head_(of.head),
      max_tokens_(of.limits.max_tokens),
      max_context_(of.model.config.dims.max_context),
      pool_(of.limits.kv_pages),
      cache_(pool_, of.model.config.dims,
             of.prefix_cache && of.head == nullptr ? PrefixCache::Mode::kOn : PrefixCache::Mode::kOff) {}

std::span<const int> DraftModelProposer::boundaries() const {
  return head_ == nullptr ? std::span<const int>() : head_->boundaries;
}

DraftModelProposer::State::State(const Text& text)
    : sequence(text.id,
               {.prompt = {text.tokens.begin(), text.tokens.end()},
                .sampling = text.sampling != nullptr ? *text.sampling : backend::SamplingParams{.temperature = 0},
                .prefix_cache = text.shares},
               {}, {}) {
  sequence.prompt_count = text.prompt_tokens;
  sequence.pages.resume_lengths[1] = text.prompt_tokens;
}

DraftModelProposer::State::State(RequestId id)
    : sequence(id, {.prompt = {}, .sampling = {.temperature = 0}, .prefix_cache = false}, {}, {}) {}

// After a failure of the backend nobody knows what the pages hold.
template <class Work>
auto DraftModelProposer::or_forget(const Work& work) {
  try {
    return work();
  } catch (...) {
    forget_all();
    throw;
  }
}

int64_t DraftModelProposer::unread(const Text& text) const {
  if (head_ != nullptr) return 0;
  const auto found = of_.find(text.id);
  const bool is_new = found == of_.end();
  if (std::ssize(text.tokens) > max_context_ || (!is_new && found->second.corrupt)) return kNoDraft;
  const int64_t pages = pages_for(std::ssize(text.tokens));
  for (const LayerKind kind : cache_.kinds())
    if ((is_new || std::ssize(found->second.sequence.pages.ids[kind]) < pages) && cache_.available(kind) == 0)
      return kNoDraft;
  int64_t read = 0;
  if (!is_new)
    read = found->second.sequence.computed;
  else if (text.shares)
    read = cache_.resumable(text.tokens.first(text.tokens.size() - 1));
  const int64_t left = std::ssize(text.tokens) - read;
  return left > kReadByDraft ? left : 0;
}

int64_t DraftModelProposer::read(std::span<const Text> texts) {
  return or_forget([&] {
    std::vector<State*> states;
    for (const Text& text : texts)
      if (unread(text) > 0) states.push_back(&known(text));
    return feed(states, Last::kLeft);
  });
}

// Its state, with all of the text. Guesses that came true are computed.
DraftModelProposer::State& DraftModelProposer::known(const Text& text) {
  const auto [at, is_new] = of_.try_emplace(text.id, text);
  State& state = at->second;
  Sequence& s = state.sequence;
  if (is_new) {
    PrefixCache::Copies copies;
    s.computed = cache_.resume(s.skippable(), s.pages, copies);
    for (const backend::PageCopy& copy : copies) be_.copy_page(copy);
    return state;
  }
  const auto fresh = text.tokens.subspan(s.tokens.size());
  s.computed += std::ranges::mismatch(state.guessed, fresh).in1 - state.guessed.begin();
  if (!fresh.empty()) state.guessed.clear();
  s.tokens.insert(s.tokens.end(), fresh.begin(), fresh.end());
  return state;
}

// Gives it pages for `length` tokens, as far as there are any. Returns for how many tokens it has pages.
int64_t DraftModelProposer::grow(Sequence& s, int64_t length) {
  int64_t got = length;
  for (const LayerKind kind : cache_.kinds()) {
    std::vector<int32_t>& ids = s.pages.ids[kind];
    while (std::ssize(ids) < pages_for(length)) {
      const int32_t page = cache_.take(kind);
      if (page < 0) break;
      ids.push_back(page);
    }
    got = std::min(got, std::ssize(ids) * backend::kPageTokens);
  }
  return got;
}

// Its tokens that are not computed, up to `end`. The last one of a text is computed for a draft alone, which draws
// after it.
bool DraftModelProposer::add_row(State& state, int64_t end) {
  Sequence& s = state.sequence;
  if (end <= s.computed) return false;
  batch_.rows.push_back({.sequence = &s,
                         .from = s.computed,
                         .count = static_cast<int32_t>(end - s.computed),
                         .score_from = 0,
                         .score_to = 0,
                         .draws = end >= std::ssize(s.tokens)});
  return true;
}

// A head's step that only reads draws nothing, and nobody waits for it.
std::optional<backend::Ticket> DraftModelProposer::enqueue() {
  using enum StepBuilder::Draws;
  const StepBuilder::Result built = builder_.build(batch_, head_ == nullptr ? kOneAtLeast : kAsked);
  std::optional<backend::Ticket> ticket;
  if (head_ == nullptr) {
    ticket = model::forward(be_, model_, built.step);
  } else {
    model::Step step = built.step;
    place(step);
    ticket = model::forward(be_, model_, step);
  }
  int32_t logit_row = 0;
  for (const Batch::Row& row : batch_.rows) {
    row.sequence->computed += row.count;
    if (!row.draws) continue;
    row.sequence->pending = 1;
    row.sequence->pending_row = logit_row;
    logit_row += 1 + row.drafted;
  }
  return ticket;
}

// Gives a head's step the true positions of its rows, and their residuals. Rows behind those of the text follow from
// the step before, or are of the mask token.
void DraftModelProposer::place(model::Step& step) {
  taps_.clear();
  auto position = step.positions.begin();
  for (const Batch::Row& row : batch_.rows) {
    const State& state = of_.at(row.sequence->id);
    const int64_t known = std::ssize(state.positions), width = head_->reads.taps * head_->reads.target_hidden;
    const int64_t first = known - std::ssize(state.residuals) / width;
    for (int64_t i = row.from; i < row.from + row.count; ++i, ++position) {
      *position = i < known ? state.positions[static_cast<size_t>(i)]
                            : state.positions.back() + 1 + static_cast<int32_t>(i - known);
      if (i < known) {
        const auto own = state.residuals.subspan(static_cast<size_t>((i - first) * width), static_cast<size_t>(width));
        taps_.insert(taps_.end(), own.begin(), own.end());
      } else if (head_->mask_token) {
        taps_.insert(taps_.end(), head_->mask_hidden.begin(), head_->mask_hidden.end());
      }
    }
  }
  step.taps = taps_;
  for (backend::Row& row : step.rows) row.drafted = 0;  // nobody compares rows of mask tokens with others
}

void DraftModelProposer::forget_waiting(State& state) {
  Sequence& s = state.sequence;
  s.tokens.resize(static_cast<size_t>(s.computed));
  state.positions.resize(static_cast<size_t>(s.computed));
  state.kept.clear();
  state.residuals = {};
}

// Rows of residuals that were shown. Returns whether they are to be read now.
bool DraftModelProposer::take_rows(const News& seen, State& state) {
  const Text& text = seen.text;
  const Residuals& shown = seen.residuals;
  Sequence& s = state.sequence;
  const int64_t end = shown.from + shown.count, width = std::ssize(shown.values) / shown.count;
  int64_t from = std::max(state.seen, shown.from);
  if (from >= end || state.corrupt) return false;
  check(end < std::ssize(text.tokens), "a row is a residual and the token after it");
  const bool prompt = from < text.prompt_tokens;
  if (prompt && !seen.wanted) from = end < text.prompt_tokens ? end : std::max(from, end - kPassRows);
  if (from > state.seen || !seen.wanted) forget_waiting(state);
  state.seen = end;
  if (from == end) return false;
  const bool skips = !state.positions.empty() && state.positions.back() + 1 != from;
  if (skips && model_.config.layer_kinds.front() == LayerKind::kSliding) {
    cache_.release({}, s.pages);
    s.computed = 0;
    forget_waiting(state);
  }
  const auto fresh = shown.values.last(static_cast<size_t>((end - from) * width));
  const bool alone = !state.waits();
  for (int64_t position = from; position < end; ++position) {
    s.tokens.push_back(text.tokens[static_cast<size_t>(position) + 1]);
    state.positions.push_back(static_cast<int32_t>(position));
  }
  const bool now = prompt || std::ssize(s.tokens) - s.computed >= kPassRows;
  if (alone) state.kept.clear();
  if (now && alone) {
    state.residuals = fresh;
  } else {
    state.kept.reserve(static_cast<size_t>(kPassRows * width));
    state.kept.insert(state.kept.end(), fresh.begin(), fresh.end());
    state.residuals = state.kept;
  }
  return now;
}

void DraftModelProposer::saw(std::span<const News> all) {
  if (head_ == nullptr) return;
  or_forget([&] {
    std::vector<State*> states;
    for (const News& seen : all) {
      State& state = of_.try_emplace(seen.text.id, seen.text.id).first->second;
      if (take_rows(seen, state)) states.push_back(&state);
    }
    while (feed(states, Last::kRead) > 0) {
    }
    for (State* const state : states) {
      if (state->waits()) forget_waiting(*state);  // there are no pages: it does without these
      const auto last = state->residuals.last(
          std::min(state->residuals.size(), static_cast<size_t>(head_->reads.taps * head_->reads.target_hidden)));
      const std::vector<float> of_last(last.begin(), last.end());  // they may lie in what is overwritten
      state->kept.assign(of_last.begin(), of_last.end());
      state->residuals = state->kept;
    }
  });
}

// A step that reads on in texts, perhaps all but the last token of each. Returns how many tokens it read.
int64_t DraftModelProposer::feed(std::span<State* const> states, Last last) {
  batch_.rows.clear();
  int64_t left = max_tokens_;
  for (State* const state : states) {
    Sequence& s = state->sequence;
    const int64_t end = std::min(s.computed + left, std::ssize(s.tokens) - (last == Last::kLeft ? 1 : 0));
    if (end <= s.computed) continue;
    cache_.insert(s.settled(), s.pages);
    cache_.slide(s.computed, s.pages);
    if (add_row(*state, std::min(end, grow(s, end)))) left -= batch_.rows.back().count;
    if (left == 0) break;
  }
  if (batch_.rows.empty()) return 0;
  if (head_ != nullptr)
    for (Batch::Row& row : batch_.rows) row.draws = false;
  if (const std::optional<backend::Ticket> ticket = enqueue()) static_cast<void>(be_.wait(*ticket));
  return max_tokens_ - left;
}

// The state of a text that may have a draft now; null: it may not.
DraftModelProposer::State* DraftModelProposer::to_draft(const Order& asked) {
  if (head_ == nullptr) return unread(asked.text) == kNoDraft ? nullptr : &known(asked.text);
  const auto found = of_.find(asked.text.id);
  if (found == of_.end() || found->second.corrupt || found->second.positions.empty()) return nullptr;
  // Its last row is that of the text's last token.
  return found->second.positions.back() + 2 == std::ssize(asked.text.tokens) ? &found->second : nullptr;
}

void DraftModelProposer::propose_all(std::span<const Order> all) {
  or_forget([&] {
    begin(all);
    catch_up();
    if (head_ != nullptr && head_->mask_token)
      draw_at_once();
    else
      draw();
    finish();
  });
}

// Drafts are as long as there are pages for what is fed: all but their last token.
void DraftModelProposer::begin(std::span<const Order> all) {
  drafting_.clear();
  for (const Order& asked : all) {
    asked.draft->tokens.clear();
    asked.draft->matched = 1;  // nothing was looked up
    State* const found = to_draft(asked);
    if (found == nullptr) continue;
    State& state = *found;
    Sequence& s = state.sequence;
    const int64_t length = std::ssize(s.tokens);
    state.guessed.clear();
    s.computed = std::min(s.computed, length - 1);  // what comes after the last token is drawn anew
    cache_.insert(s.settled(), s.pages);
    cache_.slide(s.computed, s.pages);
    const int64_t most = std::min<int64_t>(asked.most, max_context_ - length + 1);
    const int64_t room = grow(s, length + most - 1) - length + 1;
    if (std::min(most, room) > 0)
      drafting_.push_back({.state = &state, .draft = asked.draft, .length = length, .most = std::min(most, room)});
  }
  check(std::ssize(drafting_) <= max_tokens_, "a step holds a token of every text that drafts");
}

// Until one step holds all that is not computed.
void DraftModelProposer::catch_up() {
  std::vector<State*> states;
  for (const Drafting& each : drafting_) states.push_back(each.state);
  const auto left = [&] {
    int64_t sum = 0;
    for (const Drafting& each : drafting_) sum += each.length - each.state->sequence.computed;
    return sum;
  };
  while (left() > max_tokens_) check(feed(states, Last::kLeft) > 0, "texts that draft have their pages");
}

void DraftModelProposer::draw() {
  const bool ahead = std::ranges::none_of(
      drafting_, [](const Drafting& each) { return each.state->sequence.request.sampling.counts_tokens(); });
  std::optional<Flight> before;
  for (int64_t nth = 0;; ++nth) {
    std::optional<Flight> next = enqueue_draws(nth);
    if (before) take(*before);
    before = std::move(next);
    if (!before) return;
    if (!ahead) take(*std::exchange(before, std::nullopt));
  }
}

// The draws after `nth` tokens of each draft; none: all are as long as asked for.
std::optional<DraftModelProposer::Flight> DraftModelProposer::enqueue_draws(int64_t nth) {
  Flight flight{};
  batch_.rows.clear();
  for (Drafting& each : drafting_) {
    if (nth >= each.most) continue;
    check(add_row(*each.state, each.length + nth), "the last token is not computed");
    flight.rows.push_back(&each);
  }
  if (flight.rows.empty()) return std::nullopt;
  flight.ticket = *enqueue();
  return flight;
}

// All of each, in as few steps as hold them.
void DraftModelProposer::draw_at_once() {
  for (size_t next = 0; next < drafting_.size();) {
    Flight flight{};
    batch_.rows.clear();
    int64_t left = max_tokens_;
    for (; next < drafting_.size(); ++next) {
      Drafting& each = drafting_[next];
      Sequence& s = each.state->sequence;
      const int64_t guesses = each.most - 1;
      if (each.length - s.computed + guesses > max_tokens_) {  // a step of its own
        if (!flight.rows.empty()) break;
        static_cast<void>(feed(std::array{each.state}, Last::kLeft));
        batch_.rows.clear();
      }
      const int64_t rows = each.length - s.computed + guesses;
      if (rows > left) break;
      left -= rows;
      s.draft.tokens.assign(static_cast<size_t>(guesses), *head_->mask_token);
      batch_.rows.push_back({.sequence = &s,
                             .from = s.computed,
                             .count = static_cast<int32_t>(rows),
                             .score_from = 0,
                             .score_to = 0,
                             .draws = true,
                             .drafted = static_cast<int32_t>(guesses)});
      flight.rows.insert(flight.rows.end(), static_cast<size_t>(each.most), &each);
    }
    flight.ticket = *enqueue();
    take(flight);
  }
}

void DraftModelProposer::take(const Flight& flight) {
  const std::vector<backend::DrawnToken> drawn = be_.wait(flight.ticket);
  check(drawn.size() == flight.rows.size(), "a result per row of logits");
  for (size_t r = 0; r < drawn.size(); ++r) {
    Drafting& each = *flight.rows[r];
    each.stopped |= drawn[r].error.has_value();
    each.state->corrupt |= drawn[r].error && drawn[r].error->code() != Code::kInvalidRequest;
    if (!each.stopped) each.draft->tokens.push_back(drawn[r].token);
    each.state->sequence.tokens.push_back(std::max(0, drawn[r].token));
  }
}

void DraftModelProposer::finish() {
  bool corrupt = false;
  for (const Drafting& each : drafting_) {
    Sequence& s = each.state->sequence;
    s.tokens.resize(static_cast<size_t>(each.length));
    s.computed = each.length;
    s.pending = 0;
    s.draft.tokens.clear();
    const std::vector<int32_t>& tokens = each.draft->tokens;
    if (each.state->corrupt) {
      cache_.release({}, s.pages);
      s.computed = 0;
      corrupt = true;
    } else if (!tokens.empty() && head_ == nullptr) {
      each.state->guessed.assign(tokens.begin(), tokens.end() - 1);
    }
  }
  if (corrupt) cache_.clear();  // its pages may have come from there
}

void DraftModelProposer::ended(const Text& text) {
  const auto found = of_.find(text.id);
  if (found == of_.end()) return;
  Sequence& s = found->second.sequence;
  cache_.release(s.settled(), s.pages);
  of_.erase(found);
}

void DraftModelProposer::forget_all() {
  for (auto& [id, state] : of_) cache_.release({}, state.sequence.pages);
  of_.clear();
  cache_.clear();
}

}  // namespace nibble::engine
