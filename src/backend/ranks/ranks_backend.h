#pragma once
// Several ranks of one process as one backend, for backends of a host. Every verb runs on every rank, each with its
// shard of the weights (shards.h) and its KV heads; then the ranks' parts of `delta` are added in the order of the
// ranks, so that all have the same bits, and the logits are gathered. Whoever calls the verbs sees the whole model.

#include "backend/backend.h"
#include "backend/shards.h"

#include <functional>
#include <memory>

namespace nibble::backend {

// One rank's backend, with so many threads of its own.
using MakeRank = std::function<std::unique_ptr<Backend>(const BackendConfig& config, int threads)>;

// Each rank has threads_of() the threads. Throws what validate(ranks, config.dims) throws.
[[nodiscard]] std::unique_ptr<Backend> make_ranks_backend(const BackendConfig& config, const Ranks& ranks, int threads,
                                                          const MakeRank& make);

}  // namespace nibble::backend
