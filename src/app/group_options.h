#pragma once
// Several processes as ranks: vLLM's flags for it, and what torchrun, LeaderWorkerSet, Slurm's scripts and Open MPI put
// into the environment.

#include "app/flags.h"
#include "app/options.h"

#include <string>
#include <vector>

namespace nibble::app {

void add_group(Flags flags, GroupOptions& options);

// The flags that the variables stand for, if they describe more than one rank or --nnodes is given. Throws
// Error(kInvalidRequest) for a size without a rank.
[[nodiscard]] std::vector<Setting> group_settings(Flags flags, const Variables& environment);

// What CUDA_VISIBLE_DEVICES is to be for a rank that shares a machine, and perhaps its list, with others; empty: as it
// is. Throws Error(kInvalidRequest) where the list is too short.
[[nodiscard]] std::string card_of(const Variables& environment);

// Once all settings are known: a process is one rank of --tensor-parallel-size, and has one card, of several that it
// sees the one that the variables choose. Throws Error(kInvalidRequest).
void take_group(Flags flags, const Variables& environment, ModelOptions& options);

}  // namespace nibble::app
