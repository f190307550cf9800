#include "backend/cuda/card/device.h"

#include "backend/cuda/card/device_facts.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/launch/launch.h"
#include "backend/cuda/norm_rope/embed_norm_rope.h"
#include "base/machine.h"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

constexpr double kGib = 1 << 30;
static_assert(kCudaInsufficientDriver == cudaErrorInsufficientDriver && kCudaNoDevice == cudaErrorNoDevice);

void check_room(cudaError_t status, int64_t bytes, std::string_view what) {
  if (status != cudaErrorMemoryAllocation) return cuda_check(status);
  cudaGetLastError();  // so that the next launch does not report it again
  const auto [free, total] = device_memory();
  throw Error(Code::kOutOfMemory, "cuda: {}: want {:.2f} GiB, the device has {:.2f} GiB free of {:.2f} GiB", what,
              static_cast<double>(bytes) / kGib, static_cast<double>(free) / kGib, static_cast<double>(total) / kGib);
}

}  // namespace

CudaMemory device_memory() {
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total));
  int device = 0, integrated = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, device));
  return usable_memory({.free_bytes = static_cast<int64_t>(free), .total_bytes = static_cast<int64_t>(total)},
                       integrated != 0, available_memory());
}

void cuda_check(cudaError_t status, std::source_location where) {
  if (status == cudaSuccess) [[likely]]
    return;
  const Code code = status == cudaErrorMemoryAllocation ? Code::kOutOfMemory : Code::kDevice;
  throw Error(code, "cuda: {}: {} ({}:{}, {})", cudaGetErrorName(status), cudaGetErrorString(status), where.file_name(),
              where.line(), where.function_name());
}

void launched(Kernel kernel, const Launch& on, std::source_location where) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) [[unlikely]] {
    throw Error(Code::kDevice, "cuda: launch of {}: {}: {} ({}:{})", kernel.name, cudaGetErrorName(status),
                cudaGetErrorString(status), where.file_name(), where.line());
  }
  note_launch(kernel, on);
}

DeviceFacts open_device(int device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    CudaVersions versions;
    static_cast<void>(cudaDriverGetVersion(&versions.driver));
    static_cast<void>(cudaRuntimeGetVersion(&versions.runtime));
    const std::string says = fmt::format("{}: {}", cudaGetErrorName(status), cudaGetErrorString(status));
    throw Error(Code::kUnsupported, why_no_device(status, versions, says));
  }
  if (device < 0 || device >= count)
    throw Error(Code::kUnsupported, "cuda: want device {}, found devices 0 to {}", device, count - 1);
  cuda_check(cudaSetDevice(device));
  cudaDeviceProp props{};
  cuda_check(cudaGetDeviceProperties(&props, device));
  constexpr double kPerClock = 2, kHzPerKhz = 1000, kBitsPerByte = 8;
  int khz = 0;
  cuda_check(cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, device));
  const DeviceFacts facts{.name = props.name,
                          .major = props.major,
                          .minor = props.minor,
                          .code = any_kernels_code().arch,
                          .multiprocessors = props.multiProcessorCount,
                          .memory_bytes = static_cast<int64_t>(props.totalGlobalMem),
                          .memory_bytes_per_s = kPerClock * kHzPerKhz * khz * props.memoryBusWidth / kBitsPerByte,
                          .cta_smem_bytes = static_cast<int64_t>(props.sharedMemPerBlockOptin),
                          .sm_smem_bytes = static_cast<int64_t>(props.sharedMemPerMultiprocessor),
                          .integrated = props.integrated != 0};
  return card_mask() ? taken_for(facts, *card_mask()) : facts;
}

DeviceBytes allocate_device(int64_t bytes, std::string_view what) {
  void* at = nullptr;
  check_room(cudaMalloc(&at, static_cast<size_t>(std::max<int64_t>(bytes, 1))), bytes, what);
  return DeviceBytes(static_cast<std::byte*>(at));
}

PinnedBytes allocate_pinned(int64_t bytes, std::string_view what) {
  void* at = nullptr;
  const cudaError_t status = cudaHostAlloc(&at, static_cast<size_t>(std::max<int64_t>(bytes, 1)), cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Error(Code::kOutOfMemory, "cuda: {}: want {} bytes of pinned host memory, found none", what, bytes);
  }
  cuda_check(status);
  return PinnedBytes(static_cast<std::byte*>(at));
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

Event make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, flags));
  return Event(event);
}

}  // namespace nibble::backend::cuda
