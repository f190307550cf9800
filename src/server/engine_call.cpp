#include "server/engine_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace nibble::server {
namespace {

constexpr double kMostWaiting = 16384;  // events kept for a reader that has stopped reading
// Waiting events. It wakes a connection that is busy sending, so that it learns that its client is too slow.
constexpr size_t kWakeAgain = 1024;
constexpr int kClientGone = 499;  // nginx's; for logs and metrics only

// Its name in logs and metrics.
std::string_view reason_of(const ApiError& failure) {
  if (failure.status() == kClientGone) return "abort";
  return failure.status() == 503 ? "shutdown" : "error";
}

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double milliseconds(double seconds) { return static_cast<double>(static_cast<int64_t>(seconds * 1e5 + 0.5)) / 100; }

int status_of_failed(Code failed) {
  if (failed == Code::kInvalidRequest) return 400;  // seen while it ran, as a grammar that is too ambiguous
  if (failed == Code::kIo) return 503;              // a rank is lost: this server ends, and the next one may answer
  return 500;
}

// The log says how far a prompt of so many tokens is read, at most so often.
constexpr int64_t kLongPrompt = 16'384;
constexpr std::chrono::seconds kBetweenTold{10};

// With what every answer has.
HttpHead head_of(const CallContext& context) {
  HttpHead head{.headers = {{"X-Request-Id", context.request_id}}};
  if (!context.leniency.ignored.empty())
    head.headers.emplace_back("X-Nibble-Ignored", fmt::format("{}", fmt::join(context.leniency.ignored, ", ")));
  return head;
}

HttpHead stream_head(const CallContext& context, std::string_view type) {
  HttpHead head = head_of(context);
  head.content_type = type;
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Accel-Buffering", "no");
  head.stream = true;
  return head;
}

}  // namespace

EngineCall::EngineCall(CallContext context, std::unique_ptr<Presenter> presenter, std::vector<engine::Request> requests,
                       bool stream, Wake wake, std::optional<ApiError> failure)
    : context_(std::move(context)),
      presenter_(std::move(presenter)),
      stream_(stream),
      unfinished_(requests.size()),
      failure_(std::move(failure)),
      mailbox_(std::make_shared<Mailbox>()) {
  mailbox_->wake = std::move(wake);
  if (failure_ && failure_->prompt_tokens()) presenter_->prompt(0, *failure_->prompt_tokens());
  try {
    for (size_t i = 0; i < requests.size(); ++i) {
      presenter_->prompt(i, static_cast<int64_t>(requests[i].prompt.size()));
      submit(i, std::move(requests[i]));
    }
  } catch (...) {
    leave();
    throw;
  }
  context_.metrics.request_begun(choices_.size());
}

EngineCall::~EngineCall() {
  leave();
  if (done_) return;
  if (!failure_) failure_ = ApiError("", "the client has gone", kClientGone);
  conclude();
}

void EngineCall::submit(size_t choice, engine::Request request) {
  const auto receive = [mailbox = mailbox_, choice](const engine::Event& event) {
    const std::lock_guard lock(mailbox->mutex);
    if (!mailbox->wake) return;
    mailbox->items.push_back({choice, event, Clock::now()});
    if (mailbox->items.size() % kWakeAgain == 1) mailbox->wake();
  };
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const bool shows_progress = request.progress;
  request.progress = shows_progress || prompt_tokens >= kLongPrompt;
  const engine::RequestId id = context_.port.submit(std::move(request), receive);
  choices_.push_back(
      {.id = id, .shows_progress = shows_progress, .prompt_tokens = prompt_tokens, .first = {}, .last = {}});
}

// From here on no event comes, and nothing runs.
void EngineCall::leave() {
  {
    const std::lock_guard lock(mailbox_->mutex);
    mailbox_->wake = nullptr;
  }
  for (const Choice& choice : choices_) context_.port.cancel(choice.id);
}

void EngineCall::cut() {
  take_all();
  if (unfinished_ > 0 && !failure_) failure_ = shutting_down();
}

double EngineCall::backlog() const {
  const std::lock_guard lock(mailbox_->mutex);
  return static_cast<double>(mailbox_->items.size()) / kMostWaiting;
}

Call::Output EngineCall::poll() {
  Output out;
  if (stream_ && !std::exchange(begun_, true)) {
    out.head = stream_head(context_, presenter_->stream_type());
    presenter_->begin();
  }
  take_all();
  if (unfinished_ == 0 || failure_) {
    done_ = out.done = true;
    if (stream_) {
      failure_ ? presenter_->failed(*failure_) : presenter_->end();
    } else {
      if (!failure_) presenter_->end();
      out.head = head_of(context_);
      if (failure_) out.head->status = failure_->status();
      if (out.head->status == 503) out.head->headers.emplace_back("Retry-After", "1");
      out.body = to_text(failure_ ? presenter_->failure(*failure_) : presenter_->body());
    }
    conclude();
  }
  if (stream_) out.body = presenter_->take();
  return out;
}

void EngineCall::take_all() {
  std::vector<Item> items;
  {
    const std::lock_guard lock(mailbox_->mutex);
    items.swap(mailbox_->items);
  }
  for (const Item& item : items) {
    if (failure_) return;
    if (const auto* token = std::get_if<engine::TokenEvent>(&item.event))
      take_token(item.choice, *token, item.time);
    else if (const auto* read = std::get_if<engine::PromptProgress>(&item.event))
      take_progress(item.choice, *read, item.time);
    else
      take_finished(item.choice, std::get<engine::Finished>(item.event), item.time);
  }
}

void EngineCall::take_progress(size_t choice, const engine::PromptProgress& read, Clock::time_point time) {
  if (choices_[choice].shows_progress) presenter_->progress(choice, read);
  if (read.total < kLongPrompt || time < next_told_) return;
  next_told_ = time + kBetweenTold;
  context_.log({{"event", "reading"},
                {"id", context_.request_id},
                {"prompt_tokens", read.total},
                {"read", read.done},
                {"cached_tokens", read.cached}});
}

void EngineCall::take_token(size_t choice, const engine::TokenEvent& event, Clock::time_point time) {
  Choice& c = choices_[choice];
  if (c.enough) return;
  if (!event.of_prompt) {
    ++c.tokens;
    if (c.last) context_.metrics.token_interval(seconds_between(*c.last, time));
    if (!c.first) c.first = time;
    c.last = time;
  }
  if (presenter_->token(choice, event)) return;
  c.enough = true;
  context_.port.cancel(c.id);
}

void EngineCall::take_finished(size_t choice, engine::Finished finished, Clock::time_point time) {
  using enum engine::FinishReason;
  Choice& c = choices_[choice];
  c.finished = true;
  --unfinished_;
  if (c.enough) finished.reason = kStop;
  if (!c.last) c.last = time;
  finished.generated_tokens = c.tokens;
  if (finished.reason == kFailed)
    failure_ = ApiError("", "generation failed: " + finished.message, status_of_failed(finished.code));
  if (finished.reason == kCancelled) failure_ = shutting_down();
  const std::string_view reason = failure_ ? reason_of(*failure_) : finish_reason(finished.reason, false);
  record(c, finished, reason);
  if (!reasons_.empty()) reasons_ += ',';
  reasons_ += reason;
  last_finished_ = finished;
  if (!failure_) presenter_->finished(choice, finished);
}

void EngineCall::record(const Choice& choice, const engine::Finished& finished, std::string_view reason) {
  context_.metrics.choice_finished(
      {.finished_reason = reason,
       .prompt_tokens = finished.prompt_tokens,
       .completion_tokens = finished.generated_tokens,
       .first_token_seconds = choice.first ? seconds_between(context_.arrived, *choice.first) : -1,
       .end_to_end_seconds = seconds_between(context_.arrived, choice.last.value_or(Clock::now())),
       .queue_seconds = finished.queue_seconds,
       .prefill_seconds = finished.prefill_seconds,
       .decode_seconds = finished.decode_seconds});
}

void EngineCall::conclude() {
  const std::string_view reason = failure_ ? reason_of(*failure_) : reasons_;
  const int status = failure_ ? failure_->status() : 200;
  for (const Choice& choice : choices_) {
    const engine::Finished so_far{.prompt_tokens = choice.prompt_tokens, .generated_tokens = choice.tokens};
    if (!choice.finished) record(choice, so_far, reason);
  }
  context_.metrics.response_sent(context_.path, status);
  context_.metrics.harmony_repaired(presenter_->repairs());
  const Usage usage = presenter_->usage();
  double first = -1, per_token = 0;
  for (const Choice& c : choices_) {
    if (!c.first) continue;
    const double here = seconds_between(context_.arrived, *c.first);
    first = first < 0 ? here : std::min(first, here);
    if (c.tokens > 1) per_token = seconds_between(*c.first, *c.last) / static_cast<double>(c.tokens - 1);
  }
  context_.log({{"event", "request"},
                {"id", context_.request_id},
                {"path", context_.path},
                {"status", status},
                {"stream", stream_},
                {"choices", choices_.size()},
                {"prompt_tokens", usage.prompt_tokens},
                {"cached_tokens", usage.cached_tokens},
                {"completion_tokens", usage.completion_tokens},
                {"queue_ms", milliseconds(last_finished_.queue_seconds)},
                {"ttft_ms", first < 0 ? Json() : Json(milliseconds(first))},
                {"tpot_ms", milliseconds(per_token)},
                {"total_ms", milliseconds(seconds_between(context_.arrived, Clock::now()))},
                {"reason", reason},
                {"images_left_out", context_.leniency.images_left_out},
                {"repairs", presenter_->repairs()}});
}

}  // namespace nibble::server
