#pragma once
// sm121_mx_gemm with EmulatedMx, for cards without the instruction. Test code.

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/arch/sm121/kernels.h"

namespace nibble::backend::cuda {

void emulated_mx_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on);

// GB10's architecture on any card: all as there, but for the instruction.
[[nodiscard]] inline Arch sm121_emulated() {
  Arch arch = sm121();
  arch.runs_on = [](const DeviceFacts&) { return true; };
  arch.gemm.launch = arch.experts_gemm.launch = emulated_mx_gemm;
  return arch;
}

}  // namespace nibble::backend::cuda
