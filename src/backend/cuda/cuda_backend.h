#pragma once
// One card, or several that share every step. Weights are kept as shipped unless BackendConfig::dense says otherwise.
// The residual is float; a card has one stream. Shapes and positions fix the order of every sum, so the bits of a step
// repeat. With KernelFamily::kReference and AttentionKernel::kReference the other tokens of a step do not change a
// token's bits either. With other kernels its last bits may depend on whether the step has 1, 2 to 8, up to 256 or more
// tokens.

#include "backend/backend.h"
#include "backend/cuda/card/device_facts.h"
#include "backend/host_experts.h"
#include "backend/ranks/member.h"
#include "backend/run_config.h"
#include "base/mmap_file.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend {

// `run` with all that it leaves open decided by the model's shapes. Needs no card. KernelFamily::kAuto stays where the
// matrices can be packed. Throws Error(kUnsupported) for kernels that do not take the shapes, the KV type or the
// activations.
[[nodiscard]] RunConfig resolved_cuda(const BackendConfig& config, const RunConfig& run);

// A rank's shard as cards hold it. Without inner columns it gets a block of zeros; an inner width that has no packing
// (3,104 and more) becomes the next one that has. The backend is configured by this; uploads are slices of `shard`.
[[nodiscard]] Shard cuda_shard(Shard shard);
// Columns of the experts' second product that cards hold of such a shard: filled up to pairs of blocks (1440 of two
// ranks' to 1472), as the packing has them.
[[nodiscard]] int64_t cuda_down_cols(const Shard& shard);

// The configuration of a rank's card; the whole model's where there is one rank.
[[nodiscard]] BackendConfig cuda_config(const BackendConfig& whole, const Ranks& ranks, int rank = 0);

namespace cuda {
class Comm;
struct Arch;
struct Reduce;
}  // namespace cuda

// What is given to a backend beside its settings.
struct CudaSetup {
  // The card of each of run.ranks. Ranks may share a card, for tests. Empty: the first cards.
  std::vector<int> devices{};
  // The files that uploaded weights are mapped from. What the page cache does not hold is read past it.
  std::vector<MappedSource> files{};
  std::optional<cuda::Tuned> tuned{};  // instead of the card's, for bench --tune
  MakeHostExperts host_experts{};      // of the layers that RunConfig::cpu_moe_layers says; empty: there are none
  // For one rank of several (BackendConfig::own_experts): adds up the ranks' deltas. Outlives the backend.
  const cuda::Reduce* reduce = nullptr;
};

// Whether make_cuda_backend could work here; when not, `reason` says why.
struct CudaAvailable {
  bool yes = false;
  bool expected = true;  // this build is for cards, or there is one: the reason is worth telling
  std::string reason;
};
[[nodiscard]] CudaAvailable cuda_available(int device = 0);

[[nodiscard]] int cuda_cards();  // that there are; 0 where CUDA finds none, or this build has none
// Throws Error(kUnsupported) where a number of cards is more than there are; `what` asks for them.
void require_cards(int cards, std::string_view what);

struct CudaMemory {
  int64_t free_bytes = 0, total_bytes = 0;
};
namespace cuda {
// How much of a card's memory can be had. driver: cudaMemGetInfo's answer. available: the system's (base/machine.h). An
// integrated card shares the machine's memory. There the driver counts pages of files as used, which the system gives
// up as soon as somebody wants memory: after a download of a model it says that nearly nothing is free.
[[nodiscard]] inline CudaMemory usable_memory(const CudaMemory& driver, bool integrated,
                                              std::optional<int64_t> available) {
  if (!integrated || !available) return driver;
  return {.free_bytes = std::min(*available, driver.total_bytes), .total_bytes = driver.total_bytes};
}
}  // namespace cuda
// Throws Error(kUnsupported) when there is no such device.
[[nodiscard]] CudaMemory cuda_memory(int device = 0);

// What make_cuda_backend allocates on the first rank's card; of `weights` a head's alone. For ranks in several
// processes NCCL's memory is in it, too.
enum class RanksIn : uint8_t { kOneProcess, kSeveralProcesses };
[[nodiscard]] MemoryNeeds cuda_memory_needs(const BackendConfig& config, const RunConfig& run,
                                            RanksIn in = RanksIn::kOneProcess);

// The backend of the whole model. With several run.ranks it has a card and a thread for each of them. Throws
// Error(kUnsupported) when this build has no CUDA, no such device exists, no kernel is built for it, or the shapes do
// not fit the kernels that `run` names; Error(kOutOfMemory) with the bytes wanted; Error(kDevice) when CUDA fails.
[[nodiscard]] std::unique_ptr<Backend> make_cuda_backend(const BackendConfig& config, const RunConfig& run,
                                                         CudaSetup setup = {});
// A backend with these architectures (arch/arch.h) and their launchers instead of the build's, so that a test can run
// one card's kernels on another.
[[nodiscard]] std::unique_ptr<Backend> make_cuda_backend(const BackendConfig& config, const RunConfig& run,
                                                         CudaSetup setup, const std::vector<cuda::Arch>& architectures);

// This process's rank of a group of several processes, which outlives it. `whole`: of the whole model. Throws what
// make_cuda_backend throws.
[[nodiscard]] std::unique_ptr<Member> make_cuda_member(const BackendConfig& whole, const RunConfig& run,
                                                       const cuda::Comm& comm, CudaSetup setup = {});

}  // namespace nibble::backend
