#pragma once
// Several cards of a host as one backend: a rank on each (rank_backend.h), on a thread of its own, all called at once.
// What they sum they sum on the cards (comm/comm.h), inside a step's graph; each draws every token itself, from the
// logits of all.

#include "backend/cuda/cuda_backend.h"

#include <memory>
#include <vector>

namespace nibble::backend::cuda {

// Throws what make_cuda_backend throws, also where there are fewer cards than ranks, or cards that do not reach each
// other's memory. A verb that fails on one rank alone, or on a card, ends them all: Error(kDevice) names the rank, and
// later calls throw it again.
[[nodiscard]] std::unique_ptr<CudaBackend> make_cards_backend(const BackendConfig& config, const RunConfig& run,
                                                              CudaSetup setup, const std::vector<Arch>& architectures);

}  // namespace nibble::backend::cuda
