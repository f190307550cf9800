#pragma once
// Which element sits where in mma.sync.m16n8k16 with f16 operands and an f32 result.
// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". half: 0 = low 16 bits of the register.

namespace nibble::backend::cuda::layout {

inline constexpr int kWarpLanes = 32;

[[nodiscard]] constexpr int a_row(int lane, int reg) { return lane / 4 + 8 * (reg % 2); }
[[nodiscard]] constexpr int a_k(int lane, int reg, int half) { return 2 * (lane % 4) + half + 8 * (reg / 2); }
[[nodiscard]] constexpr int b_k(int lane, int reg, int half) { return 2 * (lane % 4) + half + 8 * reg; }
[[nodiscard]] constexpr int d_row(int lane, int reg) { return lane / 4 + 8 * (reg / 2); }
[[nodiscard]] constexpr int d_col(int lane, int reg) { return 2 * (lane % 4) + reg % 2; }

}  // namespace nibble::backend::cuda::layout
