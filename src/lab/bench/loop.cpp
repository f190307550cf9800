#include "lab/bench/loop.h"

#include "base/error.h"
#include "base/random.h"

#include <limits>
#include <utility>

namespace nibble::app {
namespace {

// Sliding layers get four pages per sequence plus a quarter of the full pages. A running sequence needs three, and
// three stay in the prefix cache: the window before its depth.
constexpr int64_t kLeastPages = 8;

engine::Request request_of(std::vector<int32_t> prompt, int64_t tokens) {
  return {.prompt = std::move(prompt), .max_tokens = tokens, .sampling = {.temperature = 0}, .stop_ids = {}};
}

}  // namespace

std::vector<int32_t> random_tokens(uint64_t stream, int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(philox(stream, i)[0] % static_cast<uint64_t>(vocab));
  return tokens;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

engine::EngineLimits engine_limits(const BenchShape& shape) {
  const auto pages_of = [&](int64_t behind) {
    const int64_t pages = engine::pages_for(shape.depth + behind + 1) + 1;  // one more for admission
    return shape.depth > 0 ? std::max(pages, kLeastPages) : pages;
  };
  const int64_t pages =
      pages_of(std::max(shape.prompt, shape.generate)) + (shape.sequences - 1) * pages_of(shape.generate);
  constexpr int64_t kMostPages = int64_t{1} << 24;  // slots are 32-bit
  if (pages > kMostPages)
    throw Error(Code::kInvalidRequest, "-b, -d, -p and -n: want at most {} tokens in all sequences together, found {}",
                kMostPages * backend::kPageTokens, pages * backend::kPageTokens);
  return {.max_context = shape.context(),
          .max_sequences = shape.sequences,
          .max_batched_tokens = std::max(shape.chunk_tokens, shape.sequences),
          .kv_tokens = pages * backend::kPageTokens,
          .target_itl_seconds = std::numeric_limits<double>::infinity(),
          .async_scheduling = shape.async_scheduling};
}

BenchLoop::BenchLoop(backend::Backend& be, const model::GptOss& model, const BenchShape& shape)
    : vocab_(model.config.dims.vocab), loop_(be, model, engine_limits(shape)) {
  loop_.watch([this](const model::Step& step) -> model::Probe {
    steps_.push_back({step.rows, static_cast<int>(step.logit_tokens.size())});
    if (times_ == nullptr) return {};
    times_->begin();
    return [this](backend::Stage stage, int) { times_->after(stage); };
  });
}

std::vector<int32_t> BenchLoop::tokens_of(int sequence, int64_t count) const {
  std::vector<int32_t> tokens = random_tokens(static_cast<uint64_t>(sequence), count, vocab_);
  if (shares_beginning()) std::ranges::copy(random_tokens(0, std::min(depth_, count), vocab_), tokens.begin());
  return tokens;
}

std::optional<double> BenchLoop::run(std::vector<engine::Request> requests, const KeepGoing& keep_going) {
  steps_.clear();
  least_cached_ = std::numeric_limits<int64_t>::max();
  most_cached_ = 0;
  std::optional<Error> failure;
  const auto receive = [&](const engine::Event& event) {
    const auto* end = std::get_if<engine::Finished>(&event);
    if (end == nullptr) return;
    if (end->reason == engine::FinishReason::kFailed) failure.emplace(end->code, end->message);
    least_cached_ = std::min(least_cached_, end->cached_tokens);
    most_cached_ = std::max(most_cached_, end->cached_tokens);
  };
  bool going_on = true;
  const auto start = std::chrono::steady_clock::now();
  for (engine::Request& request : requests) loop_.add(++last_id_, std::move(request), receive);
  while (!loop_.idle()) {
    if (going_on && !keep_going()) {
      going_on = false;
      loop_.cancel_all();
    }
    loop_.step();
  }
  const double seconds = seconds_since(start);
  if (failure) throw Error(*failure);
  return going_on ? std::optional(seconds) : std::nullopt;
}

// Computes one token more than the depth, which nobody continues from: the cache keeps a prompt except for its last
// token.
bool BenchLoop::fill(int count, int64_t depth, const KeepGoing& keep_going) {
  depth_ = depth;
  if (depth == 0) return keep_going();
  constexpr int kTries = 4;  // the first sequences may lose pages while the last are read
  for (int tries = 0; tries < kTries; ++tries) {
    std::vector<engine::Request> requests;
    for (int s = 0; s < (shares_beginning() ? 1 : count); ++s) {
      std::vector<int32_t> prompt = tokens_of(s, depth + 1);
      prompt.back() = static_cast<int32_t>((prompt.back() + 1) % vocab_);
      requests.push_back(request_of(std::move(prompt), 1));
    }
    if (!run(std::move(requests), keep_going)) return false;
    if (least_cached_ == depth) break;
  }
  return true;
}

std::optional<double> BenchLoop::time(const BenchRow& row, const KeepGoing& keep_going) {
  std::vector<engine::Request> requests;
  if (row.prompt > 0) requests.push_back(request_of(tokens_of(0, depth_ + row.prompt), 1));
  // Each computes its prompt's last token first, so `generate` tokens take as many steps.
  for (int s = 0; row.prompt == 0 && s < row.batch; ++s)
    requests.push_back(request_of(tokens_of(s, depth_ + 1), row.generate));
  for (engine::Request& request : requests) request.leaves_prefix = false;
  const auto seconds = run(std::move(requests), keep_going);
  if (seconds) check(least_cached_ == depth_ && most_cached_ == depth_, "a repetition begins at its depth");
  return seconds;
}

}  // namespace nibble::app
