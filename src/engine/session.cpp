#include "engine/session.h"

#include "base/error.h"
#include "engine/pages.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace nibble::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

model::StepLimits step_limits(const SessionLimits& limits) {
  const auto pages = static_cast<int32_t>(pages_for(limits.max_context));
  return {.max_tokens = limits.chunk_tokens, .max_rows = limits.max_logit_rows, .kv_pages = {pages, pages}};
}

Session::Session(backend::Backend& be, const model::GptOss& model, const SessionLimits& limits)
    : be_(be), model_(model), limits_(limits) {}

void Session::check_tokens(std::span<const int32_t> ids, int64_t room) const {
  if (ids.empty()) throw Error(Code::kInvalidRequest, "want at least one prompt token, found none");
  if (std::ssize(ids) + room > limits_.max_context) {
    throw Error(Code::kInvalidRequest, "want a prompt of at most {} tokens (the context{}), found {}",
                limits_.max_context - room, room > 0 ? ", less one to generate" : "", ids.size());
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= model_.config.dims.vocab) {
      throw Error(Code::kInvalidRequest, "prompt token {}: want an id below {}, found {}", i, model_.config.dims.vocab,
                  ids[i]);
    }
  }
}

model::Step Session::make_step(std::span<const int32_t> ids, int64_t computed) const {
  const auto count = static_cast<int32_t>(ids.size());
  const auto first = static_cast<int32_t>(computed);
  model::Step step;
  step.token_ids.assign(ids.begin(), ids.end());
  step.positions.resize(ids.size());
  std::iota(step.positions.begin(), step.positions.end(), first);
  step.rows = {{.first_token = 0, .tokens = count, .context = first + count}};
  for (model::Step::Kv& kv : step.kv) {
    kv.slots = step.positions;  // one sequence owns the cache: page p holds the positions from p * kPageTokens on
    kv.pages_per_row = static_cast<int32_t>(pages_for(first + count));
    kv.page_ids.resize(static_cast<size_t>(kv.pages_per_row));
    std::iota(kv.page_ids.begin(), kv.page_ids.end(), 0);
  }
  return step;
}

int32_t Session::step(std::span<const int32_t> ids, const backend::SampleRow* sample) {
  model::Step step = make_step(ids, static_cast<int64_t>(computed_.size()));
  if (sample != nullptr) {
    step.logit_tokens = {static_cast<int32_t>(ids.size()) - 1};
    step.sample_rows = {*sample};
  }
  const auto ticket = model::forward(be_, model_, step);
  computed_.insert(computed_.end(), ids.begin(), ids.end());
  if (!ticket) return -1;
  const backend::Drawn drawn = be_.wait(*ticket)[0];
  if (drawn.error) throw Error(*drawn.error);
  return drawn.token;
}

Finished Session::generate(const Request& request, const OnToken& on_token, const OnPrefill& on_prefill) {
  check_tokens(request.prompt, request.max_tokens > 0 ? 1 : 0);
  backend::validate(request.sampling, model_.config.dims.vocab);
  const std::span<const int32_t> prompt = request.prompt;
  // The last prompt token is always computed: its logits are needed.
  const auto same = std::mismatch(computed_.begin(), computed_.end(), prompt.begin(), prompt.end() - 1).first;
  computed_.erase(same, computed_.end());
  Finished finished{.prompt_tokens = static_cast<int64_t>(prompt.size()),
                    .cached_tokens = static_cast<int64_t>(computed_.size())};
  if (request.max_tokens <= 0) {
    finished.reason = FinishReason::kLength;
    return finished;
  }
  const auto start = Clock::now();
  std::vector<int32_t> output;
  const auto sample_row = [&] {
    return backend::SampleRow{.params = &request.sampling,
                              .position = static_cast<int64_t>(prompt.size() + output.size()),
                              .prompt = prompt,
                              .output = output};
  };
  int32_t token = -1;
  for (size_t at = computed_.size(); at < prompt.size(); at = computed_.size()) {
    const size_t count = std::min(prompt.size() - at, static_cast<size_t>(limits_.chunk_tokens));
    const backend::SampleRow row = sample_row();
    token = step(prompt.subspan(at, count), at + count == prompt.size() ? &row : nullptr);
    if (on_prefill && !on_prefill(static_cast<int64_t>(at + count), finished.prompt_tokens)) {
      finished.reason = FinishReason::kCancelled;
      finished.prefill_seconds = seconds_since(start);
      return finished;
    }
  }
  finished.prefill_seconds = seconds_since(start);
  const auto decode_start = Clock::now();
  while (true) {
    output.push_back(token);
    finished.generated_tokens = static_cast<int64_t>(output.size());
    const bool go_on = on_token(token);
    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), token) != request.stop_ids.end()) {
      finished.reason = FinishReason::kStop;
    } else if (!go_on) {
      finished.reason = FinishReason::kCancelled;
    } else if (finished.generated_tokens >= request.max_tokens) {
      finished.reason = FinishReason::kLength;
    } else if (finished.prompt_tokens + finished.generated_tokens >= limits_.max_context) {
      finished.reason = FinishReason::kContext;
    } else {
      const backend::SampleRow row = sample_row();
      token = step({&output.back(), 1}, &row);
      continue;
    }
    finished.decode_seconds = seconds_since(decode_start);
    return finished;
  }
}

void Session::score(std::span<const int32_t> ids, const OnLogits& on_logits) {
  check_tokens(ids, 0);
  computed_.clear();
  for (size_t at = 0; at < ids.size(); at = computed_.size()) {
    const auto chunk = ids.subspan(at, std::min(ids.size() - at, static_cast<size_t>(limits_.chunk_tokens)));
    model::Step step = make_step(chunk, static_cast<int64_t>(at));
    step.logit_tokens.resize(chunk.size());
    std::iota(step.logit_tokens.begin(), step.logit_tokens.end(), 0);
    model::forward(be_, model_, step);
    computed_.insert(computed_.end(), chunk.begin(), chunk.end());
    on_logits(static_cast<int64_t>(at), be_.peek(backend::Slot::kLogits));
  }
}

}  // namespace nibble::engine
