#pragma once
// The member of a rank on a card (ranks/member.h), which is called with that card current; and several cards of a host.

#include "backend/cuda/comm/comm.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/ranks/member.h"
#include "backend/shards.h"

#include <memory>
#include <vector>

namespace nibble::backend::cuda {

struct CudaRank {
  int device = 0;
  const Comm* comm = nullptr;  // with the other ranks; outlives the backend. None: it has whole steps
  Dims whole{};                // of the model; with comm
  Ranks ranks{};               // with comm
};

// Bytes of the logits of all ranks, which each rank gathers.
[[nodiscard]] inline int64_t gathered_bytes(const BackendConfig& config, const Dims& whole) {
  return int64_t{config.max_rows} * whole.vocab * static_cast<int64_t>(sizeof(float));
}

// The configuration is the rank's. Makes its card current for this thread, which is to call and to destroy it. Throws
// what make_cuda_backend throws.
[[nodiscard]] std::unique_ptr<Member> make_card_member(const BackendConfig& config, const RunConfig& run,
                                                       CudaSetup setup, const std::vector<Arch>& architectures,
                                                       const CudaRank& rank);

// Several cards of a host as one backend (ranks/ranks_backend.h): a rank on each, on a thread of its own. What they sum
// they sum on the cards (comm/comm.h), inside a step's graph. Each draws from its part of the vocabulary; where a row
// needs filters, from the gathered logits of all.
// Throws what make_cuda_backend throws, also where there are fewer cards than ranks, or cards that do not reach each
// other's memory.
[[nodiscard]] std::unique_ptr<Backend> make_cards_backend(const BackendConfig& config, const RunConfig& run,
                                                          const CudaSetup& setup,
                                                          const std::vector<Arch>& architectures);

}  // namespace nibble::backend::cuda
