#pragma once
// One API call at work on the engine: takes its events, gives the presenter's bytes, and is measured and logged at its
// end.

#include "server/generation.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/presenter.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::server {

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
