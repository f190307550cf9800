#pragma once
// The GPU. Weights exact as shipped unless BackendConfig::dense says otherwise, float residual, one stream. Every sum's
// order is fixed by shapes and positions, so a step's bits repeat. With MoeKernel::kReference and Attention::kReference
// a token does not see its batch neighbours either; else steps of one, of two to eight, of up to 256 and of more tokens
// may differ in the last bits.

#include "backend/backend.h"
#include "backend/cuda/arch/tuned.h"
#include "backend/activations.h"
#include "backend/kv_dtype.h"
#include "backend/memory.h"
#include "base/mapped_file.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend {

// Who multiplies the experts, and with them every matrix. kAuto: packed matrices, each step on what was faster for its
// tokens; kReference for shapes that cannot be packed.
enum class MoeKernel : uint8_t {
  kAuto,
  kMarlin,     // W4A16 on tensor cores, weights packed once, at upload
  kGemm,       // kMarlin for up to eight tokens; tensor-core GEMMs over the same weights for more
  kGemv,       // experts on dp4a, their activations in int8: lossy; all else as kAuto
  kReference,  // plain loops in float, weights in row order
};
[[nodiscard]] constexpr std::string_view name_of(MoeKernel kernel) {
  constexpr std::array<std::string_view, 5> kNames = {"auto", "marlin", "gemm", "gemv", "reference"};
  return kNames[static_cast<size_t>(kernel)];
}

// kFlash: tensor-core kernels; kReference: the plain one; kAuto: flash where it takes the model's heads and pages.
enum class AttentionKernel : uint8_t { kAuto, kFlash, kReference };
[[nodiscard]] constexpr std::string_view name_of(AttentionKernel kernel) {
  constexpr std::array<std::string_view, 3> kNames = {"auto", "flash", "reference"};
  return kNames[static_cast<size_t>(kernel)];
}

namespace cuda {
struct Arch;
}

// Tokens and rows of a tile of the experts' block-scaled GEMMs; kAuto: by how many pairs an expert has. The others want
// a card that has them (arch/sm121), and mxfp8 activations.
enum class MoeTile : uint8_t { kAuto, k64x128, k128x128 };
[[nodiscard]] constexpr std::string_view name_of(MoeTile tile) {
  constexpr std::array<std::string_view, 3> kNames = {"auto", "64x128", "128x128"};
  return kNames[static_cast<size_t>(tile)];
}
[[nodiscard]] constexpr int tokens_of(MoeTile tile) {
  return tile == MoeTile::kAuto ? 0 : tile == MoeTile::k64x128 ? 64 : 128;
}

struct CudaOptions {
  int device = 0;
  using Kv = KvDtype;
  Kv kv = Kv::kBf16;
  using Attention = AttentionKernel;
  Attention attention = Attention::kAuto;
  // Files that uploaded weights are mapped from: read past the page cache where it does not hold them yet.
  std::vector<MappedSource> files{};
  int upload_threads = 1;
  MoeKernel moe = MoeKernel::kAuto;
  Activations activations = Activations::kExact;  // kInt8: with kGemv, which implies it
  MoeTile moe_tile = MoeTile::kAuto;
  std::optional<cuda::Tuned> tuned{};  // instead of the card's (tuned.h), to measure it
  bool eager = false;                  // every launch on its own: no step is captured as a graph and replayed
};

struct KernelLaunches {
  std::string_view kernel;
  int64_t count = 0;
};

class CudaBackend : public Backend {
 public:
  // What ran so far, kernels that never ran left out: shows which path served a step.
  [[nodiscard]] virtual std::vector<KernelLaunches> launches() const = 0;
  [[nodiscard]] virtual MoeKernel moe_kernel() const = 0;  // what kAuto became
  [[nodiscard]] virtual int64_t graph_replays() const = 0;
};

// Whether make_cuda_backend could work here; when not, `reason` says why.
struct CudaAvailable {
  bool yes = false;
  std::string reason;
};
[[nodiscard]] CudaAvailable cuda_available(int device = 0);

struct CudaMemory {
  int64_t free_bytes = 0, total_bytes = 0;
};
// Throws Error(kUnsupported) when there is no such device.
[[nodiscard]] CudaMemory cuda_memory(int device = 0);

// What make_cuda_backend allocates on the device in use; weights are not in it.
[[nodiscard]] MemoryNeeds cuda_memory_needs(const BackendConfig& config, const CudaOptions& options);

// Throws Error(kUnsupported) when this build has no CUDA, no such device exists, no kernel is built for it, or the
// shapes do not fit the kernels that the options name; Error(kOutOfMemory) with the bytes wanted; Error(kDevice) when
// CUDA fails.
[[nodiscard]] std::unique_ptr<CudaBackend> make_cuda_backend(const BackendConfig& config, const CudaOptions& options);
// The same with the kernels of these architectures (arch/arch.h), launchers included, instead of the build's: how a
// test runs one card's on another.
[[nodiscard]] std::unique_ptr<CudaBackend> make_cuda_backend(const BackendConfig& config, const CudaOptions& options,
                                                             const std::vector<cuda::Arch>& architectures);

}  // namespace nibble::backend
