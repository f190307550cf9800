#pragma once
// The backend of one rank of several: it holds the rank's shard (backend/shards.h), runs whole steps, and inside them
// adds up `delta` with the other ranks twice in a layer and brings its logits to them. Members differ in what computes
// and in how they exchange: a host's by a Transport, a card's by launches (backend/cuda/card_member.h). Who calls
// them: ranks_backend.h.

#include "backend/backend.h"
#include "backend/ranks/transport.h"
#include "backend/shards.h"

#include <functional>
#include <memory>
#include <optional>

namespace nibble::backend {

// Weights are uploaded whole: a member takes its own slice. Every rank returns the same drawn tokens (on a host rank 0
// draws and tells the others; cards draw together, each from its part of the vocabulary).
class Member : public Backend {
 public:
  // A step in two halves: all that may fail or take memory, then what waits for the other ranks. All ranks of a process
  // prepare before any of them enqueues. The step's spans stay valid until enqueue() returns. `watched`: enqueue() is
  // given something to call behind each stage. All ranks of a process are, or none.
  virtual void prepare(const StepArgs& step, bool watched) = 0;
  [[nodiscard]] virtual StepRun enqueue(const AfterStage& after) = 0;
  std::optional<StepRun> run(const StepArgs& step, const AfterStage& after) final {
    prepare(step, after != nullptr);
    return enqueue(after);
  }
};

struct HostPlace {
  Ranks ranks;
  int rank = 0;
  std::unique_ptr<Transport> transport;  // this rank's end
  int draw_threads = 1;                  // of rank 0, which draws for all
};
// The rank's own backend, of its shard's configuration; it shows its rows (Backend::rows()).
using MakeHost = std::function<std::unique_ptr<Backend>(const BackendConfig& of_rank)>;
// A member over any backend of a host. `whole`: of the whole model. Logits are with rank 0 alone.
[[nodiscard]] std::unique_ptr<Member> make_host_member(const BackendConfig& whole, HostPlace place,
                                                       const MakeHost& make);

}  // namespace nibble::backend
