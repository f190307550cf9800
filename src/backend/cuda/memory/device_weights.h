#pragma once
// A model's weights in device memory, in the form that the kernels read: matrices packed or in row order, experts in
// MXFP4, all else in bf16. OpenAI's checkpoints are so already; of llama.cpp's files the halves of gate_up are joined
// here, MXFP4 changes its order of nibbles, and Q8_0, F16 and F32 are rounded to bf16 (docs/decisions/0012).

#include "backend/backend.h"
#include "backend/cuda/memory/arena.h"
#include "backend/cuda/memory/packed_weights.h"
#include "backend/cuda/memory/slabs.h"
#include "backend/cuda/memory/upload.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {

// Memory for weights on their way, pinned and the device's.
[[nodiscard]] constexpr int64_t upload_bytes(int threads) {
  return Uploader::memory_bytes(threads) + Slabs::kMemoryBytes;
}

class DeviceWeights {
 public:
  // `config` and `files` outlive it.
  struct Options {
    const BackendConfig& config;
    Matrices matrices = Matrices::kPacked;
    std::span<const MappedSource> files;
    int upload_threads = 1;
    Uploader::Cached cached = Uploader::Cached::kUsed;
  };
  DeviceWeights(const Options& options, cudaStream_t stream);

  // As Backend::upload, of the part that is meant. The bytes are read until finish() returns.
  WeightHandle upload(const HostWeight& weight);
  // As Backend::finish_upload: waits, and frees what only uploads need. Throws Error(kUnsupported) for scales that no
  // packing holds. Does nothing when nothing was uploaded since.
  void finish();
  [[nodiscard]] bool finished() const { return !uploader_; }
  [[nodiscard]] layout::ModelScales scales() const { return packed_ ? packed_->scales() : layout::ModelScales{}; }

  [[nodiscard]] const Bf16* bf16(WeightHandle handle) const {
    return reinterpret_cast<const Bf16*>(of(handle).values.get());
  }
  // Of kQBias, kKBias and kVBias with packed matrices: the three, one after the other.
  [[nodiscard]] const Bf16* qkv_bias(WeightHandle handle) const { return of(handle).qkv_bias; }
  [[nodiscard]] const PackedMatrix& matrix(WeightHandle handle) const { return of(handle).matrix; }
  [[nodiscard]] MxfpMatrix mxfp4(WeightHandle handle) const;  // experts in row order
  // A head's vector; of q's bias: of q, k and v.
  [[nodiscard]] const float* floats(WeightHandle handle) const {
    return reinterpret_cast<const float*>(of(handle).values.get());
  }

 private:
  struct Uploaded {
    DeviceBytes values, scales;
    PackedMatrix matrix;             // of a packed role, which has no values here
    const Bf16* qkv_bias = nullptr;  // likewise
  };
  WeightHandle upload_all(const HostWeight& weight);
  // A head's: matrices in bf16 and row order, q, k and v of a layer below each other, as are gate and up; vectors f32.
  WeightHandle upload_head(const HostWeight& weight);
  void put(const SlabSource& source, std::byte* values, std::byte* scales);
  [[nodiscard]] const Uploaded& of(WeightHandle handle) const { return weights_[static_cast<size_t>(handle.idx)]; }

  const Options options_;
  cudaStream_t stream_;
  std::optional<PackedWeights> packed_;
  std::vector<Uploaded> weights_;
  std::map<std::pair<int, bool>, std::byte*> head_qkv_;  // by layer, matrices or biases: where q's begin
  std::optional<Slabs> slabs_;
  std::optional<Uploader> uploader_;  // the last: its threads use the others
};

}  // namespace nibble::backend::cuda
