#pragma once
// One product, or conversion, of a policy (mx_mma.h) and nothing else: what the policies' tests run. Test code.

#include "backend/cuda/testing/mx_probe.h"
#include "backend/cuda/arch/sm121/mx_mma.h"

namespace nibble::backend::cuda {

// A warp per fragments. d: [warps][32 lanes][4], in and out.
template <class Mma, int kProduct>
__global__ void mx_probe_product(const MxFragments* fragments, float* d) {
  constexpr MxProduct kWhat = kMxProducts[kProduct];
  const int lane = static_cast<int>(threadIdx.x);
  const MxOperands own = fragments[blockIdx.x].lane[lane];
  float* const at = d + (static_cast<int64_t>(blockIdx.x) * layout::kWarpLanes + lane) * 4;
  float sums[4] = {at[0], at[1], at[2], at[3]};
  if constexpr (kWhat.shape.k == layout::kMxK64.k)
    Mma::template mma_k64<kWhat.byte_a, kWhat.byte_b>(sums, own.a, own.b, own.scale_a, own.scale_b);
  else
    Mma::template mma_k32<kWhat.a, kWhat.b, kWhat.byte_a, kWhat.byte_b>(sums, own.a, own.b, own.scale_a, own.scale_b);
  for (int i = 0; i < 4; ++i) at[i] = sums[i];
}

// pairs[i] = the codes of values[2 i] and values[2 i + 1]; a warp per 32.
template <class Mma, MxFormat kFormat>
__global__ void mx_probe_pairs(const float* values, uint32_t* pairs) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * layout::kWarpLanes + static_cast<int>(threadIdx.x);
  pairs[i] = Mma::template pair<kFormat>(values[2 * i], values[2 * i + 1]);
}

}  // namespace nibble::backend::cuda
