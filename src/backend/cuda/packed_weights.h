#pragma once
// The matrices that the decode kernels stream, in device memory in their layout (layout/packed.h) and nowhere else:
// packed on the device as they come through the upload ring, requantised there where BackendConfig::dense says so.

#include "backend/backend.h"
#include "backend/cuda/choices.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernels/any/gemv_plan.h"
#include "backend/cuda/upload.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::backend::cuda {

// Whether a role is one of these matrices.
[[nodiscard]] bool is_packed(WeightRole role);

// Slabs of rows on their way: as they came, in device memory, and scratch for what is requantised. The stream's order
// lets one slab serve them all.
class Packer {
 public:
  Packer(Uploader& uploader, cudaStream_t stream);

  struct Job {
    PackArgs pack;  // values and scales are set by the packer
    std::optional<WeightFormat> quantize;
    std::span<const std::byte> values, scales;
  };
  static constexpr int64_t kSlabBytes = int64_t{64} << 20;
  static constexpr int64_t kBytes = kSlabBytes + kSlabBytes / 2 + kSlabBytes / 64;  // most of the device's memory

  // Enqueues; the bytes have been read when it returns.
  void run(const Job& job);
  // Waits. So far: blocks whose scale a format could not hold, and those above layout::kMaxWgmmaScaleCode.
  struct ScaleCounts {
    int bad = 0, wide = 0;
  };
  [[nodiscard]] ScaleCounts scale_counts() const;

 private:
  Uploader& uploader_;
  cudaStream_t stream_;
  DeviceBytes slab_, codes_, scales_, scale_counts_;
};

class PackedWeights {
 public:
  PackedWeights(const BackendConfig& config, cudaStream_t stream) : config_(config), stream_(stream) {}

  struct Matrix {
    const uint8_t* data = nullptr;  // of kQ, kK and kV: the layer's one matrix of all three
    layout::Packing packing = layout::Packing::kBf16;
  };
  // REQUIRES is_packed(weight.role). Throws Error(kUnsupported) for another format than the checkpoint's own.
  Matrix upload(const HostWeight& weight, Uploader& uploader);
  // The biases of q, k and v, one after the other: where this role's part begins, and the whole.
  struct Bias {
    Bf16 *part = nullptr, *whole = nullptr;
  };
  Bias qkv_bias(WeightRole role, int layer);
  // After the last upload, before its uploader ends: frees the packer. Throws Error(kUnsupported) when a scale was out
  // of range.
  void finish();
  // Whether some MXFP4 scale is above layout::kMaxWgmmaScaleCode; known once finished.
  [[nodiscard]] bool wide_scales() const { return wide_scales_; }

 private:
  struct Qkv {
    DeviceBytes matrix, bias;
  };
  Qkv& qkv(int layer);

  const BackendConfig& config_;
  cudaStream_t stream_;
  std::optional<Packer> packer_;
  bool wide_scales_ = false;
  std::vector<Qkv> qkv_;  // by layer
  std::vector<DeviceBytes> matrices_;
};

}  // namespace nibble::backend::cuda
