#pragma once
// Stands in for CUDA's header of this name where the backend's host code runs without CUDA and without a card: device
// memory is the host's, streams are empty, a graph is a name. Only what the room calls.

#include "backend/cuda/card/device_facts.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
struct CUstream_st {
  int card = 0;
};
struct CUevent_st {
  int card = 0;
};
struct CUgraph_st {
  int card = 0;
};
struct CUgraphExec_st {
  int card = 0;
};
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorPeerAccessAlreadyEnabled = 704
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
  cudaDevAttrMemoryClockRate,
  cudaDevAttrIntegrated
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
inline constexpr unsigned cudaHostAllocDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0,
                          cudaEventDisableTiming = 2;

namespace nibble::backend::cuda {
// What the emulated CUDA says of the machine.
struct EmulatedCuda {
  DeviceFacts card;
  cudaError_t status = cudaSuccess;   // of the first call
  int driver = 13000;                 // CUDA version
  cudaError_t kernels = cudaSuccess;  // whether the build has kernels for the card
  int code = 0;                       // and for which architecture they are compiled, 90 of sm_90
  int64_t allocated = 0;              // bytes of device memory asked for so far
  int64_t free = -1;                  // that it says are free; -1: all
  cudaError_t copies = cudaSuccess;   // what they say
  int cards = 1;                      // that are there, all alike
  bool peers = true;                  // and reach each other's memory
  int failed_card = -1;               // whose events fail
  std::array<int64_t, 8> events{};    // recorded so far, by card
  int64_t strayed = 0;                // calls for one card while another was the thread's
  bool packs = false;                 // weights are rearranged; else only the arguments are looked at
};
[[nodiscard]] EmulatedCuda& emulated_cuda();
// A small card that has the kernels of every card, and rearranges weights.
inline EmulatedCuda emulated_small_card() {
  return {.card = {.name = "a card with the kernels of every card",
                   .major = 8,
                   .minor = 0,
                   .multiprocessors = 3,
                   .memory_bytes = int64_t{1} << 31,
                   .cta_smem_bytes = 232448,
                   .sm_smem_bytes = 233472},
          .packs = true};
}
inline thread_local int emulated_card = 0;  // the thread's
// Notes a call for a card's stream, event or graph; the stream of none is the thread's card's.
template <class Handle>
void on_card(const Handle* handle) {
  if (handle != nullptr && handle->card != emulated_card) ++std::atomic_ref(emulated_cuda().strayed);
}
}  // namespace nibble::backend::cuda

struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  int major, minor, multiProcessorCount, memoryBusWidth;
  size_t totalGlobalMem, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
  int integrated;
};

inline const char* cudaGetErrorName(cudaError_t status) { return status == cudaSuccess ? "cudaSuccess" : "an error"; }
inline const char* cudaGetErrorString(cudaError_t status) { return cudaGetErrorName(status); }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* version) {
  return *version = nibble::backend::cuda::emulated_cuda().driver, cudaSuccess;
}
inline cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }

inline cudaError_t cudaGetDeviceCount(int* count) {
  const cudaError_t status = nibble::backend::cuda::emulated_cuda().status;
  return *count = status == cudaSuccess ? nibble::backend::cuda::emulated_cuda().cards : 0, status;
}
inline cudaError_t cudaGetDevice(int* device) { return *device = nibble::backend::cuda::emulated_card, cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= nibble::backend::cuda::emulated_cuda().cards) return cudaErrorInvalidDevice;
  return nibble::backend::cuda::emulated_card = device, cudaSuccess;
}
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int /*device*/, int /*peer*/) {
  return *can = nibble::backend::cuda::emulated_cuda().peers ? 1 : 0, cudaSuccess;
}
inline cudaError_t cudaDeviceEnablePeerAccess(int /*peer*/, unsigned /*flags*/) { return cudaSuccess; }
inline constexpr int kEmulatedBusWidth = 5120;  // bits; the clock is what makes memory_bytes_per_s of them
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* into, int /*device*/) {
  const nibble::backend::cuda::DeviceFacts& card = nibble::backend::cuda::emulated_cuda().card;
  *into = {};
  card.name.copy(into->name, sizeof into->name - 1);
  into->major = card.major;
  into->minor = card.minor;
  into->multiProcessorCount = card.multiprocessors;
  into->memoryBusWidth = kEmulatedBusWidth;
  into->totalGlobalMem = static_cast<size_t>(card.memory_bytes);
  into->sharedMemPerBlockOptin = static_cast<size_t>(card.cta_smem_bytes);
  into->sharedMemPerMultiprocessor = static_cast<size_t>(card.sm_smem_bytes);
  into->integrated = card.integrated ? 1 : 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int /*device*/) {
  const nibble::backend::cuda::DeviceFacts& card = nibble::backend::cuda::emulated_cuda().card;
  *value = which == cudaDevAttrMultiProcessorCount      ? card.multiprocessors
           : which == cudaDevAttrComputeCapabilityMajor ? card.major
           : which == cudaDevAttrMemoryClockRate
               ? static_cast<int>(card.memory_bytes_per_s / (2.0 * 1000 * kEmulatedBusWidth / 8))
           : which == cudaDevAttrIntegrated ? static_cast<int>(card.integrated)
                                            : static_cast<int>(card.sm_smem_bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const nibble::backend::cuda::EmulatedCuda& cuda = nibble::backend::cuda::emulated_cuda();
  *total = static_cast<size_t>(cuda.card.memory_bytes);
  *free = cuda.free < 0 ? *total : static_cast<size_t>(cuda.free);
  return cudaSuccess;
}

inline cudaError_t cudaMalloc(void** at, size_t bytes) {
  nibble::backend::cuda::EmulatedCuda& cuda = nibble::backend::cuda::emulated_cuda();
  const int64_t allocated = std::atomic_ref(cuda.allocated) += static_cast<int64_t>(bytes);
  *at = allocated > cuda.cards * cuda.card.memory_bytes ? nullptr : std::malloc(bytes);
  return *at == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaHostAlloc(void** at, size_t bytes, unsigned /*flags*/) {
  return (*at = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)) == nullptr ? cudaErrorMemoryAllocation
                                                                                   : cudaSuccess;
}
inline cudaError_t cudaFree(void* at) { return std::free(at), cudaSuccess; }
inline cudaError_t cudaFreeHost(void* at) { return std::free(at), cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  nibble::backend::cuda::on_card(stream);
  return std::memset(at, value, bytes), cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                                   cudaStream_t stream) {
  nibble::backend::cuda::on_card(stream);
  return std::memcpy(to, from, bytes), nibble::backend::cuda::emulated_cuda().copies;
}
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                     size_t height, cudaMemcpyKind /*kind*/, cudaStream_t /*stream*/) {
  for (size_t row = 0; row < height; ++row)
    std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  return cudaSuccess;
}

using cudaHostFn_t = void (*)(void* data);
inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  nibble::backend::cuda::on_card(stream);
  return function(data), cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  return *stream = new CUstream_st{nibble::backend::cuda::emulated_card}, cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  nibble::backend::cuda::on_card(stream);
  return delete stream, cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return nibble::backend::cuda::on_card(stream), cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return *event = new CUevent_st{nibble::backend::cuda::emulated_card}, cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) { return cudaEventCreate(event); }
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  nibble::backend::cuda::on_card(event);
  return delete event, cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ++std::atomic_ref(nibble::backend::cuda::emulated_cuda().events.at(static_cast<size_t>(event->card)));
  nibble::backend::cuda::on_card(event);
  return nibble::backend::cuda::on_card(stream), cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/ = 0) {
  nibble::backend::cuda::on_card(event);
  return nibble::backend::cuda::on_card(stream), cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  nibble::backend::cuda::on_card(event);
  return event->card == nibble::backend::cuda::emulated_cuda().failed_card ? cudaErrorInvalidDevice : cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t /*from*/, cudaEvent_t /*to*/) {
  return *ms = 0, cudaSuccess;
}

enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone };
// A capture runs what it records.
inline cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  return nibble::backend::cuda::on_card(stream), cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return *graph = new CUgraph_st{stream->card}, cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long /*flags*/) {
  nibble::backend::cuda::on_card(graph);
  return *executable = new CUgraphExec_st{graph->card}, cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  nibble::backend::cuda::on_card(executable);
  return delete executable, cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  nibble::backend::cuda::on_card(executable);
  return nibble::backend::cuda::on_card(stream), cudaSuccess;
}
// NOLINTEND(readability-identifier-naming)
