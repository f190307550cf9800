#pragma once
// The plain launchers of this folder.

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

// cudaSuccess when the build holds machine code of them for the current device.
[[nodiscard]] cudaError_t any_kernels_fit_device();

}  // namespace nibble::backend::cuda
