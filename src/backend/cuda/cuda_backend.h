#pragma once
// The GPU: float activations, weights as shipped, one stream, plain kernels. Every sum's order is fixed by shapes and
// positions, so a step's bits repeat; with Attention::kReference a token does not see its batch neighbours either.

#include "backend/backend.h"
#include "backend/memory.h"
#include "base/mapped_file.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend {

struct CudaOptions {
  int device = 0;
  enum class Kv : uint8_t { kBf16, kF32, kE4m3 } kv = Kv::kBf16;
  // kFlash: tensor-core kernels; kReference: the plain one; kAuto: flash where it takes the model's shapes.
  enum class Attention : uint8_t { kAuto, kFlash, kReference } attention = Attention::kAuto;
  // Files that uploaded weights are mapped from: read past the page cache where it does not hold them yet.
  std::vector<MappedSource> files{};
  int upload_threads = 1;
};

struct KernelLaunches {
  std::string_view kernel;
  int64_t count = 0;
};

class CudaBackend : public Backend {
 public:
  // What ran so far, kernels that never ran left out: shows which path served a step.
  [[nodiscard]] virtual std::vector<KernelLaunches> launches() const = 0;
  [[nodiscard]] virtual std::string_view device_name() const = 0;
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

// What make_cuda_backend allocates; weights are not in it. Pure.
[[nodiscard]] MemoryNeeds cuda_memory_needs(const BackendConfig& config, const CudaOptions& options);

// Throws Error(kUnsupported) when this build has no CUDA, no such device exists, no kernel is built for it, or the
// shapes do not fit the kernels; Error(kOutOfMemory) with the bytes wanted; Error(kDevice) when CUDA fails.
[[nodiscard]] std::unique_ptr<CudaBackend> make_cuda_backend(const BackendConfig& config, const CudaOptions& options);

}  // namespace nibble::backend
