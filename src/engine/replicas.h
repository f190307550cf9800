#pragma once
// Several engines of one model behind one interface. Each request goes to one of them (Placement) and stays there.

#include "engine/engine.h"

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble::engine {

// Chooses one of several engines for a request: the one where the least work, in tokens, comes before its end. An
// engine that has read the beginning of the prompt need not read it again, but may have more to do. Pure; one caller at
// a time.
class Placement {
 public:
  // An answer counts as this many prompt tokens, if it may be as long.
  static constexpr int64_t kAnswerTokens = 256;

  // Remembers the beginnings of prompts in pages: per engine as many as its KV cache has, the latest ones.
  Placement(int engines, int64_t pages_per_engine);

  struct Ask {
    std::span<const int32_t> prompt;
    int64_t max_tokens = 0;
    bool takes = true, leaves = true;  // of the prefix cache, and there
  };
  struct Choice {
    int engine = 0;
    int64_t work = 0;  // outstanding there until done()
  };
  // The engines by their work, the best first.
  [[nodiscard]] std::vector<Choice> choices(const Ask& ask) const;
  // Records that this engine took the request. Its cache will have the prompt.
  void place(const Choice& placed, const Ask& ask);
  void done(const Choice& placed) { engines_[static_cast<size_t>(placed.engine)].work -= placed.work; }

 private:
  using Hashes = std::vector<uint64_t>;  // of a prompt's first pages, each with those before it
  struct Engine {
    int64_t work = 0, placed = 0;  // outstanding tokens; requests so far
    std::list<uint64_t> latest;    // pages, the last one used first
    std::unordered_map<uint64_t, std::list<uint64_t>::iterator> pages;
  };
  [[nodiscard]] static Hashes hashes_of(std::span<const int32_t> prompt);
  [[nodiscard]] int64_t cached_tokens(const Engine& engine, const Hashes& hashes) const;

  std::vector<Engine> engines_;
  const int64_t pages_per_engine_;
};

class Replicas {
 public:
  // `pages_per_engine`: of full attention. REQUIRES at least one engine.
  Replicas(std::vector<std::unique_ptr<Engine>> engines, int64_t pages_per_engine);

  // As Engine's. kBusy if no engine has room.
  RequestId submit(Request request, Receiver receiver);
  void cancel(RequestId id) { engines_[id % engines_.size()]->cancel(id / engines_.size()); }
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
