#include "backend/cuda/card.h"

#include "backend/cuda/arena.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/choices.h"
#include "backend/cuda/device_errors.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/gemm_path.h"
#include "backend/cuda/kernels/any/launchers.h"
#include "backend/cuda/plan.h"
#include "backend/cuda/step_graph.h"
#include "base/error.h"

#include <algorithm>
#include <optional>

namespace nibble::backend {
namespace cuda {

KernelTable kernels_for(const DeviceFacts& facts) {
  const cudaError_t status = any_kernels_fit_device();
  if (status == cudaSuccess) return any_kernels();
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction)
    throw Error(Code::kUnsupported, why_no_kernels(facts, NIBBLE_CUDA_ARCHS));
  cuda_check(status);
  return {};
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
  Carver measure(nullptr), gemms(nullptr);
  const MoeKernel moe = choose_moe(config, options);
  const bool packed = moe != MoeKernel::kReference;
  static_cast<void>(carve(config, options.kv, packed ? Matrices::kPacked : Matrices::kRowOrder, measure));
  if (has_gemms(moe)) static_cast<void>(GemmPath(config, gemms));
  using Kv = CudaOptions::Kv;
  const int64_t kv = kv_bytes(config, options.kv == Kv::kF32 ? 4 : options.kv == Kv::kE4m3 ? 1 : 2);
  return {.weights = 0,
          .kv = kv,
          .activations = measure.bytes() - kv + gemms.bytes() +
                         Attention::memory_bytes(config, options, open_device(options.device)),
          .graphs = packed && !options.eager
                        ? StepGraphs::memory_bytes(std::min(config.max_rows, config.max_tokens), config.dims.layers)
                        : 0,
          .upload = upload_bytes(options.upload_threads)};
}

}  // namespace nibble::backend
