#pragma once
// The attend verb: which kernels serve it, and what they need beside the backend's slots.

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernel_table.h"
#include "backend/cuda/kernels/any/attend_flash.h"
#include "backend/cuda/staging.h"

#include <optional>
#include <vector>

namespace nibble::backend::cuda {

class Attention {
 public:
  // Throws Error(kUnsupported) when the option asks for kernels that do not take the model's shapes or its page type.
  Attention(const BackendConfig& config, const CudaOptions& options, cudaStream_t stream);

  // Device memory that one takes. Throws as the constructor does.
  [[nodiscard]] static int64_t memory_bytes(const BackendConfig& config, const CudaOptions& options,
                                            const DeviceFacts& card);

  // Whether the tensor-core kernels serve; false: the plain one.
  [[nodiscard]] bool flash() const { return memory_ != nullptr; }
  struct Step {
    std::span<const Row> rows;
    RopeSumsArgs unturned{};  // FlashArgs
  };
  // Enqueues one layer's attention. `launch` holds all that AttendLaunch names.
  void attend(const Step& step, const AttendLaunch& launch, Staging& staging, const Launch& on);
  // The most bytes that it puts through the staging of a step.
  [[nodiscard]] static int64_t staging_bytes(int64_t tokens);

 private:
  AttendDevice device_;
  AttendShares shares_;
  DeviceBytes memory_;
  float* partials_ = nullptr;
  int* finished_ = nullptr;
  std::optional<StepArray<int32_t>> decode_tokens_;
  std::optional<StepArray<AttendTile>> tiles_;
};

}  // namespace nibble::backend::cuda
