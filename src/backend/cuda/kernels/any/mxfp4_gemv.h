#pragma once
// Launchers of the MXFP4 kernels; arguments and contracts: mxfp4_plan.h.

#include "backend/cuda/kernels/any/mxfp4_plan.h"

#include <cuda_runtime_api.h>

namespace nibble::backend::cuda {

// kChained: programmatic dependent launch. The kernel starts while its predecessor drains, fetches its first weights
// and waits for the predecessor's end before it touches anything else.
enum class Chain : uint8_t { kNone, kChained };

struct GemvLaunch {
  GemvDevice device;
  cudaStream_t stream = nullptr;
  Chain chain = Chain::kNone;
  int stages = 0;  // of the ring; 0: the plan decides
};

// Check the arguments (Error as check_args and plan_gemv say), launch, return. Error(kDevice) when the launch fails.
void mxfp4_dense(const DenseArgs& args, const GemvLaunch& launch);
void mxfp4_moe_up(const MoeUpArgs& args, const GemvLaunch& launch);
void mxfp4_moe_down(const MoeDownArgs& args, const GemvLaunch& launch);

void mxfp4_pack(const PackArgs& args, cudaStream_t stream);

}  // namespace nibble::backend::cuda
