#pragma once
// A block of 32 values in four neighbour lanes, eight each, in an MX format: the roundings of backend/activations.h, to
// the bit. All four lanes together.

#include "backend/activations.h"
#include "backend/cuda/ptx/convert.cuh"
#include "base/mx.h"

namespace nibble::backend::cuda {

inline constexpr int kEighth = 8;  // values of a lane

// The block's largest magnitude, NaN where any value is; known to its four lanes.
__device__ __forceinline__ float largest(const float (&x)[kEighth]) {
  float most = 0;
#pragma unroll
  for (const float value : x) most = ptx::max_nan(most, fabsf(value));
  most = ptx::max_nan(most, __shfl_xor_sync(0xffffffffu, most, 1));
  return ptx::max_nan(most, __shfl_xor_sync(0xffffffffu, most, 2));
}

// A block's scale, and what values are multiplied with before they become codes.
template <backend::Activations kForm>
struct MxScale {
  static constexpr ActivationType::Blocks kBlocks = *type_of(kForm).blocks;
  E8m0 scale;
  float down;
  __device__ __forceinline__ explicit MxScale(float most)
      : scale(mx_scale_for(most, kBlocks.element, kBlocks.rule)),
        down(scale.is_nan() ? scale.to_float() : mx_inverse_scale(scale)) {}
};

// Who makes codes of pairs; arch/sm121/mx_mma.h has others.
struct MxPairs {
  template <MxFormat kFormat>
  __device__ __forceinline__ static uint32_t pair(float low, float high) {
    return ptx::mx_pair<kFormat>(low, high);
  }
};

}  // namespace nibble::backend::cuda
