#pragma once
// The matrices that the decode kernels stream, in device memory in their layout (layout/packed.h) and nowhere else:
// packed on the device as they come through the upload ring, requantised there where BackendConfig::dense says so.

#include "backend/backend.h"
#include "backend/cuda/program/choices.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/layout/packed.h"
#include "backend/cuda/memory/slabs.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace nibble::backend::cuda {

// Whether a role is one of these matrices.
[[nodiscard]] bool is_packed(WeightRole role);

struct MatrixShape {
  int64_t rows = 0, cols = 0;
  layout::RowOrder order = layout::RowOrder::kPlain;
};
// What is held of a role: of the experts a rank's own.
[[nodiscard]] Dims held_dims(const BackendConfig& config, WeightRole role);
// Of a packed role. Experts are rows of one tall matrix.
[[nodiscard]] MatrixShape matrix_shape(WeightRole role, const Dims& dims);
// As it is packed: columns of down are filled up to pairs of blocks.
[[nodiscard]] MatrixShape packed_shape(WeightRole role, const Dims& dims);

class PackedWeights {
 public:
  PackedWeights(const BackendConfig& config, cudaStream_t stream) : config_(config), stream_(stream) {}

  // REQUIRES is_packed(role), and a source of its shape. The source is read until slabs.wait() returns.
  PackedMatrix upload(WeightRole role, int layer, const SlabSource& source, Slabs& slabs);
  // The biases of q, k and v, one after the other: where this role's part begins, and the whole.
  struct Bias {
    Bf16 *part = nullptr, *whole = nullptr;
  };
  Bias qkv_bias(WeightRole role, int layer);
  // After the last upload, when the slabs are done. Throws Error(kUnsupported) when a scale was out of range.
  void finish();
  // Of the MXFP4 matrices; known once finished.
  [[nodiscard]] const layout::ModelScales& scales() const { return scales_; }

 private:
  struct Qkv {
    DeviceBytes matrix, bias;
  };
  // Blocks whose scale a format could not hold, and the codes of MXFP4's.
  struct PackedScales {
    int bad = 0;
    layout::ModelScales codes;
  };
  PackedScales* packed_scales();  // on the device, until finish()
  Qkv& qkv(int layer);
  // `pack`: what is the same for all rows.
  void pack(PackArgs pack, std::optional<WeightFormat> quantize, const SlabSource& source, Slabs& slabs);

  const BackendConfig& config_;
  cudaStream_t stream_;
  DeviceBytes packed_scales_;  // a PackedScales while weights come
  layout::ModelScales scales_;
  std::vector<Qkv> qkv_;  // by layer
  std::vector<DeviceBytes> matrices_;
};

}  // namespace nibble::backend::cuda
