#pragma once
// One API call at work on the engine: takes its events, gives the presenter's bytes, and is measured and logged at its
// end.

#include "engine/engine.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/presenter.h"

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::server {

// What the server needs of an engine; tests pass their own. Any thread.
struct EnginePort {
  std::function<engine::RequestId(engine::Request, engine::Receiver)> submit;
  std::function<void(engine::RequestId)> cancel;
  std::function<engine::EngineStats()> stats;
};
// A port to an Engine, or to Replicas, which must outlive it.
template <class Engine>
[[nodiscard]] EnginePort port_of(Engine& engine) {
  return {
      .submit = [&engine](engine::Request request,
                          engine::Receiver receiver) { return engine.submit(std::move(request), std::move(receiver)); },
      .cancel = [&engine](engine::RequestId id) { engine.cancel(id); },
      .stats = [&engine] { return engine.stats(); }};
}

using LogLine = std::function<void(const Json& line)>;  // any thread

// What a call needs besides its presenter.
struct CallContext {
  const EnginePort& port;
  Metrics& metrics;
  const LogLine& log;
  std::string request_id, path;
  Leniency leniency;  // what was let pass
  std::chrono::steady_clock::time_point arrived;
};

class EngineCall final : public Call {
 public:
  // Submits the requests. Throws what the engine throws. Without requests it tells the `failure`.
  EngineCall(CallContext context, std::unique_ptr<Presenter> presenter, std::vector<engine::Request> requests,
             bool stream, Wake wake, std::optional<ApiError> failure = {});
  // Cancels requests that still run: the client has gone, or is too slow for a server that is ending.
  ~EngineCall() override;

  Output poll() override;
  void cut() override;
  [[nodiscard]] double backlog() const override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Item {
    size_t choice;
    engine::Event event;
    Clock::time_point time;  // when the engine said so
  };
  // Shared with the engine, which may still send events after the call has gone.
  struct Mailbox {
    std::mutex mutex;  // guards both
    std::vector<Item> items;
    Wake wake;
  };
  struct Choice {
    engine::RequestId id{};
    bool shows_progress = false, enough = false, finished = false;
    int64_t prompt_tokens = 0, tokens = 0;
    std::optional<Clock::time_point> first, last;
  };

  void submit(size_t choice, engine::Request request);
  void leave();
  void take_all();  // events since the last time
  void take_progress(size_t choice, const engine::PromptProgress& read, Clock::time_point time);
  void take_token(size_t choice, const engine::TokenEvent& event, Clock::time_point time);
  void take_finished(size_t choice, engine::Finished finished, Clock::time_point time);
  void record(const Choice& choice, const engine::Finished& finished, std::string_view reason);
  void conclude();  // records and logs the call

  const CallContext context_;
  const std::unique_ptr<Presenter> presenter_;
  const bool stream_;
  bool begun_ = false, done_ = false;
  size_t unfinished_ = 0;
  std::vector<Choice> choices_;
  std::optional<ApiError> failure_;
  std::string reasons_;  // of all choices, for the log
  engine::Finished last_finished_;
  Clock::time_point next_told_;  // of a long prompt, in the log
  const std::shared_ptr<Mailbox> mailbox_;
};

}  // namespace nibble::server
