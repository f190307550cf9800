#pragma once
// MxProbe of a policy. Test code.

#include "backend/cuda/testing/mx_probe.cuh"

namespace nibble::backend::cuda {

template <class Mma, int kProduct = 0>
void launch_mx_product(int product, const MxFragments* fragments, float* d, size_t count) {
  if constexpr (kProduct < kMxProductCount) {
    if (product != kProduct) return launch_mx_product<Mma, kProduct + 1>(product, fragments, d, count);
    mx_probe_product<Mma, kProduct><<<static_cast<unsigned>(count), layout::kWarpLanes>>>(fragments, d);
  }
}
template <class Mma, int kFormat = 0>
void launch_mx_pairs(int format, const float* values, uint32_t* pairs, size_t count) {
  if constexpr (kFormat < kMxPairFormatCount) {
    if (format != kFormat) return launch_mx_pairs<Mma, kFormat + 1>(format, values, pairs, count);
    mx_probe_pairs<Mma, kMxPairFormats[kFormat]>
        <<<static_cast<unsigned>(count / layout::kWarpLanes), layout::kWarpLanes>>>(values, pairs);
  }
}

template <class Mma>
MxProbe mx_probe() {
  return {launch_mx_product<Mma>, launch_mx_pairs<Mma>};
}

}  // namespace nibble::backend::cuda
