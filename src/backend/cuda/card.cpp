#include "backend/cuda/card.h"

#include "backend/cuda/arena.h"
#include "backend/cuda/choices.h"
#include "backend/cuda/kernels/any/launchers.h"
#include "backend/cuda/packed_weights.h"
#include "backend/cuda/plan.h"
#include "backend/cuda/upload.h"
#include "base/error.h"

#include <optional>

namespace nibble::backend {
namespace cuda {

KernelTable kernels_for(const DeviceFacts& facts) {
  const cudaError_t status = any_kernels_fit_device();
  if (status == cudaSuccess) return any_kernels();
  throw Error(Code::kUnsupported, "[cuda] {} (compute capability {}.{}): this build has kernels for {} ({})",
              facts.name, facts.major, facts.minor, NIBBLE_CUDA_ARCHS, cudaGetErrorString(status));
}

}  // namespace cuda

using namespace cuda;  // NOLINT: this file is the room's own

CudaAvailable cuda_available(int device) {
  try {
    static_cast<void>(kernels_for(open_device(device)));
    return {.yes = true, .reason = {}};
  } catch (const Error& error) {
    return {.yes = false, .reason = error.what()};
  }
}

std::optional<DeviceFacts> cuda_plan_device() {
  if (!cuda_available().yes) return std::nullopt;
  return open_device(0);
}

CudaMemory cuda_memory(int device) {
  static_cast<void>(kernels_for(open_device(device)));
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total));
  return {.free_bytes = static_cast<int64_t>(free), .total_bytes = static_cast<int64_t>(total)};
}

MemoryNeeds cuda_memory_needs(const BackendConfig& config, const CudaOptions& options) {
  Carver measure(nullptr);
  const bool packed = choose_moe(config, options) != MoeKernel::kReference;
  static_cast<void>(carve(config, options.kv, packed ? Matrices::kPacked : Matrices::kRowOrder, measure));
  using Kv = CudaOptions::Kv;
  const int64_t kv = kv_bytes(config, options.kv == Kv::kF32 ? 4 : options.kv == Kv::kE4m3 ? 1 : 2);
  return {.weights = 0,
          .kv = kv,
          .activations = measure.bytes() - kv,
          .upload = packed ? PackRing::kBytes : Uploader::kRingBytes};
}

}  // namespace nibble::backend
