#pragma once
// The GPU, or several that share every step. Weights exact as shipped unless BackendConfig::dense says otherwise, float
// residual, one stream a card. Every sum's
// order is fixed by shapes and positions, so a step's bits repeat. With KernelFamily::kReference and
// AttentionKernel::kReference a token does not see its batch neighbours either; else steps of one, of two to eight, of
// up to 256 and of more tokens may differ in the last bits.

#include "backend/backend.h"
#include "backend/cuda/card/device_facts.h"
#include "backend/run_config.h"
#include "base/mmap_file.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend {

// With what was left open decided for the model's shapes, which needs no card. KernelFamily::kAuto stays where they can
// be packed. Throws Error(kUnsupported) for kernels that do not take the shapes, the KV type or the activations.
[[nodiscard]] RunConfig resolved_cuda(const BackendConfig& config, const RunConfig& run);

// A rank's shard as cards hold it: of no inner width, a block of zeros; of one that has no packing (3,104 and more),
// the next that has one. Its backend's configuration is config_of() of this; uploads are slices of the shard itself.
[[nodiscard]] Shard cuda_shard(Shard shard);
// Columns of the experts' second product that cards hold of such a shard: filled up to pairs of blocks (1440 of two
// ranks' to 1472), as the packing has them.
[[nodiscard]] int64_t cuda_down_cols(const Shard& shard);

// What a rank's card is configured with: of the whole model where there is one rank.
[[nodiscard]] BackendConfig cuda_config(const BackendConfig& whole, const Ranks& ranks, int rank = 0);

namespace cuda {
class CardGroup;
struct Arch;
struct Reduce;
}  // namespace cuda

// What is no setting.
struct CudaSetup {
  // Of each of run.ranks, by rank; one that is named more than once is shared, for tests. Empty: the first of them.
  std::vector<int> devices{};
  // Files that uploaded weights are mapped from: read past the page cache where it does not hold them yet.
  std::vector<MappedSource> files{};
  std::optional<cuda::Tuned> tuned{};  // instead of the card's (tuned.h), to measure it
  // Of one rank of several (BackendConfig::own_experts): adds up their deltas, and outlives the backend.
  const cuda::Reduce* reduce = nullptr;
  // This process is one rank of these, and run.ranks are all of them; outlives the backend.
  const cuda::CardGroup* group = nullptr;
};

struct KernelLaunches {
  std::string_view kernel;
  int64_t count = 0;
};

class CudaBackend : public Backend {
 public:
  // What ran so far, kernels that never ran left out: shows which path served a step.
  [[nodiscard]] virtual std::vector<KernelLaunches> launches() const = 0;
  [[nodiscard]] virtual KernelFamily kernel_family() const = 0;  // what kAuto became
  [[nodiscard]] virtual int64_t graph_replays() const = 0;
};

// Whether make_cuda_backend could work here; when not, `reason` says why.
struct CudaAvailable {
  bool yes = false;
  bool expected = true;  // who reads the reason may want a card: this build is for cards, or there is one
  std::string reason;
};
[[nodiscard]] CudaAvailable cuda_available(int device = 0);

[[nodiscard]] int cuda_cards();  // that there are; 0 where CUDA finds none, or this build has none
// Throws Error(kUnsupported) where a number of cards is more than there are; `what` asks for them.
void require_cards(int cards, std::string_view what);

struct CudaMemory {
  int64_t free_bytes = 0, total_bytes = 0;
};
// Throws Error(kUnsupported) when there is no such device.
[[nodiscard]] CudaMemory cuda_memory(int device = 0);

// What make_cuda_backend allocates on the device in use, of several ranks on the first one's, and head_runner() for
// BackendConfig::head. Weights are a head's alone; its keys and values are with the activations. Ranks of several
// processes have NCCL's memory in it.
enum class RanksIn : uint8_t { kOneProcess, kSeveralProcesses };
[[nodiscard]] MemoryNeeds cuda_memory_needs(const BackendConfig& config, const RunConfig& run,
                                            RanksIn in = RanksIn::kOneProcess);

// Of the whole model: with several run.ranks each has its card, on a thread of its own, and this is all of them. With
// setup.group it is that rank alone, whose uploads are its slices (HostWeight), but the embedding is whole.
// Throws Error(kUnsupported) when this build has no CUDA, no such device exists, no kernel is built for it, or the
// shapes do not fit the kernels that `run` names; Error(kOutOfMemory) with the bytes wanted; Error(kDevice) when
// CUDA fails.
[[nodiscard]] std::unique_ptr<CudaBackend> make_cuda_backend(const BackendConfig& config, const RunConfig& run,
                                                             CudaSetup setup = {});
// The same with the kernels of these architectures (arch/arch.h), launchers included, instead of the build's: how a
// test runs one card's on another.
[[nodiscard]] std::unique_ptr<CudaBackend> make_cuda_backend(const BackendConfig& config, const RunConfig& run,
                                                             CudaSetup setup,
                                                             const std::vector<cuda::Arch>& architectures);

}  // namespace nibble::backend
