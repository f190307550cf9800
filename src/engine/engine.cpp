#include "engine/engine.h"

#include "base/error.h"
#include "base/thread_pool.h"
#include "engine/loop.h"
#include "model/eagle3/head.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace nibble::engine {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Clock::time_point kWaits{};  // the engine's thread, for requests

// What another thread asks of the engine's.
using Message = std::function<void(Loop& loop)>;

void want(bool holds, std::string_view field, std::string_view range, int64_t found) {
  if (!holds) throw Error(Code::kInvalidRequest, "{}: want {}, found {}", field, range, found);
}

constexpr int kMostDraftRows = 64;  // logit rows of a step for guesses, besides one row per sequence

int draft_rows(const EngineLimits& limits) {
  if (limits.speculation.method == DraftMethod::kOff) return 0;
  const int rows = std::min(limits.max_sequences, limits.max_batched_tokens);
  return std::min({rows * limits.speculation.most_tokens, kMostDraftRows, limits.max_batched_tokens - rows});
}

}  // namespace

model::StepLimits step_limits(const EngineLimits& limits, const backend::Dims& dims) {
  constexpr int64_t kMost = int64_t{1} << 30;  // slots are 32-bit
  const int64_t kv_tokens = limits.kv_tokens == 0 ? limits.max_context : limits.kv_tokens;
  want(limits.max_context >= 1 && limits.max_context <= dims.max_context, "--max-model-len",
       fmt::format("1 to {}, the model's context", dims.max_context), limits.max_context);
  want(limits.max_sequences >= 1 && limits.max_sequences <= 1024, "--max-num-seqs", "1 to 1024", limits.max_sequences);
  want(limits.max_batched_tokens >= 1 && limits.max_batched_tokens <= 1 << 20, "--max-num-batched-tokens",
       fmt::format("1 to {}", 1 << 20), limits.max_batched_tokens);
  want(limits.max_partial_prefills >= 1, "--max-num-partial-prefills", "at least 1", limits.max_partial_prefills);
  want(limits.max_long_partial_prefills >= 1, "--max-long-partial-prefills", "at least 1",
       limits.max_long_partial_prefills);
  want(limits.long_prefill_tokens >= 0, "--long-prefill-token-threshold", "0 or more", limits.long_prefill_tokens);
  const SpeculationLimits& drafts = limits.speculation;
  want(drafts.most_tokens >= 1 && drafts.most_tokens <= kMostDrafted, "--speculative-tokens",
       fmt::format("1 to {}", kMostDrafted), drafts.most_tokens);
  want(drafts.least_lookup >= 1 && drafts.least_lookup <= drafts.most_lookup, "--prompt-lookup-min",
       fmt::format("1 to --prompt-lookup-max, {}", drafts.most_lookup), drafts.least_lookup);
  want(drafts.most_lookup <= kMostLookup, "--prompt-lookup-max", fmt::format("at most {}", kMostLookup),
       drafts.most_lookup);
  want(limits.max_waiting >= 1, "--max-waiting", "at least 1", limits.max_waiting);
  want(kv_tokens >= limits.max_context, "--kv-tokens",
       fmt::format("at least {}, so that one sequence of --max-model-len fits", limits.max_context), kv_tokens);
  want(kv_tokens <= kMost, "--kv-tokens", fmt::format("at most {}", kMost), kv_tokens);
  const int64_t rows = std::min(limits.max_sequences, limits.max_batched_tokens);
  const int64_t full = pages_for(kv_tokens);
  model::StepLimits steps{.max_tokens = limits.max_batched_tokens,
                          .max_rows = std::max(static_cast<int>(rows) + draft_rows(limits), limits.max_logit_rows)};
  for (const LayerKind kind : backend::kinds_of(dims)) {
    // A window spans one page more than it fills, and a row's new tokens begin one more.
    const int64_t window = dims.window_of(kind);
    const int64_t windows = rows * (pages_for(window) + 2) + pages_for(limits.max_batched_tokens);
    steps.kv_pages[static_cast<size_t>(kind)] =
        static_cast<int32_t>(window == 0 ? full : std::min(full, windows + (limits.prefix_cache ? full / 4 : 0)));
  }
  if (drafts.head != nullptr) steps.taps = drafts.head->boundaries;
  return steps;
}

void validate(const Request& request, const EngineLimits& limits, const backend::Dims& dims) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  want(prompt >= 1, "prompt", "at least one token", prompt);
  const int64_t room = request.max_tokens > 0 ? 1 : 0;  // a generated token takes a place in the context
  want(prompt + room <= limits.max_context, "prompt",
       fmt::format("at most {} tokens (the context{})", limits.max_context - room,
                   room > 0 ? ", less one to generate" : ""),
       prompt);
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    const int32_t id = request.prompt[i];
    if (id < 0 || id >= dims.vocab)
      want(false, fmt::format("prompt token {}", i), fmt::format("an id below {}", dims.vocab), id);
  }
  want(request.max_tokens >= 0, "max_tokens", "0 or more", request.max_tokens);
  want(request.min_tokens >= 0 && request.min_tokens <= request.max_tokens, "min_tokens", "0 to max_tokens",
       request.min_tokens);
  for (const int32_t id : request.stop_ids)
    want(id >= 0 && id < dims.vocab, "stop_ids", fmt::format("ids below {}", dims.vocab), id);
  const auto range = fmt::format("-1 (none) to {}", kMaxLogprobs);
  want(request.logprobs >= -1 && request.logprobs <= kMaxLogprobs, "logprobs", range, request.logprobs);
  want(request.prompt_logprobs >= -1 && request.prompt_logprobs <= kMaxLogprobs, "prompt_logprobs", range,
       request.prompt_logprobs);
  backend::validate(request.sampling, dims.vocab);
}

struct Engine::Impl {
  Impl(backend::Backend& be, const model::GptOss& gpt, const EngineLimits& of, KvEventSink sink)
      : limits(of), dims(gpt.config.dims), kv_events(std::move(sink)), loop(be, gpt, of), shown(loop.stats()) {
    if (kv_events) loop.note_kv_events();
    thread = std::jthread([this] { run(); });
  }

  void run() {
    while (true) {
      std::vector<Message> messages = loop.idle() ? inbox.wait() : inbox.take();
      turn_began = Clock::now();
      for (const Message& message : messages) message(loop);
      if (stopping) return stop();
      try {
        if (!loop.idle()) loop.step();
      } catch (const std::exception& why) {  // an error of the host; the backend's own failures are handled inside
        loop.fail_all(why);
      }
      publish();
    }
  }

  void stop() {
    loop.cancel_all();
    while (!loop.idle()) loop.step();  // the steps in flight
  }

  void publish() {
    if (kv_events) {
      if (const std::vector<KvEvent> events = loop.take_kv_events(); !events.empty()) kv_events(events);
    }
    show();
    turn_began = kWaits;
  }

  void show() {
    const std::lock_guard lock(mutex);
    shown = loop.stats();
  }

  const EngineLimits limits;
  const backend::Dims dims;
  const KvEventSink kv_events;  // empty: nobody asked for events
  Queue<Message> inbox;
  std::atomic<RequestId> last_id = 0;
  std::atomic<int64_t> unfinished = 0;  // accepted requests without a Finished
  Loop loop;                            // used by the engine's thread only, as is the next
  bool stopping = false;
  mutable std::mutex mutex;  // guards shown
  EngineStats shown;
  std::atomic<Clock::time_point> turn_began = kWaits;
  std::jthread thread;  // last: it uses all of the above
};

Engine::Engine(backend::Backend& be, const model::GptOss& model, const EngineLimits& limits, KvEventSink kv_events)
    : impl_(std::make_unique<Impl>(be, model, limits, std::move(kv_events))) {}

Engine::~Engine() {
  impl_->inbox.push([impl = impl_.get()](Loop&) { impl->stopping = true; });
}

RequestId Engine::submit(Request request, Receiver receiver) {
  validate(request, impl_->limits, impl_->dims);
  const EngineLimits& limits = impl_->limits;
  const int64_t most = std::min(limits.max_sequences, limits.max_batched_tokens) + limits.max_waiting;
  if (impl_->unfinished.fetch_add(1) >= most) {
    --impl_->unfinished;
    throw Error(Code::kBusy, "want at most {} requests running and waiting, found {} with this one: try again later",
                most, most + 1);
  }
  const RequestId id = ++impl_->last_id;
  const auto counted = [impl = impl_.get(), receiver = std::move(receiver)](const Event& event) {
    if (std::holds_alternative<Finished>(event)) {  // first: the receiver may submit the next one, or ask for stats()
      --impl->unfinished;
      impl->show();
    }
    receiver(event);
  };
  impl_->inbox.push(
      [id, request = std::move(request), counted](Loop& loop) mutable { loop.add(id, std::move(request), counted); });
  return id;
}

void Engine::cancel(RequestId id) {
  impl_->inbox.push([id](Loop& loop) { loop.cancel(id); });
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(impl_->mutex);
  EngineStats stats = impl_->shown;
  const Clock::time_point began = impl_->turn_began;
  if (began != kWaits) stats.turn_seconds = std::chrono::duration<double>(Clock::now() - began).count();
  return stats;
}

}  // namespace nibble::engine
