#include "engine/loop.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>

namespace nibble::engine {
namespace {

Code code_of(const std::exception& why) {
  if (const auto* error = dynamic_cast<const Error*>(&why)) return error->code();
  return dynamic_cast<const std::bad_alloc*>(&why) != nullptr ? Code::kOutOfMemory : Code::kDevice;
}

// Whether its logits are not finite; any other error is the request's own.
bool is_corrupt(const backend::DrawnToken& drawn) {
  return drawn.error && drawn.error->code() != Code::kInvalidRequest;
}

double seconds(Sequence::Time from, Sequence::Time to) { return std::chrono::duration<double>(to - from).count(); }

// How many keys' attention costs as many operations as everything else for one token.
int64_t keys_per_token(const model::ModelConfig& config) {
  const backend::Dims& d = config.dims;
  const int64_t attention = d.hidden * (2 * d.q_width() + 2 * d.kv_width()), experts = d.topk * 3 * d.hidden * d.inter;
  const auto full = std::count(config.layer_kinds.begin(), config.layer_kinds.end(), LayerKind::kFull);
  return std::max<int64_t>(1, d.layers * (attention + experts) / std::max<int64_t>(1, full * 2 * d.q_width()));
}

Scheduler::Limits scheduler_limits(const EngineLimits& limits, const model::ModelConfig& config) {
  const model::StepLimits step = step_limits(limits, config.dims);
  return {.max_context = limits.max_context,
          .max_sequences = std::min(limits.max_sequences, limits.max_batched_tokens),
          .max_tokens = step.max_tokens,
          .max_logit_rows = step.max_rows,
          .keys_per_token = keys_per_token(config),
          .max_partial_prompts = limits.max_partial_prefills,
          .max_long_partial_prompts = limits.max_long_partial_prefills,
          .long_prompt_tokens = limits.long_prefill_tokens};
}

// OpenAI's sign for a token that is none of the likely ones; the token that came in place of the drawn one has it.
constexpr double kUnlikely = -9999;

}  // namespace

Loop::Loop(backend::Backend& be, const model::GptOss& model, const EngineLimits& limits, Now now)
    : be_(be),
      model_(model),
      limits_(limits),
      pool_(step_limits(limits, model.config.dims).kv_pages),
      cache_(pool_, model.config.dims, limits.prefix_cache ? PrefixCache::Mode::kOn : PrefixCache::Mode::kOff),
      scheduler_(scheduler_limits(limits, model.config), cache_),
      pace_({.target_seconds = limits.target_itl_seconds, .max_tokens = limits.max_batched_tokens}),
      now_(std::move(now)) {
  if (limits.speculation.method != DraftMethod::kOff) propose_with(make_proposer(limits.speculation));
}

void Loop::propose_with(std::unique_ptr<Proposer> proposer) {
  check(idle() && limits_.speculation.method != DraftMethod::kOff, "speculation is on, and nobody has a draft");
  speculation_ = std::make_unique<Speculation>(
      Speculation::Limits{
          .drafts = limits_.speculation, .max_context = limits_.max_context, .vocab = model_.config.dims.vocab},
      std::move(proposer));
}

void Loop::add(RequestId id, Request request, Receiver receiver) {
  auto owned = std::make_unique<Sequence>(id, std::move(request), std::move(receiver), now_());
  Sequence& s = *owned;
  sequences_.emplace(id, std::move(owned));
  if (s.request.max_tokens == 0 && s.to_score() == 0) {
    end(s, FinishReason::kLength);
    drop_if_done(s);
  } else {
    scheduler_.add(s);
  }
}

void Loop::cancel(RequestId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->ended) return;
  end(*found->second, FinishReason::kCancelled);
  drop_if_done(*found->second);
}

void Loop::cancel_all() {
  std::vector<RequestId> ids;
  for (const auto& [id, s] : sequences_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const RequestId id : ids) cancel(id);
}

void Loop::fail_all(const std::exception& why) {
  std::vector<Sequence*> all;
  for (const auto& [id, s] : sequences_) all.push_back(s.get());
  for (Sequence* s : all) {
    if (!s->ended) fail(*s, why);
    drop_if_done(*s);
  }
  cache_.clear();
}

void Loop::step() {
  auto scheduled = now_();
  if (flight_ && limits_.async_scheduling && speculation_)
    speculation_->look_ahead(scheduler_.running(), scheduler_.room_for_drafts());
  // What the last step left is overwritten by the next one.
  if (flight_ && speculation_ && flight_->taps.kept && speculation_->may_draft(scheduler_.running()))
    model::fetch(be_, flight_->taps);
  const bool drafts_wait = flight_ && limits_.async_scheduling &&
                           std::ranges::any_of(scheduler_.running(), [](const Sequence* s) { return s->waits; });
  if (flight_ && (!limits_.async_scheduling || scheduler_.wants_tokens())) read_flight();
  Batch* batch = &schedule();
  if (batch->starved && flight_) {
    read_flight();
    batch = &schedule();
  }
  check(!batch->rows.empty() || flight_ || sequences_.empty(), "somebody can go on while anybody is left");
  const auto reading = flight_ ? Sequence::Time::duration() : read_for_drafts(*batch);
  scheduled += reading;
  const auto before_drafts = now_();
  const DraftController::Why why = add_drafts(*batch);
  const double proposing = flight_ ? 0 : seconds(before_drafts, now_());
  copy_pages(*batch);
  make_masks(*batch);
  std::optional<Flight> next = enqueue(*batch);
  if (next) {
    next->scheduled = scheduled;
    next->proposing = proposing;
    // Steps without drafts are timed only if they were enqueued as usual, or if drafts held them up.
    if (!next->waited_for && !holds_prompts(*batch)) next->step = draft_step(*batch);
    if (next->step) next->step->why = why;
    if (next->step && next->step->drafted == 0 && limits_.async_scheduling && !flight_) {
      next->step->late = drafts_wait;
      if (!drafts_wait || reading.count() > 0) next->step.reset();
    }
  }
  if (flight_) read_flight();
  flight_ = std::move(next);
  // A step with parts of prompts is long. Nothing is enqueued after it, so that a request that comes meanwhile waits
  // for this step only.
  if (flight_ && flight_->waited_for) read_flight();
}

Finished Loop::serve(Request request, const OnToken& on_token, const OnPrompt& on_prompt) {
  check(idle(), "who is served alone finds nobody else");
  validate(request, limits_, model_.config.dims);
  constexpr RequestId kId = 0;
  request.progress = static_cast<bool>(on_prompt);
  Finished finished;
  alone_ = true;
  add(kId, std::move(request), [&](const Event& event) {
    if (const auto* end = std::get_if<Finished>(&event)) {
      finished = *end;
      return;
    }
    const auto* read = std::get_if<PromptProgress>(&event);
    if (!(read ? on_prompt(read->done, read->total) : on_token(std::get<TokenEvent>(event)))) cancel(kId);
  });
  while (!idle()) step();
  alone_ = false;
  if (finished.reason == FinishReason::kFailed) throw Error(finished.code, finished.message);
  return finished;
}

Batch& Loop::schedule() {
  const bool paced = !alone_ && !std::isinf(limits_.target_itl_seconds);
  allowed_ = !paced ? Scheduler::kNoLimit
                    : pace_.allowance({.decoding = scheduler_.decoding(),
                                       .unread = scheduler_.unread(),
                                       .newcomers = !scheduler_.waiting().empty()});
  return scheduler_.schedule(flight_ ? Scheduler::Flight::kStep : Scheduler::Flight::kNone, allowed_);
}

// Steps that read prompts have none: they are long already. Nor has one whose proposer does not know the last step:
// that drafts might pay was not seen before it was read.
bool Loop::may_have_drafts(const Batch& batch) const {
  return speculation_ && !unshown_ && !batch.rows.empty() && !holds_prompts(batch);
}

// How long who drafts has read in texts of the batch. That is not a part of the step's time.
Sequence::Time::duration Loop::read_for_drafts(const Batch& batch) {
  if (!may_have_drafts(batch)) return {};
  const auto before = now_();
  const int64_t tokens = speculation_->read(batch);
  if (tokens == 0) return {};
  const auto took = now_() - before;
  speculation_->took_reading(tokens, std::chrono::duration<double>(took).count());
  return took;
}

DraftController::Why Loop::add_drafts(Batch& batch) {
  if (!may_have_drafts(batch)) return DraftController::Why::kNothing;
  const DraftController::Why why = speculation_->draft(batch, scheduler_.room_for_drafts());
  for (Batch::Row& row : batch.rows)
    if (!row.sequence->draft.tokens.empty()) scheduler_.add_draft(row);
  return why;
}

// If the backend fails, all running requests have failed.
void Loop::copy_pages(Batch& batch) {
  try {
    for (const backend::PageCopy& copy : std::exchange(batch.copies, {})) be_.copy_page(copy);
  } catch (const std::exception& why) {
    batch.rows.clear();
    for (Sequence* s : std::vector(scheduler_.running())) {
      fail(*s, why);
      drop_if_done(*s);
    }
    cache_.clear();
  }
}

// If a sequence's mask cannot be made, it leaves the batch.
void Loop::make_masks(Batch& batch) {
  std::erase_if(batch.rows, [&](Batch::Row& row) {
    if (!row.draws) return false;
    const bool made = make_masks(row);
    if (!made) drop_if_done(*row.sequence);
    return !made;
  });
}

// One mask for each draw of the row, given the guesses before it. A draft ends before a guess that the mask forbids.
bool Loop::make_masks(Batch::Row& row) {
  Sequence& s = *row.sequence;
  s.masks.resize(static_cast<size_t>(row.drafted) + 1);
  TokenMask* const grammar = s.request.mask.get();
  int accepted = 0, verifiable = 0;
  try {
    make_mask(s, 0, s.masks[0]);
    try {
      for (; verifiable < row.drafted; ++verifiable) {
        const auto nth = static_cast<size_t>(verifiable);
        const int32_t guess = s.draft.tokens[nth];
        if (!backend::mask_allows(s.masks[nth], guess)) break;
        if (grammar != nullptr) {
          const bool comes = grammar->take(guess) == guess;
          ++accepted;
          if (!comes) break;
        }
        make_mask(s, nth + 1, s.masks[nth + 1]);
      }
    } catch (const std::exception&) {
      // Without the draft it fails when the guess is drawn, if ever.
    }
    if (accepted > 0) grammar->undo(accepted);
  } catch (const std::exception& why) {
    fail(s, why);
    return false;
  }
  row.count -= row.drafted - verifiable;
  row.drafted = verifiable;
  s.draft.tokens.resize(static_cast<size_t>(verifiable));
  return true;
}

// The mask of the draw after `nth` guesses, which the grammar has accepted.
void Loop::make_mask(const Sequence& s, size_t nth, std::vector<uint32_t>& mask) const {
  const auto words = static_cast<size_t>((model_.config.dims.vocab + 31) / 32);
  const int64_t drawn = static_cast<int64_t>(s.tokens.size()) - s.prompt_count + s.pending + static_cast<int64_t>(nth);
  const bool no_stop = drawn < s.request.min_tokens && !s.request.stop_ids.empty();
  mask.clear();
  if (!s.request.mask && !no_stop) return;
  mask.assign(words, 0);
  const bool filled = s.request.mask && s.request.mask->fill(mask);
  if (!filled && !no_stop) return mask.clear();
  if (!filled) std::fill(mask.begin(), mask.end(), ~uint32_t{0});
  for (const int32_t id : no_stop ? std::span<const int32_t>(s.request.stop_ids) : std::span<const int32_t>())
    mask[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << (id % 32));
}

// None if the batch is empty or the backend failed; then the requests in the batch have failed.
std::optional<Loop::Flight> Loop::enqueue(const Batch& batch) {
  if (batch.rows.empty()) return std::nullopt;
  const auto now = now_();
  for (const Batch::Row& row : batch.rows) {
    Sequence& s = *row.sequence;
    if (s.started != Sequence::Time{}) continue;
    s.started = now;
    s.cached = std::min(row.from, s.prompt_count);
    counts_.prefix_queries += s.request.prefix_cache ? s.prompt_count : 0;
    counts_.prefix_hits += s.cached;
  }
  const StepBuilder::Result built =
      builder_.build(batch, limits_.async_scheduling ? StepBuilder::Draws::kOneAtLeast : StepBuilder::Draws::kAsked);
  Flight flight{.ticket = {},
                .rows = {},
                .uses = built.uses,
                .taps = {},
                .pace = {batch.decoding, allowed_, batch.prompt_tokens},
                .step = {},
                .scheduled = now,
                .began = now,
                .proposing = 0,
                .waited_for = false};
  for (const Batch::Row& row : batch.rows) {
    flight.rows.push_back({.sequence = row.sequence, .from = row.from, .count = row.count, .drafted = row.drafted});
    row.sequence->drafted += row.drafted;
    row.sequence->right = 0;
    flight.waited_for |= !row.draws && row.from + row.count < std::ssize(row.sequence->tokens) - 1;
    ++row.sequence->steps_in_flight;
  }
  if (speculation_) {
    const std::span<const int> wanted = speculation_->boundaries();
    flight.taps.boundaries.assign(wanted.begin(), wanted.end());
  }
  try {
    flight.ticket = model::forward(be_, model_, built.step, watch_ ? watch_(built.step) : model::Probe(), &flight.taps);
    if (flight.taps.kept && speculation_->reads(batch)) model::fetch(be_, flight.taps);
  } catch (const std::exception& why) {
    if (flight_) read_flight();
    for (const Flight::Row& row : flight.rows) {
      if (!row.sequence->ended) fail(*row.sequence, why);
      --row.sequence->steps_in_flight;
      drop_if_done(*row.sequence);
    }
    cache_.clear();
    return std::nullopt;
  }
  scheduler_.enqueued(batch);
  ++counts_.steps;
  for (const Batch::Row& row : batch.rows)
    counts_.prompt_tokens +=
        std::max<int64_t>(0, std::min(row.from + row.count, row.sequence->prompt_count) - row.from);
  return flight;
}

void Loop::read_flight() {
  const Flight flight = *std::exchange(flight_, std::nullopt);
  bool corrupt = false;
  try {
    auto drawn = flight.ticket ? be_.wait(*flight.ticket) : std::vector<backend::DrawnToken>();
    corrupt = std::any_of(drawn.begin(), drawn.end(), is_corrupt);
    check(drawn.size() == flight.uses.size(), "a result per row of logits");
    tell_progress(flight);
    take_all(flight, std::move(drawn));
    if (!flight.taps.boundaries.empty()) show_residuals(flight);
  } catch (const std::exception& why) {
    for (const Flight::Row& row : flight.rows)
      if (!row.sequence->ended) fail(*row.sequence, why);
    cache_.clear();
  }
  // The pages that its sequence left may hold what made the row NaN, whether it ended now or earlier.
  if (corrupt) cache_.clear();
  const auto now = now_();
  const auto last_end = std::exchange(last_end_, now);
  pace_.took(flight.pace, seconds(std::max(flight.began, last_end), now));
  if (speculation_) judge_drafts(flight, seconds(std::max(flight.scheduled, last_end), now));
  for (const Flight::Row& row : flight.rows) {
    --row.sequence->steps_in_flight;
    drop_if_done(*row.sequence);
  }
}

void Loop::tell_progress(const Flight& flight) {
  for (const Flight::Row& row : flight.rows) {
    const Sequence& s = *row.sequence;
    if (!s.request.progress || s.ended || !s.output().empty()) continue;
    const int64_t done = std::min(row.from + row.count, s.prompt_count);
    s.receiver(PromptProgress{.done = done, .total = s.prompt_count, .cached = s.cached});
  }
}

void Loop::take_all(const Flight& flight, std::vector<backend::DrawnToken>&& drawn) {
  for (size_t r = 0; r < drawn.size(); ++r) {
    const LogitUse& use = flight.uses[r];
    Sequence* const of = use.sequence;
    if (of == nullptr || of->ended || of->right < use.after) continue;
    take(use, std::move(drawn[r]));
    if (use.guess >= 0 && of->tokens.back() == use.guess) ++of->right;
  }
}

// Shows residuals of tokens that were verified, of sequences that go on.
void Loop::show_residuals(const Flight& flight) {
  int64_t tokens = 0;
  for (const Flight::Row& row : flight.rows) tokens += row.count;
  const std::span<const float> shown = model::residuals(be_, flight.taps);
  unshown_ = shown.empty();
  if (unshown_) return;
  const int64_t width = std::ssize(shown) / tokens;
  const float* values = shown.data();
  std::vector<std::pair<const Sequence*, Proposer::Residuals>> all;
  for (const Flight::Row& row : flight.rows) {
    const int64_t count = row.count - row.drafted + (row.drafted > 0 ? row.sequence->right : 0);
    if (!row.sequence->ended)
      all.push_back(
          {row.sequence, {.from = row.from, .count = count, .values = {values, static_cast<size_t>(count * width)}}});
    values += row.count * width;
  }
  speculation_->saw(all);
}

// What came after a wrong guess was never taken. `seconds`: what the step took, with all that the host did for it.
void Loop::judge_drafts(const Flight& flight, double seconds) {
  int right = 0;
  for (const Flight::Row& row : flight.rows) {
    if (row.drafted == 0) continue;
    Sequence& s = *row.sequence;
    speculation_->verified(s, row.drafted, std::min(row.drafted, s.right + 1), s.right);
    right += s.right;
    s.draft.tokens.clear();
  }
  if (flight.step)
    speculation_->took(*flight.step, {.step = seconds - flight.proposing, .proposing = flight.proposing}, right);
}

void Loop::take(const LogitUse& use, backend::DrawnToken&& drawn) {
  Sequence& s = *use.sequence;
  if (drawn.error) {
    fail(s, *drawn.error);
    return;
  }
  if (use.scored < 0) return take_token(use, std::move(drawn));
  s.receiver(TokenEvent{.token = drawn.token, .of_prompt = true, .logprobs = std::move(drawn.logprobs)});
  if (s.ended) return;
  if (s.request.max_tokens == 0 && use.scored + 1 == s.to_score()) end(s, FinishReason::kLength);
}

void Loop::take_token(const LogitUse& use, backend::DrawnToken&& drawn) {
  Sequence& s = *use.sequence;
  int32_t token = drawn.token;
  try {
    if (s.request.mask) token = s.request.mask->take(token);
  } catch (const std::exception& why) {
    return fail(s, why);
  }
  if (token != drawn.token && drawn.logprobs) drawn.logprobs->value = kUnlikely;
  if (s.output().empty()) s.first_token = now_();
  s.tokens.push_back(token);
  if (use.after == 0) {
    --s.pending;
  } else {
    ++s.computed;  // of the guess before it
    ++s.accepted;
  }
  ++counts_.generated_tokens;
  s.receiver(TokenEvent{.token = token, .logprobs = std::move(drawn.logprobs)});
  if (s.ended) return;
  const std::vector<int32_t>& stops = s.request.stop_ids;
  if (std::find(stops.begin(), stops.end(), token) != stops.end())
    return end(s, s.request.mask && s.request.mask->cut() ? FinishReason::kLength : FinishReason::kStop);
  if (static_cast<int64_t>(s.output().size()) >= s.request.max_tokens) return end(s, FinishReason::kLength);
  if (static_cast<int64_t>(s.tokens.size()) >= limits_.max_context) return end(s, FinishReason::kContext);
}

// A step that computes this sequence may still be in flight, for example if its client has gone. That step may still
// write to the pages that are released here, also to those of settled(), since enqueued tokens count as computed. This
// is safe because a backend runs steps and page copies in order: whoever gets a page next uses it after that step. The
// Sequence object itself stays until the last of its steps is read (drop_if_done), since batches point at it.
void Loop::end(Sequence& s, FinishReason reason, Code code, std::string message) {
  scheduler_.remove(s);
  if (speculation_) speculation_->ended(s);
  cache_.release(s.settled(), s.pages);
  s.ended = true;
  const auto now = now_();
  const bool started = s.started != Sequence::Time{}, drew = s.first_token != Sequence::Time{};
  s.receiver(Finished{.reason = reason,
                      .prompt_tokens = s.prompt_count,
                      .cached_tokens = s.cached,
                      .generated_tokens = static_cast<int64_t>(s.output().size()),
                      .drafted_tokens = s.drafted,
                      .accepted_tokens = s.accepted,
                      .prefill_seconds = started ? seconds(s.started, drew ? s.first_token : now) : 0,
                      .decode_seconds = drew ? seconds(s.first_token, now) : 0,
                      .queue_seconds = seconds(s.submitted, started ? s.started : now),
                      .code = code,
                      .message = std::move(message)});
}

void Loop::fail(Sequence& s, const std::exception& why) { end(s, FinishReason::kFailed, code_of(why), why.what()); }

EngineStats Loop::stats() const {
  EngineStats stats = counts_;
  stats.running = static_cast<int64_t>(scheduler_.running().size());
  stats.waiting = static_cast<int64_t>(scheduler_.waiting().size());
  stats.kv_pages = pool_.total(LayerKind::kFull);
  stats.kv_pages_used = stats.kv_pages - cache_.available(LayerKind::kFull);
  stats.preemptions = scheduler_.preemptions();
  if (speculation_) stats.drafts = speculation_->stats();
  const backend::ScreenCounts screened = be_.screen_counts();
  stats.screened_steps = screened.steps;
  stats.screened_tiles = screened.tiles;
  return stats;
}

}  // namespace nibble::engine
