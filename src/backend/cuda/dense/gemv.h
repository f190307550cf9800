#pragma once
// Launchers of the decode kernels; arguments and contracts: gemv_plan.h.

#include "backend/cuda/dense/gemv_plan.h"

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
  int warps = 0;   // of a CTA of row_warps.cuh; 0: as many as fit
};

// Check the arguments (Error as check_args and plan_gemv say), launch, return. Error(kDevice) when the launch fails.
void gemv_dense(const DenseArgs& args, const GemvLaunch& launch);
void gemv_qkv(const QkvArgs& args, const GemvLaunch& launch);
void route_logits(const RouterArgs& args, const GemvLaunch& launch);
void gemv_moe_up(const MoeUpArgs& args, const GemvLaunch& launch);
void gemv_moe_down(const MoeDownArgs& args, const GemvLaunch& launch);

void pack_weights(const PackArgs& args, cudaStream_t stream);
void quantize_weights(const QuantizeArgs& args, cudaStream_t stream);
void translate_weights(const TranslateArgs& args, cudaStream_t stream);

}  // namespace nibble::backend::cuda
