#pragma once
// Several engines of one model behind one interface. Each request goes to one of them (placement.h) and stays there.

#include "engine/engine.h"
#include "engine/placement.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace nibble::engine {

class Replicas {
 public:
  // `pages_per_engine`: of full attention. REQUIRES at least one engine.
  Replicas(std::vector<std::unique_ptr<Engine>> engines, int64_t pages_per_engine);

  // As Engine's. kBusy if no engine has room.
  RequestId submit(Request request, Receiver receiver);
  void cancel(RequestId id);
  [[nodiscard]] EngineStats stats() const;  // of all together
  [[nodiscard]] std::vector<EngineStats> each() const;

 private:
  // Shared with receivers, which use it until their engine ends and so may outlive this.
  struct Shared {
    std::mutex mutex;  // guards placement
    Placement placement;
  };
  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Engine>> engines_;  // an id is the engine's own, times their number, plus its index
};

}  // namespace nibble::engine
