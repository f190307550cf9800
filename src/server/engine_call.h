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

// A group of requests whose events are read on another thread.
class Generation {
 public:
  using Clock = std::chrono::steady_clock;
  struct Item {
    size_t choice;
    engine::Event event;
    Clock::time_point time;  // when the engine said so
  };

  Generation(const EnginePort& port, Wake wake);
  ~Generation();  // cancels requests that still run
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // The next choice, numbered from 0. Throws what the engine throws.
  void submit(engine::Request request);
  void cancel(size_t choice);
  [[nodiscard]] std::vector<Item> take();  // events since the last call
  [[nodiscard]] size_t waiting() const;    // events not yet taken
  [[nodiscard]] size_t choices() const { return ids_.size(); }

 private:
  // Shared with the engine, which may still send events after the reader has gone.
  struct Mailbox {
    mutable std::mutex mutex;
    std::vector<Item> items;  // both guarded by mutex
    Wake wake;
  };

  const EnginePort& port_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<engine::RequestId> ids_;
};

using LogLine = std::function<void(const Json& line)>;  // any thread

// What a call needs besides its presenter.
struct CallContext {
  const EnginePort& port;
  Metrics& metrics;
  const LogLine& log;
  std::string request_id, path;
  Generation::Clock::time_point arrived;
};

class EngineCall final : public Call {
 public:
  // Submits the requests. Throws what the engine throws.
  EngineCall(CallContext context, std::unique_ptr<Presenter> presenter, std::vector<engine::Request> requests,
             bool stream, Wake wake);
  // If the call is not done, the client has gone, or it is too slow for a server that is ending. Then the member
  // generation_ cancels the requests (src/README.md, "Three paths").
  ~EngineCall() override;

  Output poll() override;
  void cut() override;
  [[nodiscard]] double backlog() const override;

 private:
  using Clock = Generation::Clock;
  struct Choice {
    bool enough = false, finished = false;
    int64_t tokens = 0;
    std::optional<Clock::time_point> first, last;
  };

  void take(const Generation::Item& item);
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
  Generation generation_;  // last: destroyed first, so that no event comes after it
};

}  // namespace nibble::server
