#pragma once
// Host twin of ptx/keep.cuh.

namespace nibble::backend::cuda::ptx {

template <class T>
void keep(T&) {}

template <int kRegisters>
void give_registers_but() {}
template <int kRegisters>
void take_registers_up_to() {}

}  // namespace nibble::backend::cuda::ptx
