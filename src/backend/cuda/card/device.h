#pragma once
// CUDA's handles as owners, its errors as Error, and the facts of the card.

#include "backend/cuda/card/device_facts.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string_view>

#include <cuda_runtime_api.h>

namespace nibble::backend::cuda {

// Throws Error(kDevice), or kOutOfMemory when that is what CUDA says, naming the call's place.
void cuda_check(cudaError_t status, std::source_location where = std::source_location::current());

// Makes the device current for this thread. Throws Error(kUnsupported) when there is no such device.
[[nodiscard]] DeviceFacts open_device(int device);

// Keeps which device is current for this thread, and makes it so again at its end.
class CurrentDevice {
 public:
  CurrentDevice() { static_cast<void>(cudaGetDevice(&device_)); }  // where there is none, nothing is kept
  ~CurrentDevice() { cudaSetDevice(device_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int device_ = 0;
};

// Memory of the current device, as usable_memory() counts it.
[[nodiscard]] CudaMemory device_memory();

template <auto kEnd>
struct EndedBy {
  template <class T>
  void operator()(T* handle) const {
    kEnd(handle);
  }
};
using DeviceBytes = std::unique_ptr<std::byte[], EndedBy<cudaFree>>;
using PinnedBytes = std::unique_ptr<std::byte[], EndedBy<cudaFreeHost>>;
using Stream = std::unique_ptr<CUstream_st, EndedBy<cudaStreamDestroy>>;
using Event = std::unique_ptr<CUevent_st, EndedBy<cudaEventDestroy>>;
using GraphExec = std::unique_ptr<CUgraphExec_st, EndedBy<cudaGraphExecDestroy>>;

// `what` names the use in the message when there is no room.
[[nodiscard]] DeviceBytes allocate_device(int64_t bytes, std::string_view what);
[[nodiscard]] PinnedBytes allocate_pinned(int64_t bytes, std::string_view what);
[[nodiscard]] Stream make_stream();
[[nodiscard]] Event make_event(unsigned flags = cudaEventDisableTiming);
[[nodiscard]] inline Event make_timer() { return make_event(cudaEventDefault); }

// Throws Error(kUnsupported) when the build has no machine code for the card, or not that of the mask (device_facts.h).
void require_kernels(const DeviceFacts& facts);

}  // namespace nibble::backend::cuda
