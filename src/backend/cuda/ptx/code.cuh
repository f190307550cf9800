#pragma once
// The architecture that code is compiled for: 800 for sm_80, 900 for sm_90, … Host code has none. Only a function of
// one instruction in this folder asks, to do without an instruction that its architecture lacks.

namespace nibble::backend::cuda::ptx {

#ifdef __CUDA_ARCH__
inline constexpr int kCode = __CUDA_ARCH__;
#else
inline constexpr int kCode = 0;
#endif

// Bulk copies, barriers that count bytes, launches that overlap.
inline constexpr bool kHasBulk = kCode >= 900;
// Conversions and products of e4m3.
inline constexpr bool kHasE4m3 = kCode >= 890;
// Conversions of e2m1 and e2m3: of GB10 and its like, whose code runs on no other card.
#if defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL)
inline constexpr bool kHasSmallFloats = true;
#else
inline constexpr bool kHasSmallFloats = false;
#endif

}  // namespace nibble::backend::cuda::ptx
