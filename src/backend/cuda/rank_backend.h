#pragma once
// The backend of one rank's card, in steps that several ranks share. The backend of several cards calls it on the
// rank's own thread, with that card current.

#include "backend/cuda/comm/comm.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/shards.h"

#include <memory>
#include <vector>

namespace nibble::backend::cuda {

struct CudaRank {
  int device = 0;
  const Comm* comm = nullptr;  // with the other ranks; outlives the backend. None: it has whole steps
  Dims whole{};                // of the model; with comm
  Ranks ranks{};               // likewise
};

// Bytes of the logits of all ranks, which each rank gathers.
[[nodiscard]] inline int64_t gathered_bytes(const BackendConfig& config, const Dims& whole) {
  return int64_t{config.max_rows} * whole.vocab * static_cast<int64_t>(sizeof(float));
}

class RankBackend : public CudaBackend {
 public:
  // A step in two halves: all that may fail or take memory, then the launches, which wait on the card for the other
  // ranks. All ranks prepare before any of them enqueues. run() is both.
  virtual void prepare(const StepArgs& step) = 0;
  [[nodiscard]] virtual Ran enqueue() = 0;
};

// The configuration is the rank's. Makes its card current for this thread, which is to call and to destroy it. Throws
// what make_cuda_backend throws.
[[nodiscard]] std::unique_ptr<RankBackend> make_rank_backend(const BackendConfig& config, const RunConfig& run,
                                                             CudaSetup setup, const std::vector<Arch>& architectures,
                                                             const CudaRank& rank);

// Several cards of a host as one backend: a rank on each, on a thread of its own, all called at once. What they sum
// they sum on the cards (comm/comm.h), inside a step's graph; each draws every token itself, from the logits of all.
// Throws what make_cuda_backend throws, also where there are fewer cards than ranks, or cards that do not reach each
// other's memory. A verb that fails on one rank alone, or on a card, ends them all: Error(kDevice) names the rank, and
// later calls throw it again.
[[nodiscard]] std::unique_ptr<CudaBackend> make_cards_backend(const BackendConfig& config, const RunConfig& run,
                                                              CudaSetup setup, const std::vector<Arch>& architectures);

}  // namespace nibble::backend::cuda
