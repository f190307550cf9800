// Built instead of the backend where CMake found no CUDA or was told not to use it.

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/card/measure.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"

namespace nibble::backend {
namespace {

constexpr std::string_view kAbsent = "this build has no CUDA backend; `make cuda` builds one with it";

}  // namespace

CudaAvailable cuda_available(int /*device*/) { return {.yes = false, .reason = std::string(kAbsent)}; }

std::unique_ptr<CudaBackend> make_cuda_backend(const BackendConfig& /*config*/, const RunConfig& /*run*/,
                                               CudaSetup /*setup*/) {
  throw Error(Code::kUnsupported, std::string(kAbsent));
}

CudaMemory cuda_memory(int /*device*/) { throw Error(Code::kUnsupported, std::string(kAbsent)); }

MemoryNeeds cuda_memory_needs(const BackendConfig& /*config*/, const RunConfig& /*run*/) {
  throw Error(Code::kUnsupported, std::string(kAbsent));
}

std::optional<cuda::DeviceFacts> cuda_plan_device() { return std::nullopt; }

DevicePeaks measure_cuda(int /*device*/) { throw Error(Code::kUnsupported, std::string(kAbsent)); }

ReadClock cuda_clock(int /*device*/) { return {}; }

}  // namespace nibble::backend
