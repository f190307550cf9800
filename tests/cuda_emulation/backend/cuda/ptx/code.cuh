#pragma once
// Host twin of ptx/code.cuh: as which architecture's code the kernels' source runs.

namespace nibble::backend::cuda::ptx {

#ifdef NIBBLE_EMULATED_CODE
inline constexpr int kCode = NIBBLE_EMULATED_CODE;
#else
inline constexpr int kCode = 900;
#endif
inline constexpr bool kHasBulk = kCode >= 900, kHasE4m3 = kCode >= 890, kHasSmallFloats = false;

}  // namespace nibble::backend::cuda::ptx
