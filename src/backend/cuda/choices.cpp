#include "backend/cuda/choices.h"

#include "backend/cuda/arena.h"
#include "backend/cuda/kernels/any/gemm_plan.h"
#include "backend/cuda/kernels/sm90/attend.h"
#include "backend/cuda/packed_weights.h"
#include "backend/cuda/plan.h"
#include "backend/cuda/upload.h"
#include "base/error.h"

#include <optional>
#include <string>

namespace nibble::backend {
namespace cuda {

KernelTable kernels_for(const DeviceFacts& facts) {
  const cudaError_t status = any_kernels_fit_device();
  if (status == cudaSuccess) return any_kernels();
  throw Error(Code::kUnsupported, "[cuda] {} (compute capability {}.{}): this build has kernels for {} ({})",
              facts.name, facts.major, facts.minor, NIBBLE_CUDA_ARCHS, cudaGetErrorString(status));
}

MoeKernel choose_moe(const BackendConfig& config, const CudaOptions& options) {
  if (options.moe == MoeKernel::kGemv)
    throw Error(Code::kUnsupported, "[cuda] --moe-kernel gemv: this build has marlin, gemm and reference");
  const std::optional<std::string> reason = why_not_packed(config);
  const bool gemm = options.moe == MoeKernel::kGemm;
  const bool requantised = config.dense.qkv || config.dense.o || config.dense.lm_head;
  const bool packed =
      gemm || options.moe == MoeKernel::kMarlin || (options.moe == MoeKernel::kAuto && requantised && !reason);
  if (packed && reason) throw Error(Code::kUnsupported, "[cuda] --moe-kernel {}: {}", name_of(options.moe), *reason);
  if (gemm && config.dims.experts > kGroupMaxExperts)
    throw Error(Code::kUnsupported, "[cuda] --moe-kernel gemm: want up to {} experts, found {}", kGroupMaxExperts,
                config.dims.experts);
  if (!packed && requantised)
    throw Error(Code::kUnsupported, "[cuda] requantised layers want --moe-kernel marlin: {}",
                reason.value_or("reference was asked for"));
  return gemm ? MoeKernel::kGemm : packed ? MoeKernel::kMarlin : MoeKernel::kReference;
}

GemvDevice gemv_device(const DeviceFacts& facts) {
  return {.sms = facts.multiprocessors, .cta_smem_bytes = facts.cta_smem_bytes, .sm_smem_bytes = facts.sm_smem_bytes};
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

std::optional<CudaPlanDevice> cuda_plan_device() {
  if (!cuda_available().yes) return std::nullopt;
  const DeviceFacts facts = open_device(0);
  int smem = 0;
  cuda_check(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0));
  int major = 0;
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  const bool wgmma = major == 9 && sm90_attend_serves(KvPages::Type::kBf16);
  return CudaPlanDevice{facts.name, {.sms = facts.multiprocessors, .sm_smem_bytes = smem, .wgmma = wgmma}};
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
