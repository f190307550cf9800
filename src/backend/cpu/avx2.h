#pragma once
// What the files of AVX2's intrinsics share: their code runs only where the CPU has these.

#define NIBBLE_AVX2_TARGET "avx,avx2,fma,f16c"
