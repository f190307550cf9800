#pragma once
// Launchers without a plan, which every card has; each is defined beside its kernel.

#include "backend/cuda/launch/kernel_table.h"

#include <cuda_runtime_api.h>

namespace nibble::backend::cuda {

void any_embed(const EmbedLaunch& args, const Launch& on);
void any_rmsnorm(const RmsnormLaunch& args, const Launch& on);
void any_linear(const LinearLaunch& args, const Launch& on);
void any_rope_kv(const RopeKvLaunch& args, const Launch& on);
void any_attend(const AttendLaunch& args, const Launch& on);
void any_top_experts(const TopExpertsLaunch& args, const Launch& on);
void any_rope_table(const RopeTableLaunch& args, const Launch& on);
void any_moe_group(const MoeLaunch& args, const Launch& on);
void any_moe_gate_up(const MoeLaunch& args, const Launch& on);
void any_moe_down(const MoeLaunch& args, const Launch& on);
void any_moe_combine(const MoeLaunch& args, const Launch& on);
void any_sample(const SampleLaunch& args, const Launch& on);

// What the build holds of these kernels for the current device: cudaSuccess and the architecture that it was compiled
// for, 80 of sm_80.
struct KernelCode {
  cudaError_t status = cudaSuccess;
  int arch = 0;
};
[[nodiscard]] KernelCode any_kernels_code();

}  // namespace nibble::backend::cuda
