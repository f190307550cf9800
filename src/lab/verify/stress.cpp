#include "lab/verify/verify.h"

#include "base/error.h"
#include "lab/bench/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace nibble::app {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kGroupPatience = std::chrono::minutes(10);  // for a group of requests
constexpr auto kLeavePatience = std::chrono::seconds(10);
constexpr int kSequential = 100;
constexpr int64_t kShortTokens = 8;

struct Answer {
  std::vector<int32_t> tokens;
  std::optional<engine::Finished> end;
  int ends = 0;
};

// Requests that run together. Their answers are shared with the receivers, which may be called late if something is
// wrong.
class Crowd {
 public:
  explicit Crowd(const server::EnginePort& port) : port_(port) {}

  void submit(engine::Request request) {
    std::unique_lock lock(state_->mutex);
    const size_t at = state_->answers.size();
    state_->answers.emplace_back();
    lock.unlock();
    ids_.push_back(port_.submit(std::move(request), [state = state_, at](const engine::Event& event) {
      const std::lock_guard locked(state->mutex);
      Answer& answer = state->answers[at];
      if (const auto* token = std::get_if<engine::TokenEvent>(&event)) {
        answer.tokens.push_back(token->token);
      } else {
        answer.end = std::get<engine::Finished>(event);
        ++answer.ends;
      }
      state->changed.notify_all();
    }));
  }
  // Waits until all have ended. False: it took too long.
  [[nodiscard]] bool wait() {
    return wait_until([](const std::vector<Answer>& answers) {
      return std::ranges::all_of(answers, [](const Answer& t) { return t.end.has_value(); });
    });
  }
  // Cancels each request once it has a token.
  [[nodiscard]] bool cancel_each() {
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (!wait_until([i](const auto& answers) { return !answers[i].tokens.empty() || answers[i].end; })) return false;
      port_.cancel(ids_[i]);
    }
    return true;
  }
  [[nodiscard]] std::vector<Answer> answers() const {
    const std::lock_guard lock(state_->mutex);
    return state_->answers;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Answer> answers;  // guarded by mutex
  };

  template <class Holds>
  bool wait_until(const Holds& holds) {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, kGroupPatience, [&] { return holds(state_->answers); });
  }

  const server::EnginePort& port_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::vector<engine::RequestId> ids_;
};

class Stress {
 public:
  Stress(const server::EnginePort& port, const StressPlan& plan, VerifyChecks& checks)
      : port_(port), plan_(plan), checks_(checks) {}

  void verify() {
    sequential();
    for (const int many : {2, 4, 32}) concurrent(many);
    longest();
    exhaustion();
    cancels();
    nothing_held();
  }

 private:
  [[nodiscard]] engine::Request request(uint64_t number, int64_t prompt, int64_t tokens) const {
    return {.prompt = random_tokens(number, prompt, plan_.vocab), .max_tokens = tokens, .sampling = {.temperature = 0}};
  }
  [[nodiscard]] engine::Request short_request(uint64_t number) const {
    return request(number, 1 + static_cast<int64_t>(number * 7 % 40), kShortTokens);
  }

  // What is wrong with the requests; empty: each ended once, at its limit, with the right number of tokens.
  static std::string wrong(const std::vector<Answer>& answers, int64_t tokens) {
    for (size_t i = 0; i < answers.size(); ++i) {
      const Answer& t = answers[i];
      if (t.ends != 1) return fmt::format("request {} ended {} times", i, t.ends);
      if (t.end->reason != engine::FinishReason::kLength || std::ssize(t.tokens) != tokens)
        return fmt::format("request {}: {} of {} tokens, ended by {} {}", i, t.tokens.size(), tokens,
                           name_of(t.end->reason), t.end->message);
    }
    return {};
  }

  void sequential() {
    std::string problem;
    for (uint64_t i = 0; i < kSequential && problem.empty(); ++i) {
      Crowd one(port_);
      one.submit(short_request(i));
      if (!one.wait()) problem = fmt::format("request {} does not end", i);
      if (problem.empty()) problem = wrong(one.answers(), kShortTokens);
      if (problem.empty()) texts_.push_back(one.answers().front().tokens);
    }
    checks_.add_unless(fmt::format("{} requests, one after another", kSequential), problem,
                       fmt::format("{} tokens each", kShortTokens));
  }

  void concurrent(int many) {
    Crowd crowd(port_);
    for (int i = 0; i < many; ++i) crowd.submit(short_request(static_cast<uint64_t>(i)));
    std::string problem = crowd.wait() ? wrong(crowd.answers(), kShortTokens) : "not all end";
    const auto answers = crowd.answers();
    for (size_t i = 0; problem.empty() && plan_.exact && i < answers.size() && i < texts_.size(); ++i)
      if (answers[i].tokens != texts_[i]) problem = fmt::format("request {} has other tokens than alone", i);
    checks_.add_unless(fmt::format("{} requests at a time", many), problem,
                       plan_.exact ? "the same tokens as alone" : "all end at their limits");
  }

  // A prompt that leaves room for a few tokens, and a prompt that is one token too long.
  void longest() {
    Crowd crowd(port_);
    crowd.submit(request(1000, plan_.context - kShortTokens, kShortTokens));
    const std::string problem = crowd.wait() ? wrong(crowd.answers(), kShortTokens) : "does not end";
    checks_.add_unless(fmt::format("a sequence of {} tokens", plan_.context), problem, "whole");
    Crowd beyond(port_);
    beyond.submit(request(1000, plan_.context - kShortTokens, kShortTokens + 9));
    const bool ended = beyond.wait();
    const auto answers = beyond.answers();
    const bool full = ended && answers.front().end->reason == engine::FinishReason::kContext;
    checks_.add("a sequence that outgrows the context", full,
                ended ? fmt::format("ended by {} after {} tokens", name_of(answers.front().end->reason),
                                    answers.front().tokens.size())
                      : "does not end");
  }

  // Together the requests need twice the pages that there are, and their need grows while they run.
  void exhaustion() {
    constexpr int64_t kMany = 16;
    const int64_t each =
        std::min(plan_.context, std::max<int64_t>(3 * backend::kPageTokens, 2 * plan_.kv_tokens / kMany));
    const int64_t tokens = std::min<int64_t>(480, each - 32);
    const int64_t before = port_.stats().preemptions;
    Crowd crowd(port_);
    for (int64_t i = 0; i < kMany; ++i) crowd.submit(request(2000 + static_cast<uint64_t>(i), each - tokens, tokens));
    const std::string problem = crowd.wait() ? wrong(crowd.answers(), tokens) : "not all end";
    checks_.add_unless(fmt::format("{} sequences of {} tokens in {} of cache", kMany, each, plan_.kv_tokens), problem,
                       fmt::format("all whole, {} put back", port_.stats().preemptions - before));
  }

  void cancels() {
    constexpr int kMany = 16;
    Crowd crowd(port_);
    for (uint64_t i = 0; i < kMany; ++i) crowd.submit(request(3000 + i, 20, plan_.context / 2));
    const bool ended = crowd.cancel_each() && crowd.wait();
    const auto answers = crowd.answers();
    const auto left = std::ranges::count_if(
        answers, [](const Answer& t) { return t.ends == 1 && t.end->reason == engine::FinishReason::kCancelled; });
    checks_.add(fmt::format("{} requests that are left", kMany), ended && left == kMany,
                fmt::format("{} ended as cancelled", left));
  }

  void nothing_held() {
    const auto end = Clock::now() + kLeavePatience;
    engine::EngineStats stats = port_.stats();
    const auto held = [&] { return stats.running > 0 || stats.waiting > 0 || stats.kv_pages_used > 0; };
    while (held() && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      stats = port_.stats();
    }
    checks_.add("all pages are back", !held(),
                fmt::format("{} running, {} waiting, {} of {} pages held", stats.running, stats.waiting,
                            stats.kv_pages_used, stats.kv_pages));
  }

  const server::EnginePort& port_;
  const StressPlan& plan_;
  VerifyChecks& checks_;
  std::vector<std::vector<int32_t>> texts_;  // of each short request when it ran alone
};

}  // namespace

void verify_stress(const server::EnginePort& port, const StressPlan& plan, VerifyChecks& checks) {
  checks.begin(VerifyLevel::kStress);
  Stress(port, plan, checks).verify();
}

}  // namespace nibble::app
