#pragma once
// The engine as the server sees it, and a group of its requests whose events are read on another thread.

#include "engine/engine.h"
#include "server/http.h"

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
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

}  // namespace nibble::server
