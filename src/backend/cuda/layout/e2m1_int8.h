#pragma once
// e2m1 codes as signed bytes of twice their value, four consecutive k of a row to a word: what dp4a multiplies. Plain
// C++.

#include <cstdint>

namespace nibble::backend::cuda::layout {

// widen_e2m1x8 (e2m1_f16.h) makes a code the f16 number v * 2^-14. Times 2^15 plus 1536 it is 1536 + 2 v, whose
// mantissa counts in ones: its low byte is 2 v in two's complement.
inline constexpr uint32_t kInt8FromE2m1Factor = 0x78007800u;  // 2^15, twice
inline constexpr uint32_t kInt8FromE2m1Add = 0x66006600u;     // 1536, twice
// A weight is its byte times scale_of (mx_a_m16k32.h) times this: half of it, and 2^-14 that the scale holds too much.
inline constexpr float kE2m1FromInt8 = 0x1p-15f;

}  // namespace nibble::backend::cuda::layout
