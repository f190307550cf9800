#pragma once
// A model's weights in device memory, in the form that the kernels read: matrices packed or in row order, experts in
// MXFP4, all else in bf16. OpenAI's checkpoints are so already; of llama.cpp's files the halves of gate_up are joined
// here, MXFP4 changes its order of nibbles, and F16 and F32 are rounded to bf16, as is Q8_0, which may be held as it is
// besides (docs/decisions/0012, 0075).

#include "backend/backend.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/layout/packed.h"
#include "backend/cuda/memory/arena.h"
#include "backend/cuda/memory/upload.h"
#include "backend/cuda/program/choices.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {

// Whether a role is a matrix that the decode kernels stream.
[[nodiscard]] bool is_packed(WeightRole role);

struct MatrixShape {
  int64_t rows = 0, cols = 0;
  layout::RowOrder order = layout::RowOrder::kPlain;
};
// The dimensions of a weight, with the experts that it has: its layer's, or a rank's own.
[[nodiscard]] Dims held_dims(const BackendConfig& config, const HostWeight& weight);
// The shape of a packed role. Experts are rows of one tall matrix.
[[nodiscard]] MatrixShape matrix_shape(WeightRole role, const Dims& dims);
// As it is packed: columns of down are filled up to pairs of blocks.
[[nodiscard]] MatrixShape packed_shape(WeightRole role, const Dims& dims);

// Packs a source's rows as they come through the slabs. `pack`: what is the same for all of them. q8: where the
// source's Q8_0 is packed as it is, or null. The source is read until slabs.wait() returns.
void pack(const PackArgs& pack, uint8_t* q8, std::optional<WeightFormat> quantize, const SlabSource& source,
          Slabs& slabs);

// Throws Error(kUnsupported) where packing has counted blocks whose scale it cannot hold.
void require_scales(int bad);

// The matrices that the decode kernels stream, in device memory in their layout (layout/packed.h) and nowhere else:
// packed on the device as they come through the upload ring, requantised there where BackendConfig::dense says so.
// Where it says Q8_0, of sources in Q8_0, they lie there so, and with q8_copies once more, rounded to bf16.
class PackedWeights {
 public:
  PackedWeights(const BackendConfig& config, cudaStream_t stream) : config_(config), stream_(stream) {}

  // What gemv reads, and what GEMMs read: the same, or the rounded copy.
  struct Matrix {
    const uint8_t *packed = nullptr, *wide = nullptr;
  };
  // REQUIRES is_packed(role), and a source of its shape. The source is read until slabs.wait() returns. The matrix: of
  // kQ, kK and kV the layer's one of all three.
  Matrix upload(WeightRole role, int layer, const SlabSource& source, Slabs& slabs);
  // The biases of q, k and v, one after the other: where this role's part begins, and the whole.
  struct Bias {
    Bf16 *part = nullptr, *whole = nullptr;
  };
  Bias qkv_bias(WeightRole role, int layer);
  // After the last upload, when the slabs are done. Throws Error(kUnsupported) when a scale was out of range.
  void finish();
  // Scales of the MXFP4 matrices; known once finished.
  [[nodiscard]] const layout::ModelScales& scales() const { return scales_; }

 private:
  // A matrix that is packed, and its copy in bf16 where it is Q8_0.
  struct Packed {
    DeviceBytes matrix, copy;
    [[nodiscard]] Matrix pointers() const {
      const auto* const own = reinterpret_cast<const uint8_t*>(matrix.get());
      return {own, copy == nullptr ? own : reinterpret_cast<const uint8_t*>(copy.get())};
    }
  };
  struct Qkv {
    Packed packed;
    DeviceBytes bias;
  };
  // Blocks whose scale a format could not hold, and the codes of MXFP4's.
  struct PackedScales {
    int bad = 0;
    layout::ModelScales codes;
  };
  PackedScales* packed_scales();  // on the device, until finish()
  Qkv& qkv(int layer);
  [[nodiscard]] Packed allocate(WeightRole role, int64_t rows, int64_t cols, std::string_view what) const;
  const BackendConfig& config_;
  cudaStream_t stream_;
  DeviceBytes packed_scales_;  // a PackedScales while weights come
  layout::ModelScales scales_;
  std::vector<Qkv> qkv_;  // by layer
  std::vector<Packed> matrices_;
};

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
    Uploader::PageCache cached = Uploader::PageCache::kUsed;
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
  // The biases of q, k and v with packed matrices: the three, one after the other.
  [[nodiscard]] const Bf16* qkv_bias(WeightHandle handle) const { return of(handle).qkv_bias; }
  [[nodiscard]] PackedWeights::Matrix matrix(WeightHandle handle) const { return of(handle).matrix; }
  [[nodiscard]] MxfpMatrix mxfp4(WeightHandle handle) const;  // experts in row order
  // A head's vector; of q's bias: of q, k and v.
  [[nodiscard]] const float* floats(WeightHandle handle) const {
    return reinterpret_cast<const float*>(of(handle).values.get());
  }

 private:
  struct DeviceWeight {
    DeviceBytes values, scales;
    PackedWeights::Matrix matrix{};  // of a packed role, which has no values here
    const Bf16* qkv_bias = nullptr;  // of a role that is part of it
  };
  WeightHandle upload_all(const HostWeight& weight);
  // A head's: matrices in bf16 and row order, q, k and v of a layer below each other, as are gate and up; vectors f32.
  WeightHandle upload_head(const HostWeight& weight);
  void put(const SlabSource& source, std::byte* values, std::byte* scales);
  [[nodiscard]] const DeviceWeight& of(WeightHandle handle) const { return weights_[static_cast<size_t>(handle.idx)]; }

  const Options options_;
  cudaStream_t stream_;
  std::optional<PackedWeights> packed_;
  std::vector<DeviceWeight> weights_;
  std::map<std::pair<int, bool>, std::byte*> head_qkv_;  // by layer, matrices or biases: where q's begin
  std::optional<Slabs> slabs_;
  std::optional<ThreadPool> recoders_;  // of tensors in other formats than are taken here
  std::optional<Uploader> uploader_;    // the last: its threads use the others
};

}  // namespace nibble::backend::cuda
