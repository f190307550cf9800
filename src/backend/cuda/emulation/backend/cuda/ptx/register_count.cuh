#pragma once
// Host twin of ptx/register_count.cuh.

namespace nibble::backend::cuda::ptx {

template <int kRegisters>
void give_registers_but() {}
template <int kRegisters>
void take_registers_up_to() {}

}  // namespace nibble::backend::cuda::ptx
