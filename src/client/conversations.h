#pragma once
// Conversations under way: what has been said in each, which its next request says again. Pure.

#include "client/outcome.h"
#include "client/workload.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nibble::client {

// Requests are counted as RequestPlan counts them. Threads may call for different conversations at the same time.
class Conversations {
 public:
  // `first`: what the workload calls the first request of `count`.
  Conversations(const Workload& workload, uint64_t first, size_t count);

  [[nodiscard]] std::string body(size_t request) const;
  // The answer becomes part of what was said; calls of tools are answered. Takes the answer's text.
  void ended(size_t request, Outcome& outcome);

 private:
  [[nodiscard]] size_t conversation_of(size_t request) const { return request / static_cast<size_t>(workload_.turns); }

  const Workload& workload_;
  const uint64_t first_;
  std::vector<std::string> said_;  // messages, a comma between each; empty before the first turn and after the last
};

}  // namespace nibble::client
